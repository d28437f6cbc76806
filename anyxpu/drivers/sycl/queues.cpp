// Queues, copies and events. Everything is submitted through SYCL: libraries put host tasks on the same queues, and
// only SYCL's own submission is ordered against those.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <shared_mutex>
#include <unordered_map>

#include "bridge.h"
#include "crew.h"

namespace anyxpu::sycl_driver {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;

using ErrorsPointer = std::shared_ptr<Errors>;

// A command that SYCL's scheduler fails to enqueue (it was waiting behind a host task) stays the queue's last event,
// and all that comes later fails after it. Such a queue is replaced, under the same handle, by a fresh one: whoever
// looks into a handle holds this lock shared, whoever replaces its queue holds it alone.
struct Queues {
  std::shared_mutex mutex;
  std::unordered_map<ax_queue*, ErrorsPointer> ours;  // others belong to somebody else and are left as they are
  std::vector<sycl::queue> failed;  // never freed: SYCL hands late errors of a queue that is gone to std::terminate
};

Queues& queues() {
  static Queues* leaked = new Queues;
  return *leaked;
}

void raise_errors(const ErrorsPointer& errors) {
  if (errors == nullptr) return;
  if (std::string text = errors->take(); !text.empty())
    throw Failure(AX_LAUNCH_FAILED, "work enqueued earlier failed: " + text);
}

// Profiling costs nothing measurable on a launch and lets any event on the queue be a timing event.
sycl::property_list properties_for(int priority) {
  using sycl::property::queue::enable_profiling;
  using sycl::property::queue::in_order;
  namespace priorities = sycl::ext::oneapi::property::queue;
  if (priority < 0) return {in_order(), enable_profiling(), priorities::priority_high()};
  if (priority > 0) return {in_order(), enable_profiling(), priorities::priority_low()};
  return {in_order(), enable_profiling()};
}

// SYCL may call the handler in a thread that waits for another queue of the device: errors are kept with their own.
sycl::queue make_queue(const sycl::context& context, const sycl::device& device, int priority,
                       const ErrorsPointer& errors) {
  const auto handler = [errors](const sycl::exception_list& list) { errors->keep(list); };
  try {
    return sycl::queue(context, device, handler, properties_for(priority));
  } catch (const sycl::exception&) {
    if (priority == 0) throw;
    // A priority is a hint: a backend that has none still gets its queue.
    return make_queue(context, device, 0, errors);
  }
}

int priority_of(const sycl::queue& queue) {
  namespace priorities = sycl::ext::oneapi::property::queue;
  if (queue.has_property<priorities::priority_high>()) return -1;
  return queue.has_property<priorities::priority_low>() ? 1 : 0;
}

bool complete(const sycl::event& event) {
  return event.get_info<sycl::info::event::command_execution_status>() == sycl::info::event_command_status::complete;
}

// So many are moved by the calling thread and its crew: in milliseconds.
constexpr uint64_t kFewBytes = 32 << 20;

// Whether what comes next in the queue could be done now, by the calling thread: a CPU's memory is the host's.
bool done_at_once(const sycl::queue& queue) {
  return queue.get_backend() == sycl::backend::opencl && queue.ext_oneapi_empty() && queue.get_device().is_cpu();
}

constexpr std::array<uint32_t, 5> kPatternBytes{1, 2, 4, 8, 16};

// handler::fill would launch a kernel on Level Zero that only Intel's compiler builds into a program. What it calls for
// every other backend hands the pattern to the driver, whose fill takes any of these sizes on Level Zero too; it is a
// private member, and an explicit instantiation may name one.
using FillMember = void (sycl::handler::*)(void*, const void*, size_t, size_t);
FillMember fill_member();
template <FillMember member>
struct NameFill {
  friend FillMember fill_member() { return member; }
};
template struct NameFill<&sycl::handler::fill_impl>;

std::atomic<bool> waited{true};

uint64_t end_time(const ax_event& event) {
  return event.event.get_profiling_info<sycl::info::event_profiling::command_end>();
}

}  // namespace

ax_status queue_create(int device, int priority, ax_queue** out) {
  return guarded(AX_INVALID, [&] {
    const Device& d = device_at(device);
    auto errors = std::make_shared<Errors>();
    auto made = std::make_unique<ax_queue>(ax_queue{make_queue(d.context, d.device, priority, errors)});
    std::unique_lock lock(queues().mutex);
    queues().ours.emplace(made.get(), std::move(errors));
    *out = made.release();
  });
}

ax_status queue_destroy(ax_queue* queue) {
  return guarded(AX_INVALID, [&] {
    {
      std::unique_lock lock(queues().mutex);
      queues().ours.erase(queue);
    }
    delete queue;
  });
}

std::shared_ptr<Errors> errors_of(ax_queue* queue) {
  std::shared_lock lock(queues().mutex);
  const auto found = queues().ours.find(queue);
  return found == queues().ours.end() ? nullptr : found->second;
}

sycl::queue hold(ax_queue* queue) {
  std::shared_lock lock(queues().mutex);
  return queue->queue;
}

std::mutex& gate_of(ax_queue* queue) {
  // Some queues share a gate, which is passed quickly: handles come and go, and may be somebody else's.
  static auto* gates = new std::array<std::mutex, 64>;
  return (*gates)[(reinterpret_cast<uintptr_t>(queue) >> 6) % gates->size()];
}

void replace_failed(ax_queue* handle, sycl::queue& failed, const sycl::exception& error) {
  failed.throw_asynchronous();
  std::string cause = error.what();
  {
    std::unique_lock lock(queues().mutex);
    const auto found = queues().ours.find(handle);
    if (found != queues().ours.end() && handle->queue == failed) {
      auto errors = std::make_shared<Errors>();
      handle->queue = make_queue(failed.get_context(), failed.get_device(), priority_of(failed), errors);
      const std::string kept = std::exchange(found->second, std::move(errors))->take();
      if (failed_earlier(error) && !kept.empty()) cause = kept;
      queues().failed.push_back(failed);
    }
  }
  throw Failure(classify(error, AX_LAUNCH_FAILED), "work enqueued earlier failed: " + cause);
}

bool take_waited() noexcept { return waited.exchange(false, std::memory_order_relaxed); }

ax_status queue_synchronize(ax_queue* queue) {
  waited.store(true, std::memory_order_relaxed);
  return guarded(AX_LAUNCH_FAILED, [&] {
    sycl::queue held = hold(queue);
    const ErrorsPointer errors = errors_of(queue);
    try {
      // Waiting costs a microsecond even where there is nothing to wait for.
      if (held.ext_oneapi_empty()) {
        held.throw_asynchronous();
      } else {
        held.wait_and_throw();
      }
    } catch (const sycl::exception& error) {
      replace_failed(queue, held, error);
    }
    raise_errors(errors);
  });
}

ax_status queue_query(ax_queue* queue) {
  return guarded(AX_LAUNCH_FAILED, [&] { return hold(queue).ext_oneapi_empty() ? AX_OK : AX_NOT_READY; });
}

// OpenCL's CPU devices have one thread fewer than cores: whoever finishes a queue is the last one, as far as he gets
// work of it; who waits for an event sleeps.
ax_status queue_help(ax_queue* queue) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    const sycl::queue held = hold(queue);
    if (held.get_backend() != sycl::backend::opencl || !held.get_device().is_cpu()) return;
    cl_command_queue native = sycl::get_native<sycl::backend::opencl>(held);
    clFinish(native);
    clReleaseCommandQueue(native);
  });
}

ax_status copy(ax_queue* queue, void* dst, const void* src, uint64_t bytes) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    if (bytes == 0) return;
    require(dst != nullptr && src != nullptr, "a copy from or to a null address was asked for");
    ax_event* const timed = take_timed();
    on_queue(queue, [&](sycl::queue& q) {
      if (bytes <= kFewBytes && done_at_once(q)) {
        const uint64_t began = timed == nullptr ? 0 : steady_now();
        Crew::move(dst, src, bytes);
        return done_here(timed, began);
      }
      if (copy_between_gpus(q, dst, src, bytes)) return;
      if (timed == nullptr) return experimental::memcpy(q, dst, src, bytes);
      const uint64_t asked = steady_now();
      enqueued(timed, asked, q.memcpy(dst, src, bytes));
    });
  });
}

ax_status fill(ax_queue* queue, void* dst, const void* pattern, uint32_t pattern_bytes, uint64_t count) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    if (count == 0) return;
    require(dst != nullptr && pattern != nullptr, "a fill of a null address was asked for");
    if (std::find(kPatternBytes.begin(), kPatternBytes.end(), pattern_bytes) == kPatternBytes.end())
      throw Failure(AX_INVALID, "a fill pattern has 1, 2, 4, 8 or 16 bytes, not " + std::to_string(pattern_bytes));
    ax_event* const timed = take_timed();
    on_queue(queue, [&](sycl::queue& q) {
      // Four times as fast as a wider fill on the CPU, and zero is what is asked for most.
      const auto* bytes = static_cast<const uint8_t*>(pattern);
      const bool uniform = std::all_of(bytes, bytes + pattern_bytes, [&](uint8_t byte) { return byte == bytes[0]; });
      if (uniform && count <= kFewBytes / pattern_bytes && done_at_once(q)) {
        const uint64_t began = timed == nullptr ? 0 : steady_now();
        Crew::set(dst, bytes[0], count * pattern_bytes);
        return done_here(timed, began);
      }
      const auto wide = [&](sycl::handler& handler) { (handler.*fill_member())(dst, pattern, pattern_bytes, count); };
      if (timed != nullptr) {
        const uint64_t asked = steady_now();
        return enqueued(timed, asked, uniform ? q.memset(dst, bytes[0], count * pattern_bytes) : q.submit(wide));
      }
      if (uniform) return experimental::memset(q, dst, bytes[0], count * pattern_bytes);
      experimental::submit(q, wide);
    });
  });
}

ax_status event_create(int device, int timing, ax_event** out) {
  return guarded(AX_INVALID, [&] {
    device_at(device);
    auto event = std::make_unique<ax_event>();
    event->timing = timing != 0;
    *out = event.release();
  });
}

ax_status event_destroy(ax_event* event) {
  return guarded(AX_INVALID, [&] { delete event; });
}

ax_status event_record(ax_event* event, ax_queue* queue) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    on_queue(queue, [&](sycl::queue& q) {
      sycl::event marker = event->timing ? experimental::submit_profiling_tag(q) : q.ext_oneapi_submit_barrier();
      ErrorsPointer errors = errors_of(queue);
      std::lock_guard lock(event->mutex);
      event->event = std::move(marker);
      event->context.emplace(q.get_context());
      event->errors = std::move(errors);
      event->recorded = true;
    });
  });
}

ax_status event_wait(ax_event* event, ax_queue* queue) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    std::unique_lock lock(event->mutex);
    if (!event->recorded) return;
    const sycl::event marker = event->event;
    const sycl::context context = *event->context;
    lock.unlock();
    if (complete(marker)) return;
    on_queue(queue, [&](sycl::queue& q) {
      const bool same_context = context == q.get_context();
      // Not ext_oneapi_submit_barrier({marker}): that one blocks while the marker itself waits behind a host task.
      experimental::submit(q, [&](sycl::handler& handler) {
        handler.depends_on(marker);
        // A backend's events do not cross contexts: a host task waits in the queue's place.
        if (same_context) {
          handler.ext_oneapi_barrier();
        } else {
          handler.host_task([] {});
        }
      });
    });
  });
}

ax_status event_query(ax_event* event) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    std::lock_guard lock(event->mutex);
    return complete(event->event) ? AX_OK : AX_NOT_READY;
  });
}

ax_status event_synchronize(ax_event* event) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    std::unique_lock lock(event->mutex);
    sycl::event marker = event->event;
    const ErrorsPointer errors = event->errors;
    lock.unlock();
    marker.wait_and_throw();
    raise_errors(errors);
  });
}

ax_status event_elapsed(ax_event* start, ax_event* end, double* milliseconds) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    require(start->timing && end->timing, "both events must have been created with timing");
    require(start->recorded && end->recorded, "both events must have been recorded");
    if (!complete(start->event) || !complete(end->event))
      return set_error(AX_NOT_READY, "the time between two events is known once both have been reached");
    const auto from = static_cast<int64_t>(end_time(*start)), to = static_cast<int64_t>(end_time(*end));
    *milliseconds = static_cast<double>(to - from) * 1e-6;
    return AX_OK;
  });
}

}  // namespace anyxpu::sycl_driver
