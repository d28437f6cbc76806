// An allocator whose two functions the user supplies (torch.xpu.memory.XPUPluggableAllocator).
#pragma once

#include "shim/allocator.h"

namespace anyxpu {

// `queue` is usable as a sycl::queue* with the sycl driver. allocate returns null when it has no memory.
using AllocateFunction = void*(size_t bytes, int device, ax_queue* queue);
using FreeFunction = void(void* pointer, size_t bytes, int device, ax_queue* queue);

// It caches nothing and keeps no statistics: those functions raise NotImplementedError.
std::shared_ptr<XpuAllocator> make_pluggable_allocator(AllocateFunction* allocate, FreeFunction* free);

}  // namespace anyxpu
