// The driver's library and the devices it shows.
#include "shim/runtime.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "shim/commands.h"
#include "shim/kept_copies.h"

namespace anyxpu {
namespace {

constexpr const char* kBadFork =
    "Cannot re-initialize XPU in forked subprocess. To use XPU with multiprocessing, you must use the 'spawn' start "
    "method";

std::function<DriverChoice()> resolver;
std::mutex start_mutex;
std::atomic<const ax_driver*> started{nullptr};
std::atomic<bool> forked{false};
std::string failure;  // why the driver did not start; guarded by start_mutex
std::vector<ax_device_properties> device_properties;
thread_local c10::DeviceIndex thread_device = 0;

void in_child() {
  if (started.load(std::memory_order_relaxed) != nullptr) forked.store(true);
}

const ax_driver* open_library(const DriverChoice& choice) {
  // RTLD_LOCAL: a driver's symbols are its own; RTLD_NODELETE by never closing it (its threads outlive us).
  void* library = dlopen(choice.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library, "anyxpu: cannot load the driver: ", dlerror());
  auto entry = reinterpret_cast<const ax_driver* (*)()>(dlsym(library, "anyxpu_driver"));
  TORCH_CHECK(entry, "anyxpu: ", choice.path, " is no driver: it does not export anyxpu_driver().");
  const ax_driver* candidate = entry();
  TORCH_CHECK(candidate->abi == AX_DRIVER_ABI, "anyxpu: the driver ", choice.path, " speaks ABI ", candidate->abi,
              ", this anyxpu ABI ", AX_DRIVER_ABI, ". Rebuild it: anyxpu build");
  TORCH_CHECK(candidate->open(choice.devices) == AX_OK, "anyxpu: no xpu device: ", candidate->last_error(),
              " (see: anyxpu doctor)");
  return candidate;
}

void read_devices(const ax_driver* candidate) {
  int count = 0;
  TORCH_CHECK(candidate->device_count(&count) == AX_OK, "anyxpu: cannot count devices: ", candidate->last_error());
  TORCH_CHECK(count > 0, "anyxpu: the driver ", candidate->name, " finds no device (see: anyxpu doctor)");
  std::vector<ax_device_properties> all(static_cast<size_t>(count));
  for (int i = 0; i < count; i++) {
    TORCH_CHECK(candidate->device_properties(i, &all[i]) == AX_OK, "anyxpu: cannot read the properties of device ", i,
                ": ", candidate->last_error());
  }
  device_properties = std::move(all);
}

const ax_driver& start() {
  TORCH_CHECK(!forked.load(), kBadFork);
  // The resolver takes the GIL, so it runs before the lock: a thread that holds the GIL may be waiting for it.
  TORCH_CHECK(resolver, "anyxpu: the shim was loaded without its Python half; import anyxpu");
  DriverChoice choice;
  try {
    choice = resolver();
    std::lock_guard<std::mutex> lock(start_mutex);
    if (auto* driver = started.load()) return *driver;
    const ax_driver* candidate = open_library(choice);
    read_devices(candidate);
    pthread_atfork(nullptr, nullptr, in_child);
    failure.clear();
    watch_driver(candidate);
    candidate = noting_writes(candidate);
    started.store(candidate);
    return *candidate;
  } catch (const std::exception& error) {
    std::lock_guard<std::mutex> lock(start_mutex);
    auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    failure = torch_error ? torch_error->what_without_backtrace() : error.what();
    throw;
  }
}

}  // namespace

void set_driver_resolver(std::function<DriverChoice()> fn) { resolver = std::move(fn); }

const ax_driver& driver() {
  auto* running = started.load(std::memory_order_acquire);
  if (C10_LIKELY(running != nullptr && !forked.load(std::memory_order_relaxed))) return *running;
  return start();
}

bool driver_started() noexcept { return started.load() != nullptr; }

bool in_bad_fork() noexcept { return forked.load(); }

std::string lost_device(const std::string& message) {
  return message +
         ". The device does not answer any more: save what the host has and start the program anew "
         "(`anyxpu doctor` says whether the driver sees the device again)";
}

void check(ax_status status, const char* what) {
  if (C10_UNLIKELY(status != AX_OK)) check(status, what, driver().last_error());
}

void check(ax_status status, const char* what, const char* said) {
  if (status == AX_OK) return;
  TORCH_CHECK_WITH(OutOfMemoryError, status != AX_OUT_OF_MEMORY, "anyxpu: cannot ", what, ": ", said);
  TORCH_CHECK_NOT_IMPLEMENTED(status != AX_UNSUPPORTED, "anyxpu: cannot ", what, ": ", said);
  if (status == AX_DEVICE_LOST)
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, AX_DEVICE_LOST,
                                lost_device(c10::str("anyxpu: cannot ", what, ": ", said)));
  TORCH_CHECK(false, "anyxpu: cannot ", what, ": ", said);
}

c10::DeviceIndex device_count() noexcept {
  try {
    driver();
    return static_cast<c10::DeviceIndex>(device_properties.size());
  } catch (const std::exception&) {
    return 0;
  }
}

std::string unavailable_reason() {
  if (forked.load()) return kBadFork;
  std::lock_guard<std::mutex> lock(start_mutex);
  return failure;
}

void check_device(c10::DeviceIndex device) {
  driver();
  TORCH_CHECK(device >= 0 && static_cast<size_t>(device) < device_properties.size(),
              "XPU error: invalid device ordinal ", static_cast<int>(device), "; there ",
              device_properties.size() == 1 ? "is 1 device" : "are ",
              device_properties.size() == 1 ? "" : std::to_string(device_properties.size()) + " devices",
              " (ANYXPU_DEVICES=N shows a CPU as N devices)");
}

const ax_device_properties& properties(c10::DeviceIndex device) {
  device = resolve_device(device);
  check_device(device);
  return device_properties[static_cast<size_t>(device)];
}

c10::DeviceIndex current_device() noexcept { return thread_device; }

void set_current_device(c10::DeviceIndex device) {
  if (device == thread_device && started.load(std::memory_order_relaxed)) return;
  check_device(device);
  thread_device = device;
}

c10::DeviceIndex resolve_device(c10::DeviceIndex device) { return device < 0 ? thread_device : device; }

}  // namespace anyxpu
