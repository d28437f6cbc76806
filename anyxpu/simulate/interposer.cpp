// Stands between the Level Zero loader and Intel's driver while that simulates a GPU: the loader loads this library
// as the driver, and finds what is not answered here in the driver that it is linked with.
//
// It mends what the simulation leaves out, so that the layers above meet what a GPU's driver answers:
// - memory is always resident, where the driver asks a simulator that is not there (without this, Unified Runtime's
//   second adapter makes no context),
// - programs with constants of their own load where the driver pools those (constants.h),
// - host functions are called, in order, by a thread of this library, where the driver waits for an engine to reach
//   them; until they have run, copies and fills wait and nothing counts as done,
// - an event of the kind that counts is reached when its list has nothing left to wait for,
// - fills fill memory and timestamps are the host's clock, where the driver leaves both to kernels that do not run.
// It counts what the driver accepts and refuses: a line of JSON is added to the file ANYXPU_SIMULATE_LOG when the
// process ends. And it makes the driver fail on demand: ANYXPU_SIMULATE_FAULTS="launch:3,alloc:1" has the third launch
// and the first allocation fail (alloc, build, launch, synchronize).
//
// Level Zero's headers do not come with the SYCL runtime: the places in the tables of functions are those of the
// specification, version 1, whose binary interface does not change.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "constants.h"

namespace {

using Result = uint32_t;
using Handle = void*;
using Table = void**;

constexpr Result kSuccess = 0, kNotReady = 1, kUninitialized = 0x78000001;
constexpr Result kDeviceLost = 0x70000001, kOutOfDeviceMemory = 0x70000003, kBuildFailure = 0x70000004;

// --- counters and faults ------------------------------------------------------------------------------------------
enum Kind { kAlloc, kBuild, kKernel, kLaunch, kSynchronize, kKinds };

struct Book {
  const char* name;
  Result failure;  // what a fault answers
  std::atomic<uint64_t> accepted{0}, refused{0};
  std::atomic<int64_t> fault{0};  // counts down to the call that fails; 0 is none
};

Book g_books[kKinds] = {{"alloc", kOutOfDeviceMemory, {}, {}, {}},
                        {"build", kBuildFailure, {}, {}, {}},
                        {"kernel", kBuildFailure, {}, {}, {}},
                        {"launch", kDeviceLost, {}, {}, {}},
                        {"synchronize", kDeviceLost, {}, {}, {}}};

// Calls the driver, or fails in its place, and keeps count.
template <typename Call>
Result counted(Kind kind, Call&& call) {
  Book& book = g_books[kind];
  const bool fails = book.fault.load(std::memory_order_relaxed) > 0 && book.fault.fetch_sub(1) == 1;
  const Result result = fails ? book.failure : call();
  if (result != kNotReady) (result == kSuccess ? book.accepted : book.refused).fetch_add(1, std::memory_order_relaxed);
  return result;
}

void read_faults(const char* text) {
  for (std::string_view left = text; !left.empty();) {
    const std::string_view entry = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), entry.size() + 1));
    const size_t colon = entry.find(':');
    const std::string name(entry.substr(0, colon));
    const auto book =
        std::find_if(std::begin(g_books), std::end(g_books), [&](const Book& b) { return name == b.name; });
    const long value = colon == std::string_view::npos ? 0 : std::strtol(entry.data() + colon + 1, nullptr, 10);
    if (book == std::end(g_books) || value <= 0) {
      std::fprintf(stderr, "anyxpu: ANYXPU_SIMULATE_FAULTS holds '%s', which is no fault of the simulation\n",
                   std::string(entry).c_str());
      std::exit(2);
    }
    book->fault = value;
  }
}

void write_log(const char* path) {
  std::string line = "{\"pid\": " + std::to_string(getpid());
  for (const Book& book : g_books) {
    const std::string name = book.name;
    line += ", \"" + name + "\": " + std::to_string(book.accepted) + ", \"" + name +
            "_refused\": " + std::to_string(book.refused);
  }
  line += "}\n";
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);  // a short line is appended whole
  if (file < 0 || write(file, line.data(), line.size()) < 0)
    std::fprintf(stderr, "anyxpu: cannot write ANYXPU_SIMULATE_LOG=%s\n", path);
  if (file >= 0) close(file);
}

struct Session {
  Session() {
    if (const char* faults = std::getenv("ANYXPU_SIMULATE_FAULTS")) read_faults(faults);
  }
  ~Session() {
    if (const char* path = std::getenv("ANYXPU_SIMULATE_LOG"); path != nullptr && *path != '\0') write_log(path);
  }
} g_session;

// --- the driver's own functions -----------------------------------------------------------------------------------
// Put in place of `table[index]`, keeping what was there for the one that takes its place.
template <typename Function>
void take(Table table, int index, Function*& original, Function* replacement) {
  if (table[index] == nullptr || table[index] == reinterpret_cast<void*>(replacement)) return;
  original = reinterpret_cast<Function*>(table[index]);
  table[index] = reinterpret_cast<void*>(replacement);
}

// Another process's clock is as good as this one's: what the driver would write counts in ticks of the device.
uint64_t ticks() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  constexpr double kTicksPerNanosecond = 12e6 / 1e9;  // what the simulated devices say of their clock
  return static_cast<uint64_t>((static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec)) *
                               kTicksPerNanosecond);
}

Result (*g_make_resident)(Handle, Handle, void*, size_t);
Result make_resident(Handle context, Handle device, void* memory, size_t bytes) {
  const Result result = g_make_resident(context, device, memory, bytes);
  return result == kUninitialized ? kSuccess : result;
}

// --- host functions
class HostFunctions {
 public:
  void add(void (*function)(void*), void* data) {
    std::lock_guard lock(mutex_);
    if (!started_) std::thread([this] { run(); }).detach();
    started_ = true;
    waiting_.emplace_back(function, data);
    changed_.notify_all();
  }

  // Whether none is left before `nanoseconds` have passed.
  bool drained(uint64_t nanoseconds) {
    std::unique_lock lock(mutex_);
    const auto none = [this] { return waiting_.empty(); };
    constexpr uint64_t kDay = 86'400'000'000'000;
    return none() ||
           (nanoseconds != 0 && changed_.wait_for(lock, std::chrono::nanoseconds(std::min(nanoseconds, kDay)), none));
  }
  void drain() { drained(UINT64_MAX); }

 private:
  [[noreturn]] void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      const auto [function, data] = waiting_.front();
      lock.unlock();
      function(data);
      lock.lock();
      waiting_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<void (*)(void*), void*>> waiting_;
  bool started_ = false;
};

HostFunctions& host_functions() {
  static auto* leaked = new HostFunctions;  // its thread does not end
  return *leaked;
}

Result (*g_barrier)(Handle, Handle, uint32_t, Handle*);
Result append_host_function(Handle list, void (*function)(void*), void* data, const void*, Handle signal,
                            uint32_t count, Handle* waits) {
  const Result result = g_barrier(list, signal, count, waits);
  if (result == kSuccess) host_functions().add(function, data);
  return result;
}

Result (*g_extension_function)(Handle, const char*, void**);
Result extension_function(Handle driver, const char* name, void** out) {
  const Result result = g_extension_function(driver, name, out);
  if (result == kSuccess && std::string_view(name) == "zeCommandListAppendHostFunction")
    *out = reinterpret_cast<void*>(append_host_function);
  return result;
}

// --- memory
Result (*g_alloc_device)(Handle, const void*, size_t, size_t, Handle, void**);
Result alloc_device(Handle context, const void* desc, size_t bytes, size_t alignment, Handle device, void** out) {
  return counted(kAlloc, [&] { return g_alloc_device(context, desc, bytes, alignment, device, out); });
}

Result (*g_memory_properties)(Handle, const void*, void*, Handle*);

// Whether the host may write there: to memory of its own (which the driver does not know), pinned or shared.
bool host_writes(Handle context, const void* memory) {
  struct {
    uint32_t type = 0x17;  // ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES
    void* next = nullptr;
    uint32_t memory_type = 0;  // 2 is the device's own
    uint64_t id = 0, page_size = 0;
  } properties;
  return g_memory_properties != nullptr && g_memory_properties(context, memory, &properties, nullptr) == kSuccess &&
         properties.memory_type != 2;
}

// --- command lists
Result (*g_write_timestamp)(Handle, uint64_t*, Handle, uint32_t, Handle*);
Result (*g_context_of)(Handle, Handle*);
Result write_timestamp(Handle list, uint64_t* out, Handle signal, uint32_t count, Handle* waits) {
  const Result result = g_write_timestamp(list, out, signal, count, waits);
  Handle context = nullptr;
  if (result == kSuccess && g_context_of(list, &context) == kSuccess && host_writes(context, out)) *out = ticks();
  return result;
}

Result (*g_copy)(Handle, void*, const void*, size_t, Handle, uint32_t, Handle*);
Result copy(Handle list, void* out, const void* from, size_t bytes, Handle signal, uint32_t count, Handle* waits) {
  host_functions().drain();
  return g_copy(list, out, from, bytes, signal, count, waits);
}

Result (*g_fill)(Handle, void*, const void*, size_t, size_t, Handle, uint32_t, Handle*);
Result (*g_is_immediate)(Handle, uint8_t*);
Result fill(Handle list, void* out, const void* pattern, size_t pattern_bytes, size_t bytes, Handle signal,
            uint32_t count, Handle* waits) {
  host_functions().drain();
  const Result result = g_fill(list, out, pattern, pattern_bytes, bytes, signal, count, waits);
  uint8_t immediate = 0;
  if (result != kSuccess || pattern_bytes == 0 || g_is_immediate(list, &immediate) != kSuccess || !immediate)
    return result;
  // Copies on an immediate list are done by the host before the call returns.
  constexpr size_t kPiece = 1 << 20;
  std::vector<char> piece(std::min(bytes, kPiece - kPiece % pattern_bytes));
  for (size_t at = 0; at < piece.size(); ++at) piece[at] = static_cast<const char*>(pattern)[at % pattern_bytes];
  for (size_t at = 0; at < bytes; at += piece.size())
    g_copy(list, static_cast<char*>(out) + at, piece.data(), std::min(piece.size(), bytes - at), nullptr, 0, nullptr);
  return result;
}

Result (*g_launch)(Handle, Handle, const void*, Handle, uint32_t, Handle*);
Result launch(Handle list, Handle kernel, const void* groups, Handle signal, uint32_t count, Handle* waits) {
  return counted(kLaunch, [&] { return g_launch(list, kernel, groups, signal, count, waits); });
}

Result (*g_launch_cooperative)(Handle, Handle, const void*, Handle, uint32_t, Handle*);
Result launch_cooperative(Handle list, Handle kernel, const void* groups, Handle signal, uint32_t count,
                          Handle* waits) {
  return counted(kLaunch, [&] { return g_launch_cooperative(list, kernel, groups, signal, count, waits); });
}

Result (*g_launch_parameters)(Handle, Handle, const void*, const void*, Handle, uint32_t, Handle*);
Result launch_parameters(Handle list, Handle kernel, const void* groups, const void* next, Handle signal,
                         uint32_t count, Handle* waits) {
  return counted(kLaunch, [&] { return g_launch_parameters(list, kernel, groups, next, signal, count, waits); });
}

// The two triples of sizes are structures of twelve bytes, passed by value.
struct Triple {
  uint32_t x, y, z;
};
Result (*g_launch_arguments)(Handle, Handle, Triple, Triple, void**, const void*, Handle, uint32_t, Handle*);
Result launch_arguments(Handle list, Handle kernel, Triple groups, Triple local, void** arguments, const void* next,
                        Handle signal, uint32_t count, Handle* waits) {
  return counted(
      kLaunch, [&] { return g_launch_arguments(list, kernel, groups, local, arguments, next, signal, count, waits); });
}

Result (*g_list_synchronize)(Handle, uint64_t);
Result list_synchronize(Handle list, uint64_t timeout) {
  if (!host_functions().drained(timeout)) return kNotReady;
  return counted(kSynchronize, [&] { return g_list_synchronize(list, timeout); });
}

// --- modules, kernels, events
struct ModuleDesc {  // ze_module_desc_t
  uint32_t type;
  const void* next;
  uint32_t format;  // 1 is native code
  size_t bytes;
  const uint8_t* code;
  const char* flags;
  const void* constants;
};

// Whether the driver of the simulated device pools the constants of programs (constants.h).
bool pools_constants() {
  const char* device = std::getenv("ANYXPU_SIMULATE");
  return device != nullptr && std::string_view(device) == "cri";
}

Result (*g_module_create)(Handle, Handle, const ModuleDesc*, Handle*, Handle*);
Result module_create(Handle context, Handle device, const ModuleDesc* desc, Handle* out, Handle* log) {
  return counted(kBuild, [&] {
    constexpr uint32_t kNative = 1;
    if (desc == nullptr || desc->format != kNative || desc->code == nullptr || !pools_constants())
      return g_module_create(context, device, desc, out, log);
    const std::vector<uint8_t> grown = anyxpu::simulate::with_own_memory(desc->code, desc->bytes);
    ModuleDesc mended = *desc;
    if (!grown.empty()) mended.code = grown.data(), mended.bytes = grown.size();
    return g_module_create(context, device, &mended, out, log);
  });
}

Result (*g_kernel_create)(Handle, const void*, Handle*);
Result kernel_create(Handle module, const void* desc, Handle* out) {
  return counted(kKernel, [&] { return g_kernel_create(module, desc, out); });
}

Result (*g_event_synchronize)(Handle, uint64_t);
Result event_synchronize(Handle event, uint64_t timeout) {
  return host_functions().drained(timeout) ? g_event_synchronize(event, timeout) : kNotReady;
}

Result (*g_event_query)(Handle);
Result event_query(Handle event) {
  if (!host_functions().drained(0)) return kNotReady;
  const Result result = g_event_query(event);
  // A count in memory that no engine writes; waiting for the event is what the simulation answers by itself.
  return result == kNotReady ? g_event_synchronize(event, 0) : result;
}

Result (*g_event_timestamp)(Handle, uint64_t*);
Result event_timestamp(Handle event, uint64_t* out) {
  const Result result = g_event_timestamp(event, out);
  if (result != kSuccess && result != kNotReady) return result;
  std::fill_n(out, 4, ticks());  // start and end, of the device's clock and of the context's
  return kSuccess;
}

using GetTable = Result(uint32_t, Table);

// The driver's table of that name, before anything in it is taken.
Result drivers_table(const char* name, uint32_t version, Table table) {
  const auto next = reinterpret_cast<GetTable*>(dlsym(RTLD_NEXT, name));
  return next == nullptr ? kUninitialized : next(version, table);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Result zeGetContextProcAddrTable(uint32_t version, Table table) {
  const Result result = drivers_table("zeGetContextProcAddrTable", version, table);
  if (result == kSuccess) take(table, 4, g_make_resident, make_resident);
  return result;
}

EXPORT Result zeGetDriverProcAddrTable(uint32_t version, Table table) {
  const Result result = drivers_table("zeGetDriverProcAddrTable", version, table);
  if (result == kSuccess) take(table, 5, g_extension_function, extension_function);
  return result;
}

EXPORT Result zeGetMemProcAddrTable(uint32_t version, Table table) {
  const Result result = drivers_table("zeGetMemProcAddrTable", version, table);
  if (result != kSuccess) return result;
  take(table, 1, g_alloc_device, alloc_device);
  g_memory_properties = reinterpret_cast<decltype(g_memory_properties)>(table[4]);
  return result;
}

EXPORT Result zeGetCommandListProcAddrTable(uint32_t version, Table table) {
  const Result result = drivers_table("zeGetCommandListProcAddrTable", version, table);
  if (result != kSuccess) return result;
  g_barrier = reinterpret_cast<decltype(g_barrier)>(table[6]);
  g_context_of = reinterpret_cast<decltype(g_context_of)>(table[30]);
  g_is_immediate = reinterpret_cast<decltype(g_is_immediate)>(table[33]);
  take(table, 5, g_write_timestamp, write_timestamp);
  take(table, 8, g_copy, copy);
  take(table, 9, g_fill, fill);
  take(table, 22, g_launch, launch);
  take(table, 23, g_launch_cooperative, launch_cooperative);
  take(table, 28, g_list_synchronize, list_synchronize);
  // The loader that asks says by its version how long its table is; the two came with 1.14.
  if (version >= ((1u << 16) | 14u)) {
    take(table, 36, g_launch_parameters, launch_parameters);
    take(table, 37, g_launch_arguments, launch_arguments);
  }
  return result;
}

EXPORT Result zeGetModuleProcAddrTable(uint32_t version, Table table) {
  const Result result = drivers_table("zeGetModuleProcAddrTable", version, table);
  if (result == kSuccess) take(table, 0, g_module_create, module_create);
  return result;
}

EXPORT Result zeGetKernelProcAddrTable(uint32_t version, Table table) {
  const Result result = drivers_table("zeGetKernelProcAddrTable", version, table);
  if (result == kSuccess) take(table, 0, g_kernel_create, kernel_create);
  return result;
}

EXPORT Result zeGetEventProcAddrTable(uint32_t version, Table table) {
  const Result result = drivers_table("zeGetEventProcAddrTable", version, table);
  if (result != kSuccess) return result;
  take(table, 3, g_event_synchronize, event_synchronize);
  take(table, 4, g_event_query, event_query);
  take(table, 6, g_event_timestamp, event_timestamp);
  return result;
}
