// The allocator of every device, and the pools and history that span devices.
#include "shim/allocator.h"

#include <c10/core/impl/GPUTrace.h>

#include <array>
#include <atomic>
#include <deque>
#include <unordered_map>

#include "shim/caching_allocator.h"
#include "shim/kept_copies.h"
#include "shim/recording.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

// Which block a pointer handed out is; in shards, since every free on every device asks.
class LiveBlocks {
 public:
  void add(Block* block) {
    Shard& shard = of(block->address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.blocks[block->address] = block;
  }
  Block* find(const void* pointer) {
    Shard& shard = of(pointer);
    std::lock_guard<std::mutex> lock(shard.mutex);
    auto found = shard.blocks.find(pointer);
    return found == shard.blocks.end() ? nullptr : found->second;
  }
  Block* take(const void* pointer) {
    Shard& shard = of(pointer);
    std::lock_guard<std::mutex> lock(shard.mutex);
    auto found = shard.blocks.find(pointer);
    if (found == shard.blocks.end()) return nullptr;
    Block* block = found->second;
    shard.blocks.erase(found);
    return block;
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<const void*, Block*> blocks;
  };
  // Addresses are multiples of 512, and neighbours should not meet in one shard.
  Shard& of(const void* pointer) { return shards_[(reinterpret_cast<uintptr_t>(pointer) >> 9) % shards_.size()]; }
  std::array<Shard, 67> shards_;
};

void report(const Block& block, int64_t bytes, DeviceCache& cache) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  auto [allocated, reserved] = cache.allocated_and_reserved();
  c10::reportMemoryUsageToProfiler(block.address, bytes, allocated, reserved,
                                   c10::Device(c10::DeviceType::XPU, block.device));
}

class Caching final : public CachingAllocator {
 public:
  void* raw_alloc(size_t bytes) override {
    return bytes == 0 ? nullptr : raw_alloc_with_queue(bytes, current_queue(current_device()));
  }

  void* raw_alloc_with_queue(size_t bytes, ax_queue* queue) override {
    if (bytes == 0) return nullptr;
    driver();  // throws in a forked child, where cached memory would look usable
    DeviceCache& its = cache(current_device());
    Block* block = nullptr;
    try {
      block = its.allocate(bytes, queue);
    } catch (const c10::OutOfMemoryError&) {
      if (!drop_copies()) throw;
      block = its.allocate(bytes, queue);
    }
    used_.store(true, std::memory_order_relaxed);
    live_.add(block);
    if (C10_UNLIKELY(the_recording != nullptr)) the_recording->allocated(block->address, bytes, queue);
    report(*block, static_cast<int64_t>(block->bytes), its);
    if (auto* tracer = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(tracer != nullptr)) {
      (*tracer)->trace_gpu_memory_allocation(c10::DeviceType::XPU, reinterpret_cast<uintptr_t>(block->address));
    }
    return block->address;
  }

  void raw_delete(void* pointer) override {
    if (pointer == nullptr) return;
    Block* block = live_.take(pointer);
    TORCH_CHECK(block, "anyxpu: ", pointer, " is not memory that the xpu allocator handed out, or was freed twice");
    if (auto* tracer = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(tracer != nullptr)) {
      (*tracer)->trace_gpu_memory_deallocation(c10::DeviceType::XPU, reinterpret_cast<uintptr_t>(pointer));
    }
    note_written(pointer);
    if (C10_UNLIKELY(the_recording != nullptr)) the_recording->released(pointer);
    DeviceCache& its = cache(block->device);
    report(*block, -static_cast<int64_t>(block->bytes), its);
    its.free(block);
  }

  size_t bytes_at(const void* pointer) override {
    Block* block = live_.find(pointer);
    return block == nullptr ? 0 : block->bytes;
  }

  void record_stream(const void* pointer, c10::Stream stream) override {
    spoil_recording("memory that another stream uses");
    Block* block = live_.find(pointer);
    if (block) cache(block->device).record_use(block, {queue(stream), stream.device_index()});
  }

  std::optional<c10::DeviceIndex> device_of(const void* pointer) const override {
    for (auto& cache : caches_) {
      auto* its = cache.load(std::memory_order_acquire);
      if (!its) continue;
      if (auto device = its->contains(pointer)) return device;
    }
    return std::nullopt;
  }

  bool used() const override { return used_.load(); }
  bool initialized() override { return driver_started(); }

  void emptyCache(c10::MempoolId_t pool) override {
    for (auto& cache : caches_)
      if (auto* its = cache.load(std::memory_order_acquire)) its->release_cached(pool);
  }
  Stats getDeviceStats(c10::DeviceIndex device) override { return cache(device).stats(); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { cache(device).reset_accumulated_stats(); }
  void resetPeakStats(c10::DeviceIndex device) override { cache(device).reset_peak_stats(); }

  DeviceCache& cache(c10::DeviceIndex device) override {
    if (static_cast<size_t>(device) < caches_.size()) {
      auto* its = caches_[static_cast<size_t>(device)].load(std::memory_order_acquire);
      if (C10_LIKELY(its != nullptr)) return *its;
    }
    check_device(device);  // starts the driver
    std::lock_guard<std::mutex> lock(making_);
    auto& slot = caches_[static_cast<size_t>(device)];
    if (!slot.load()) {
      auto* made = new DeviceCache(device);
      if (history_.enabled) made->configure_history(history_, /*clear=*/true);
      slot.store(made, std::memory_order_release);
    }
    return *slot.load();
  }

  void configure_history(const HistoryOptions& options, bool clear) override {
    configure_stacks(options);
    std::lock_guard<std::mutex> lock(making_);
    history_ = options;
    for (auto& cache : caches_)
      if (auto* its = cache.load()) its->configure_history(options, clear);
  }

 private:
  LiveBlocks live_;
  std::array<std::atomic<DeviceCache*>, 128> caches_{};  // made at a device's first use, never destroyed
  std::mutex making_;
  HistoryOptions history_;
  std::atomic<bool> used_{false};
};

std::shared_ptr<XpuAllocator>& current() {
  static auto* held = new std::shared_ptr<XpuAllocator>(&caching_allocator(), [](XpuAllocator*) {});
  return *held;
}

std::atomic<XpuAllocator*> in_use{nullptr};

void free_memory(void* pointer) {
  // A child of fork has the parent's tensors but no device; its memory goes with the process.
  if (pointer && !in_bad_fork()) xpu_allocator()->raw_delete(pointer);
}

}  // namespace

CachingAllocator& caching_allocator() {
  static auto* one = new Caching();  // never destroyed: tensors may outlive every destructor
  return *one;
}

XpuAllocator* xpu_allocator() {
  auto* it = in_use.load(std::memory_order_acquire);
  return C10_LIKELY(it != nullptr) ? it : &caching_allocator();
}

std::shared_ptr<XpuAllocator> shared_allocator() { return current(); }

void change_allocator(std::shared_ptr<XpuAllocator> replacement) {
  TORCH_CHECK(replacement, "anyxpu: cannot change to no allocator");
  TORCH_CHECK(!xpu_allocator()->used(),
              "Can't swap an already initialized allocator: xpu memory was already allocated in this process. Call "
              "torch.xpu.memory.change_current_allocator before the first tensor.");
  current() = std::move(replacement);
  in_use.store(current().get(), std::memory_order_release);
  c10::SetAllocator(c10::DeviceType::XPU, current().get(), /*priority=*/0);
}

c10::DataPtr XpuAllocator::allocate(size_t bytes) {
  void* pointer = raw_alloc(bytes);
  return {pointer, pointer, &free_memory, c10::Device(c10::DeviceType::XPU, current_device())};
}

c10::DeleterFnPtr XpuAllocator::raw_deleter() const { return &free_memory; }

void XpuAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  // Memory of somebody else (from_blob, another process) is that one's to keep.
  if (data.get() && data.get_deleter() == &free_memory) record_stream(data.get_context(), stream);
}

void XpuAllocator::copy_data(void* dst, const void* src, size_t bytes) const {
  check(driver().copy(current_queue(), dst, src, bytes), "copy device memory");
}

std::pair<size_t, size_t> XpuAllocator::getMemoryInfo(c10::DeviceIndex device) {
  check_device(device);
  uint64_t free = 0;
  uint64_t total = 0;
  check(driver().memory_info(device, &free, &total), "ask for the free memory");
  return {free, total};
}

void record_stream(const c10::DataPtr& data, c10::Stream stream) { xpu_allocator()->recordStream(data, stream); }

std::optional<c10::DeviceIndex> device_of(const void* pointer) { return xpu_allocator()->device_of(pointer); }

REGISTER_ALLOCATOR(c10::DeviceType::XPU, &caching_allocator());

}  // namespace anyxpu
