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

// Calls `function` with six words, fourteen or thirty. Returns its status, or -1 where it let an exception out.
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

// The same with thirty, and two zeros for what it takes of floats (those have registers of their own, wherever they
// stand among the words).
ANYXPU_EXPORT int anyxpu_sycl_guarded_30(
    int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                    uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                    uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                    float, float),
    uint64_t w0, uint64_t w1, uint64_t w2, uint64_t w3, uint64_t w4, uint64_t w5, uint64_t w6, uint64_t w7, uint64_t w8,
    uint64_t w9, uint64_t w10, uint64_t w11, uint64_t w12, uint64_t w13, uint64_t w14, uint64_t w15, uint64_t w16,
    uint64_t w17, uint64_t w18, uint64_t w19, uint64_t w20, uint64_t w21, uint64_t w22, uint64_t w23, uint64_t w24,
    uint64_t w25, uint64_t w26, uint64_t w27, uint64_t w28, uint64_t w29) {
  return guarded_call([&] {
    return function(w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15, w16, w17, w18, w19, w20, w21,
                    w22, w23, w24, w25, w26, w27, w28, w29, 0.0f, 0.0f);
  });
}

// The same of oneDNN's dnnl_sycl_interop_primitive_execute, which submits to `queue`: it waits for the queue's gate, as
// this driver's own submissions do. Its last word says where to leave the event of what it submits.
ANYXPU_EXPORT int anyxpu_sycl_submit_6(ax_queue* queue, anyxpu_sycl_six_words function, uint64_t a, uint64_t b,
                                       uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
  std::lock_guard gate(anyxpu::sycl_driver::gate_of(queue));
  ax_event* const timed = anyxpu::sycl_driver::take_timed();
  const uint64_t asked = timed == nullptr ? 0 : anyxpu::sycl_driver::steady_now();
  if (timed != nullptr) f = reinterpret_cast<uint64_t>(&timed->event);
  return guarded_call([&] {
    const int status = function(a, b, c, d, e, f);
    if (timed != nullptr && status == 0) timed->asked = asked;
    return status;
  });
}

// What the last exception of this thread said.
ANYXPU_EXPORT const char* anyxpu_sycl_guarded_exception() {
  return anyxpu::sycl_driver::exception_of_this_thread().c_str();
}
