// Memory that an operator takes on the host, beside its results, where that is the device's memory as well.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <string>

namespace anyxpu {

// In its scope, what this thread asks of the CPU's allocator are blocks of the device's own, which are warm where the
// system's memory would be new at every call, and which results keep (see take_lent). Where there is none, large memory
// of the system's counts as the device's: cached blocks are given back where there is too little, and
// c10::OutOfMemoryError names the operator where there still is. The system would end the process instead, as it hands
// out more memory than there is. At its end the most that was taken of it at one time goes into the device's
// statistics, as memory that came and went.
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
  friend c10::DataPtr lend(const HostTemporaries& work, size_t bytes);
};

// The device's block at `data` that a host operator was given for the CPU's memory: it is the caller's now. Empty where
// that is no such block.
c10::DataPtr take_lent(void* data);

}  // namespace anyxpu
