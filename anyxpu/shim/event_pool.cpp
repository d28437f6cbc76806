#include "shim/event_pool.h"

#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "shim/runtime.h"

namespace anyxpu {
namespace {

struct FreeEvents {
  std::mutex mutex;
  std::vector<ax_event*> events;
};

FreeEvents& free_events(c10::DeviceIndex device) {
  static auto* all = new std::array<FreeEvents, 128>();  // never destroyed: memory may be freed while the process ends
  return (*all)[static_cast<size_t>(device)];
}

ax_event* take(c10::DeviceIndex device) {
  auto& pool = free_events(device);
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    if (!pool.events.empty()) {
      ax_event* event = pool.events.back();
      pool.events.pop_back();
      return event;
    }
  }
  ax_event* event = nullptr;
  check(driver().event_create(device, /*timing=*/0, &event), "create an event");
  return event;
}

}  // namespace

PooledEvent::PooledEvent(ax_queue* queue, c10::DeviceIndex device) : event_(take(device)), device_(device) {
  ax_status status = driver().event_record(event_, queue);
  if (status == AX_OK) return;
  give_back();
  check(status, "record an event");
}

PooledEvent::PooledEvent(PooledEvent&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)), device_(other.device_) {}

PooledEvent& PooledEvent::operator=(PooledEvent&& other) noexcept {
  std::swap(event_, other.event_);
  std::swap(device_, other.device_);
  return *this;
}

PooledEvent::~PooledEvent() { give_back(); }

ax_status PooledEvent::query() const { return driver().event_query(event_); }

ax_status PooledEvent::synchronize() const { return driver().event_synchronize(event_); }

void PooledEvent::give_back() noexcept {
  if (event_ == nullptr) return;
  auto& pool = free_events(device_);
  std::lock_guard<std::mutex> lock(pool.mutex);
  pool.events.push_back(std::exchange(event_, nullptr));
}

}  // namespace anyxpu
