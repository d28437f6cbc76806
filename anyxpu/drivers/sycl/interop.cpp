// What a library that speaks SYCL (oneDNN) needs to run on this driver's queues, behind plain C names.
#include "interop.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <sycl/sycl.hpp>

#include "common.h"

using anyxpu::sycl_driver::guarded_call;

// A number that no other living queue has: equal for handles of one queue, whatever their addresses.
ANYXPU_EXPORT uint64_t anyxpu_sycl_queue_identity(const sycl::queue* queue) { return std::hash<sycl::queue>{}(*queue); }

// A copy of the queue's device and of its context, to be given back with anyxpu_sycl_release_parts.
ANYXPU_EXPORT int anyxpu_sycl_queue_parts(const sycl::queue* queue, sycl::device** device, sycl::context** context) {
  try {
    auto its_device = std::make_unique<sycl::device>(queue->get_device());
    *context = new sycl::context(queue->get_context());
    *device = its_device.release();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

ANYXPU_EXPORT void anyxpu_sycl_release_parts(sycl::device* device, sycl::context* context) {
  delete device;
  delete context;
}

std::string& anyxpu::sycl_driver::exception_of_this_thread() {
  static thread_local std::string said;
  return said;
}

// Calls `function` with six words, or fourteen. Returns its status, or -1 where it let an exception out.
ANYXPU_EXPORT int anyxpu_sycl_guarded_6(anyxpu_sycl_six_words function, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                                        uint64_t e, uint64_t f) {
  return guarded_call([&] { return function(a, b, c, d, e, f); });
}

ANYXPU_EXPORT int anyxpu_sycl_guarded_14(int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                                         uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                                         uint64_t, uint64_t),
                                         uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                                         uint64_t g, uint64_t h, uint64_t i, uint64_t j, uint64_t k, uint64_t l,
                                         uint64_t m, uint64_t n) {
  return guarded_call([&] { return function(a, b, c, d, e, f, g, h, i, j, k, l, m, n); });
}

// The same of a call that submits to `queue`: it waits for the queue's gate, as this driver's own submissions do.
ANYXPU_EXPORT int anyxpu_sycl_submit_6(ax_queue* queue, anyxpu_sycl_six_words function, uint64_t a, uint64_t b,
                                       uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
  std::lock_guard gate(anyxpu::sycl_driver::gate_of(queue));
  return guarded_call([&] { return function(a, b, c, d, e, f); });
}

// What the last exception of this thread said.
ANYXPU_EXPORT const char* anyxpu_sycl_guarded_exception() {
  return anyxpu::sycl_driver::exception_of_this_thread().c_str();
}
