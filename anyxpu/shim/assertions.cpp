#include "shim/assertions.h"

#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>

namespace anyxpu {
namespace {

struct AssertionRecord {
  int32_t claimed;  // 1 once a work-item has begun to write what follows: the first failure is the one that is told
  int32_t kernel;
  int32_t message;
  int32_t program[3];
  int32_t complete;  // 1 once all of it is written
};

constexpr size_t kMaxDevices = std::numeric_limits<c10::DeviceIndex>::max() + size_t{1};

struct Assertions {
  std::mutex mutex;
  std::vector<std::vector<std::string>> messages;  // by the kernel's number
  std::array<std::atomic<AssertionRecord*>, kMaxDevices> records{};
};

// Never destroyed: kernels may run while the process ends.
Assertions& assertions() {
  static auto* all = new Assertions;
  return *all;
}

std::string told(const AssertionRecord& record) {
  std::string message = "an assertion failed";
  {
    std::lock_guard lock(assertions().mutex);
    const auto& known = assertions().messages;
    if (static_cast<size_t>(record.kernel) < known.size()) {
      const auto& of_kernel = known[static_cast<size_t>(record.kernel)];
      if (static_cast<size_t>(record.message) < of_kernel.size())
        message = of_kernel[static_cast<size_t>(record.message)];
    }
  }
  // With the words that CUDA and SYCL's runtime have for it, which programs look for.
  return "anyxpu: device-side assert triggered: Assertion `" + message + "` failed (program " +
         std::to_string(record.program[0]) + ", " + std::to_string(record.program[1]) + ", " +
         std::to_string(record.program[2]) + "). What that program writes is incomplete; the device stays usable.";
}

}  // namespace

int32_t register_assertions(std::vector<std::string> messages) {
  std::lock_guard lock(assertions().mutex);
  assertions().messages.push_back(std::move(messages));
  return static_cast<int32_t>(assertions().messages.size() - 1);
}

void* assertion_record(c10::DeviceIndex device) {
  auto& slot = assertions().records.at(static_cast<size_t>(device));
  if (auto* record = slot.load(std::memory_order_acquire)) return record;
  std::lock_guard lock(assertions().mutex);
  if (auto* record = slot.load()) return record;
  void* memory = nullptr;
  check(driver().allocate(device, AX_MEMORY_SHARED, sizeof(AssertionRecord), &memory),
        "allocate a record of assertions");
  std::memset(memory, 0, sizeof(AssertionRecord));
  slot.store(static_cast<AssertionRecord*>(memory), std::memory_order_release);
  return memory;
}

void raise_failed_assertion(c10::DeviceIndex device) {
  auto* record = assertions().records[static_cast<size_t>(device)].load(std::memory_order_acquire);
  if (C10_LIKELY(record == nullptr || !__atomic_load_n(&record->complete, __ATOMIC_ACQUIRE))) return;
  AssertionRecord copy;
  {
    static std::mutex taking;
    std::lock_guard lock(taking);
    if (!__atomic_load_n(&record->complete, __ATOMIC_ACQUIRE)) return;  // another thread has told it
    copy = *record;
    __atomic_store_n(&record->complete, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&record->claimed, 0, __ATOMIC_RELEASE);
  }
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, AX_LAUNCH_FAILED, told(copy));
}

}  // namespace anyxpu
