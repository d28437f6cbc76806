// The caching allocator's own face, beyond what every xpu allocator has: for memory's bindings and tests.
#pragma once

#include "shim/allocator.h"
#include "shim/device_cache.h"

namespace anyxpu {

class CachingAllocator : public XpuAllocator {
 public:
  // The device's cache, made at first use. Throws for an index that is none.
  virtual DeviceCache& cache(c10::DeviceIndex device) = 0;
  // For every device, those used later included.
  virtual void configure_history(const HistoryOptions& options, bool clear) = 0;
  // Of the allocation that starts at `pointer`; 0 if none of this allocator's does.
  virtual size_t bytes_at(const void* pointer) = 0;
};

CachingAllocator& caching_allocator();

}  // namespace anyxpu
