#include "shim/memory_pool.h"

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "shim/caching_allocator.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

struct PoolOptions {
  std::shared_ptr<XpuAllocator> source;
  PoolRules rules;
};

// What a pool that exists in Python is made of, for devices that meet it later.
std::mutex options_mutex;
std::map<c10::MempoolId_t, PoolOptions>& options() {
  static auto* all = new std::map<c10::MempoolId_t, PoolOptions>();
  return *all;
}

PoolOptions options_of(c10::MempoolId_t id) {
  std::lock_guard<std::mutex> lock(options_mutex);
  auto found = options().find(id);
  return found == options().end() ? PoolOptions{} : found->second;
}

// As in every torch backend: pools made by the user count in the second place, those of graphs in the first.
c10::MempoolId_t next_id(bool is_user_created) {
  static std::atomic<c10::CaptureId_t> of_graphs{1};
  static std::atomic<c10::CaptureId_t> of_users{1};
  return is_user_created ? c10::MempoolId_t{0, of_users++} : c10::MempoolId_t{of_graphs++, 0};
}

void hold(c10::DeviceIndex device, c10::MempoolId_t id) {
  auto [source, rules] = options_of(id);
  caching_allocator().cache(device).create_or_hold_pool(id, source, rules);
}

}  // namespace

MemoryPool::MemoryPool(std::shared_ptr<XpuAllocator> source, bool is_user_created, PoolRules rules)
    : id_(next_id(is_user_created)), source_(std::move(source)), device_(current_device()) {
  TORCH_CHECK(xpu_allocator() == &caching_allocator(),
              "anyxpu: memory pools belong to the caching allocator, and change_current_allocator put another in use");
  {
    std::lock_guard<std::mutex> lock(options_mutex);
    options()[id_] = {source_, rules};
  }
  hold(device_, id_);
}

MemoryPool::~MemoryPool() {
  if (in_bad_fork()) return;
  try {
    release_pool(device_, id_);
    caching_allocator().emptyCache(id_);
    std::lock_guard<std::mutex> lock(options_mutex);
    options().erase(id_);
  } catch (const std::exception& error) {
    TORCH_WARN("anyxpu: the memory of a MemPool was not released: ", error.what());
  }
}

int MemoryPool::users() const { return caching_allocator().cache(device_).pool_users(id_); }

void begin_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t id, bool this_thread_only) {
  hold(device, id);
  StreamFilter filter = [](ax_queue*) { return true; };
  if (this_thread_only) {
    filter = [mine = std::this_thread::get_id()](ax_queue*) { return std::this_thread::get_id() == mine; };
  }
  caching_allocator().cache(device).begin_allocate_to_pool(id, std::move(filter));
}

void end_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t id) {
  caching_allocator().cache(device).end_allocate_to_pool(id);
}

void release_pool(c10::DeviceIndex device, c10::MempoolId_t id) { caching_allocator().cache(device).release_pool(id); }

}  // namespace anyxpu
