// Running a kernel in the thread that launches it, where that is sooner done than handing it to others.
#pragma once

#include <CL/cl.h>

#include <memory>
#include <mutex>

#include "drivers/driver.h"

namespace anyxpu::sycl_driver {

struct ReleaseKernel {
  void operator()(cl_kernel kernel) const { clReleaseKernel(kernel); }
};
// A kernel object that only InPlace launches: an OpenCL kernel holds its arguments, and SYCL sets those of its own.
using DirectKernel = std::unique_ptr<_cl_kernel, ReleaseKernel>;

// A device's way to run kernels in the calling thread (cl_intel_exec_by_local_thread).
class InPlace {
 public:
  // Null where the device has no such way.
  static std::unique_ptr<InPlace> make(cl_context context, cl_device_id device);
  ~InPlace();

  // Whether work of this size is better done in the calling thread.
  static bool suits(uint64_t work) { return work != 0 && work <= kMostWork; }
  // Runs the kernel to its end; false where that could not be started, and nothing happened.
  bool run(cl_kernel kernel, const uint32_t groups[3], const uint32_t local[3], const ax_arg* args, uint32_t arg_count);

 private:
  using SetPointer = cl_int (*)(cl_kernel, cl_uint, const void*);

  // Handing work to other threads takes 3 to 4 microseconds. In that time one core does about 2 * 10^5 operations on
  // elements that come in vectors and lie in its cache.
  static constexpr uint64_t kMostWork = 1'000'000;

  InPlace(cl_command_queue queue, SetPointer set_pointer) : queue_(queue), set_pointer_(set_pointer) {}
  bool set_arguments(cl_kernel kernel, const ax_arg* args, uint32_t count) const;

  std::mutex mutex_;
  const cl_command_queue queue_;
  const SetPointer set_pointer_;
};

}  // namespace anyxpu::sycl_driver
