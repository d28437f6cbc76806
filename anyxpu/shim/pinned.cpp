#include "shim/pinned.h"

#include "shim/address_ranges.h"
#include "shim/event_pool.h"
#include "shim/gil.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

AddressRanges& ranges() {
  static auto* all = new AddressRanges();
  return *all;
}

// The caching is PyTorch's; what it asks of a device is here.
struct PinnedCache : at::CachingHostAllocatorImpl<c10::Stream, PooledEvent> {
 private:
  using Block = at::HostBlock<c10::Stream>;

  void allocate_host_memory(size_t bytes, void** pointer) override {
    c10::DeviceIndex device = current_device();
    check_device(device);
    ax_status status = driver().allocate(device, AX_MEMORY_HOST, bytes, pointer);
    if (status == AX_OUT_OF_MEMORY) {
      GilReleased no_gil;
      empty_cache();
      status = driver().allocate(device, AX_MEMORY_HOST, bytes, pointer);
    }
    check(status, "allocate pinned host memory");
    ranges().add(*pointer, bytes, device);
  }

  void free_block(Block* block) override {
    auto range = ranges().find(block->ptr_);
    ranges().remove(block->ptr_);
    if (range) check(driver().deallocate(range->device, AX_MEMORY_HOST, block->ptr_), "free pinned host memory");
  }

  void record_stream(std::optional<std::vector<PooledEvent>>& events, c10::Stream stream) override {
    events->emplace_back(queue(stream), stream.device_index());
  }

  bool query_event(PooledEvent& event) override {
    // Work that failed does not use the memory any more either; its stream tells of the failure.
    return event.query() != AX_NOT_READY;
  }

  c10::Stream get_current_stream() const { return current_stream(); }
  bool stream_is_capturing(c10::Stream) const { return false; }
};

void free_pinned(void* context);

struct PinnedAllocator final : at::CachingHostAllocatorInterface<PinnedCache, free_pinned> {
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // the context is a block, not the pointer
};

PinnedAllocator& instance() {
  static auto* one = new PinnedAllocator();  // never destroyed: tensors may outlive every destructor
  return *one;
}

void free_pinned(void* context) {
  if (in_bad_fork()) return;
  try {
    instance().free(context);
  } catch (const std::exception& error) {
    TORCH_WARN_ONCE("anyxpu: pinned memory cannot be reused, because a stream that used it does not answer: ",
                    error.what());
  }
}

}  // namespace

at::HostAllocator* pinned_allocator() { return &instance(); }

bool is_pinned_ptr(const void* pointer) { return ranges().find(pointer).has_value(); }

bool record_pinned(const void* pointer, c10::Stream stream) {
  auto range = ranges().find(pointer);
  return range && instance().record_event(range->begin, nullptr, stream);
}

}  // namespace anyxpu

REGISTER_HOST_ALLOCATOR(at::DeviceType::XPU, anyxpu::pinned_allocator());
