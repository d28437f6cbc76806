#include "in_place.h"

#include <CL/cl_ext.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "opencl_program.h"

namespace anyxpu::sycl_driver {
namespace {

// CL_QUEUE_THREAD_LOCAL_EXEC_ENABLE_INTEL; the headers do not name it.
constexpr cl_queue_properties kThreadLocal = cl_queue_properties{1} << 31;

cl_platform_id platform_of(cl_device_id device) {
  cl_platform_id platform = nullptr;
  clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof(platform), &platform, nullptr);
  return platform;
}

}  // namespace

std::unique_ptr<InPlace> InPlace::make(cl_context context, cl_device_id device) {
  if (!has_extension(device, "cl_intel_exec_by_local_thread")) return nullptr;
  const auto set_pointer = reinterpret_cast<SetPointer>(
      clGetExtensionFunctionAddressForPlatform(platform_of(device), "clSetKernelArgMemPointerINTEL"));
  if (set_pointer == nullptr) return nullptr;
  const std::array<cl_queue_properties, 3> properties{CL_QUEUE_PROPERTIES, kThreadLocal, 0};
  cl_int status = CL_SUCCESS;
  cl_command_queue queue = clCreateCommandQueueWithProperties(context, device, properties.data(), &status);
  if (status != CL_SUCCESS) return nullptr;
  return std::unique_ptr<InPlace>(new InPlace(queue, set_pointer));
}

std::unique_ptr<InPlace> make_in_place(const sycl::device& device, const sycl::context& context) {
  if (device.get_backend() != sycl::backend::opencl || !device.is_cpu()) return nullptr;
  cl_device_id cl_device = sycl::get_native<sycl::backend::opencl>(device);
  cl_context cl_context = sycl::get_native<sycl::backend::opencl>(context);
  auto made = InPlace::make(cl_context, cl_device);
  clReleaseContext(cl_context);
  clReleaseDevice(cl_device);
  return made;
}

InPlace::~InPlace() { clReleaseCommandQueue(queue_); }

bool InPlace::run(cl_kernel kernel, const uint32_t groups[3], const uint32_t local[3], const ax_arg* args,
                  uint32_t arg_count) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  // Another thread is at it: the device's own threads come sooner than that one ends.
  if (!lock.owns_lock() || !set_arguments(kernel, args, arg_count)) return false;
  const std::array<size_t, 3> items{local[0], local[1], local[2]};
  const std::array<size_t, 3> all{size_t{groups[0]} * local[0], size_t{groups[1]} * local[1],
                                  size_t{groups[2]} * local[2]};
  // Such a queue's commands have run when the call that enqueues them returns.
  return clEnqueueNDRangeKernel(queue_, kernel, 3, nullptr, all.data(), items.data(), 0, nullptr, nullptr) ==
         CL_SUCCESS;
}

bool InPlace::set_arguments(cl_kernel kernel, const ax_arg* args, uint32_t count) const {
  for (uint32_t i = 0; i < count; ++i) {
    const ax_arg& arg = args[i];
    cl_int status = CL_SUCCESS;
    if (arg.kind == AX_ARG_POINTER) {
      void* pointer = nullptr;
      std::memcpy(&pointer, arg.value, sizeof(pointer));
      status = set_pointer_(kernel, i, pointer);
    } else {
      status = clSetKernelArg(kernel, i, arg.size, arg.kind == AX_ARG_LOCAL ? nullptr : arg.value);
    }
    if (status != CL_SUCCESS) return false;
  }
  return true;
}

}  // namespace anyxpu::sycl_driver
