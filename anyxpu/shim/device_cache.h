// The cache of one device's memory: segments got from the driver, cut into blocks that wait in pools for reuse.
//
// A block belongs to the queue it was allocated for, and is free for that queue's later work the moment it is
// freed. Where other queues used it (record_use), freeing records an event on each, and the block stays out of
// the pools until all have passed.
//
// Two locks. `state_` guards the blocks and is never held while waiting for a device, for another thread's Python, or
// in the driver's allocate. `release_` is held around everything that gives segments back, so that a thread short of
// memory never misses what another is just releasing. Order: release_ before state_.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "drivers/driver.h"
#include "shim/address_ranges.h"
#include "shim/event_pool.h"
#include "shim/memory_history.h"

namespace anyxpu {

class XpuAllocator;
struct BlockPool;

struct StreamUse {
  ax_queue* queue;
  c10::DeviceIndex device;
};

struct Block {
  void* address = nullptr;
  size_t bytes = 0;
  size_t requested = 0;
  c10::DeviceIndex device = 0;
  ax_queue* queue = nullptr;
  BlockPool* pool = nullptr;
  Block* before = nullptr;  // neighbours in the same segment
  Block* after = nullptr;
  bool allocated = false;
  int pending_events = 0;     // recorded when it was freed, not yet passed
  int64_t searches_then = 0;  // of its pool, when it was put there: its age
  std::vector<StreamUse> uses;
  Stack stack;

  bool is_split() const { return before || after; }
  bool is_free() const { return !allocated && pending_events == 0; }
};

// Orders the free blocks of a pool so that lower_bound finds the best fit of a queue.
struct ByQueueAndSize {
  bool operator()(const Block* a, const Block* b) const;
};

// What the maker of a private pool asked for.
struct PoolRules {
  bool use_on_oom = false;  // its free memory serves any request that finds none elsewhere
  bool no_split = false;    // a cached segment serves one allocation at a time
};

struct PrivatePool;

struct BlockPool {
  BlockPool(bool is_small, PrivatePool* its_owner) : small(is_small), owner(its_owner) {}
  const bool small;
  PrivatePool* const owner;  // null for the pools everybody shares
  std::set<Block*, ByQueueAndSize> free;
  int64_t searches = 0;
};

// Memory kept apart for who asked to allocate in it (torch.xpu.MemPool).
struct PrivatePool {
  explicit PrivatePool(c10::MempoolId_t its_id) : id(its_id), small(true, this), large(false, this) {}
  const c10::MempoolId_t id;
  int users = 1;
  size_t segments = 0;
  PoolRules rules;
  std::shared_ptr<XpuAllocator> source;  // null: the driver
  BlockPool small;
  BlockPool large;
};

using Stats = c10::CachingDeviceAllocator::DeviceStats;
using StreamFilter = std::function<bool(ax_queue*)>;

class DeviceCache {
 public:
  explicit DeviceCache(c10::DeviceIndex device);

  // Throws c10::OutOfMemoryError.
  Block* allocate(size_t bytes, ax_queue* queue);
  void free(Block* block) noexcept;
  void record_use(Block* block, StreamUse use);
  // Gives unused segments back: all of the shared pools and of private pools nobody uses any more, or those of one
  // private pool.
  void release_cached(c10::MempoolId_t pool);

  Stats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();
  double fraction();
  void set_fraction(double fraction);  // of the device's memory, in [0, 1]; 1 lifts the limit

  void configure_history(const HistoryOptions& options, bool clear);
  std::vector<TraceEntry> history();
  std::vector<SegmentRecord> segments(std::optional<c10::MempoolId_t> pool);
  std::optional<c10::DeviceIndex> contains(const void* address) const;
  std::pair<size_t, size_t> allocated_and_reserved();
  // `bytes` that were taken elsewhere of the device's memory and have been given back.
  void count_temporaries(size_t bytes);

  void create_or_hold_pool(c10::MempoolId_t id, std::shared_ptr<XpuAllocator> source, PoolRules rules);
  // The pool must be held. Until the end, allocations whose queue `filter` accepts come from it.
  void begin_allocate_to_pool(c10::MempoolId_t id, StreamFilter filter);
  void end_allocate_to_pool(c10::MempoolId_t id);
  void release_pool(c10::MempoolId_t id);
  int pool_users(c10::MempoolId_t id);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Request {
    size_t asked;
    size_t bytes;  // rounded
    ax_queue* queue;
    Stack stack;
  };
  struct Route {
    c10::MempoolId_t id;
    StreamFilter filter;
    std::thread::id begun_by;
  };
  struct Segment {
    Block* first;
    size_t bytes;
    Stack stack;
  };

  // device_cache.cpp: blocks
  BlockPool& pool_for(const Request& request);
  Block* take_fitting(BlockPool& pool, const Request& request);
  Block* take_fitting(const Request& request) { return take_fitting(pool_for(request), request); }
  Block* hand_out(Block* block, Request& request);
  void cut(Block* block, size_t bytes);
  void return_to_pool(Block* block, Stack stack);
  void put_in(Block* block);
  void take_out(Block* block);
  static void join(Block* lower, Block* upper);
  bool record_events(Block* block) noexcept;
  void process_events();
  void event_passed(Block* block);

  // device_cache_growth.cpp: segments
  Block* allocate_slowly(Request& request);
  Block* grow(Lock& lock, const Request& request);
  void* get_segment(Lock& lock, BlockPool& pool, size_t bytes, ax_queue* queue);
  Block* make_room_and_grow(Lock& lock, const Request& request);
  Block* take_from_oom_pools(const Request& request);
  void wait_for_events(Lock& lock);
  void collect_garbage(Lock& lock);
  std::vector<Block*> choose_oversize(const Request& request);
  std::vector<Block*> choose_unsplit(BlockPool& pool);
  void release(Lock& lock, const std::vector<Block*>& blocks);
  void release_everything(Lock& lock, c10::MempoolId_t pool);
  void forget_empty_pools();
  size_t limit();
  [[noreturn]] void raise_out_of_memory(Lock& lock, const Request& request);
  size_t private_pool_bytes();

  // device_cache_state.cpp: figures
  void count(c10::CachingAllocator::StatArray& stat, const BlockPool& pool, int64_t amount);
  void count_inactive_split(const BlockPool& pool, int64_t blocks, int64_t bytes);
  void trace(TraceAction action, const void* address, size_t bytes, ax_queue* queue, const BlockPool* pool,
             Stack stack);
  PrivatePool& private_pool(c10::MempoolId_t id, const char* what);

  const c10::DeviceIndex device_;
  std::mutex release_;
  mutable std::mutex state_;

  BlockPool small_{true, nullptr};
  BlockPool large_{false, nullptr};
  std::map<uintptr_t, Segment> segments_;
  AddressRanges ranges_;
  std::unordered_map<ax_queue*, std::deque<std::pair<PooledEvent, Block*>>> pending_;
  size_t pending_count_ = 0;

  std::map<c10::MempoolId_t, std::unique_ptr<PrivatePool>> private_pools_;
  std::vector<Route> routes_;  // who allocates in a private pool just now

  Stats stats_;
  size_t growing_ = 0;    // bytes just being asked of the driver
  int64_t releases_ = 0;  // segments given back; unlike the statistic, never reset
  double fraction_ = 1.0;
  std::optional<size_t> limit_;  // bytes, where a fraction was set
  History history_;
};

// Bytes a request of `bytes` occupies: a multiple of 512, or what roundup_power2_divisions asks.
size_t round_request(size_t bytes);

}  // namespace anyxpu
