// What the device is asked to do while a profiler looks on: every command, by whom it was asked for, and when it ran.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "drivers/driver.h"

namespace anyxpu {

enum class CommandKind { kernel, copy, fill, host_call, primitive, host_operator, wait };

struct Command {
  CommandKind kind;
  std::string name;
  c10::DeviceIndex device;
  c10::StreamId stream;
  int32_t thread;  // that asked for it: the system's number
  // Nanoseconds of the host's steady clock: the call that asked, and the device's work; 0 where that is not known.
  uint64_t asked_from, asked_to;
  uint64_t begin, end;
  // What torch's profiler calls the operator, and the span of the user's, that asked for it; 0 for none.
  uint64_t operation, annotation;
  uint64_t bytes;  // of copies and fills
  uint32_t groups[3], local[3];
};

// One profiler at a time: a second start goes on with the first one's commands.
void watch_commands();
// Waits for what was asked for meanwhile, and hands it over in the order in which it was asked for.
std::vector<Command> watched_commands();
// While paused nothing is noted; what was is kept. For a profiler that is running: the next one begins unpaused.
void pause_commands(bool pause);
// Whether one looks on. Costs a load.
bool commands_watched() noexcept;

// What asks for commands in the calling thread, from torch's profiler; the latest counts.
enum class Asking { operation, annotation };
void push_asking(Asking what, uint64_t id);
void pop_asking(Asking what);

// A kernel's name for those that look on; forgotten when it is destroyed.
void name_kernel(const ax_kernel* kernel, const std::string& name);
void forget_kernel(const ax_kernel* kernel) noexcept;

// While it lives, the calling thread asks `queue` for one command that does not go through the driver's table: a
// primitive of a library. Nothing where nobody looks on.
class WatchedPrimitive {
 public:
  WatchedPrimitive(ax_queue* queue, const std::string& name);
  ~WatchedPrimitive();
  WatchedPrimitive(const WatchedPrimitive&) = delete;
  WatchedPrimitive& operator=(const WatchedPrimitive&) = delete;

 private:
  uint64_t entry_ = 0;
  std::shared_ptr<ax_event> event_;  // null where nobody looks on
};

// While it lives, the calling thread does the work of an operator itself.
class WatchedHost {
 public:
  WatchedHost(c10::DeviceIndex device, const std::string& name);
  ~WatchedHost();
  WatchedHost(const WatchedHost&) = delete;
  WatchedHost& operator=(const WatchedHost&) = delete;

 private:
  bool watched_;
  c10::DeviceIndex device_;
  uint64_t began_ = 0;
  std::string name_;
};

// While it lives, the calling thread waits for the device: what it called the wait is `call`. Waits within it are not
// noted.
class WatchedWait {
 public:
  explicit WatchedWait(const char* call);
  ~WatchedWait();
  WatchedWait(const WatchedWait&) = delete;
  WatchedWait& operator=(const WatchedWait&) = delete;

 private:
  const char* call_;  // null where nobody looks on
  uint64_t began_ = 0;
};

// The driver's table that a watched one stands before; set once, when the driver starts.
void watch_driver(const ax_driver* driver);

}  // namespace anyxpu
