// The least that a SYCL program can do to launch a kernel: what `anyxpu bench launch` holds its own launch against.
#include <exception>
#include <sycl/sycl.hpp>

// Submits the kernel `calls` times, its arguments three addresses and a number; 1 where SYCL refuses.
extern "C" __attribute__((visibility("default"))) int anyxpu_bare_submits(sycl::queue* queue,
                                                                          const sycl::kernel* kernel,
                                                                          void* const* addresses, int number,
                                                                          size_t items, size_t local, int calls) {
  try {
    for (int call = 0; call < calls; ++call) {
      queue->submit([&](sycl::handler& handler) {
        for (int i = 0; i < 3; ++i) handler.set_arg(i, addresses[i]);
        handler.set_arg(3, number);
        handler.parallel_for(sycl::nd_range<1>(items, local), *kernel);
      });
    }
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}
