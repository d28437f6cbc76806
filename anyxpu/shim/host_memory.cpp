// Twins of device tensors on the host: the same bytes where the host can reach them, else a copy and back.
#include "shim/host_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "shim/assertions.h"
#include "shim/host_temporaries.h"
#include "shim/kept_copies.h"
#include "shim/recording.h"

namespace anyxpu {
namespace {

using at::Tensor;

std::atomic<bool> always_copy{false};

// Regions begin at multiples of the widest element, so that every twin's offset is a whole number of elements.
constexpr size_t kAlign = 16;

void no_delete(void*) {}

Tensor tensor_over(const c10::Storage& storage, c10::DispatchKey key, const Tensor& like, int64_t offset) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), offset);
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// Bytes of its storage that a tensor's elements lie in.
std::pair<size_t, size_t> span(const Tensor& t) {
  const size_t low = t.storage_offset() * t.element_size();
  if (t.numel() == 0) return {low, low};
  return {low, low + at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.element_size())};
}

}  // namespace

void set_host_copies(bool always) noexcept { always_copy = always; }

bool host_reaches(c10::DeviceIndex device) { return properties(device).host_accessible != 0 && !always_copy; }

HostMemory::HostMemory(c10::DeviceIndex device) : device_(device), shared_(host_reaches(device)) {}

HostMemory::~HostMemory() {
  if (busy_) driver().queue_synchronize(current_queue(device_));
}

void HostMemory::use(const Tensor& tensor, bool written) {
  spoil_recording("an operator of the host");
  TORCH_INTERNAL_ASSERT(tensor.has_storage());
  auto& region = regions_[tensor.storage().unsafeGetStorageImpl()];
  region.device = tensor.storage();
  region.written |= written;
  if (written) note_written(region.device.mutable_data());
  written_[tensor.unsafeGetTensorImpl()] |= written;
  const auto [low, high] = span(tensor);
  region.low = std::min(region.low, low / kAlign * kAlign);
  region.high = std::max(region.high, std::min(high, region.device.nbytes()));
}

void HostMemory::open() {
  auto* queue = current_queue(device_);
  for (auto& entry : regions_) open_region(entry.second);
  const auto idle = driver().queue_query(queue);
  if (idle != AX_OK) {
    Storages opened;
    for (auto& entry : regions_) opened.push_back(entry.second.host);
    return wait_for(queue, device_, "wait for the stream before a host operator", std::move(opened));
  }
  raise_failed_assertion(device_);
}

void HostMemory::open_region(Region& region) {
  auto* cpu = c10::GetCPUAllocator();
  // What is only read stays shared with its lazy clones.
  auto* memory = region.written ? static_cast<char*>(region.device.mutable_data())
                                : static_cast<char*>(const_cast<void*>(region.device.data()));
  c10::DataPtr bytes;
  if (shared_) {
    region.low = 0;
    region.high = region.device.nbytes();
    bytes = c10::DataPtr(memory, memory, &no_delete, c10::kCPU);
  } else {
    region.high = std::max(region.high, region.low);
    bytes = cpu->allocate(region.high - region.low);
    if (region.high > region.low) {
      check(driver().copy(current_queue(device_), bytes.get(), memory + region.low, region.high - region.low),
            "copy an argument to the host");
    }
  }
  region.opened = bytes.get();
  region.host = c10::Storage(c10::Storage::use_byte_size_t(), region.high - region.low, std::move(bytes), cpu,
                             /*resizable=*/true);
}

Tensor HostMemory::host(const Tensor& tensor) {
  const auto& region = regions_.at(tensor.storage().unsafeGetStorageImpl());
  const auto itemsize = static_cast<int64_t>(tensor.element_size());
  const auto offset = tensor.storage_offset() - static_cast<int64_t>(region.low) / itemsize;
  Tensor twin = tensor_over(region.host, c10::DispatchKey::CPU, tensor, offset);
  if (written_.at(tensor.unsafeGetTensorImpl())) written_twins_.push_back({tensor, twin, offset});
  return twin;
}

Tensor HostMemory::fresh(const Tensor& tensor) {
  at::assert_no_internal_overlap(tensor);
  Tensor twin = at::empty(tensor.sizes(), tensor.options().device(c10::kCPU));
  written_twins_.push_back({tensor, twin, 0});
  return twin;
}

void HostMemory::close() {
  for (auto& entry : regions_) close_region(entry.second);
  for (const auto& twin : written_twins_) close_twin(twin);
}

void HostMemory::close_region(Region& region) {
  const bool resized = region.host.data() != region.opened || region.host.nbytes() > region.high - region.low;
  if (!resized && (shared_ || !region.written)) return;
  auto* storage = region.device.unsafeGetStorageImpl();
  const size_t bytes = region.host.nbytes();
  if (resized && region.low + bytes > storage->nbytes()) resize_storage(storage, region.low + bytes);
  if (bytes == 0) return;
  check(driver().copy(current_queue(device_), static_cast<char*>(storage->mutable_data()) + region.low,
                      region.host.data(), bytes),
        "copy what a host operator wrote");
  busy_ = true;
}

// An operator may have given an output other sizes, or put it over memory of its own.
void HostMemory::close_twin(const Twin& twin) {
  const auto& region = regions_.at(twin.device.storage().unsafeGetStorageImpl());
  auto* impl = twin.device.unsafeGetTensorImpl();
  if (!twin.host.storage().is_alias_of(region.host)) {
    Tensor target = twin.device;
    if (target.sizes() != twin.host.sizes()) {  // of which the operator has warned
      target.resize_(twin.host.sizes());
      if (twin.host.is_non_overlapping_and_dense()) impl->set_sizes_and_strides(twin.host.sizes(), twin.host.strides());
    }
    copy_tensor(target, twin.host, /*non_blocking=*/false);
    return;
  }
  // A kernel may leave a result conjugated or negated in name only.
  impl->_set_conj(twin.host.is_conj());
  impl->_set_neg(twin.host.is_neg());
  const int64_t moved = twin.host.storage_offset() - twin.offset;
  if (moved != 0 || twin.host.sizes() != impl->sizes() || twin.host.strides() != impl->strides()) {
    impl->set_sizes_and_strides(twin.host.sizes(), twin.host.strides(), impl->storage_offset() + moved);
  }
}

HostMemory::Region* HostMemory::region_of(const Tensor& host_tensor) {
  for (auto& entry : regions_) {
    if (host_tensor.storage().is_alias_of(entry.second.host)) return &entry.second;
  }
  return nullptr;
}

int64_t HostMemory::device_offset(const Region& region, const Tensor& host_tensor) const {
  return host_tensor.storage_offset() + static_cast<int64_t>(region.low / host_tensor.element_size());
}

Tensor HostMemory::result(const Tensor& tensor, const std::string& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided && !tensor.is_quantized(), "anyxpu: ", op,
                              " gives a tensor of layout ", tensor.layout(), " and type ", tensor.scalar_type(),
                              ", which xpu does not support. Call it on the CPU: tensor.cpu().");
  if (!tensor.is_cpu()) return tensor;
  if (auto* region = region_of(tensor)) {
    return tensor_over(region->device, c10::DispatchKey::XPU, tensor, device_offset(*region, tensor));
  }
  const Tensor plain = tensor._is_zerotensor() ? tensor.clone() : tensor;
  // A small piece of a large workspace does not keep all of it alive on the device.
  const auto [low, high] = span(plain);
  if (plain.storage().nbytes() > 2 * (high - low) + 1024) {
    return result(plain.contiguous().is_alias_of(plain) ? plain.clone() : plain.contiguous(), op);
  }
  return tensor_over(upload(plain.storage()), c10::DispatchKey::XPU, plain, plain.storage_offset());
}

c10::Storage HostMemory::upload(const c10::Storage& storage) {
  auto [found, fresh] = uploads_.try_emplace(storage.unsafeGetStorageImpl());
  if (!fresh) return found->second;
  auto* allocator = c10::GetAllocator(c10::DeviceType::XPU);
  if (c10::DataPtr block = take_lent(storage.mutable_data())) {  // the device's already
    c10::DataPtr same(block.get(), block.get(), &no_delete, c10::kCPU);
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(same)).release_context();
    found->second = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(block), allocator,
                                 /*resizable=*/true);
    kept_.push_back(storage);
    return found->second;
  }
  c10::DataPtr bytes = allocator->allocate(storage.nbytes());
  if (storage.nbytes() > 0) {
    check(driver().copy(current_queue(device_), bytes.get(), storage.data(), storage.nbytes()),
          "upload the result of a host operator");
    busy_ = true;
  }
  found->second = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(bytes), allocator,
                               /*resizable=*/true);
  // The CPU's bytes must live until finish(); its key in this map must not be another storage's by then.
  kept_.push_back(storage);
  return found->second;
}

void HostMemory::finish() {
  if (busy_) check(driver().queue_synchronize(current_queue(device_)), "upload the results of a host operator");
  busy_ = false;
}

}  // namespace anyxpu
