// What the files of the sycl driver share: devices, handles, and the one place where C++ exceptions end.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <sycl/sycl.hpp>
#include <utility>
#include <vector>

#include "drivers/driver.h"
#include "in_place.h"

// Where a sycl::queue* is at hand (one that somebody else owns included) it can stand for an ax_queue*: so an
// ax_queue holds nothing but its queue, and all else is asked of that.
struct ax_queue {
  sycl::queue queue;
};

namespace anyxpu::sycl_driver {

// What failed asynchronously on one queue and was not reported yet.
class Errors {
 public:
  void keep(const sycl::exception_list& errors);
  void keep(const char* text);
  std::string take();  // "" where nothing failed

 private:
  std::mutex mutex_;
  std::string text_;
};

// When the host did a command. Outlives the event that stands for it: the command may still be waiting.
struct HostInterval {
  uint64_t began = 0;
  std::atomic<uint64_t> ended{0};  // 0: not done yet
};

}  // namespace anyxpu::sycl_driver

struct ax_event {
  sycl::event event;  // complete until first recorded
  bool timing = false;
  bool recorded = false;
  std::optional<sycl::context> context;                 // of the queue it was last recorded on
  std::shared_ptr<anyxpu::sycl_driver::Errors> errors;  // of that queue; null where it is somebody else's
  std::mutex mutex;
  // Of one command (event_of_next), in nanoseconds of the host's steady clock.
  uint64_t asked = 0;                                               // when the device was given it; 0: it was not
  std::shared_ptr<anyxpu::sycl_driver::HostInterval> by_host = {};  // where the host's threads do it
};

namespace anyxpu::sycl_driver {

// --- errors -------------------------------------------------------------------------------------------------
// A failure whose status is known where it is found.
struct Failure : std::exception {
  Failure(ax_status status, std::string message) : status(status), message(std::move(message)) {}
  const char* what() const noexcept override { return message.c_str(); }
  ax_status status;
  std::string message;
};

ax_status set_error(ax_status status, std::string message) noexcept;
const char* last_error() noexcept;
// Says what a SYCL exception means in the words of driver.h; `otherwise` where it names nothing special.
ax_status classify(const sycl::exception& error, ax_status otherwise) noexcept;

// Runs `body`, which returns nothing or a status; every exception ends here as a status and a sentence.
template <typename Body>
ax_status guarded(ax_status otherwise, Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return AX_OK;
    } else {
      return body();
    }
  } catch (const Failure& error) {
    return set_error(error.status, error.message);
  } catch (const sycl::exception& error) {
    return set_error(classify(error, otherwise), std::string("SYCL answers: ") + error.what());
  } catch (const std::bad_alloc&) {
    return set_error(AX_OUT_OF_MEMORY, "the host is out of memory");
  } catch (const std::exception& error) {
    return set_error(otherwise, error.what());
  } catch (...) {
    return set_error(otherwise, "an unknown C++ exception");
  }
}

// Throws AX_INVALID unless `ok`.
inline void require(bool ok, const char* message) {
  if (!ok) throw Failure(AX_INVALID, message);
}

// --- devices ------------------------------------------------------------------------------------------------
// Null where the device has no way to run kernels in the calling thread.
std::unique_ptr<InPlace> make_in_place(const sycl::device& device, const sycl::context& context);

struct Device {
  Device(const sycl::device& device, const sycl::context& context, int ordinal, int split, uint64_t total_memory)
      : device(device),
        context(context),
        backend(device.get_backend()),
        ordinal(ordinal),
        split(split),
        total_memory(total_memory),
        in_place(make_in_place(device, context)) {}

  sycl::device device;
  const sycl::context context;
  const sycl::backend backend;
  const int ordinal;
  const int split;                          // how many devices one CPU is shown as
  const uint64_t total_memory;              // bytes this device may hand out
  std::atomic<uint64_t> used{0};            // bytes of AX_MEMORY_DEVICE and AX_MEMORY_SHARED handed out
  const std::unique_ptr<InPlace> in_place;  // null where kernels cannot run in the calling thread

  bool is_cpu() const { return device.is_cpu(); }
};

// The devices found by `open`; never freed, because SYCL's own statics may be gone when ours would be.
const std::vector<std::unique_ptr<Device>>& devices();
Device& device_at(int ordinal);  // throws AX_INVALID
std::string description();

// --- host memory --------------------------------------------------------------------------------------------
uint64_t physical_memory();                      // bytes; a container's limit where that is lower
uint64_t available_memory();                     // bytes the OS could give out now without swapping
uint64_t untouched_memory(uint64_t handed_out);  // of `handed_out` bytes, at least these are not backed by pages yet
uint64_t cache_of_level(int level);              // bytes of data; level 0 is the last one; 0 unknown
uint32_t cpu_clock_mhz();                        // 0 unknown

// --- the driver's functions, by file --------------------------------------------------------------------------
ax_status open(int devices);
ax_status device_count(int* count);
ax_status device_properties(int device, ax_device_properties* out);
ax_status memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes);
ax_status can_access_peer(int device, int peer, int* yes);
ax_status allocate(int device, ax_memory_kind kind, uint64_t bytes, void** out);
ax_status deallocate(int device, ax_memory_kind kind, void* pointer);

ax_status queue_create(int device, int priority, ax_queue** out);
ax_status queue_destroy(ax_queue* queue);
ax_status queue_synchronize(ax_queue* queue);
ax_status queue_query(ax_queue* queue);
ax_status queue_help(ax_queue* queue);
ax_status copy(ax_queue* queue, void* dst, const void* src, uint64_t bytes);
ax_status fill(ax_queue* queue, void* dst, const void* pattern, uint32_t pattern_bytes, uint64_t count);
ax_status host_call(ax_queue* queue, void (*fn)(void*), void* data);
ax_status event_create(int device, int timing, ax_event** out);
ax_status event_destroy(ax_event* event);
ax_status event_record(ax_event* event, ax_queue* queue);
ax_status event_wait(ax_event* event, ax_queue* queue);
ax_status event_query(ax_event* event);
ax_status event_synchronize(ax_event* event);
ax_status event_elapsed(ax_event* start, ax_event* end, double* milliseconds);
ax_status event_of_next(ax_event* event);
ax_status event_interval(ax_event* event, ax_interval* out);

ax_status module_create(int device, ax_module_format format, const void* data, uint64_t bytes, const char* options,
                        ax_module** out);
ax_status module_native(ax_module* module, void* data, uint64_t* bytes);
ax_status module_destroy(ax_module* module);
ax_status kernel_create(ax_module* module, const char* name, ax_kernel** out);
ax_status kernel_information(ax_kernel* kernel, ax_kernel_info* out);
ax_status kernel_destroy(ax_kernel* kernel);
ax_status launch(ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3], const uint32_t local[3],
                 const ax_arg* args, uint32_t arg_count, uint64_t work);

// --- faults -------------------------------------------------------------------------------------------------
// From now on a kernel on a CPU device that touches what is no memory is named on stderr before the process ends.
void watch_faults();
// A kernel's name as its author wrote it, for as long as the process is there.
const char* remembered_name(const std::string& symbol);
void note_launch(const char* name) noexcept;  // of remembered_name: the kernel is about to run
// While it is there, this thread runs that kernel itself.
struct RunningHere {
  explicit RunningHere(const char* name) noexcept;
  ~RunningHere();
  RunningHere(const RunningHere&) = delete;
  RunningHere& operator=(const RunningHere&) = delete;
};

// --- queues -------------------------------------------------------------------------------------------------
sycl::queue hold(ax_queue* queue);                   // the queue that the handle stands for now
std::shared_ptr<Errors> errors_of(ax_queue* queue);  // null where the queue is somebody else's
// Puts a fresh queue behind the handle of one that takes no more work, and throws what had failed on it.
[[noreturn]] void replace_failed(ax_queue* handle, sycl::queue& failed, const sycl::exception& error);
// Whether `error` says that something enqueued earlier failed, and not this.
bool failed_earlier(const sycl::exception& error) noexcept;

// Whose interval the calling thread's next command is (event_of_next), from now on nobody's; null for none.
ax_event* take_timed() noexcept;
uint64_t steady_now() noexcept;  // nanoseconds
// The calling thread has just done what `timed` stands for, itself; nothing for null.
inline void done_here(ax_event* timed, uint64_t began) {
  if (timed == nullptr) return;
  timed->by_host = std::make_shared<HostInterval>();
  timed->by_host->began = began;
  timed->by_host->ended.store(steady_now(), std::memory_order_release);
}
// What a submission returned is what `timed` stands for.
inline void enqueued(ax_event* timed, uint64_t asked, sycl::event event) {
  timed->event = std::move(event);
  timed->asked = asked;
}

// Whether a queue was waited for since this was last asked.
bool take_waited() noexcept;

// Held while something is submitted to the queue, and while something of it runs in the calling thread: what two
// threads give to one queue does not overlap.
std::mutex& gate_of(ax_queue* queue);

// Submits to the queue behind `handle`; reports an earlier failure once and leaves the handle usable.
template <typename Body>
void on_queue(ax_queue* handle, Body&& body) {
  std::lock_guard gate(gate_of(handle));
  sycl::queue queue = hold(handle);
  try {
    body(queue);
  } catch (const sycl::exception& error) {
    if (!failed_earlier(error)) throw;
    replace_failed(handle, queue, error);
  }
}

}  // namespace anyxpu::sycl_driver
