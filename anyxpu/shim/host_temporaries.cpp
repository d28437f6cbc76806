#include "shim/host_temporaries.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "shim/allocator.h"
#include "shim/gil.h"
#include "shim/host_memory.h"

namespace anyxpu {
namespace {

using c10::CachingAllocator::format_size;

thread_local HostTemporaries* current = nullptr;

// Less is not worth asking the system how much there is.
constexpr size_t kLarge = size_t{64} << 20;
// Left to everybody else.
constexpr uint64_t kReserve = uint64_t{256} << 20;

bool fits(c10::DeviceIndex device, size_t bytes) {
  uint64_t free = 0;
  uint64_t total = 0;
  return driver().memory_info(device, &free, &total) != AX_OK || bytes + kReserve <= free;
}

}  // namespace

// The CPU's own allocator; it only looks before it asks for much.
class WatchedAllocator final : public c10::Allocator {
 public:
  explicit WatchedAllocator(c10::Allocator* own) : own_(own) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (C10_UNLIKELY(bytes >= kLarge && current != nullptr)) make_room(*current, bytes);
    return own_->allocate(bytes);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return own_->is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return own_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { own_->copy_data(to, from, bytes); }

  static void install() {
    static const bool installed = [] {
      c10::SetAllocator(c10::kCPU, new WatchedAllocator(c10::GetAllocator(c10::kCPU)), /*priority=*/1);
      return true;
    }();
    (void)installed;
  }

 private:
  static void make_room(const HostTemporaries& work, size_t bytes) {
    const c10::DeviceIndex device = work.device_;
    if (!host_reaches(device) || fits(device, bytes)) return;
    const GilReleased no_gil;  // it waits for streams, which may run host functions that take it
    xpu_allocator()->emptyCache({0, 0});
    if (fits(device, bytes)) return;
    uint64_t free = 0;
    uint64_t total = 0;
    check(driver().memory_info(device, &free, &total), "ask for the free memory");
    TORCH_CHECK_WITH(OutOfMemoryError, false, "XPU out of memory. ", work.name_,
                     " runs on the host (ATen's CPU kernel) and takes ", format_size(bytes),
                     " there beside its results; ", format_size(free), " of ", format_size(total),
                     " are free. What helps: a smaller batch, fewer tensors kept alive, ",
                     "or torch.compile, whose kernels need no such temporaries");
  }

  c10::Allocator* own_;
};

HostTemporaries::HostTemporaries(const std::string& name, c10::DeviceIndex device)
    : name_(name), device_(device), outer_(current) {
  WatchedAllocator::install();
  current = this;
}

HostTemporaries::~HostTemporaries() { current = outer_; }

}  // namespace anyxpu
