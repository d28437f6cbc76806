// What the files of the shim share: the driver, devices, streams. No PyTorch policy lives here.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "drivers/driver.h"

namespace anyxpu {

// --- driver -------------------------------------------------------------------------------------------------
// Says where the driver's library lies and how many devices to ask it for; called once, at first use, without any
// lock held. Throws (with a sentence for the user) when there is no such library.
struct DriverChoice {
  std::string path;
  int devices = 0;
};
void set_driver_resolver(std::function<DriverChoice()> resolver);
// The driver, loaded and opened at the first call. Throws c10::Error naming what is missing, and in a forked child
// of a process that had already opened it.
const ax_driver& driver();
bool driver_started() noexcept;
// True in a child that was forked after the parent opened the driver.
bool in_bad_fork() noexcept;
// Throws c10::Error "anyxpu: cannot <what>: <last_error()>" unless status is AX_OK.
// AX_OUT_OF_MEMORY becomes c10::OutOfMemoryError, AX_DEVICE_LOST c10::AcceleratorError.
void check(ax_status status, const char* what);
void check(ax_status status, const char* what, const char* said);  // for what another thread was told
// What is said of AX_DEVICE_LOST: the message, and what is left to do.
std::string lost_device(const std::string& message);

// --- devices ------------------------------------------------------------------------------------------------
// Devices the driver shows; 0 when it cannot be started, finds none, or in a bad fork. Never throws.
c10::DeviceIndex device_count() noexcept;
// Why device_count() is 0; "" when it is not.
std::string unavailable_reason();
// Throws when `device` is not a valid index.
void check_device(c10::DeviceIndex device);
const ax_device_properties& properties(c10::DeviceIndex device);
// Of the calling thread; starts at 0.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex device);  // checked
// -1 stands for the current device.
c10::DeviceIndex resolve_device(c10::DeviceIndex device);

// --- streams ------------------------------------------------------------------------------------------------
c10::Stream default_stream(c10::DeviceIndex device = -1);
c10::Stream current_stream(c10::DeviceIndex device = -1);
// Makes it the calling thread's current stream of its own device; returns the one it replaces.
c10::Stream exchange_current_stream(c10::Stream stream);
// The next of the 32 pooled streams of this device and priority (< 0 high, 0 normal, > 0 low).
c10::Stream stream_from_pool(c10::DeviceIndex device, int priority);
// The one way to build a c10::Stream of type XPU from its parts.
c10::Stream make_stream(c10::StreamId id, c10::DeviceIndex device);
int stream_priority(c10::Stream stream);
// A stream over a queue somebody else owns (a sycl::queue* with the sycl driver).
c10::Stream stream_from_external(ax_queue* queue, c10::DeviceIndex device);
ax_queue* queue(c10::Stream stream);
// Whose queue it is; none where somebody else owns it.
std::optional<c10::Stream> stream_of(const ax_queue* queue);
ax_queue* current_queue(c10::DeviceIndex device = -1);
void synchronize_device(c10::DeviceIndex device = -1);

// --- generators ---------------------------------------------------------------------------------------------
const at::Generator& default_generator(c10::DeviceIndex device = -1);
at::Generator new_generator(c10::DeviceIndex device = -1);
// Reserves `increment` philox outputs a thread of `generator` (the default one of `device` if undefined) and
// returns the (seed, offset) to use. Thread-safe.
std::pair<uint64_t, uint64_t> philox_state(const std::optional<at::Generator>& generator, uint64_t increment,
                                           c10::DeviceIndex device = -1);

}  // namespace anyxpu
