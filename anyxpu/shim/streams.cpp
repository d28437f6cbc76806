// Streams: a default queue a device, 32 pooled queues a priority, and queues that others own.
//
// StreamId: 0 is the default stream; an odd number a pooled one, (slot * 3 + priority class) * 2 + 1; any other
// even number is the address of an external queue.
#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "shim/assertions.h"
#include "shim/commands.h"
#include "shim/runtime.h"
#include "shim/waiting.h"

namespace anyxpu {
namespace {

constexpr int kMaxDevices = 128;
constexpr int kPoolSize = 32;
constexpr std::array<int, 3> kPriorities = {-1, 0, 1};

// Queues are made at first use and live until the process ends: work may still hold them.
class QueueSlot {
 public:
  ax_queue* get(c10::DeviceIndex device, int priority) {
    ax_queue* queue = queue_.load(std::memory_order_acquire);
    if (C10_LIKELY(queue != nullptr)) return queue;
    std::lock_guard<std::mutex> lock(mutex_);
    queue = queue_.load();
    if (queue == nullptr) {
      check(driver().queue_create(device, priority, &queue), "create a queue");
      note_own_queue(queue);
      queue_.store(queue, std::memory_order_release);
    }
    return queue;
  }
  ax_queue* peek() const { return queue_.load(std::memory_order_acquire); }

 private:
  std::atomic<ax_queue*> queue_{nullptr};
  std::mutex mutex_;
};

struct DeviceQueues {
  QueueSlot main;
  std::array<std::array<QueueSlot, kPoolSize>, kPriorities.size()> pool;
  std::array<std::atomic<uint32_t>, kPriorities.size()> next{};
};

std::array<DeviceQueues, kMaxDevices>& queues() {
  static auto* all = new std::array<DeviceQueues, kMaxDevices>();  // never destroyed: threads may outlive main
  return *all;
}

thread_local std::array<c10::StreamId, kMaxDevices> thread_streams{};

size_t priority_class(int priority) { return priority < 0 ? 0 : priority == 0 ? 1 : 2; }

struct PoolPlace {
  size_t priority;
  size_t slot;
};

bool is_pooled(c10::StreamId id) { return id & 1; }

c10::StreamId pooled_id(PoolPlace place) {
  return static_cast<c10::StreamId>((place.slot * kPriorities.size() + place.priority) * 2 + 1);
}

PoolPlace pool_place(c10::StreamId id) {
  auto n = static_cast<size_t>(id >> 1);
  PoolPlace place{n % kPriorities.size(), n / kPriorities.size()};
  TORCH_CHECK(place.slot < kPoolSize, "anyxpu: ", id, " is not the id of an xpu stream");
  return place;
}

}  // namespace

c10::Stream make_stream(c10::StreamId id, c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::XPU, device), id);
}

c10::Stream default_stream(c10::DeviceIndex device) { return make_stream(0, resolve_device(device)); }

c10::Stream current_stream(c10::DeviceIndex device) {
  device = resolve_device(device);
  return make_stream(thread_streams[static_cast<size_t>(device)], device);
}

c10::Stream exchange_current_stream(c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == c10::DeviceType::XPU, "anyxpu: ", stream, " is not an xpu stream");
  c10::DeviceIndex device = stream.device_index();
  check_device(device);
  c10::Stream previous = current_stream(device);
  thread_streams[static_cast<size_t>(device)] = stream.id();
  return previous;
}

c10::Stream stream_from_pool(c10::DeviceIndex device, int priority) {
  device = resolve_device(device);
  check_device(device);
  size_t level = priority_class(priority);
  size_t slot = queues()[static_cast<size_t>(device)].next[level]++ % kPoolSize;
  return make_stream(pooled_id({level, slot}), device);
}

std::optional<c10::Stream> stream_of(const ax_queue* queue) {
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    auto& all = queues()[static_cast<size_t>(device)];
    if (all.main.peek() == queue) return make_stream(0, device);
    for (size_t level = 0; level < kPriorities.size(); ++level)
      for (size_t slot = 0; slot < kPoolSize; ++slot)
        if (all.pool[level][slot].peek() == queue) return make_stream(pooled_id({level, slot}), device);
  }
  return std::nullopt;
}

int stream_priority(c10::Stream stream) {
  return is_pooled(stream.id()) ? kPriorities[pool_place(stream.id()).priority] : 0;
}

c10::Stream stream_from_external(ax_queue* queue, c10::DeviceIndex device) {
  TORCH_CHECK(queue != nullptr, "anyxpu: an external stream needs the address of a sycl::queue, got 0");
  return make_stream(reinterpret_cast<c10::StreamId>(queue), resolve_device(device));
}

ax_queue* queue(c10::Stream stream) {
  c10::StreamId id = stream.id();
  auto& device = queues()[static_cast<size_t>(stream.device_index())];
  if (id == 0) return device.main.get(stream.device_index(), 0);
  if (!is_pooled(id)) return reinterpret_cast<ax_queue*>(id);
  PoolPlace place = pool_place(id);
  return device.pool[place.priority][place.slot].get(stream.device_index(), kPriorities[place.priority]);
}

ax_queue* current_queue(c10::DeviceIndex device) { return queue(current_stream(device)); }

void synchronize_device(c10::DeviceIndex device) {
  device = resolve_device(device);
  check_device(device);
  const WatchedWait watched("xpuDeviceSynchronize");
  auto& all = queues()[static_cast<size_t>(device)];
  auto wait = [device](ax_queue* queue) {
    if (queue) wait_for_queue(queue, device, "synchronize a stream");
  };
  wait(all.main.peek());
  for (auto& level : all.pool)
    for (auto& slot : level) wait(slot.peek());
  raise_failed_assertion(device);
}

}  // namespace anyxpu
