// When commands ran, for profilers.
#include <chrono>

#include "common.h"

namespace anyxpu::sycl_driver {
namespace {

thread_local ax_event* t_timed = nullptr;

}  // namespace

uint64_t steady_now() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

ax_event* take_timed() noexcept {
  if (t_timed == nullptr) return nullptr;
  return std::exchange(t_timed, nullptr);
}

ax_status event_of_next(ax_event* event) {
  return guarded(AX_INVALID, [&] {
    require(event == nullptr || event->timing, "the event of a command must have been created with timing");
    t_timed = event;
  });
}

ax_status event_interval(ax_event* event, ax_interval* out) {
  return guarded(AX_INVALID, [&] {
    if (event->by_host != nullptr) {
      const uint64_t ended = event->by_host->ended.load(std::memory_order_acquire);
      if (ended == 0) return set_error(AX_NOT_READY, "the time of a command is known once it is done");
      *out = {event->by_host->began, ended};
      return AX_OK;
    }
    if (event->asked == 0) return set_error(AX_UNSUPPORTED, "the event stands for no command whose time is known");
    const auto state = event->event.get_info<sycl::info::event::command_execution_status>();
    if (state != sycl::info::event_command_status::complete)
      return set_error(AX_NOT_READY, "the time of a command is known once it is done");
    // A device's clock is not the host's. SYCL notes the device's time when it is given a command, and the host's was
    // noted just before: what lies between that and the command's begin is the same on both.
    using namespace sycl::info::event_profiling;
    const uint64_t given = event->event.get_profiling_info<command_submit>();
    const uint64_t begin = event->event.get_profiling_info<command_start>();
    const uint64_t end = event->event.get_profiling_info<command_end>();
    const uint64_t waited = begin > given ? begin - given : 0;
    *out = {event->asked + waited, event->asked + waited + (end > begin ? end - begin : 0)};
    return AX_OK;
  });
}

}  // namespace anyxpu::sycl_driver
