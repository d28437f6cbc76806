// Memory that an operator takes on the host, beside its results, where that is the device's memory as well.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace anyxpu {

// In its scope, large memory that this thread asks of the CPU's allocator counts as the device's: cached blocks are
// given back where there is too little, and c10::OutOfMemoryError names the operator where there still is. The system
// would end the process instead, as it hands out more memory than there is. At its end the most that was taken at one
// time goes into the device's statistics, as memory that came and went.
class HostTemporaries {
 public:
  HostTemporaries(const std::string& name, c10::DeviceIndex device);
  ~HostTemporaries();
  HostTemporaries(const HostTemporaries&) = delete;
  HostTemporaries& operator=(const HostTemporaries&) = delete;

 private:
  void take(size_t bytes);
  void give(size_t bytes);

  const std::string& name_;
  c10::DeviceIndex device_;
  HostTemporaries* outer_;
  size_t now_ = 0;
  size_t most_ = 0;
  friend class WatchedAllocator;
};

}  // namespace anyxpu
