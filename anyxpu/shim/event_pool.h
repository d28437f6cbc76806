// Events that say when a queue has passed a point, reused so that recording one makes nothing new.
#pragma once

#include <c10/core/Device.h>

#include "drivers/driver.h"

namespace anyxpu {

// Owns one event without timing, which goes back to its device's pool at the end.
class PooledEvent {
 public:
  // Made and recorded on `queue`, a queue of `device`. Throws c10::Error if the driver refuses.
  PooledEvent(ax_queue* queue, c10::DeviceIndex device);
  PooledEvent(PooledEvent&& other) noexcept;
  PooledEvent& operator=(PooledEvent&& other) noexcept;
  ~PooledEvent();

  // AX_OK: passed; AX_NOT_READY: not yet; anything else: the work before it failed, which also ends it.
  ax_status query() const;
  // Blocks until passed. Do not hold a lock that a host function on the queue may want.
  ax_status synchronize() const;

 private:
  void give_back() noexcept;
  ax_event* event_ = nullptr;
  c10::DeviceIndex device_ = 0;
};

}  // namespace anyxpu
