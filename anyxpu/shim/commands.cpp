#include "shim/commands.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "shim/allocator.h"
#include "shim/kept_copies.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

uint64_t now() noexcept {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

int32_t this_thread() noexcept {
  static thread_local const auto number = static_cast<int32_t>(syscall(SYS_gettid));
  return number;
}

const ax_driver* real = nullptr;

// --- names of kernels -------------------------------------------------------------------------------------------
struct Names {
  std::mutex mutex;
  std::unordered_map<const ax_kernel*, std::string> of;
};

Names& names() {
  static auto* all = new Names;  // never destroyed: kernels are freed after every destructor
  return *all;
}

std::string kernel_name(const ax_kernel* kernel) {
  const std::lock_guard lock(names().mutex);
  const auto found = names().of.find(kernel);
  return found == names().of.end() ? "kernel" : found->second;
}

// --- what asks --------------------------------------------------------------------------------------------------
// What was pushed before the watch began, or for an earlier one, is gone with it.
struct Asked {
  uint64_t watch = 0;
  std::vector<uint64_t> ids[2];
};
thread_local Asked asked;
std::atomic<uint64_t> watches{0};

std::vector<uint64_t>& asking(Asking what) {
  const uint64_t current = watches.load(std::memory_order_relaxed);
  if (asked.watch != current) asked = {current, {}};
  return asked.ids[static_cast<size_t>(what)];
}

uint64_t latest(Asking what) {
  const std::vector<uint64_t>& ids = asking(what);
  return ids.empty() ? 0 : ids.back();
}

// --- the log ----------------------------------------------------------------------------------------------------
// Whoever is about to give the driver a command holds its event too: the watch may end before the driver has it.
using Event = std::shared_ptr<ax_event>;

struct Seen {
  Command command;
  ax_queue* queue = nullptr;  // null where the stream is known
  Event event = nullptr;      // null where the time is known, or never will be
  bool refused = false;

  // The driver has been given it, or refused it.
  bool given() const { return command.asked_to != 0; }
};

struct Opened {
  uint64_t number;
  Event event;
};

struct Log {
  std::mutex mutex;
  std::deque<Seen> entries;
  size_t settled = 0;   // of that many the times are known
  uint64_t before = 0;  // so many were handed over already

  Seen* find(uint64_t number) {
    return number >= before && number - before < entries.size() ? &entries[number - before] : nullptr;
  }
};

Log& log() {
  static auto* one = new Log;
  return *one;
}

std::atomic<bool> running{false};  // a profile has begun and not ended
std::atomic<bool> watched{false};  // and is not paused

// Events that wait for their times cost the device's memory: so many are held before the first are asked.
constexpr size_t kHeld = 4096;

// False where it is not done yet.
bool settle(Seen& entry) {
  if (entry.event == nullptr) return true;
  if (!entry.given()) return false;
  ax_interval interval{};
  const ax_status status = real->event_interval(entry.event.get(), &interval);
  if (status == AX_NOT_READY) return false;
  if (status == AX_OK) entry.command.begin = interval.begin, entry.command.end = interval.end;
  entry.event.reset();
  return true;
}

void settle_first(Log& all) {
  while (all.settled < all.entries.size() && settle(all.entries[all.settled])) ++all.settled;
}

Command command(CommandKind kind, std::string name, c10::DeviceIndex device) {
  return {kind,
          std::move(name),
          device,
          0,
          this_thread(),
          now(),
          0,
          0,
          0,
          latest(Asking::operation),
          latest(Asking::annotation),
          0,
          {},
          {}};
}

// The entry's number, with its event set for the calling thread's next command; none where that cannot be had.
std::optional<Opened> open(ax_queue* queue, Command command) {
  ax_event* made = nullptr;
  if (real->event_create(command.device, 1, &made) != AX_OK) return std::nullopt;
  const Event event(made, [](ax_event* done) { real->event_destroy(done); });
  if (real->event_of_next(made) != AX_OK) return std::nullopt;
  Log& all = log();
  const std::lock_guard lock(all.mutex);
  if (all.entries.size() - all.settled >= kHeld) settle_first(all);
  all.entries.push_back({std::move(command), queue, event});
  return Opened{all.before + all.entries.size() - 1, event};
}

void close(const Opened& opened, bool done) {
  real->event_of_next(nullptr);
  Log& all = log();
  const std::lock_guard lock(all.mutex);
  Seen* const entry = all.find(opened.number);  // null where the watch has ended meanwhile
  if (entry == nullptr) return;
  entry->command.asked_to = now();
  entry->refused = !done;
}

// What the driver has no part in, or is told of in no command.
void note(Command command) {
  Log& all = log();
  const std::lock_guard lock(all.mutex);
  all.entries.push_back({std::move(command)});
}

thread_local bool waiting = false;

// `call` asks for what `describe` tells.
template <typename Describe, typename Call>
ax_status watch(ax_queue* queue, Describe describe, Call call) {
  const std::optional<Opened> opened = open(queue, describe());
  const ax_status status = call();
  if (opened) close(*opened, status == AX_OK);
  return status;
}

ax_status launch(ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3], const uint32_t local[3],
                 const ax_arg* args, uint32_t arg_count, uint64_t work) {
  const auto describe = [&] {
    Command made = command(CommandKind::kernel, kernel_name(kernel), current_device());
    std::copy_n(groups, 3, made.groups);
    std::copy_n(local, 3, made.local);
    return made;
  };
  return watch(queue, describe, [&] { return real->launch(queue, kernel, groups, local, args, arg_count, work); });
}

std::string copy_name(const void* dst, const void* src) {
  const auto to = device_of(dst), from = device_of(src);
  if (to && from) return *to == *from ? "Memcpy DtoD" : "Memcpy PtoP";
  if (to) return "Memcpy HtoD";
  return from ? "Memcpy DtoH" : "Memcpy HtoH";
}

ax_status copy(ax_queue* queue, void* dst, const void* src, uint64_t bytes) {
  if (bytes == 0) return real->copy(queue, dst, src, bytes);
  const auto describe = [&] {
    Command made = command(CommandKind::copy, copy_name(dst, src), current_device());
    made.bytes = bytes;
    return made;
  };
  return watch(queue, describe, [&] { return real->copy(queue, dst, src, bytes); });
}

ax_status fill(ax_queue* queue, void* dst, const void* pattern, uint32_t pattern_bytes, uint64_t count) {
  if (count == 0) return real->fill(queue, dst, pattern, pattern_bytes, count);
  const auto describe = [&] {
    Command made = command(CommandKind::fill, "Memset (Device)", current_device());
    made.bytes = count * pattern_bytes;
    return made;
  };
  return watch(queue, describe, [&] { return real->fill(queue, dst, pattern, pattern_bytes, count); });
}

ax_status host_call(ax_queue* queue, void (*fn)(void*), void* data) {
  const auto describe = [&] { return command(CommandKind::host_call, "Host function", current_device()); };
  return watch(queue, describe, [&] { return real->host_call(queue, fn, data); });
}

const ax_driver* watching() {
  static const ax_driver* const table = [] {
    auto* made = new ax_driver(*real);
    made->launch = &launch;
    made->copy = &copy;
    made->fill = &fill;
    made->host_call = &host_call;
    return made;
  }();
  return table;
}

}  // namespace

void watch_driver(const ax_driver* driver) { real = driver; }

bool commands_watched() noexcept { return watched.load(std::memory_order_relaxed); }

void watch_commands() {
  driver();
  watches.fetch_add(1);
  running.store(true);
  if (watched.exchange(true)) return;
  give_commands_to(watching());
}

void pause_commands(bool pause) {
  if (!running.load() || watched.exchange(!pause) == !pause) return;
  give_commands_to(pause ? real : watching());
}

std::vector<Command> watched_commands() {
  if (real == nullptr) return {};
  give_commands_to(real);
  running.store(false);
  watched.store(false);
  std::deque<Seen> entries;
  {
    Log& all = log();
    const std::lock_guard lock(all.mutex);
    entries.swap(all.entries);
    all.before += entries.size();
    all.settled = 0;
  }
  // What fails in a queue is told to who waits for it, and that is not the profiler. A queue of somebody else's may be
  // gone: of its commands those are known that are done.
  std::map<ax_queue*, std::optional<c10::Stream>> streams;
  std::vector<Command> commands;
  commands.reserve(entries.size());
  for (Seen& entry : entries) {
    if (entry.refused || !entry.given()) continue;
    if (entry.queue != nullptr) {
      const auto [found, fresh] = streams.try_emplace(entry.queue, std::nullopt);
      if (fresh) found->second = stream_of(entry.queue);
      const auto& stream = found->second;
      entry.command.stream =
          stream ? stream->id() : static_cast<c10::StreamId>(reinterpret_cast<uintptr_t>(entry.queue));
      if (stream) entry.command.device = stream->device_index();
      if (stream && fresh)
        while (real->queue_query(entry.queue) == AX_NOT_READY) usleep(100);
    }
    settle(entry);
    commands.push_back(std::move(entry.command));
  }
  return commands;
}

void push_asking(Asking what, uint64_t id) { asking(what).push_back(id); }

void pop_asking(Asking what) {
  std::vector<uint64_t>& ids = asking(what);
  if (!ids.empty()) ids.pop_back();
}

void name_kernel(const ax_kernel* kernel, const std::string& name) {
  const std::lock_guard lock(names().mutex);
  names().of[kernel] = name;
}

void forget_kernel(const ax_kernel* kernel) noexcept {
  const std::lock_guard lock(names().mutex);
  names().of.erase(kernel);
}

WatchedPrimitive::WatchedPrimitive(ax_queue* queue, const std::string& name) {
  if (C10_LIKELY(!commands_watched())) return;
  if (auto opened = open(queue, command(CommandKind::primitive, name, current_device())))
    entry_ = opened->number, event_ = std::move(opened->event);
}

WatchedPrimitive::~WatchedPrimitive() {
  if (event_ != nullptr) close({entry_, event_}, true);
}

WatchedHost::WatchedHost(c10::DeviceIndex device, const std::string& name)
    : watched_(commands_watched()), device_(device) {
  if (C10_LIKELY(!watched_)) return;
  name_ = name + " (host)";
  began_ = now();
}

WatchedHost::~WatchedHost() {
  if (C10_LIKELY(!watched_) || !commands_watched()) return;
  Command made = command(CommandKind::host_operator, name_, device_);
  made.stream = current_stream(device_).id();
  made.asked_from = made.begin = began_;
  made.asked_to = made.end = now();
  note(std::move(made));
}

WatchedWait::WatchedWait(const char* call) : call_(commands_watched() && !waiting ? call : nullptr) {
  if (C10_LIKELY(call_ == nullptr)) return;
  waiting = true;
  began_ = now();
}

WatchedWait::~WatchedWait() {
  if (C10_LIKELY(call_ == nullptr)) return;
  waiting = false;
  if (!commands_watched()) return;
  Command made = command(CommandKind::wait, call_, current_device());
  made.asked_from = began_;
  made.asked_to = now();
  note(std::move(made));
}

}  // namespace anyxpu
