// torch.xpu.MemPool: memory of the caching allocator kept apart for who asks for it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <memory>

#include "shim/allocator.h"
#include "shim/device_cache.h"

namespace anyxpu {

class MemoryPool {
 public:
  // On the current device; other devices get their part at their first use. `source` (or null: the driver) supplies
  // the segments.
  MemoryPool(std::shared_ptr<XpuAllocator> source, bool is_user_created, PoolRules rules);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  c10::MempoolId_t id() const { return id_; }
  std::shared_ptr<XpuAllocator> source() const { return source_; }
  int users() const;

 private:
  const c10::MempoolId_t id_;
  const std::shared_ptr<XpuAllocator> source_;
  const c10::DeviceIndex device_;
};

// Between begin and end, what the calling thread (or every thread) allocates on `device` comes from the pool. Each
// begin holds the pool once; release_pool lets it go.
void begin_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t id, bool this_thread_only);
void end_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t id);
void release_pool(c10::DeviceIndex device, c10::MempoolId_t id);

}  // namespace anyxpu
