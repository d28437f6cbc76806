#include "shim/kept_copies.h"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shim/caching_allocator.h"
#include "shim/recording.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

// What a copy is for: the address it was made of, its form, and the queue whose order it is in.
using Purpose = std::tuple<const void*, uint64_t, ax_queue*>;

struct Copy {
  c10::Storage storage;  // empty: asked for once
  bool refused = false;  // for want of room: not to be made at every call
};

struct Watched {
  uintptr_t end;
  uint64_t token;
  std::map<Purpose, Copy> copies;
};

struct Watch {
  std::shared_mutex mutex;
  std::map<uintptr_t, Watched> blocks;  // by where they begin
  uint64_t tokens = 0;
  // What most writes are compared with, without the lock: all blocks lie between these.
  std::atomic<uintptr_t> low{UINTPTR_MAX}, high{0};

  // With the lock held.
  std::map<uintptr_t, Watched>::iterator find(uintptr_t address) {
    auto next = blocks.upper_bound(address);
    if (next == blocks.begin()) return blocks.end();
    const auto found = std::prev(next);
    return address < found->second.end ? found : blocks.end();
  }
  size_t bytes_on(c10::Device device) const {
    size_t bytes = 0;
    std::unordered_set<const void*> counted;  // a copy may be kept for each of several tensors that it was made of
    for (const auto& [begin, block] : blocks)
      for (const auto& [purpose, copy] : block.copies)
        if (copy.storage && copy.storage.device() == device && counted.insert(copy.storage.data()).second)
          bytes += copy.storage.nbytes();
    return bytes;
  }
  bool may_hold(uintptr_t address) const noexcept {
    return address >= low.load(std::memory_order_relaxed) && address < high.load(std::memory_order_relaxed);
  }
  void bound() {
    low = blocks.empty() ? UINTPTR_MAX : blocks.begin()->first;
    high = blocks.empty() ? 0 : blocks.rbegin()->second.end;
  }
};

Watch& watch() {
  static auto* one = new Watch;  // never destroyed: tensors are freed after every destructor
  return *one;
}

// Of a device's memory copies take a quarter at most: the weights of a large model are not doubled.
constexpr size_t kShare = 4;
// Of one block. A program may read its way through a large one, a slice of it after the other.
constexpr size_t kMostCopies = 4096;

struct Reads {
  std::shared_mutex mutex;
  std::unordered_map<const ax_kernel*, uint64_t> of;
};

Reads& reads() {
  static auto* one = new Reads;  // as above: of kernels
  return *one;
}

uint64_t reads_of(const ax_kernel* kernel) {
  const std::shared_lock lock(reads().mutex);
  const auto found = reads().of.find(kernel);
  return found == reads().of.end() ? 0 : found->second;
}

void note_written_by(const ax_kernel* kernel, const ax_arg* args, uint32_t count) {
  std::optional<uint64_t> only_read;  // asked for where a pointer is near a watched block
  for (uint32_t i = 0; i < count; ++i) {
    if (args[i].kind != AX_ARG_POINTER) continue;
    const void* const address = *static_cast<void* const*>(args[i].value);
    if (C10_LIKELY(!watch().may_hold(reinterpret_cast<uintptr_t>(address)))) continue;
    if (!only_read) only_read = reads_of(kernel);
    if (i >= 64 || !(*only_read >> i & 1)) note_written(address);
  }
}

std::atomic<const ax_driver*> real{nullptr};

const ax_driver& below() noexcept { return *real.load(std::memory_order_relaxed); }

ax_status launch(ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3], const uint32_t local[3],
                 const ax_arg* args, uint32_t arg_count, uint64_t operations) {
  if (C10_UNLIKELY(watch().high.load(std::memory_order_relaxed) != 0)) note_written_by(kernel, args, arg_count);
  if (C10_UNLIKELY(the_recording != nullptr))
    the_recording->launched(queue, kernel, groups, local, args, arg_count, operations, nullptr);
  return below().launch(queue, kernel, groups, local, args, arg_count, operations);
}

ax_status copy(ax_queue* queue, void* dst, const void* src, uint64_t bytes) {
  note_written(dst);
  if (C10_UNLIKELY(the_recording != nullptr)) the_recording->copied(queue, dst, src, bytes);
  return below().copy(queue, dst, src, bytes);
}

ax_status fill(ax_queue* queue, void* dst, const void* pattern, uint32_t pattern_bytes, uint64_t count) {
  note_written(dst);
  if (C10_UNLIKELY(the_recording != nullptr)) the_recording->filled(queue, dst, pattern, pattern_bytes, count);
  return below().fill(queue, dst, pattern, pattern_bytes, count);
}

ax_status host_call(ax_queue* queue, void (*fn)(void*), void* data) {
  spoil_recording("the host's own work in a stream");
  return below().host_call(queue, fn, data);
}

ax_status queue_synchronize(ax_queue* queue) {
  spoil_recording("a wait for the device");
  return below().queue_synchronize(queue);
}

}  // namespace

KeptCopy find_copy(const at::Tensor& tensor, uint64_t form, ax_queue* queue) {
  const void* start = tensor.storage().data();
  const auto begin = reinterpret_cast<uintptr_t>(start);
  const Purpose purpose{tensor.const_data_ptr(), form, queue};
  Watch& all = watch();
  {
    const std::shared_lock lock(all.mutex);
    if (const auto found = all.blocks.find(begin); found != all.blocks.end()) {
      const Watched& block = found->second;
      if (const auto kept = block.copies.find(purpose); kept != block.copies.end())
        return {block.token, kept->second.storage, !kept->second.refused};
    }
  }
  const size_t bytes = caching_allocator().bytes_at(start);
  if (bytes == 0) return {};
  const std::unique_lock lock(all.mutex);
  auto [block, fresh] = all.blocks.try_emplace(begin);
  if (fresh) {
    block->second.end = begin + bytes;
    block->second.token = ++all.tokens;
    all.bound();
  }
  if (block->second.copies.size() >= kMostCopies) return {};
  block->second.copies.try_emplace(purpose);
  return {block->second.token, {}, false};
}

void keep_copy(const at::Tensor& tensor, uint64_t form, ax_queue* queue, uint64_t token, const at::Tensor& copy) {
  spoil_recording("a copy that is made once and kept");
  c10::Storage former;  // freed after the lock, as a free asks for it
  Watch& all = watch();
  const std::unique_lock lock(all.mutex);
  const auto found = all.blocks.find(reinterpret_cast<uintptr_t>(tensor.storage().data()));
  if (found == all.blocks.end() || found->second.token != token) return;
  Copy& place = found->second.copies[{tensor.const_data_ptr(), form, queue}];
  const size_t room = properties(copy.device().index()).total_memory / kShare;
  place.refused = all.bytes_on(copy.device()) + copy.nbytes() > room;
  if (!place.refused) former = std::exchange(place.storage, copy.storage());
}

void note_written(const void* address) {
  Watch& all = watch();
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (C10_LIKELY(!all.may_hold(at))) return;
  {
    const std::shared_lock lock(all.mutex);
    if (all.find(at) == all.blocks.end()) return;
  }
  std::map<Purpose, Copy> freed;  // after the lock, as a free asks for it
  const std::unique_lock lock(all.mutex);
  const auto found = all.find(at);
  if (found == all.blocks.end()) return;
  freed = std::move(found->second.copies);
  all.blocks.erase(found);
  all.bound();
}

void give_commands_to(const ax_driver* driver) { real.store(driver, std::memory_order_relaxed); }

const ax_driver* noting_writes(const ax_driver* driver) {
  static auto* table = new ax_driver;
  *table = *driver;
  give_commands_to(driver);
  table->launch = &launch;
  table->copy = &copy;
  table->fill = &fill;
  table->host_call = &host_call;
  table->queue_synchronize = &queue_synchronize;
  return table;
}

ax_status launch_writing(const void* written, ax_queue* queue, ax_kernel* kernel, const uint32_t groups[3],
                         const uint32_t local[3], const ax_arg* args, uint32_t arg_count, uint64_t operations) {
  driver();
  note_written(written);
  if (C10_UNLIKELY(the_recording != nullptr))
    the_recording->launched(queue, kernel, groups, local, args, arg_count, operations, &written);
  return below().launch(queue, kernel, groups, local, args, arg_count, operations);
}

void note_reads(const ax_kernel* kernel, uint64_t arguments) {
  const std::unique_lock lock(reads().mutex);
  reads().of[kernel] = arguments;
}

void forget_reads(const ax_kernel* kernel) noexcept {
  const std::unique_lock lock(reads().mutex);
  reads().of.erase(kernel);
}

bool drop_copies() {
  spoil_recording("copies of weights were given up");
  std::map<uintptr_t, Watched> freed;
  Watch& all = watch();
  const std::unique_lock lock(all.mutex);
  freed.swap(all.blocks);
  all.bound();
  return !freed.empty();
}

}  // namespace anyxpu
