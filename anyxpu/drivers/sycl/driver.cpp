// The sycl driver's table, its errors, and what it says of itself.
#include <array>
#include <string_view>

#include "common.h"

namespace anyxpu::sycl_driver {
namespace {

thread_local std::string t_last_error;

struct Meaning {
  std::string_view answer;
  ax_status status;
};

// SYCL folds most answers of a backend into errc::runtime; the name of Unified Runtime's code in the text is what
// tells them apart.
constexpr std::array<Meaning, 2> kMeanings{{
    {"UR_RESULT_ERROR_DEVICE_LOST", AX_DEVICE_LOST},
    {"UR_RESULT_ERROR_UNSUPPORTED_FEATURE", AX_UNSUPPORTED},
}};

const char* describe() {
  thread_local std::string text;
  guarded(AX_INVALID, [] { text = description(); });
  return text.c_str();
}

}  // namespace

ax_status set_error(ax_status status, std::string message) noexcept {
  t_last_error = std::move(message);
  return status;
}

const char* last_error() noexcept { return t_last_error.c_str(); }

ax_status classify(const sycl::exception& error, ax_status otherwise) noexcept {
  const std::string_view text = error.what();
  for (const Meaning& meaning : kMeanings) {
    if (text.find(meaning.answer) != std::string_view::npos) return meaning.status;
  }
  const std::error_code& code = error.code();
  if (code == sycl::errc::memory_allocation) return AX_OUT_OF_MEMORY;
  if (code == sycl::errc::feature_not_supported) return AX_UNSUPPORTED;
  return otherwise;
}

bool failed_earlier(const sycl::exception& error) noexcept {
  return std::string_view(error.what()).find("Enqueue process failed") != std::string_view::npos;
}

void Errors::keep(const sycl::exception_list& errors) {
  std::lock_guard lock(mutex_);
  for (const std::exception_ptr& pointer : errors) {
    try {
      std::rethrow_exception(pointer);
    } catch (const sycl::exception& error) {
      // The commands behind the one that failed report only that they could not be enqueued either.
      if (text_.empty() || !failed_earlier(error)) text_ = error.what();
    } catch (const std::exception& error) {
      text_ = error.what();
    } catch (...) {
      text_ = "an unknown exception";
    }
  }
}

void Errors::keep(const char* text) {
  std::lock_guard lock(mutex_);
  text_ = text;
}

std::string Errors::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(text_, {});
}

}  // namespace anyxpu::sycl_driver

extern "C" __attribute__((visibility("default"))) const ax_driver* anyxpu_driver(void) {
  using namespace anyxpu::sycl_driver;
  static const ax_driver driver = {
      .abi = AX_DRIVER_ABI,
      .name = "sycl",
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
      .description = describe,
  };
  return &driver;
}
