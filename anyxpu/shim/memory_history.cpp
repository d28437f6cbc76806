#include "shim/memory_history.h"

#include <atomic>
#include <chrono>

namespace anyxpu {
namespace {

std::atomic<Stack (*)()> gather{nullptr};
std::atomic<StackLevel> gather_from{StackLevel::kNever};

int64_t microseconds_now() {
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

Stack gather_stack(StackLevel level) {
  if (C10_LIKELY(gather_from.load(std::memory_order_relaxed) < level)) return nullptr;
  auto* function = gather.load(std::memory_order_acquire);
  return function ? function() : nullptr;
}

void configure_stacks(const HistoryOptions& options) {
  gather.store(options.gather, std::memory_order_release);
  gather_from.store(options.enabled ? options.level : StackLevel::kNever);
}

void History::configure(const HistoryOptions& options, bool clear) {
  // Turning the recording off ends it, and with it what it kept; a ring cannot be cut shorter in place.
  bool drop = clear || !options.enabled || options.max_entries < ring_.size();
  auto kept = drop ? std::vector<TraceEntry>() : entries();
  ring_ = std::move(kept);
  next_ = 0;
  options_ = options;
}

bool History::wants(TraceAction action) const {
  return options_.enabled && options_.max_entries > 0 && !options_.skip.count(action);
}

void History::add(TraceEntry entry) {
  if (C10_LIKELY(!wants(entry.action))) return;
  entry.microseconds = microseconds_now();
  if (options_.level < StackLevel::kAlloc) entry.stack.reset();
  if (ring_.size() < options_.max_entries) {
    ring_.push_back(std::move(entry));
    return;
  }
  ring_[next_] = std::move(entry);
  next_ = (next_ + 1) % ring_.size();
}

std::vector<TraceEntry> History::entries() const {
  std::vector<TraceEntry> ordered(ring_.begin() + static_cast<std::ptrdiff_t>(next_), ring_.end());
  ordered.insert(ordered.end(), ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(next_));
  return ordered;
}

}  // namespace anyxpu
