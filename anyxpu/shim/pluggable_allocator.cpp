#include "shim/pluggable_allocator.h"

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "shim/address_ranges.h"
#include "shim/event_pool.h"
#include "shim/gil.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

constexpr const char* kNoStats =
    "anyxpu: the current xpu allocator was supplied by the user (change_current_allocator); it has no statistics";

class Pluggable final : public XpuAllocator {
 public:
  Pluggable(AllocateFunction* allocate, FreeFunction* free) : allocate_(allocate), free_(free) {}

  void* raw_alloc(size_t bytes) override {
    return bytes == 0 ? nullptr : raw_alloc_with_queue(bytes, current_queue(current_device()));
  }

  void* raw_alloc_with_queue(size_t bytes, ax_queue* queue) override {
    if (bytes == 0) return nullptr;
    c10::DeviceIndex device = current_device();
    void* pointer = allocate_(bytes, device, queue);
    if (pointer == nullptr) return refuse(bytes, device);
    std::lock_guard<std::mutex> lock(mutex_);
    live_[pointer] = Allocation{bytes, device, queue, {}};
    ranges_.add(pointer, bytes, device);
    used_.store(true, std::memory_order_relaxed);
    return pointer;
  }

  void raw_delete(void* pointer) override {
    if (pointer == nullptr) return;
    Allocation allocation;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = live_.find(pointer);
      TORCH_CHECK(found != live_.end(), "anyxpu: ", pointer, " was not allocated by this allocator");
      allocation = std::move(found->second);
      live_.erase(found);
      ranges_.remove(pointer);
    }
    // The user's function is told of one queue only; what other streams still do must be over before.
    if (!allocation.streams.empty()) {
      GilReleased no_gil;
      for (c10::Stream stream : allocation.streams) {
        check(PooledEvent(queue(stream), stream.device_index()).synchronize(), "wait for a stream that uses memory");
      }
    }
    free_(pointer, allocation.bytes, allocation.device, allocation.queue);
  }

  void record_stream(const void* pointer, c10::Stream stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = live_.find(pointer);
    if (found != live_.end() && queue(stream) != found->second.queue) found->second.streams.push_back(stream);
  }

  std::optional<c10::DeviceIndex> device_of(const void* pointer) const override {
    auto range = ranges_.find(pointer);
    return range ? std::optional<c10::DeviceIndex>(range->device) : std::nullopt;
  }

  bool used() const override { return used_.load(); }
  bool initialized() override { return driver_started(); }
  void emptyCache(c10::MempoolId_t) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, kNoStats);
  }
  void resetAccumulatedStats(c10::DeviceIndex) override { TORCH_CHECK_NOT_IMPLEMENTED(false, kNoStats); }
  void resetPeakStats(c10::DeviceIndex) override { TORCH_CHECK_NOT_IMPLEMENTED(false, kNoStats); }

 private:
  struct Allocation {
    size_t bytes = 0;
    c10::DeviceIndex device = 0;
    ax_queue* queue = nullptr;
    std::vector<c10::Stream> streams;
  };

  // A memory pool over this allocator gets null, so that it can make room; a tensor gets the error.
  void* refuse(size_t bytes, c10::DeviceIndex device) const {
    TORCH_CHECK_WITH(OutOfMemoryError, xpu_allocator() != this, "XPU out of memory. Tried to allocate ",
                     c10::CachingAllocator::format_size(bytes), " on GPU ", static_cast<int>(device),
                     "; the allocator set by change_current_allocator returned null.");
    return nullptr;
  }

  AllocateFunction* const allocate_;
  FreeFunction* const free_;
  std::mutex mutex_;
  std::map<const void*, Allocation> live_;
  AddressRanges ranges_;
  std::atomic<bool> used_{false};
};

}  // namespace

std::shared_ptr<XpuAllocator> make_pluggable_allocator(AllocateFunction* allocate, FreeFunction* free) {
  TORCH_CHECK(allocate && free, "anyxpu: a custom allocator needs the addresses of both of its functions");
  // Never destroyed: its tensors may outlive every Python object that named it.
  return std::shared_ptr<XpuAllocator>(new Pluggable(allocate, free), [](XpuAllocator*) {});
}

}  // namespace anyxpu
