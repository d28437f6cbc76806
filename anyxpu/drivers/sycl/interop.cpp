// What a library that speaks SYCL (oneDNN) needs to run on this driver's queues, behind plain C names.
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <sycl/sycl.hpp>

#define ANYXPU_EXPORT extern "C" __attribute__((visibility("default")))

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
