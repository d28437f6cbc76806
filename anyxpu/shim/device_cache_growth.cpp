// Getting segments from the driver, giving them back, and what happens when there is no more to get.
#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <sstream>

#include "shim/allocator.h"
#include "shim/device_cache.h"
#include "shim/gil.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::format_size;
using c10::CachingAllocator::kMinLargeAlloc;
using c10::CachingAllocator::kRoundLarge;
using c10::CachingAllocator::kSmallBuffer;
using c10::CachingAllocator::kSmallSize;

// torch 2.11 has no setting for it.
template <typename Config>
size_t large_segment() {
  if constexpr (requires { Config::large_segment_size(); }) {
    return Config::large_segment_size();
  } else {
    return size_t{20} << 20;
  }
}

size_t segment_bytes(size_t bytes) {
  if (bytes <= kSmallSize) return kSmallBuffer;
  size_t large = large_segment<AcceleratorAllocatorConfig>();
  if (bytes < kMinLargeAlloc && bytes <= large) return large;
  return (bytes + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
}

bool is_shared(c10::MempoolId_t pool) { return pool.first == 0 && pool.second == 0; }

}  // namespace

Block* DeviceCache::allocate_slowly(Request& request) {
  GilReleased no_gil;
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    TORCH_WARN_ONCE(
        "anyxpu: expandable_segments in PYTORCH_ALLOC_CONF has no effect on xpu: its drivers allocate memory whole and "
        "cannot map more behind it. Against fragmentation there are max_split_size_mb and torch.xpu.empty_cache().");
  }
  Lock lock(state_);
  collect_garbage(lock);
  Block* block = grow(lock, request);
  if (!block) {
    const int64_t releases = releases_;
    lock.unlock();
    std::lock_guard<std::mutex> releasing(release_);
    lock.lock();
    process_events();
    block = take_fitting(request);                                     // other threads may have freed what fits
    if (!block && releases_ != releases) block = grow(lock, request);  // or made room
    if (!block) block = make_room_and_grow(lock, request);
    if (!block) block = take_from_oom_pools(request);
  }
  if (!block) raise_out_of_memory(lock, request);
  return hand_out(block, request);
}

Block* DeviceCache::make_room_and_grow(Lock& lock, const Request& request) {
  if (auto oversize = choose_oversize(request); !oversize.empty()) {
    release(lock, oversize);
    if (Block* block = grow(lock, request)) return block;
  }
  release_everything(lock, {0, 0});
  ++stats_.num_alloc_retries;
  // Waiting for events may have freed a block that fits, in a segment that could not be released.
  if (Block* block = take_fitting(request)) return block;
  return grow(lock, request);
}

Block* DeviceCache::grow(Lock& lock, const Request& request) {
  BlockPool& pool = pool_for(request);
  size_t bytes = segment_bytes(request.bytes);
  void* address = get_segment(lock, pool, bytes, request.queue);
  if (!address) return nullptr;
  auto* block = new Block;
  block->address = address;
  block->bytes = bytes;
  block->device = device_;
  block->queue = request.queue;
  block->pool = &pool;
  segments_[reinterpret_cast<uintptr_t>(address)] = Segment{block, bytes, request.stack};
  ranges_.add(address, bytes, device_);
  count(stats_.segment, pool, 1);
  count(stats_.reserved_bytes, pool, static_cast<int64_t>(bytes));
  ++stats_.num_device_alloc;
  if (bytes >= AcceleratorAllocatorConfig::max_split_size()) stats_.oversize_segments.increase(1);
  trace(TraceAction::kSegmentAlloc, address, bytes, request.queue, &pool, request.stack);
  return block;
}

// Null where there is no room. A segment of a private pool is counted from before it is asked for, which keeps the
// pool from being forgotten meanwhile.
void* DeviceCache::get_segment(Lock& lock, BlockPool& pool, size_t bytes, ax_queue* queue) {
  // Asked of the driver, a CPU device would promise memory the machine does not have.
  size_t taken = static_cast<size_t>(stats_.reserved_bytes[0].current) + growing_;
  if (bytes > limit() || taken > limit() - bytes) return nullptr;
  auto source = pool.owner ? pool.owner->source : nullptr;
  if (pool.owner) ++pool.owner->segments;
  growing_ += bytes;
  lock.unlock();
  void* address = nullptr;
  ax_status status = AX_OK;
  if (source) {
    address = source->raw_alloc_with_queue(bytes, queue);
  } else {
    status = driver().allocate(device_, AX_MEMORY_DEVICE, bytes, &address);
  }
  lock.lock();
  growing_ -= bytes;
  if (status == AX_OK && address) return address;
  if (pool.owner) --pool.owner->segments;
  if (status != AX_OUT_OF_MEMORY) check(status, "allocate device memory");
  return nullptr;
}

Block* DeviceCache::take_from_oom_pools(const Request& request) {
  for (auto& [id, owner] : private_pools_) {
    if (!owner->rules.use_on_oom) continue;
    auto& pool = request.bytes <= kSmallSize ? owner->small : owner->large;
    if (Block* block = take_fitting(pool, request)) return block;
  }
  return nullptr;
}

void DeviceCache::release_cached(c10::MempoolId_t pool) {
  GilReleased no_gil;
  std::lock_guard<std::mutex> releasing(release_);
  Lock lock(state_);
  release_everything(lock, pool);
}

void DeviceCache::release_everything(Lock& lock, c10::MempoolId_t id) {
  wait_for_events(lock);
  std::vector<Block*> blocks;
  auto choose = [&](BlockPool& pool) {
    auto more = choose_unsplit(pool);
    blocks.insert(blocks.end(), more.begin(), more.end());
  };
  if (is_shared(id)) {
    choose(small_);
    choose(large_);
  }
  for (auto& [its_id, pool] : private_pools_) {
    if (its_id != id && !(is_shared(id) && pool->users == 0)) continue;
    choose(pool->small);
    choose(pool->large);
  }
  release(lock, blocks);
  forget_empty_pools();
}

void DeviceCache::forget_empty_pools() {
  for (auto at = private_pools_.begin(); at != private_pools_.end();) {
    bool empty = at->second->users == 0 && at->second->segments == 0;
    at = empty ? private_pools_.erase(at) : std::next(at);
  }
}

void DeviceCache::wait_for_events(Lock& lock) {
  ++stats_.num_sync_all_streams;
  std::vector<std::pair<PooledEvent, Block*>> events;
  for (auto& [queue, waiting] : pending_) {
    for (auto& item : waiting) events.push_back(std::move(item));
    waiting.clear();
  }
  lock.unlock();
  ax_status failed = AX_OK;
  for (auto& [event, block] : events) {
    ax_status status = event.synchronize();
    if (status != AX_OK) failed = status;
  }
  lock.lock();
  for (auto& [event, block] : events) event_passed(block);
  check(failed, "wait for earlier work of a stream");
}

std::vector<Block*> DeviceCache::choose_unsplit(BlockPool& pool) {
  std::vector<Block*> chosen;
  for (Block* block : pool.free)
    if (!block->is_split()) chosen.push_back(block);
  return chosen;
}

// With a max_split_size, cached blocks above it serve only requests of about their size: those too small for this
// one go first, the largest of them first.
std::vector<Block*> DeviceCache::choose_oversize(const Request& request) {
  size_t whole = AcceleratorAllocatorConfig::max_split_size();
  BlockPool& pool = pool_for(request);
  if (whole == std::numeric_limits<size_t>::max() || pool.owner) return {};
  std::vector<Block*> oversize;
  for (Block* block : pool.free)
    if (block->queue == request.queue && !block->is_split() && block->bytes >= whole) oversize.push_back(block);
  auto enough =
      std::find_if(oversize.begin(), oversize.end(), [&](const Block* block) { return block->bytes >= request.bytes; });
  if (enough != oversize.end()) return {*enough};
  std::vector<Block*> chosen;
  size_t bytes = 0;
  for (auto at = oversize.rbegin(); at != oversize.rend() && bytes < request.bytes; ++at) {
    chosen.push_back(*at);
    bytes += (*at)->bytes;
  }
  if (bytes < request.bytes) chosen.clear();
  return chosen;
}

// Under garbage_collection_threshold: while more of the allowed memory is reserved than that, the cached blocks
// that were passed over most often go, oldest first.
void DeviceCache::collect_garbage(Lock& lock) {
  double threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  if (!limit_ || threshold <= 0) return;
  auto keep = static_cast<int64_t>(threshold * static_cast<double>(*limit_));
  int64_t surplus = stats_.reserved_bytes[0].current - keep;
  if (surplus <= 0) return;
  lock.unlock();
  std::lock_guard<std::mutex> releasing(release_);
  lock.lock();
  auto blocks = choose_unsplit(large_);
  auto age = [this](const Block* block) { return large_.searches - block->searches_then; };
  std::sort(blocks.begin(), blocks.end(), [&](const Block* a, const Block* b) { return age(a) > age(b); });
  size_t count = 0;
  while (count < blocks.size() && surplus > 0) surplus -= static_cast<int64_t>(blocks[count++]->bytes);
  blocks.resize(count);
  release(lock, blocks);
}

void DeviceCache::release(Lock& lock, const std::vector<Block*>& blocks) {
  if (blocks.empty()) return;
  struct Leaving {
    void* address;
    std::shared_ptr<XpuAllocator> source;
  };
  std::vector<Leaving> leaving;
  std::set<ax_queue*> queues;
  for (Block* block : blocks) {
    BlockPool& pool = *block->pool;
    take_out(block);
    segments_.erase(reinterpret_cast<uintptr_t>(block->address));
    ranges_.remove(block->address);
    leaving.push_back({block->address, pool.owner ? pool.owner->source : nullptr});
    queues.insert(block->queue);
    if (pool.owner) --pool.owner->segments;
    count(stats_.segment, pool, -1);
    count(stats_.reserved_bytes, pool, -static_cast<int64_t>(block->bytes));
    ++stats_.num_device_free;
    ++releases_;
    if (block->bytes >= AcceleratorAllocatorConfig::max_split_size()) stats_.oversize_segments.decrease(1);
    trace(TraceAction::kSegmentFree, block->address, block->bytes, block->queue, &pool, nullptr);
    delete block;
  }
  // Freed blocks may still be in use by work their queue has not come to; the driver does not wait for it.
  lock.unlock();
  ax_status failed = AX_OK;
  for (ax_queue* queue : queues) {
    ax_status status = driver().queue_synchronize(queue);
    if (status != AX_OK) failed = status;
  }
  for (auto& segment : leaving) {
    if (segment.source) {
      segment.source->raw_delete(segment.address);
      continue;
    }
    ax_status status = driver().deallocate(device_, AX_MEMORY_DEVICE, segment.address);
    if (status != AX_OK) failed = status;
  }
  lock.lock();
  check(failed, "release cached memory");
}

size_t DeviceCache::limit() { return limit_ ? *limit_ : properties(device_).total_memory; }

size_t DeviceCache::private_pool_bytes() {
  size_t bytes = 0;
  for (auto& [address, segment] : segments_)
    for (Block* block = segment.first; block; block = block->after)
      if (block->pool->owner && block->allocated) bytes += block->bytes;
  return bytes;
}

void DeviceCache::raise_out_of_memory(Lock& lock, const Request& request) {
  ++stats_.num_ooms;
  auto allocated = static_cast<uint64_t>(stats_.allocated_bytes[0].current);
  auto reserved = static_cast<uint64_t>(stats_.reserved_bytes[0].current);
  size_t in_private_pools = private_pool_bytes();
  auto limit = limit_;
  lock.unlock();
  uint64_t free = 0;
  uint64_t total = properties(device_).total_memory;
  check(driver().memory_info(device_, &free, &total), "ask for the free memory");
  lock.lock();
  trace(TraceAction::kOutOfMemory, reinterpret_cast<void*>(free), request.asked, request.queue, nullptr, request.stack);
  lock.unlock();
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(request.bytes), allocated, reserved,
                                   c10::Device(c10::DeviceType::XPU, device_));
  std::ostringstream text;
  text << "XPU out of memory. Tried to allocate " << format_size(request.asked) << ". GPU " << static_cast<int>(device_)
       << " has a total capacity of " << format_size(total) << " of which " << format_size(free) << " is free. ";
  if (limit) text << format_size(*limit) << " allowed; ";
  text << "Of the allocated memory " << format_size(allocated) << " is allocated by PyTorch";
  if (in_private_pools) text << ", with " << format_size(in_private_pools) << " allocated in private pools";
  text << ", and " << format_size(reserved - allocated) << " is reserved by PyTorch but unallocated."
       << " What helps: a smaller batch, fewer tensors kept alive (torch.xpu.memory_snapshot() lists them)";
  if (limit) text << ", a larger torch.xpu.set_per_process_memory_fraction";
  text << "; and where much is reserved but unallocated, PYTORCH_ALLOC_CONF=max_split_size_mb:N against"
       << " fragmentation.";
  TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
}

}  // namespace anyxpu
