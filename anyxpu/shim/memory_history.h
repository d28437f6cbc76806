// What the allocator did and who asked for it, for torch.xpu.memory._record_memory_history and its viewers.
//
// torch 2.11 to 2.13 declare these structures in different places, so anyxpu has its own.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "drivers/driver.h"

namespace anyxpu {

using Stack = std::shared_ptr<c10::GatheredContext>;

// From which event on call stacks are gathered; each level includes those before it.
enum class StackLevel : int { kNever = 0, kLive = 1, kAlloc = 2, kAll = 3 };

enum class TraceAction : int {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSnapshot,
  kOutOfMemory,
};

struct HistoryOptions {
  bool enabled = false;
  Stack (*gather)() = nullptr;
  StackLevel level = StackLevel::kNever;
  size_t max_entries = 0;
  std::set<TraceAction> skip;
};

struct TraceEntry {
  TraceAction action;
  uint64_t address;  // for kOutOfMemory: the bytes the device still had
  uint64_t bytes;
  ax_queue* queue;
  c10::MempoolId_t pool;
  int64_t microseconds;  // since the Unix epoch
  Stack stack;
};

struct BlockRecord {
  uint64_t address;
  size_t bytes;
  size_t requested;
  bool allocated;  // a tensor holds it
  bool active;     // allocated, or freed while other streams still use it
  Stack stack;
};

struct SegmentRecord {
  c10::DeviceIndex device;
  uint64_t address;
  size_t bytes;
  size_t allocated;
  size_t active;
  size_t requested;
  ax_queue* queue;
  bool small;
  c10::MempoolId_t pool;
  Stack stack;
  std::vector<BlockRecord> blocks;
};

// The calling thread's stack, or null where `level` lies above what was asked for. Takes the GIL: hold no lock.
Stack gather_stack(StackLevel level);

// One device's entries, the newest `max_entries` of them. Its owner keeps threads apart.
class History {
 public:
  void configure(const HistoryOptions& options, bool clear);
  void add(TraceEntry entry);
  std::vector<TraceEntry> entries() const;  // oldest first
  bool wants(TraceAction action) const;

 private:
  HistoryOptions options_;
  std::vector<TraceEntry> ring_;
  size_t next_ = 0;
};

// The process-wide half of HistoryOptions, which gather_stack reads.
void configure_stacks(const HistoryOptions& options);

}  // namespace anyxpu
