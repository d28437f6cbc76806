// Pinned host memory: the device copies to and from it asynchronously.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Stream.h>

namespace anyxpu {

// A block that was used by streams (record_pinned) is handed out again only after they passed that use.
at::HostAllocator* pinned_allocator();
// Any address inside a pinned allocation of ours.
bool is_pinned_ptr(const void* pointer);
// Work just given to `stream` reads or writes the pinned memory at `pointer` (any address inside it). Returns false,
// and does nothing, if that is not pinned memory of ours.
bool record_pinned(const void* pointer, c10::Stream stream);

}  // namespace anyxpu
