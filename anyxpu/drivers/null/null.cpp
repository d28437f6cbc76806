// A driver without a device: kernels do nothing, but memory, copies, fills, host calls, queues and events are real.
//
// It tests all that stands above a driver, on any machine and without Intel's runtime. Every queue runs its work in
// order on a thread of its own, so that work is as asynchronous as on a GPU, and faults can be injected:
//
//   alloc:N     the N-th next allocation (1: the next) answers AX_OUT_OF_MEMORY
//   build:N     the N-th next module does not build
//   launch:N    the N-th next launch is refused at once
//   run:N       the N-th next launch is accepted and fails while it runs
//   copy_ms:T   every copy takes T milliseconds longer
//   launch_ms:T every kernel takes T milliseconds
//
// set by ANYXPU_NULL_FAULTS="alloc:3,copy_ms:50" or by anyxpu_null_set_fault at any time. ANYXPU_DEVICES (default 1)
// and ANYXPU_NULL_MEMORY (bytes a device, default 1 GiB) size it.
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drivers/driver.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kDefaultMemory = 1ull << 30;
constexpr size_t kAlignment = 256;
constexpr uint32_t kMaxWorkGroupSize = 1024;

// --- errors -------------------------------------------------------------------------------------------------
thread_local std::string t_last_error;

ax_status fail(ax_status status, std::string message) {
  t_last_error = std::move(message);
  return status;
}

const char* last_error() { return t_last_error.c_str(); }

// --- faults and counters --------------------------------------------------------------------------------------
// A countdown fires when it reaches 0 and is then spent; a duration stays until it is set anew.
struct Fault {
  std::string_view name;
  std::atomic<int64_t> value{0};

  bool fires() {
    int64_t left = value.load();
    while (left > 0 && !value.compare_exchange_weak(left, left - 1)) {
    }
    return left == 1;
  }
  void delay() const {
    if (const int64_t ms = value.load(); ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  }
};

enum FaultKind { kAlloc, kBuild, kLaunch, kRun, kCopyMs, kLaunchMs, kFaultCount };
Fault g_faults[kFaultCount] = {{"alloc"}, {"build"}, {"launch"}, {"run"}, {"copy_ms"}, {"launch_ms"}};

struct Counter {
  std::string_view name;
  std::atomic<uint64_t> value{0};
};

enum CountKind {
  kAllocate,
  kDeallocate,
  kQueueCreate,
  kQueueDestroy,
  kQueueSynchronize,
  kCopy,
  kFill,
  kHostCall,
  kEventCreate,
  kEventDestroy,
  kEventRecord,
  kEventWait,
  kEventSynchronize,
  kModuleCreate,
  kKernelCreate,
  kLaunchCount,
  kCounterCount
};
Counter g_counters[kCounterCount] = {{"allocate"},          {"deallocate"},    {"queue_create"},  {"queue_destroy"},
                                     {"queue_synchronize"}, {"copy"},          {"fill"},          {"host_call"},
                                     {"event_create"},      {"event_destroy"}, {"event_record"},  {"event_wait"},
                                     {"event_synchronize"}, {"module_create"}, {"kernel_create"}, {"launch"}};

void count(CountKind kind) { g_counters[kind].value.fetch_add(1, std::memory_order_relaxed); }

Fault* find_fault(std::string_view name) {
  for (Fault& fault : g_faults) {
    if (fault.name == name) return &fault;
  }
  return nullptr;
}

// "alloc:3,copy_ms:50"; false, naming the part, where a part is not one of ours.
bool set_faults(std::string_view text, std::string* bad) {
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    const size_t colon = part.find(':');
    Fault* fault = colon == std::string_view::npos ? nullptr : find_fault(part.substr(0, colon));
    if (fault == nullptr) {
      *bad = part;
      return false;
    }
    fault->value = std::strtoll(std::string(part.substr(colon + 1)).c_str(), nullptr, 10);
  }
  return true;
}

// --- devices and memory ---------------------------------------------------------------------------------------
struct Device {
  uint64_t used = 0;
};

struct Allocation {
  int device;
  ax_memory_kind kind;
  uint64_t bytes;
};

struct State {
  std::mutex mutex;
  bool opened = false;
  uint64_t memory = kDefaultMemory;
  std::vector<Device> devices;
  std::unordered_map<void*, Allocation> allocations;
};

// Leaked: threads of queues outlive static destruction.
State& state() {
  static State* leaked = new State;
  return *leaked;
}

ax_status check_device(int device) {
  const size_t shown = state().devices.size();
  if (device >= 0 && static_cast<size_t>(device) < shown) return AX_OK;
  return fail(AX_INVALID, "there is no device " + std::to_string(device) + "; the null driver shows " +
                              std::to_string(shown) + " (ANYXPU_DEVICES)");
}

ax_status open(int devices) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.opened) return AX_OK;
  if (const char* faults = std::getenv("ANYXPU_NULL_FAULTS")) {
    std::string bad;
    if (!set_faults(faults, &bad))
      return fail(AX_INVALID, "ANYXPU_NULL_FAULTS holds '" + bad + "', which is none of this driver's faults");
  }
  if (const char* memory = std::getenv("ANYXPU_NULL_MEMORY")) {
    s.memory = std::strtoull(memory, nullptr, 10);
    if (s.memory == 0) return fail(AX_INVALID, "ANYXPU_NULL_MEMORY must be a number of bytes above 0");
  }
  s.devices.resize(devices > 0 ? static_cast<size_t>(devices) : 1);
  s.opened = true;
  return AX_OK;
}

ax_status device_count(int* count) {
  *count = static_cast<int>(state().devices.size());
  return AX_OK;
}

ax_status device_properties(int device, ax_device_properties* out) {
  if (ax_status status = check_device(device)) return status;
  *out = ax_device_properties{};
  std::strcpy(out->name, "anyxpu null device");
  std::strcpy(out->platform_name, "anyxpu null driver");
  std::strcpy(out->vendor, "anyxpu");
  std::strcpy(out->driver_version, "1");
  std::strcpy(out->version, "null 1");
  out->uuid[15] = static_cast<uint8_t>(device);
  out->type = AX_DEVICE_OTHER;
  out->total_memory = state().memory;
  out->local_mem_size = 64 << 10;
  out->last_level_cache_size = 1 << 20;
  out->max_compute_units = out->gpu_eu_count = out->gpu_subslice_count = 1;
  out->gpu_eu_count_per_subslice = out->gpu_hw_threads_per_eu = 1;
  out->gpu_eu_simd_width = 16;
  out->max_work_group_size = kMaxWorkGroupSize;
  out->max_num_sub_groups = kMaxWorkGroupSize / 16;
  out->sub_group_sizes[0] = 16;
  out->sub_group_sizes[1] = 32;
  out->has_fp16 = out->has_fp64 = out->has_atomic64 = 1;
  out->host_accessible = 1;
  out->compiles_opencl_c = 1;
  return AX_OK;
}

ax_status memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  if (ax_status status = check_device(device)) return status;
  State& s = state();
  std::lock_guard lock(s.mutex);
  *total_bytes = s.memory;
  *free_bytes = s.memory - s.devices[static_cast<size_t>(device)].used;
  return AX_OK;
}

ax_status can_access_peer(int device, int peer, int* yes) {
  if (ax_status status = check_device(device)) return status;
  if (ax_status status = check_device(peer)) return status;
  *yes = 1;
  return AX_OK;
}

ax_status allocate(int device, ax_memory_kind kind, uint64_t bytes, void** out) {
  count(kAllocate);
  if (ax_status status = check_device(device)) return status;
  if (bytes == 0) return fail(AX_INVALID, "an allocation of 0 bytes was asked for");
  if (g_faults[kAlloc].fires()) return fail(AX_OUT_OF_MEMORY, "an injected fault refuses this allocation");
  State& s = state();
  std::lock_guard lock(s.mutex);
  uint64_t& used = s.devices[static_cast<size_t>(device)].used;
  const bool counted = kind != AX_MEMORY_HOST;
  if (counted && bytes > s.memory - used) {
    return fail(AX_OUT_OF_MEMORY, "device " + std::to_string(device) + " has " + std::to_string(s.memory - used) +
                                      " bytes left of " + std::to_string(s.memory) + "; " + std::to_string(bytes) +
                                      " bytes were asked for");
  }
  void* pointer = nullptr;
  if (posix_memalign(&pointer, kAlignment, bytes) != 0) return fail(AX_OUT_OF_MEMORY, "the host is out of memory");
  s.allocations[pointer] = {device, kind, bytes};
  if (counted) used += bytes;
  *out = pointer;
  return AX_OK;
}

ax_status deallocate(int device, ax_memory_kind kind, void* pointer) {
  count(kDeallocate);
  if (pointer == nullptr) return AX_OK;
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto found = s.allocations.find(pointer);
  if (found == s.allocations.end())
    return fail(AX_INVALID, "the pointer to free was not allocated by this driver, or was freed before");
  if (found->second.device != device || found->second.kind != kind)
    return fail(AX_INVALID, "the pointer to free belongs to another device or is of another kind");
  if (kind != AX_MEMORY_HOST) s.devices[static_cast<size_t>(device)].used -= found->second.bytes;
  s.allocations.erase(found);
  std::free(pointer);
  return AX_OK;
}

// --- queues ---------------------------------------------------------------------------------------------------
// Work in order on a thread of its own, started with the first work and ended when the queue is destroyed and empty.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  void push(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!started_) {
      started_ = true;
      std::thread([self = shared_from_this()] { self->run(); }).detach();
    }
    changed_.notify_all();
  }
  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  bool idle() {
    std::lock_guard lock(mutex_);
    return tasks_.empty();
  }
  // Waits until all is done; hands over what failed since the last time.
  std::string drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty(); });
    return std::exchange(error_, {});
  }
  void report(const std::string& error) {
    std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = error;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<void()>& task = tasks_.front();  // a deque keeps it in place while others are pushed
      lock.unlock();
      task();
      lock.lock();
      tasks_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::string error_;
  bool started_ = false, closed_ = false;
};

// What one recording of an event stands for.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  Clock::time_point time;

  void reach() {
    std::lock_guard lock(mutex);
    time = Clock::now();
    reached = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
  bool query() {
    std::lock_guard lock(mutex);
    return reached;
  }
};

}  // namespace

struct ax_queue {
  int device;
  std::shared_ptr<Worker> worker;
};

// Of one command, for profilers; the queue's thread may reach it after the event is gone.
struct Interval {
  std::atomic<uint64_t> begin{0}, end{0};
};

struct ax_event {
  bool timing;
  std::mutex mutex;
  std::shared_ptr<Mark> mark;  // null until recorded
  std::shared_ptr<Interval> interval = nullptr;
  std::shared_ptr<Mark> current() {
    std::lock_guard lock(mutex);
    return mark;
  }
};

struct ax_module {
  std::vector<uint8_t> code;
  ax_module_format format;
};

struct ax_kernel {
  std::string name;
};

namespace {

ax_status queue_create(int device, int priority, ax_queue** out) {
  count(kQueueCreate);
  if (ax_status status = check_device(device)) return status;
  *out = new ax_queue{device, std::make_shared<Worker>()};
  return AX_OK;
}

ax_status queue_destroy(ax_queue* queue) {
  count(kQueueDestroy);
  if (queue != nullptr) queue->worker->close();
  delete queue;
  return AX_OK;
}

ax_status queue_synchronize(ax_queue* queue) {
  count(kQueueSynchronize);
  const std::string error = queue->worker->drain();
  return error.empty() ? AX_OK : fail(AX_LAUNCH_FAILED, "work enqueued earlier failed: " + error);
}

ax_status queue_query(ax_queue* queue) { return queue->worker->idle() ? AX_OK : AX_NOT_READY; }

ax_status queue_help(ax_queue*) { return AX_OK; }

thread_local ax_event* t_timed = nullptr;

uint64_t steady_now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}

// `work` in the queue's order; its interval is what the calling thread's event stands for, where it set one.
template <typename Work>
void push_command(ax_queue* queue, Work work) {
  ax_event* const timed = std::exchange(t_timed, nullptr);
  if (timed == nullptr) return queue->worker->push(std::move(work));
  timed->interval = std::make_shared<Interval>();
  queue->worker->push([work = std::move(work), interval = timed->interval] {
    interval->begin = steady_now();
    work();
    interval->end = steady_now();
  });
}

ax_status event_of_next(ax_event* event) {
  if (event != nullptr && !event->timing)
    return fail(AX_INVALID, "the event of a command must have been created with timing");
  t_timed = event;
  return AX_OK;
}

ax_status event_interval(ax_event* event, ax_interval* out) {
  if (event->interval == nullptr) return fail(AX_UNSUPPORTED, "the event stands for no command whose time is known");
  if (event->interval->end == 0) return fail(AX_NOT_READY, "the time of a command is known once it is done");
  *out = {event->interval->begin, event->interval->end};
  return AX_OK;
}

ax_status copy(ax_queue* queue, void* dst, const void* src, uint64_t bytes) {
  count(kCopy);
  if (bytes == 0) return AX_OK;
  if (dst == nullptr || src == nullptr) return fail(AX_INVALID, "a copy from or to a null address was asked for");
  push_command(queue, [=] {
    g_faults[kCopyMs].delay();
    std::memmove(dst, src, bytes);
  });
  return AX_OK;
}

ax_status fill(ax_queue* queue, void* dst, const void* pattern, uint32_t pattern_bytes, uint64_t repetitions) {
  count(kFill);
  if (pattern_bytes == 0 || pattern_bytes > 16 || (pattern_bytes & (pattern_bytes - 1)) != 0)
    return fail(AX_INVALID, "a fill pattern has 1, 2, 4, 8 or 16 bytes, not " + std::to_string(pattern_bytes));
  if (repetitions == 0) return AX_OK;
  if (dst == nullptr) return fail(AX_INVALID, "a fill of a null address was asked for");
  std::array<uint8_t, 16> bytes{};
  std::memcpy(bytes.data(), pattern, pattern_bytes);
  push_command(queue, [=] {
    auto* to = static_cast<uint8_t*>(dst);
    for (uint64_t i = 0; i < repetitions; ++i, to += pattern_bytes) std::memcpy(to, bytes.data(), pattern_bytes);
  });
  return AX_OK;
}

// A function may throw to report a failure; its queue reports it when it is waited for.
ax_status host_call(ax_queue* queue, void (*fn)(void*), void* data) {
  count(kHostCall);
  if (fn == nullptr) return fail(AX_INVALID, "a host call of a null function was asked for");
  push_command(queue, [=, worker = queue->worker.get()] {
    try {
      fn(data);
    } catch (const std::exception& error) {
      worker->report(error.what());
    }
  });
  return AX_OK;
}

// --- events -----------------------------------------------------------------------------------------------------
ax_status event_create(int device, int timing, ax_event** out) {
  count(kEventCreate);
  if (ax_status status = check_device(device)) return status;
  *out = new ax_event{timing != 0, {}, nullptr};
  return AX_OK;
}

ax_status event_destroy(ax_event* event) {
  count(kEventDestroy);
  delete event;
  return AX_OK;
}

ax_status event_record(ax_event* event, ax_queue* queue) {
  count(kEventRecord);
  auto mark = std::make_shared<Mark>();
  {
    std::lock_guard lock(event->mutex);
    event->mark = mark;
  }
  queue->worker->push([mark] { mark->reach(); });
  return AX_OK;
}

ax_status event_wait(ax_event* event, ax_queue* queue) {
  count(kEventWait);
  if (auto mark = event->current()) queue->worker->push([mark] { mark->wait(); });
  return AX_OK;
}

ax_status event_query(ax_event* event) {
  const auto mark = event->current();
  return mark == nullptr || mark->query() ? AX_OK : AX_NOT_READY;
}

ax_status event_synchronize(ax_event* event) {
  count(kEventSynchronize);
  if (const auto mark = event->current()) mark->wait();
  return AX_OK;
}

ax_status event_elapsed(ax_event* start, ax_event* end, double* milliseconds) {
  if (!start->timing || !end->timing) return fail(AX_INVALID, "both events must have been created with timing");
  const auto from = start->current(), to = end->current();
  if (!from || !to) return fail(AX_INVALID, "both events must have been recorded");
  if (!from->query() || !to->query())
    return fail(AX_NOT_READY, "the time between two events is known once both have been reached");
  *milliseconds = std::chrono::duration<double, std::milli>(to->time - from->time).count();
  return AX_OK;
}

// --- modules and kernels ------------------------------------------------------------------------------------------
ax_status module_create(int device, ax_module_format format, const void* data, uint64_t bytes, const char* options,
                        ax_module** out) {
  count(kModuleCreate);
  if (ax_status status = check_device(device)) return status;
  if (data == nullptr || bytes == 0) return fail(AX_INVALID, "a module was asked for without any code");
  if (g_faults[kBuild].fires()) return fail(AX_BUILD_FAILED, "1:1:1: error: an injected fault refuses this module");
  const auto* from = static_cast<const uint8_t*>(data);
  *out = new ax_module{{from, from + bytes}, format};
  return AX_OK;
}

ax_status module_native(ax_module* module, void* data, uint64_t* bytes) {
  const uint64_t room = *bytes;
  *bytes = module->code.size();
  if (data == nullptr) return AX_OK;
  if (room < module->code.size()) return fail(AX_INVALID, "the buffer is smaller than the module's native code");
  std::memcpy(data, module->code.data(), module->code.size());
  return AX_OK;
}

ax_status module_destroy(ax_module* module) {
  delete module;
  return AX_OK;
}

ax_status kernel_create(ax_module* module, const char* name, ax_kernel** out) {
  count(kKernelCreate);
  const std::string_view text(reinterpret_cast<const char*>(module->code.data()), module->code.size());
  if (text.find(name) == std::string_view::npos)
    return fail(AX_INVALID, std::string("the module has no kernel ") + name);
  *out = new ax_kernel{name};
  return AX_OK;
}

ax_status kernel_information(ax_kernel* kernel, ax_kernel_info* out) {
  *out = {kMaxWorkGroupSize, 16, 0, 0, 0, 0};
  return AX_OK;
}

ax_status kernel_destroy(ax_kernel* kernel) {
  delete kernel;
  return AX_OK;
}

ax_status launch(ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3], const uint32_t local[3],
                 const ax_arg* args, uint32_t arg_count, uint64_t work) {
  count(kLaunchCount);
  if (g_faults[kLaunch].fires())
    return fail(AX_LAUNCH_FAILED, "an injected fault refuses the launch of kernel " + kernel->name);
  const uint64_t items = uint64_t{local[0]} * local[1] * local[2];
  if (items == 0 || items > kMaxWorkGroupSize) {
    return fail(AX_INVALID, "kernel " + kernel->name + " was launched with work-groups of " + std::to_string(items) +
                                " work-items; the device takes 1 to " + std::to_string(kMaxWorkGroupSize));
  }
  const bool breaks = g_faults[kRun].fires();
  push_command(queue, [worker = queue->worker.get(), breaks, name = breaks ? kernel->name : std::string()] {
    g_faults[kLaunchMs].delay();
    if (breaks) worker->report("an injected fault broke kernel " + name);
  });
  return AX_OK;
}

const char* description() { return "null 1 (executes no kernel)"; }

}  // namespace

#define ANYXPU_EXPORT extern "C" __attribute__((visibility("default")))

ANYXPU_EXPORT const ax_driver* anyxpu_driver(void) {
  static const ax_driver driver = {
      .abi = AX_DRIVER_ABI,
      .name = "null",
      .open = open,
      .device_count = device_count,
      .device_properties = device_properties,
      .memory_info = memory_info,
      .can_access_peer = can_access_peer,
      .allocate = allocate,
      .deallocate = deallocate,
      .queue_create = queue_create,
      .queue_destroy = queue_destroy,
      .queue_synchronize = queue_synchronize,
      .queue_query = queue_query,
      .queue_help = queue_help,
      .copy = copy,
      .fill = fill,
      .host_call = host_call,
      .event_create = event_create,
      .event_destroy = event_destroy,
      .event_record = event_record,
      .event_wait = event_wait,
      .event_query = event_query,
      .event_synchronize = event_synchronize,
      .event_elapsed = event_elapsed,
      .event_of_next = event_of_next,
      .event_interval = event_interval,
      .module_create = module_create,
      .module_native = module_native,
      .module_destroy = module_destroy,
      .kernel_create = kernel_create,
      .kernel_information = kernel_information,
      .kernel_destroy = kernel_destroy,
      .launch = launch,
      .last_error = last_error,
      .description = description,
  };
  return &driver;
}

// Sets one fault (0 takes it back). Answers AX_INVALID where there is none of that name.
ANYXPU_EXPORT ax_status anyxpu_null_set_fault(const char* name, int64_t value) {
  Fault* fault = find_fault(name);
  if (fault == nullptr) return fail(AX_INVALID, std::string("the null driver has no fault named ") + name);
  fault->value = value;
  return AX_OK;
}

// The `index`-th counter: its name and how often that function was called; AX_INVALID past the last one.
ANYXPU_EXPORT ax_status anyxpu_null_count(uint32_t index, const char** name, uint64_t* calls) {
  if (index >= kCounterCount) return AX_INVALID;
  *name = g_counters[index].name.data();
  *calls = g_counters[index].value.load();
  return AX_OK;
}

ANYXPU_EXPORT void anyxpu_null_reset_counts(void) {
  for (Counter& counter : g_counters) counter.value = 0;
}
