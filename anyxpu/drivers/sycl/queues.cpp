// Queues, copies and events. Everything is submitted through SYCL: libraries put host tasks on the same queues, and
// only SYCL's own submission is ordered against those.
#include <algorithm>
#include <array>
#include <cstring>
#include <shared_mutex>
#include <unordered_set>

#include "common.h"

namespace anyxpu::sycl_driver {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;

// A command that SYCL's scheduler fails to enqueue (it was waiting behind a host task) stays the queue's last event, and
// all that comes later fails after it. Such a queue is replaced, under the same handle, by a fresh one: whoever looks
// into a handle holds this lock shared, whoever replaces its queue holds it alone.
struct Queues {
  std::shared_mutex mutex;
  std::unordered_set<ax_queue*> ours;  // others belong to somebody else and are left as they are
};

Queues& queues() {
  static Queues* leaked = new Queues;
  return *leaked;
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

sycl::queue make_queue(const Device& device, int priority) {
  try {
    return sycl::queue(device.context, device.device, keep_asynchronous_errors, properties_for(priority));
  } catch (const sycl::exception&) {
    if (priority == 0) throw;
    // A priority is a hint: a backend that has none still gets its queue.
    return make_queue(device, 0);
  }
}

int priority_of(const sycl::queue& queue) {
  namespace priorities = sycl::ext::oneapi::property::queue;
  if (queue.has_property<priorities::priority_high>()) return -1;
  return queue.has_property<priorities::priority_low>() ? 1 : 0;
}

// Drops what the failed queue still has to report, here and not to the next one that waits on this device. Waiting for
// it once more makes SYCL report the commands that failed for the first one's sake.
void drop_errors(sycl::queue& queue) noexcept {
  for (int round = 0; round < 2; ++round) {
    guarded(AX_LAUNCH_FAILED, [&] { queue.throw_asynchronous(); });
    guarded(AX_LAUNCH_FAILED, [&] { queue.wait_and_throw(); });
    guarded(AX_LAUNCH_FAILED, raise_kept_errors);
  }
}

bool complete(const sycl::event& event) {
  return event.get_info<sycl::info::event::command_execution_status>() == sycl::info::event_command_status::complete;
}

template <typename T>
void fill_with(sycl::queue& queue, void* dst, const void* pattern, uint64_t count) {
  T value;
  std::memcpy(&value, pattern, sizeof(T));
  experimental::fill(queue, static_cast<T*>(dst), value, count);
}

struct Wide {
  uint64_t words[2];
};

struct Filler {
  uint32_t bytes;
  void (*fill)(sycl::queue&, void*, const void*, uint64_t);
};

constexpr std::array<Filler, 5> kFillers{{
    {1, nullptr},  // always uniform
    {2, fill_with<uint16_t>},
    {4, fill_with<uint32_t>},
    {8, fill_with<uint64_t>},
    {16, fill_with<Wide>},
}};

uint64_t end_time(const ax_event& event) {
  return event.event.get_profiling_info<sycl::info::event_profiling::command_end>();
}

}  // namespace

ax_status queue_create(int device, int priority, ax_queue** out) {
  return guarded(AX_INVALID, [&] {
    auto made = std::make_unique<ax_queue>(ax_queue{make_queue(device_at(device), priority)});
    std::unique_lock lock(queues().mutex);
    queues().ours.insert(made.get());
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

sycl::queue hold(ax_queue* queue) {
  std::shared_lock lock(queues().mutex);
  return queue->queue;
}

void replace_failed(ax_queue* handle, sycl::queue& failed) {
  drop_errors(failed);
  std::unique_lock lock(queues().mutex);
  if (!queues().ours.contains(handle) || handle->queue != failed) return;
  const sycl::property_list properties = properties_for(priority_of(failed));
  handle->queue = sycl::queue(failed.get_context(), failed.get_device(), keep_asynchronous_errors, properties);
}

ax_status queue_synchronize(ax_queue* queue) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    sycl::queue held = hold(queue);
    try {
      held.wait_and_throw();
      raise_kept_errors();
    } catch (...) {
      replace_failed(queue, held);
      throw;
    }
  });
}

ax_status queue_query(ax_queue* queue) {
  return guarded(AX_LAUNCH_FAILED,
                 [&] { return hold(queue).ext_oneapi_empty() ? AX_OK : AX_NOT_READY; });
}

ax_status copy(ax_queue* queue, void* dst, const void* src, uint64_t bytes) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    if (bytes == 0) return;
    require(dst != nullptr && src != nullptr, "a copy from or to a null address was asked for");
    on_queue(queue, [&](sycl::queue& q) { experimental::memcpy(q, dst, src, bytes); });
  });
}

ax_status fill(ax_queue* queue, void* dst, const void* pattern, uint32_t pattern_bytes, uint64_t count) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    if (count == 0) return;
    require(dst != nullptr && pattern != nullptr, "a fill of a null address was asked for");
    const auto filler = std::find_if(kFillers.begin(), kFillers.end(), [&](const Filler& f) { return f.bytes == pattern_bytes; });
    if (filler == kFillers.end())
      throw Failure(AX_INVALID, "a fill pattern has 1, 2, 4, 8 or 16 bytes, not " + std::to_string(pattern_bytes));
    on_queue(queue, [&](sycl::queue& q) {
      // Four times as fast as a wider fill on the CPU, and zero is what is asked for most.
      const auto* bytes = static_cast<const uint8_t*>(pattern);
      const bool uniform = std::all_of(bytes, bytes + pattern_bytes, [&](uint8_t byte) { return byte == bytes[0]; });
      if (uniform) return experimental::memset(q, dst, bytes[0], count * pattern_bytes);
      filler->fill(q, dst, pattern, count);
    });
  });
}

ax_status host_call(ax_queue* queue, void (*fn)(void*), void* data) {
  return guarded(AX_LAUNCH_FAILED, [&] {
    require(fn != nullptr, "a host call of a null function was asked for");
    on_queue(queue, [&](sycl::queue& q) { experimental::host_task(q, [fn, data] { fn(data); }); });
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
      sycl::event marker = q.ext_oneapi_submit_barrier();
      std::lock_guard lock(event->mutex);
      event->event = std::move(marker);
      event->context.emplace(q.get_context());
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
      if (context == q.get_context()) {
        q.ext_oneapi_submit_barrier({marker});
        return;
      }
      // A backend's events do not cross contexts: a host task waits in the queue's place.
      experimental::submit(q, [&](sycl::handler& handler) {
        handler.depends_on(marker);
        handler.host_task([] {});
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
    lock.unlock();
    marker.wait_and_throw();
    raise_kept_errors();
  });
}

ax_status event_elapsed(ax_event* start, ax_event* end, double* milliseconds) {
  return guarded(AX_INVALID, [&] {
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
