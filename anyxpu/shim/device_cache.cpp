// Handing out and taking back blocks. The figures (512 bytes, 1 MiB, 20 MiB, ...) are those of PyTorch's caching
// allocators, so that what users know of torch.cuda's memory holds here.
#include "shim/device_cache.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <c10/util/llvmMathExtras.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>

#include "shim/runtime.h"

namespace anyxpu {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::kMinBlockSize;
using c10::CachingAllocator::kSmallSize;

bool ByQueueAndSize::operator()(const Block* a, const Block* b) const {
  return std::tie(a->queue, a->bytes, a->address) < std::tie(b->queue, b->bytes, b->address);
}

size_t round_request(size_t bytes) {
  if (bytes < kMinBlockSize) return kMinBlockSize;
  size_t divisions = AcceleratorAllocatorConfig::roundup_power2_divisions(bytes);
  if (divisions > 1 && bytes > kMinBlockSize * divisions) {
    size_t above = c10::llvm::PowerOf2Ceil(bytes);
    if (above == bytes) return bytes;
    size_t step = (above / 2) / divisions;
    if (step > 0) return (bytes + step - 1) / step * step;
  }
  return (bytes + kMinBlockSize - 1) / kMinBlockSize * kMinBlockSize;
}

namespace {

// torch reads its settings at the first question about one, and throws words of its parser's.
void check_settings() {
  std::string reason;
  try {
    (void)AcceleratorAllocatorConfig::max_split_size();
    return;
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  constexpr std::string_view kOurs = "please report a bug to PyTorch. ";
  if (const auto at = reason.find(kOurs); at != std::string::npos) reason.erase(0, at + kOurs.size());
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0')
      TORCH_CHECK_VALUE(false, "anyxpu: ", name, "='", value, "' is no setting of the allocator (", reason,
                        "). It is name:value,name:value, as in max_split_size_mb:64,garbage_collection_threshold:0.8");
  }
  TORCH_CHECK_VALUE(false, "anyxpu: the allocator's settings mean nothing: ", reason);
}

}  // namespace

DeviceCache::DeviceCache(c10::DeviceIndex device) : device_(device) { check_settings(); }

Block* DeviceCache::allocate(size_t bytes, ax_queue* queue) {
  Request request{bytes, round_request(bytes), queue, gather_stack(StackLevel::kLive)};
  {
    Lock lock(state_);
    process_events();
    if (Block* block = take_fitting(request)) return hand_out(block, request);
  }
  return allocate_slowly(request);
}

BlockPool& DeviceCache::pool_for(const Request& request) {
  bool is_small = request.bytes <= kSmallSize;
  for (auto& route : routes_) {
    if (!route.filter(request.queue)) continue;
    auto& pool = *private_pools_.at(route.id);
    return is_small ? pool.small : pool.large;
  }
  return is_small ? small_ : large_;
}

Block* DeviceCache::take_fitting(BlockPool& pool, const Request& request) {
  ++pool.searches;
  Block wanted;
  wanted.queue = request.queue;
  wanted.bytes = request.bytes;
  auto found = pool.free.lower_bound(&wanted);
  if (found == pool.free.end() || (*found)->queue != request.queue) return nullptr;
  Block* block = *found;
  // Blocks above max_split_size stay whole: not for small requests, nor for ones that would waste much of them.
  size_t whole = AcceleratorAllocatorConfig::max_split_size();
  if (request.bytes < whole && block->bytes >= whole) return nullptr;
  if (request.bytes >= whole &&
      block->bytes >= request.bytes + AcceleratorAllocatorConfig::max_non_split_rounding_size()) {
    return nullptr;
  }
  take_out(block);
  return block;
}

Block* DeviceCache::hand_out(Block* block, Request& request) {
  BlockPool& pool = *block->pool;
  size_t rest = block->bytes - request.bytes;
  bool split = pool.small ? rest >= kMinBlockSize
                          : request.bytes < AcceleratorAllocatorConfig::max_split_size() && rest > kSmallSize;
  if (pool.owner != nullptr && pool.owner->rules.no_split) split = false;
  if (split) cut(block, request.bytes);
  block->allocated = true;
  block->requested = request.asked;
  block->stack = request.stack;
  auto bytes = static_cast<int64_t>(block->bytes);
  count(stats_.allocation, pool, 1);
  count(stats_.allocated_bytes, pool, bytes);
  count(stats_.active, pool, 1);
  count(stats_.active_bytes, pool, bytes);
  count(stats_.requested_bytes, pool, static_cast<int64_t>(block->requested));
  if (block->bytes >= AcceleratorAllocatorConfig::max_split_size()) stats_.oversize_allocations.increase(1);
  trace(TraceAction::kAlloc, block->address, request.asked, block->queue, &pool, std::move(request.stack));
  return block;
}

void DeviceCache::cut(Block* block, size_t bytes) {
  auto* rest = new Block;
  rest->address = static_cast<char*>(block->address) + bytes;
  rest->bytes = block->bytes - bytes;
  rest->device = device_;
  rest->queue = block->queue;
  rest->pool = block->pool;
  rest->before = block;
  rest->after = block->after;
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  put_in(rest);
}

void DeviceCache::record_use(Block* block, StreamUse use) {
  Lock lock(state_);
  if (use.queue == block->queue) return;
  for (auto& known : block->uses)
    if (known.queue == use.queue) return;
  block->uses.push_back(use);
}

void DeviceCache::free(Block* block) noexcept {
  Stack stack = gather_stack(StackLevel::kAll);
  Lock lock(state_);
  BlockPool& pool = *block->pool;
  block->allocated = false;
  count(stats_.allocation, pool, -1);
  count(stats_.allocated_bytes, pool, -static_cast<int64_t>(block->bytes));
  if (block->bytes >= AcceleratorAllocatorConfig::max_split_size()) stats_.oversize_allocations.decrease(1);
  trace(TraceAction::kFreeRequested, block->address, block->requested, block->queue, &pool, stack);
  if (block->uses.empty()) {
    return_to_pool(block, std::move(stack));
  } else if (!record_events(block)) {
    // Without the event nobody can tell when the other streams are done, so the block is never handed out again.
    ++block->pending_events;
  }
}

bool DeviceCache::record_events(Block* block) noexcept {
  bool all = true;
  for (auto& use : block->uses) {
    try {
      pending_[use.queue].emplace_back(PooledEvent(use.queue, use.device), block);
      ++block->pending_events;
      ++pending_count_;
    } catch (const std::exception& error) {
      TORCH_WARN_ONCE("anyxpu: memory freed on device ", static_cast<int>(device_),
                      " cannot be reused, because a stream that used it does not answer: ", error.what());
      all = false;
    }
  }
  block->uses.clear();
  return all;
}

void DeviceCache::process_events() {
  if (C10_LIKELY(pending_count_ == 0)) return;
  for (auto& [queue, events] : pending_) {
    while (!events.empty()) {
      ax_status status = events.front().first.query();
      if (status == AX_NOT_READY) break;
      Block* block = events.front().second;
      events.pop_front();
      event_passed(block);
      // Work that failed does not use the memory any more; its failure is told to whoever asked for memory next.
      check(status, "run earlier work of a stream");
    }
  }
}

void DeviceCache::event_passed(Block* block) {
  --pending_count_;
  if (--block->pending_events == 0) return_to_pool(block, nullptr);
}

void DeviceCache::return_to_pool(Block* block, Stack stack) {
  BlockPool& pool = *block->pool;
  auto bytes = static_cast<int64_t>(block->bytes);
  trace(TraceAction::kFreeCompleted, block->address, block->requested, block->queue, &pool, std::move(stack));
  count(stats_.active, pool, -1);
  count(stats_.active_bytes, pool, -bytes);
  count(stats_.requested_bytes, pool, -static_cast<int64_t>(block->requested));
  block->requested = 0;
  block->stack.reset();
  // The lower block of two swallows the upper, so a segment's first block stays the same object.
  if (Block* upper = block->after; upper && upper->is_free()) {
    take_out(upper);
    join(block, upper);
  }
  if (Block* lower = block->before; lower && lower->is_free()) {
    take_out(lower);
    join(lower, block);
    block = lower;
  }
  put_in(block);
}

void DeviceCache::put_in(Block* block) {
  BlockPool& pool = *block->pool;
  block->searches_then = pool.searches;
  pool.free.insert(block);
  if (block->is_split()) count_inactive_split(pool, 1, static_cast<int64_t>(block->bytes));
}

void DeviceCache::take_out(Block* block) {
  BlockPool& pool = *block->pool;
  pool.free.erase(block);
  if (block->is_split()) count_inactive_split(pool, -1, -static_cast<int64_t>(block->bytes));
}

void DeviceCache::join(Block* lower, Block* upper) {
  lower->bytes += upper->bytes;
  lower->after = upper->after;
  if (lower->after) lower->after->before = lower;
  delete upper;
}

}  // namespace anyxpu
