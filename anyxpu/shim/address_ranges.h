// Which of our memory an address lies in, at the start of a block or inside it.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>

namespace anyxpu {

class AddressRanges {
 public:
  struct Range {
    void* begin;
    size_t bytes;
    c10::DeviceIndex device;
  };

  void add(void* begin, size_t bytes, c10::DeviceIndex device) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(begin)] = Range{begin, bytes, device};
  }
  void remove(void* begin) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    ranges_.erase(reinterpret_cast<uintptr_t>(begin));
  }
  std::optional<Range> find(const void* address) const {
    auto at = reinterpret_cast<uintptr_t>(address);
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto next = ranges_.upper_bound(at);
    if (next == ranges_.begin()) return std::nullopt;
    const auto& [begin, range] = *std::prev(next);
    if (at - begin >= range.bytes) return std::nullopt;
    return range;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, Range> ranges_;
};

}  // namespace anyxpu
