// xpu's device memory as the rest of the shim sees it.
//
// The allocator caches: memory freed on a stream serves the same stream again at once, in that stream's order, and
// another stream never, until empty_cache() or an allocation that found no room gives it back to the device.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <memory>
#include <optional>

#include "drivers/driver.h"

namespace anyxpu {

// What stands registered as c10's allocator of DeviceType::XPU: the caching one, or one the user supplied.
class XpuAllocator : public c10::DeviceAllocator {
 public:
  // `bytes` on the current device, ordered by its current stream; nullptr for 0. Throws c10::OutOfMemoryError.
  virtual void* raw_alloc(size_t bytes) = 0;
  // The same, ordered by `queue`, a queue of the current device.
  virtual void* raw_alloc_with_queue(size_t bytes, ax_queue* queue) = 0;
  // Takes what raw_alloc or allocate handed out. Never waits for work, except in an allocator the user supplied.
  virtual void raw_delete(void* pointer) = 0;
  // The memory at `pointer` (the start of an allocation) is in use by work already given to `stream`, a stream
  // other than the one it was allocated on: it serves nobody else before that work is done.
  virtual void record_stream(const void* pointer, c10::Stream stream) = 0;
  // The device of an address of this allocator's memory, at the start of an allocation or inside one.
  virtual std::optional<c10::DeviceIndex> device_of(const void* pointer) const = 0;
  // True once it has handed out memory.
  virtual bool used() const = 0;

  c10::DataPtr allocate(size_t bytes) final;
  c10::DeleterFnPtr raw_deleter() const final;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) final;
  void copy_data(void* dst, const void* src, size_t bytes) const final;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
};

// The one in use.
XpuAllocator* xpu_allocator();

// Shorthands over xpu_allocator(). record_stream ignores memory that is not ours.
void record_stream(const c10::DataPtr& data, c10::Stream stream);
std::optional<c10::DeviceIndex> device_of(const void* pointer);

// Puts `replacement` in place of the allocator in use. Throws if that one has handed out memory.
void change_allocator(std::shared_ptr<XpuAllocator> replacement);
std::shared_ptr<XpuAllocator> shared_allocator();

}  // namespace anyxpu
