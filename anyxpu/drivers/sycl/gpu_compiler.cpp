#include "gpu_compiler.h"

#include <CL/cl.h>
#include <CL/cl_ext.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "opencl_program.h"

namespace anyxpu::sycl_driver {
namespace {

namespace intel = sycl::ext::intel::info::device;

constexpr cl_uint kIntelVendor = 0x8086;
// cl_ext.h of older runtimes does not name it.
constexpr cl_device_info kDeviceIdIntel = 0x4251;

struct Compiler {
  cl_device_id device = nullptr;
  cl_context context = nullptr;
};

std::vector<cl_device_id> gpus_of_intel() {
  cl_uint count = 0;
  if (clGetPlatformIDs(0, nullptr, &count) != CL_SUCCESS || count == 0) return {};
  std::vector<cl_platform_id> platforms(count);
  clGetPlatformIDs(count, platforms.data(), nullptr);
  std::vector<cl_device_id> found;
  for (cl_platform_id platform : platforms) {
    cl_uint here = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_GPU, 0, nullptr, &here) != CL_SUCCESS || here == 0) continue;
    std::vector<cl_device_id> devices(here);
    clGetDeviceIDs(platform, CL_DEVICE_TYPE_GPU, here, devices.data(), nullptr);
    for (cl_device_id device : devices) {
      cl_uint vendor = 0;
      clGetDeviceInfo(device, CL_DEVICE_VENDOR_ID, sizeof(vendor), &vendor, nullptr);
      if (vendor == kIntelVendor) found.push_back(device);
    }
  }
  return found;
}

// The very device where the two drivers agree on its UUID, else one of the same product.
cl_device_id same_gpu(const sycl::device& wanted) {
  std::array<uint8_t, CL_UUID_SIZE_KHR> uuid{};
  if (wanted.has(sycl::aspect::ext_intel_device_info_uuid)) {
    const auto its = wanted.get_info<intel::uuid>();
    std::copy(its.begin(), its.end(), uuid.begin());
  }
  const cl_uint id =
      wanted.has(sycl::aspect::ext_intel_device_id) ? static_cast<cl_uint>(wanted.get_info<intel::device_id>()) : 0;
  cl_device_id product = nullptr;
  for (cl_device_id device : gpus_of_intel()) {
    std::array<uint8_t, CL_UUID_SIZE_KHR> here{};
    if (clGetDeviceInfo(device, CL_DEVICE_UUID_KHR, here.size(), here.data(), nullptr) == CL_SUCCESS && here == uuid)
      return device;
    cl_uint its = 0;
    if (clGetDeviceInfo(device, kDeviceIdIntel, sizeof(its), &its, nullptr) == CL_SUCCESS && its == id)
      product = device;
  }
  return product;
}

// Kept for the life of the process, as the devices are. The loader is asked once for each GPU.
const Compiler& compiler_of(const Device& device) {
  static auto* mutex = new std::mutex;
  static auto* made = new std::unordered_map<const Device*, Compiler>;
  std::lock_guard lock(*mutex);
  const auto [entry, fresh] = made->try_emplace(&device);
  if (fresh) entry->second.device = same_gpu(device.device);
  return entry->second;
}

// A context costs more than asking what the device is called, so it waits for the first program.
cl_context context_of(const Device& device) {
  static auto* mutex = new std::mutex;
  auto& compiler = const_cast<Compiler&>(compiler_of(device));
  std::lock_guard lock(*mutex);
  if (compiler.context == nullptr) {
    cl_int status = CL_SUCCESS;
    compiler.context = clCreateContext(nullptr, 1, &compiler.device, nullptr, nullptr, &status);
    check_cl(status, "make a context of the GPU's OpenCL driver", AX_UNSUPPORTED);
  }
  return compiler.context;
}

}  // namespace

// What is said of the device; who hands OpenCL C over all the same is served where that is possible.
bool compiles_opencl_c(const Device& device) {
  const char* asked = std::getenv("ANYXPU_GPU_COMPILER");
  return (asked == nullptr || std::strcmp(asked, "ocloc") != 0) && compiler_of(device).device != nullptr;
}

bool supports_extension(const Device& device, const char* name) {
  return compiler_of(device).device != nullptr && has_extension(compiler_of(device).device, name);
}

std::vector<uint8_t> compile_opencl_c(const Device& device, const Code& code) {
  if (compiler_of(device).device == nullptr) {
    throw Failure(AX_UNSUPPORTED,
                  "Level Zero does not compile OpenCL C, and Intel's OpenCL driver for this GPU, which does, is not "
                  "installed (apt-get install intel-opencl-icd). Or compile it offline (anyxpu get-ocloc) and hand "
                  "over SPIR-V or native code");
  }
  return OpenCLProgram(context_of(device), compiler_of(device).device, code).binary();
}

}  // namespace anyxpu::sycl_driver
