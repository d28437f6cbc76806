// Conditions that kernels check while they run (tl.device_assert), and how one that does not hold reaches the host.
#pragma once

#include <string>
#include <vector>

#include "shim/runtime.h"
#include "shim/waiting.h"

namespace anyxpu {

// A kernel with assertions takes two more arguments: the device's record, and the number under which its messages
// are known here. triton/prelude/assertions.cl writes the record as AssertionRecord lays it out.
int32_t register_assertions(std::vector<std::string> messages);
// Memory that the device and the host reach, made at the first call.
void* assertion_record(c10::DeviceIndex device);
// Throws c10::AcceleratorError where an assertion has failed on the device since the last call; it is forgotten then.
// Called wherever the host has waited for the device.
void raise_failed_assertion(c10::DeviceIndex device);

// Waits for a queue of the device; throws c10::Error "anyxpu: cannot <what>: ...", or what has failed on the device.
// `touched` is the host's memory that the queue reads or writes.
inline void wait_for(ax_queue* queue, c10::DeviceIndex device, const char* what, Storages touched = {}) {
  wait_for_queue(queue, device, what, std::move(touched));
  raise_failed_assertion(device);
}

}  // namespace anyxpu
