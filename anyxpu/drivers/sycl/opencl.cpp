// Modules and kernels of OpenCL devices (Intel's CPU driver).
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include <algorithm>
#include <array>

#include "modules.h"

namespace anyxpu::sycl_driver {
namespace {

// cl_ext.h of older runtimes does not name it.
constexpr cl_kernel_work_group_info kSpillMemSize = 0x4109;

struct ErrorName {
  cl_int code;
  const char* name;
};

constexpr std::array<ErrorName, 16> kErrorNames{{
    {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE"},
    {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE"},
    {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES"},
    {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY"},
    {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"},
    {CL_LINK_PROGRAM_FAILURE, "CL_LINK_PROGRAM_FAILURE"},
    {CL_INVALID_VALUE, "CL_INVALID_VALUE"},
    {CL_INVALID_BINARY, "CL_INVALID_BINARY"},
    {CL_INVALID_BUILD_OPTIONS, "CL_INVALID_BUILD_OPTIONS"},
    {CL_INVALID_PROGRAM, "CL_INVALID_PROGRAM"},
    {CL_INVALID_PROGRAM_EXECUTABLE, "CL_INVALID_PROGRAM_EXECUTABLE"},
    {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME"},
    {CL_INVALID_KERNEL_DEFINITION, "CL_INVALID_KERNEL_DEFINITION"},
    {CL_INVALID_KERNEL, "CL_INVALID_KERNEL"},
    {CL_INVALID_OPERATION, "CL_INVALID_OPERATION"},
    {CL_INVALID_COMPILER_OPTIONS, "CL_INVALID_COMPILER_OPTIONS"},
}};

std::string error_name(cl_int code) {
  for (const ErrorName& entry : kErrorNames) {
    if (entry.code == code) return entry.name;
  }
  return "OpenCL error " + std::to_string(code);
}

void check(cl_int code, const char* what, ax_status status = AX_BUILD_FAILED) {
  if (code != CL_SUCCESS) throw Failure(status, std::string("cannot ") + what + ": " + error_name(code));
}

template <typename T>
T work_group_info(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info what) {
  T value{};
  // Not every driver knows every query; what it does not know stays 0.
  clGetKernelWorkGroupInfo(kernel, device, what, sizeof(value), &value, nullptr);
  return value;
}

// The size a kernel requires, or else the one the driver uses for a one-dimensional group of the largest size.
uint32_t sub_group_size(cl_kernel kernel, cl_device_id device, size_t work_group_size) {
  size_t size = 0;
  if (clGetKernelSubGroupInfo(kernel, device, CL_KERNEL_COMPILE_SUB_GROUP_SIZE_INTEL, 0, nullptr, sizeof(size), &size,
                              nullptr) == CL_SUCCESS &&
      size != 0) {
    return static_cast<uint32_t>(size);
  }
  clGetKernelSubGroupInfo(kernel, device, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE_KHR, sizeof(work_group_size),
                          &work_group_size, sizeof(size), &size, nullptr);
  return static_cast<uint32_t>(size);
}

class OpenCLModule final : public ax_module {
 public:
  OpenCLModule(Device& device, const Code& code)
      : ax_module(device),
        cl_device_(sycl::get_native<sycl::backend::opencl>(device.device)),
        cl_context_(sycl::get_native<sycl::backend::opencl>(device.context)) {
    try {
      create(code);
      build(code.options);
    } catch (...) {
      release();
      throw;
    }
  }
  ~OpenCLModule() override { release(); }

  std::vector<uint8_t> native() const override {
    size_t size = 0;
    check(clGetProgramInfo(program_, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr), "read the binary's size",
          AX_INVALID);
    std::vector<uint8_t> binary(size);
    uint8_t* pointers[] = {binary.data()};
    check(clGetProgramInfo(program_, CL_PROGRAM_BINARIES, sizeof(pointers), pointers, nullptr), "read the binary",
          AX_INVALID);
    return binary;
  }

  std::unique_ptr<ax_kernel> kernel(const std::string& name) const override {
    cl_int code = CL_SUCCESS;
    cl_kernel handle = clCreateKernel(program_, name.c_str(), &code);
    if (code != CL_SUCCESS) {
      throw Failure(AX_INVALID, "the module has no kernel " + name + " (" + error_name(code) + "); it has: " + names());
    }
    auto made = wrap(handle, name);
    cl_uint count = 0;
    clGetKernelInfo(handle, CL_KERNEL_NUM_ARGS, sizeof(count), &count, nullptr);
    made->arg_count = count;
    const auto required = work_group_info<std::array<size_t, 3>>(handle, cl_device_, CL_KERNEL_COMPILE_WORK_GROUP_SIZE);
    std::copy(required.begin(), required.end(), made->required_local);
    const auto group_size = work_group_info<size_t>(handle, cl_device_, CL_KERNEL_WORK_GROUP_SIZE);
    made->info.max_work_group_size = static_cast<uint32_t>(group_size);
    made->info.sub_group_size = sub_group_size(handle, cl_device_, group_size);
    made->info.local_mem_size =
        static_cast<uint32_t>(work_group_info<cl_ulong>(handle, cl_device_, CL_KERNEL_LOCAL_MEM_SIZE));
    made->info.private_mem_size =
        static_cast<uint32_t>(work_group_info<cl_ulong>(handle, cl_device_, CL_KERNEL_PRIVATE_MEM_SIZE));
    made->info.spill_size = work_group_info<cl_uint>(handle, cl_device_, kSpillMemSize);
    if (device.in_place != nullptr) {
      made->direct.reset(clCreateKernel(program_, name.c_str(), &code));
      if (made->direct != nullptr) made->in_place = device.in_place.get();
    }
    return made;
  }

 private:
  void create(const Code& code) {
    cl_int status = CL_SUCCESS;
    const size_t size = code.bytes;
    switch (code.format) {
      case AX_MODULE_OPENCL_C: {
        const char* text = static_cast<const char*>(code.data);
        program_ = clCreateProgramWithSource(cl_context_, 1, &text, &size, &status);
        return check(status, "load OpenCL C");
      }
      case AX_MODULE_SPIRV:
        program_ = clCreateProgramWithIL(cl_context_, code.data, size, &status);
        return check(status, "load SPIR-V");
      default: {
        const auto* binary = static_cast<const unsigned char*>(code.data);
        cl_int binary_status = CL_SUCCESS;
        program_ = clCreateProgramWithBinary(cl_context_, 1, &cl_device_, &size, &binary, &binary_status, &status);
        check(status, "load native code");
        return check(binary_status, "load native code");
      }
    }
  }

  void build(const char* options) {
    const cl_int status = clBuildProgram(program_, 1, &cl_device_, options, nullptr, nullptr);
    if (status == CL_SUCCESS) return;
    const std::string log = build_log();
    throw Failure(AX_BUILD_FAILED, log.empty() ? "the OpenCL compiler answers " + error_name(status) : log);
  }

  std::string build_log() const {
    size_t size = 0;
    clGetProgramBuildInfo(program_, cl_device_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
    std::string log(size, '\0');
    if (size) clGetProgramBuildInfo(program_, cl_device_, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
    while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
    return log;
  }

  std::string names() const {
    size_t size = 0;
    clGetProgramInfo(program_, CL_PROGRAM_KERNEL_NAMES, 0, nullptr, &size);
    std::string text(size, '\0');
    if (size) clGetProgramInfo(program_, CL_PROGRAM_KERNEL_NAMES, size, text.data(), nullptr);
    return text.c_str();
  }

  // The SYCL kernel takes a reference of its own.
  std::unique_ptr<ax_kernel> wrap(cl_kernel handle, const std::string& name) const {
    try {
      auto made = std::make_unique<ax_kernel>(
          ax_kernel{sycl::make_kernel<sycl::backend::opencl>(handle, device.context), name});
      clReleaseKernel(handle);
      return made;
    } catch (...) {
      clReleaseKernel(handle);
      throw;
    }
  }

  // get_native hands out a reference each of the context and the device.
  void release() {
    if (program_ != nullptr) clReleaseProgram(program_);
    clReleaseContext(cl_context_);
    clReleaseDevice(cl_device_);
  }

  cl_device_id cl_device_;
  cl_context cl_context_;
  cl_program program_ = nullptr;
};

}  // namespace

std::unique_ptr<ax_module> make_opencl_module(Device& device, const Code& code) {
  return std::make_unique<OpenCLModule>(device, code);
}

}  // namespace anyxpu::sycl_driver
