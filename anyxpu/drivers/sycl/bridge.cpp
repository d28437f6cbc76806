#include "bridge.h"

#include <algorithm>
#include <array>
#include <map>

namespace anyxpu::sycl_driver {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;

constexpr uint64_t kPieceBytes = 8 << 20;  // two of them in flight keep both links busy

// The way from one GPU to another: a queue that reads, one that writes, and two pieces of pinned memory between them.
struct Bridge {
  Bridge(const Device& from, const Device& to)
      : reader(from.context, from.device, sycl::property::queue::in_order()),
        writer(to.context, to.device, sycl::property::queue::in_order()) {
    for (void*& piece : pieces) {
      piece = sycl::malloc_host(kPieceBytes, from.context);
      if (piece == nullptr)
        throw Failure(AX_OUT_OF_MEMORY, "no pinned memory is left for copies between devices " +
                                            std::to_string(from.ordinal) + " and " + std::to_string(to.ordinal));
    }
  }

  std::mutex mutex;
  sycl::queue reader, writer;
  std::array<void*, 2> pieces{};
  std::array<sycl::event, 2> written;  // when a piece may be used again
};

// Null for the host's memory and for what is no memory of this driver.
Device* owner_of(const void* memory, const sycl::context& context) {
  if (sycl::get_pointer_type(memory, context) != sycl::usm::alloc::device) return nullptr;
  const sycl::device owner = sycl::get_pointer_device(memory, context);
  for (const auto& device : devices())
    if (device->device == owner) return device.get();
  return nullptr;
}

using Route = std::pair<int, int>;

// Whether `to` may be written by a copy that `from` makes; asked and switched on once.
bool reaches(const Device& from, const Device& to) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<Route, bool>;
  std::lock_guard lock(*mutex);
  const auto [entry, fresh] = known->try_emplace({from.ordinal, to.ordinal}, false);
  sycl::device device = from.device;
  if (fresh && device.ext_oneapi_can_access_peer(to.device, sycl::ext::oneapi::peer_access::access_supported)) {
    device.ext_oneapi_enable_peer_access(to.device);
    entry->second = true;
  }
  return entry->second;
}

Bridge& bridge_of(const Device& from, const Device& to) {
  static auto* mutex = new std::mutex;
  static auto* made = new std::map<Route, std::unique_ptr<Bridge>>;  // never freed, as the devices are not
  std::lock_guard lock(*mutex);
  std::unique_ptr<Bridge>& bridge = (*made)[{from.ordinal, to.ordinal}];
  if (bridge == nullptr) bridge = std::make_unique<Bridge>(from, to);
  return *bridge;
}

sycl::event move(sycl::queue& queue, void* dst, const void* src, uint64_t bytes,
                 const std::vector<sycl::event>& after) {
  return queue.submit([&](sycl::handler& handler) {
    handler.depends_on(after);
    handler.memcpy(dst, src, bytes);
  });
}

}  // namespace

bool copy_between_gpus(sycl::queue& queue, void* dst, const void* src, uint64_t bytes) {
  if (queue.get_backend() != sycl::backend::ext_oneapi_level_zero || devices().size() < 2) return false;
  const sycl::context context = queue.get_context();
  const Device *from = owner_of(src, context), *to = owner_of(dst, context);
  if (from == nullptr || to == nullptr || from == to) return false;
  const sycl::device copier = queue.get_device();
  if (copier == from->device ? reaches(*from, *to) : copier == to->device && reaches(*to, *from)) return false;

  Bridge& bridge = bridge_of(*from, *to);
  std::lock_guard lock(bridge.mutex);
  const sycl::event begin = queue.ext_oneapi_submit_barrier();
  sycl::event last;
  for (uint64_t at = 0, piece = 0; at < bytes; at += kPieceBytes, piece ^= 1) {
    const uint64_t size = std::min(kPieceBytes, bytes - at);
    void* const between = bridge.pieces[piece];
    const sycl::event read =
        move(bridge.reader, between, static_cast<const char*>(src) + at, size, {begin, bridge.written[piece]});
    last = bridge.written[piece] = move(bridge.writer, static_cast<char*>(dst) + at, between, size, {read});
  }
  experimental::submit(queue, [&](sycl::handler& handler) {
    handler.depends_on(last);
    handler.ext_oneapi_barrier();
  });
  return true;
}

}  // namespace anyxpu::sycl_driver
