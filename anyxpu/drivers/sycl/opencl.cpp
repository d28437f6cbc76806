// Modules and kernels of OpenCL devices (Intel's CPU driver).
#include <CL/cl_ext.h>

#include <algorithm>
#include <array>

#include "opencl_program.h"

namespace anyxpu::sycl_driver {
namespace {

// cl_ext.h of older runtimes does not name it.
constexpr cl_kernel_work_group_info kSpillMemSize = 0x4109;

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

// The platform's objects behind SYCL's; get_native hands out a reference of each.
struct Natives {
  explicit Natives(const Device& device)
      : device(sycl::get_native<sycl::backend::opencl>(device.device)),
        context(sycl::get_native<sycl::backend::opencl>(device.context)) {}
  ~Natives() {
    clReleaseContext(context);
    clReleaseDevice(device);
  }
  cl_device_id device;
  cl_context context;
};

class OpenCLModule final : public ax_module {
 public:
  OpenCLModule(Device& device, const Code& code)
      : ax_module(device), natives_(device), program_(natives_.context, natives_.device, code) {}

  std::vector<uint8_t> native() const override { return program_.binary(); }

  std::unique_ptr<ax_kernel> kernel(const std::string& name) const override {
    cl_int code = CL_SUCCESS;
    cl_kernel handle = clCreateKernel(program_.handle(), name.c_str(), &code);
    if (code != CL_SUCCESS) {
      throw Failure(AX_INVALID, "the module has no kernel " + name + " (" + cl_error_name(code) +
                                    "); it has: " + program_.kernel_names());
    }
    auto made = wrap(handle, name);
    cl_uint count = 0;
    clGetKernelInfo(handle, CL_KERNEL_NUM_ARGS, sizeof(count), &count, nullptr);
    made->arg_count = count;
    const auto required =
        work_group_info<std::array<size_t, 3>>(handle, natives_.device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE);
    std::copy(required.begin(), required.end(), made->required_local);
    const auto group_size = work_group_info<size_t>(handle, natives_.device, CL_KERNEL_WORK_GROUP_SIZE);
    made->info.max_work_group_size = static_cast<uint32_t>(group_size);
    made->info.sub_group_size = sub_group_size(handle, natives_.device, group_size);
    made->info.local_mem_size =
        static_cast<uint32_t>(work_group_info<cl_ulong>(handle, natives_.device, CL_KERNEL_LOCAL_MEM_SIZE));
    made->info.private_mem_size =
        static_cast<uint32_t>(work_group_info<cl_ulong>(handle, natives_.device, CL_KERNEL_PRIVATE_MEM_SIZE));
    made->info.spill_size = work_group_info<cl_uint>(handle, natives_.device, kSpillMemSize);
    // A work-group is one thread's there, from its beginning to its end.
    if (device.device.is_cpu())
      made->info.concurrent_groups = device.device.get_info<sycl::info::device::max_compute_units>();
    if (device.in_place != nullptr) {
      made->direct.reset(clCreateKernel(program_.handle(), name.c_str(), &code));
      if (made->direct != nullptr) made->in_place = device.in_place.get();
      made->entry = Entry::of(program_.handle(), handle, natives_.device);
      made->info.called = made->entry ? 1 : 0;
    }
    return made;
  }

 private:
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

  Natives natives_;
  OpenCLProgram program_;
};

}  // namespace

std::unique_ptr<ax_module> make_opencl_module(Device& device, const Code& code) {
  return std::make_unique<OpenCLModule>(device, code);
}

}  // namespace anyxpu::sycl_driver
