// Host functions in a queue's order.
//
// SYCL has host tasks for this, but commands that wait behind one are held back by SYCL's scheduler, whose work grows
// with the square of their number: a hundred small host tasks between kernels cost milliseconds each. OpenCL CPU
// devices run native kernels, which are host functions in the device's own queue; those cost what a kernel does.
#include <CL/cl.h>

#include <memory>

#include "common.h"

namespace anyxpu::sycl_driver {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;

struct HostCall {
  void (*fn)(void*);
  void* data;
  std::shared_ptr<Errors> errors;       // null for a queue that is somebody else's
  std::shared_ptr<HostInterval> timed;  // null where nobody asks

  // A function may throw to report a failure; its queue reports it when it is waited for.
  void run() noexcept {
    const uint64_t began = timed == nullptr ? 0 : steady_now();
    try {
      fn(data);
    } catch (const std::exception& error) {
      if (errors) errors->keep(error.what());
    } catch (...) {
      if (errors) errors->keep("an unknown exception of a host function");
    }
    if (timed == nullptr) return;
    timed->began = began;
    timed->ended.store(steady_now(), std::memory_order_release);
  }
};

void run_native(void* block) {
  std::unique_ptr<HostCall> call(*static_cast<HostCall**>(block));
  call->run();
}

// Whether all that was submitted to the queue so far lies in the backend's queue: then what is put there directly comes
// after it. A command that SYCL's scheduler still holds back shows what it waits for.
bool all_enqueued(sycl::queue& queue) { return queue.ext_oneapi_submit_barrier().get_wait_list().empty(); }

void enqueue_native(sycl::queue& queue, std::unique_ptr<HostCall> call) {
  cl_command_queue native = sycl::get_native<sycl::backend::opencl>(queue);
  HostCall* block = call.get();
  const cl_int status =
      clEnqueueNativeKernel(native, run_native, &block, sizeof(block), 0, nullptr, nullptr, 0, nullptr, nullptr);
  clReleaseCommandQueue(native);
  if (status != CL_SUCCESS)
    throw Failure(AX_LAUNCH_FAILED, "OpenCL refuses the host function with error " + std::to_string(status));
  (void)call.release();
  // SYCL did not see this command: a host task submitted next must find one that comes after it.
  queue.ext_oneapi_submit_barrier();
}

bool runs_native_kernels(const sycl::queue& queue) {
  if (queue.get_backend() != sycl::backend::opencl) return false;
  static const bool does = [&] {
    cl_device_id device = sycl::get_native<sycl::backend::opencl>(queue.get_device());
    cl_device_exec_capabilities capabilities = 0;
    clGetDeviceInfo(device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof(capabilities), &capabilities, nullptr);
    clReleaseDevice(device);
    return (capabilities & CL_EXEC_NATIVE_KERNEL) != 0;
  }();
  return does;
}

}  // namespace

ax_status host_call(ax_queue* queue, void (*fn)(void*), void* data) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    require(fn != nullptr, "a host call of a null function was asked for");
    auto call = std::make_unique<HostCall>(HostCall{fn, data, errors_of(queue), nullptr});
    if (ax_event* const timed = take_timed()) call->timed = timed->by_host = std::make_shared<HostInterval>();
    on_queue(queue, [&](sycl::queue& q) {
      if (runs_native_kernels(q) && all_enqueued(q)) return enqueue_native(q, std::move(call));
      experimental::host_task(q, [shared = std::shared_ptr<HostCall>(std::move(call))] { shared->run(); });
    });
  });
}

}  // namespace anyxpu::sycl_driver
