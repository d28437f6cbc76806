// The figures of one device's cache: statistics, limits, history, snapshots, private pools.
#include <c10/core/AllocatorConfig.h>

#include <algorithm>

#include "shim/allocator.h"
#include "shim/device_cache.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

void change(Stat& stat, int64_t amount) {
  if (amount >= 0)
    stat.increase(static_cast<size_t>(amount));
  else
    stat.decrease(static_cast<size_t>(-amount));
}

template <typename Function>
void for_each_stat(Stats& stats, Function function) {
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (Stat& stat : *array) function(stat);
  }
  function(stats.oversize_allocations);
  function(stats.oversize_segments);
}

}  // namespace

void DeviceCache::count(StatArray& stat, const BlockPool& pool, int64_t amount) {
  change(stat[static_cast<size_t>(StatType::AGGREGATE)], amount);
  change(stat[static_cast<size_t>(pool.small ? StatType::SMALL_POOL : StatType::LARGE_POOL)], amount);
}

void DeviceCache::count_inactive_split(const BlockPool& pool, int64_t blocks, int64_t bytes) {
  count(stats_.inactive_split, pool, blocks);
  count(stats_.inactive_split_bytes, pool, bytes);
}

Stats DeviceCache::stats() {
  Lock lock(state_);
  Stats copy = stats_;
  copy.max_split_size = static_cast<int64_t>(AcceleratorAllocatorConfig::max_split_size());
  return copy;
}

void DeviceCache::reset_accumulated_stats() {
  Lock lock(state_);
  for_each_stat(stats_, [](Stat& stat) { stat.reset_accumulated(); });
  for (int64_t* counter : {&stats_.num_alloc_retries, &stats_.num_ooms, &stats_.num_sync_all_streams,
                           &stats_.num_device_alloc, &stats_.num_device_free}) {
    *counter = 0;
  }
}

void DeviceCache::reset_peak_stats() {
  Lock lock(state_);
  for_each_stat(stats_, [](Stat& stat) { stat.reset_peak(); });
}

std::pair<size_t, size_t> DeviceCache::allocated_and_reserved() {
  Lock lock(state_);
  return {static_cast<size_t>(stats_.allocated_bytes[0].current),
          static_cast<size_t>(stats_.reserved_bytes[0].current)};
}

void DeviceCache::count_temporaries(size_t bytes) {
  Lock lock(state_);
  for (StatArray* stat :
       {&stats_.allocated_bytes, &stats_.active_bytes, &stats_.requested_bytes, &stats_.reserved_bytes}) {
    count(*stat, large_, static_cast<int64_t>(bytes));
    count(*stat, large_, -static_cast<int64_t>(bytes));
  }
}

double DeviceCache::fraction() {
  Lock lock(state_);
  return fraction_;
}

void DeviceCache::set_fraction(double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "anyxpu: a memory fraction lies in [0, 1], got ", fraction);
  auto total = static_cast<double>(properties(device_).total_memory);
  Lock lock(state_);
  fraction_ = fraction;
  limit_ = fraction < 1 ? std::optional<size_t>(static_cast<size_t>(fraction * total)) : std::nullopt;
}

void DeviceCache::configure_history(const HistoryOptions& options, bool clear) {
  Lock lock(state_);
  history_.configure(options, clear);
}

std::vector<TraceEntry> DeviceCache::history() {
  Lock lock(state_);
  return history_.entries();
}

void DeviceCache::trace(TraceAction action, const void* address, size_t bytes, ax_queue* queue, const BlockPool* pool,
                        Stack stack) {
  if (C10_LIKELY(!history_.wants(action))) return;
  c10::MempoolId_t id = pool && pool->owner ? pool->owner->id : c10::MempoolId_t{0, 0};
  history_.add({action, reinterpret_cast<uint64_t>(address), bytes, queue, id, 0, std::move(stack)});
}

std::vector<SegmentRecord> DeviceCache::segments(std::optional<c10::MempoolId_t> only) {
  Lock lock(state_);
  std::vector<SegmentRecord> records;
  for (auto& [address, segment] : segments_) {
    const BlockPool& pool = *segment.first->pool;
    c10::MempoolId_t id = pool.owner ? pool.owner->id : c10::MempoolId_t{0, 0};
    if (only && *only != id) continue;
    SegmentRecord record{device_,    address, segment.bytes, 0, 0, 0, segment.first->queue,
                         pool.small, id,      segment.stack, {}};
    for (const Block* block = segment.first; block; block = block->after) {
      record.blocks.push_back({reinterpret_cast<uint64_t>(block->address), block->bytes, block->requested,
                               block->allocated, !block->is_free(), block->stack});
      if (block->allocated) record.allocated += block->bytes;
      if (!block->is_free()) {
        record.active += block->bytes;
        record.requested += block->requested;
      }
    }
    records.push_back(std::move(record));
  }
  trace(TraceAction::kSnapshot, nullptr, static_cast<size_t>(stats_.reserved_bytes[0].current), nullptr, nullptr,
        nullptr);
  return records;
}

std::optional<c10::DeviceIndex> DeviceCache::contains(const void* address) const {
  auto range = ranges_.find(address);
  return range ? std::optional<c10::DeviceIndex>(range->device) : std::nullopt;
}

PrivatePool& DeviceCache::private_pool(c10::MempoolId_t id, const char* what) {
  auto found = private_pools_.find(id);
  TORCH_CHECK(found != private_pools_.end(), "anyxpu: cannot ", what, ": device ", static_cast<int>(device_),
              " has no memory pool (", id.first, ", ", id.second, ")");
  return *found->second;
}

void DeviceCache::create_or_hold_pool(c10::MempoolId_t id, std::shared_ptr<XpuAllocator> source, PoolRules rules) {
  Lock lock(state_);
  auto& pool = private_pools_[id];
  if (pool) {
    ++pool->users;
    return;
  }
  pool = std::make_unique<PrivatePool>(id);
  pool->source = std::move(source);
  pool->rules = rules;
}

void DeviceCache::begin_allocate_to_pool(c10::MempoolId_t id, StreamFilter filter) {
  Lock lock(state_);
  private_pool(id, "allocate from a pool");
  routes_.push_back({id, std::move(filter), std::this_thread::get_id()});
}

void DeviceCache::end_allocate_to_pool(c10::MempoolId_t id) {
  Lock lock(state_);
  // Two threads may use one pool at once: each ends what it began, if it can be told.
  auto mine = [&](auto& route) { return route.id == id && route.begun_by == std::this_thread::get_id(); };
  auto last = std::find_if(routes_.rbegin(), routes_.rend(), mine);
  if (last == routes_.rend()) {
    last = std::find_if(routes_.rbegin(), routes_.rend(), [&](auto& route) { return route.id == id; });
  }
  TORCH_CHECK(last != routes_.rend(), "anyxpu: no allocation to memory pool (", id.first, ", ", id.second,
              ") was begun on device ", static_cast<int>(device_));
  routes_.erase(std::next(last).base());
}

void DeviceCache::release_pool(c10::MempoolId_t id) {
  Lock lock(state_);
  PrivatePool& pool = private_pool(id, "release");
  TORCH_CHECK(pool.users > 0, "anyxpu: memory pool (", id.first, ", ", id.second, ") was released once too often");
  --pool.users;
}

int DeviceCache::pool_users(c10::MempoolId_t id) {
  Lock lock(state_);
  return private_pool(id, "count the users of a pool").users;
}

}  // namespace anyxpu
