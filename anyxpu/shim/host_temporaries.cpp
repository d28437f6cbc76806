#include "shim/host_temporaries.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "shim/allocator.h"
#include "shim/caching_allocator.h"
#include "shim/gil.h"
#include "shim/host_memory.h"
#include "shim/runtime.h"
#include "shim/waiting.h"

namespace anyxpu {
namespace {

using c10::CachingAllocator::format_size;

thread_local HostTemporaries* current = nullptr;

// Less is not worth asking the system how much there is.
constexpr size_t kLarge = size_t{64} << 20;
// Left to everybody else.
constexpr uint64_t kReserve = uint64_t{256} << 20;

bool fits(c10::DeviceIndex device, size_t bytes) {
  uint64_t free = 0;
  uint64_t total = 0;
  return driver().memory_info(device, &free, &total) != AX_OK || bytes + kReserve <= free;
}

// What an operator took beside its results is not kept for the next one if it is more than this: others want it too.
constexpr size_t kMostKept = size_t{1} << 30;

// Blocks that stand for the CPU's memory, by where they are.
struct Lent {
  std::mutex mutex;
  std::unordered_map<void*, c10::DataPtr> blocks;
  std::atomic<size_t> count{0};
};

Lent& lent() {
  static auto* all = new Lent;  // CPU tensors may outlive static objects
  return *all;
}

void give_block(void* data);

}  // namespace

c10::DataPtr take_lent(void* data) {
  Lent& all = lent();
  if (data == nullptr || all.count.load(std::memory_order_acquire) == 0) return {};
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.blocks.find(data);
  if (found == all.blocks.end()) return {};
  c10::DataPtr block = std::move(found->second);
  all.blocks.erase(found);
  all.count.fetch_sub(1, std::memory_order_release);
  return block;
}

namespace {

void give_cached_back() {
  if (in_bad_fork() || !driver_started()) return;
  try {
    const GilReleased no_gil;  // it waits for streams, which may run host functions that take it
    xpu_allocator()->emptyCache({0, 0});
  } catch (const std::exception& error) {
    TORCH_WARN_ONCE("anyxpu: cached device memory was not given back: ", error.what());
  }
}

// One that became nobody's result.
void give_block(void* data) {
  auto* caching = dynamic_cast<CachingAllocator*>(xpu_allocator());
  const size_t bytes = caching == nullptr ? 0 : caching->bytes_at(data);
  if (take_lent(data) && bytes > kMostKept) give_cached_back();
}

}  // namespace

// Empty where the host does not reach the device's memory, or there is too little of it.
c10::DataPtr lend(const HostTemporaries& work, size_t bytes) {
  const c10::DeviceIndex device = work.device_;
  auto* caching = dynamic_cast<CachingAllocator*>(xpu_allocator());  // others may want to be asked for results alone
  if (bytes == 0 || caching == nullptr || !host_reaches(device) || device != current_device()) return {};
  if (bytes >= kLarge && !fits(device, bytes)) return {};  // the device's allocator may hand out more than there is
  c10::DataPtr block;
  try {
    block = caching->allocate(bytes);
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
  // Whoever had the block before may have left work on the stream, which the host does not wait for by itself.
  ax_queue* const queue = current_queue(device);
  if (driver().queue_query(queue) != AX_OK) wait_for_queue(queue, device, "wait for memory that a host operator takes");
  void* const data = block.get();
  Lent& all = lent();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.blocks[data] = std::move(block);
  all.count.fetch_add(1, std::memory_order_release);
  return {data, data, &give_block, c10::kCPU};
}

// The CPU's own allocator; operators on the host have the device's blocks from it. Otherwise it only looks whether
// there is room before it asks for much, and counts what operators on the host take.
class WatchedAllocator final : public c10::Allocator {
 public:
  explicit WatchedAllocator(c10::Allocator* own) : own_(own) { own_deleter_ = own->raw_deleter(); }

  c10::DataPtr allocate(size_t bytes) override {
    if (current == nullptr) {
      if (C10_UNLIKELY(bytes >= kLarge)) share_room(bytes);
      return watched(own_->allocate(bytes));
    }
    if (c10::DataPtr block = lend(*current, bytes)) return block;
    if (C10_UNLIKELY(bytes >= kLarge)) make_room(*current, bytes);
    c10::DataPtr data = watched(own_->allocate(bytes));
    if (data.get_deleter() == &give_back) current->take(malloc_usable_size(data.get()));
    return data;
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return own_->is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return own_deleter_ == nullptr ? nullptr : &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { own_->copy_data(to, from, bytes); }

  static void install() {
    static const bool installed = [] {
      c10::SetAllocator(c10::kCPU, new WatchedAllocator(c10::GetAllocator(c10::kCPU)), /*priority=*/1);
      return true;
    }();
    (void)installed;
  }

 private:
  static c10::DataPtr watched(c10::DataPtr data) {
    if (data.get() != nullptr && data.get() == data.get_context())
      (void)data.compare_exchange_deleter(own_deleter_, &give_back);
    return data;
  }
  static void give_back(void* data) {
    if (take_lent(data)) return;  // one asked for, and given back, by its address alone
    if (current != nullptr) current->give(malloc_usable_size(data));
    own_deleter_(data);
  }
  // A CPU tensor competes with what devices keep cached in the same memory, and the system would sooner end the process
  // than refuse it. Never a reason for the allocation itself to fail.
  static void share_room(size_t bytes) {
    if (in_bad_fork() || !driver_started()) return;
    const c10::DeviceIndex device = current_device();
    if (host_reaches(device) && !fits(device, bytes)) give_cached_back();
  }
  static void make_room(const HostTemporaries& work, size_t bytes) {
    const c10::DeviceIndex device = work.device_;
    if (!host_reaches(device) || fits(device, bytes)) return;
    const GilReleased no_gil;  // it waits for streams, which may run host functions that take it
    xpu_allocator()->emptyCache({0, 0});
    if (fits(device, bytes)) return;
    uint64_t free = 0;
    uint64_t total = 0;
    check(driver().memory_info(device, &free, &total), "ask for the free memory");
    TORCH_CHECK_WITH(OutOfMemoryError, false, "XPU out of memory. ", work.name_,
                     " runs on the host (ATen's CPU kernel) and takes ", format_size(bytes),
                     " there beside its results; ", format_size(free), " of ", format_size(total),
                     " are free. What helps: a smaller batch, fewer tensors kept alive, ",
                     "or torch.compile, whose kernels need no such temporaries");
  }

  c10::Allocator* own_;
  static c10::DeleterFnPtr own_deleter_;
};

c10::DeleterFnPtr WatchedAllocator::own_deleter_ = nullptr;

HostTemporaries::HostTemporaries(const std::string& name, c10::DeviceIndex device)
    : name_(name), device_(device), outer_(current) {
  WatchedAllocator::install();
  current = this;
}

HostTemporaries::~HostTemporaries() {
  current = outer_;
  if (outer_ != nullptr) {
    outer_->most_ = std::max(outer_->most_, outer_->now_ + most_);
    outer_->now_ += now_;
  } else if (most_ > 0 && host_reaches(device_)) {
    auto* caching = dynamic_cast<CachingAllocator*>(xpu_allocator());  // one that the user supplied keeps no statistics
    if (caching != nullptr) caching->cache(device_).count_temporaries(most_);
  }
}

void HostTemporaries::take(size_t bytes) {
  now_ += bytes;
  most_ = std::max(most_, now_);
}

void HostTemporaries::give(size_t bytes) { now_ -= std::min(now_, bytes); }

}  // namespace anyxpu
