// Operators that only make memory or describe it: factories, views, storage, and the front doors of copy and fill.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_efficientzerotensor_native.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "shim/assertions.h"
#include "shim/ops.h"

namespace anyxpu {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::Device;
using c10::Layout;
using c10::MemoryFormat;
using c10::ScalarType;

constexpr c10::DispatchKeySet kXpu(c10::DispatchKey::XPU);

c10::Allocator* allocator() { return c10::GetAllocator(c10::DeviceType::XPU); }

// --- factories ----------------------------------------------------------------------------------------------

Device check_options(std::optional<Layout> layout, std::optional<Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == Layout::Strided, "anyxpu: a tensor of layout ",
                              c10::layout_or_default(layout),
                              " cannot be made on xpu: only strided tensors can. Make it on the CPU.");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const auto index = resolve_device(device.has_value() ? device->index() : -1);
  check_device(index);
  return xpu_device(index);
}

Tensor filled_if_deterministic(Tensor made) {
  if (at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(made);
  }
  return made;
}

Tensor empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout> layout,
             std::optional<Device> device, std::optional<bool> pin_memory, std::optional<MemoryFormat> format) {
  const c10::DeviceGuard guard(check_options(layout, device, pin_memory));
  return filled_if_deterministic(
      at::detail::empty_generic(size, allocator(), kXpu, c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype,
                     std::optional<Layout> layout, std::optional<Device> device, std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(check_options(layout, device, pin_memory));
  return filled_if_deterministic(
      at::detail::empty_strided_generic(size, stride, allocator(), kXpu, c10::dtype_or_default(dtype)));
}

// A tensor that stands for zeros and owns no memory; forward-mode autograd makes them.
Tensor efficient_zero_tensor(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout> layout,
                             std::optional<Device> device, std::optional<bool> pin_memory) {
  at::native::ZeroTensorAllocator nothing(check_options(layout, device, pin_memory));
  return at::detail::empty_generic(size, &nothing, kXpu | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

Tensor make_dep_token(std::optional<ScalarType> dtype, std::optional<Layout> layout, std::optional<Device> device,
                      std::optional<bool> pin_memory, std::optional<MemoryFormat> format) {
  return empty({}, dtype, layout, device, pin_memory, format);
}

// --- storage ------------------------------------------------------------------------------------------------

const Tensor& resize(const Tensor& self, IntArrayRef size, std::optional<MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  const int64_t old_bytes = impl->unsafe_storage() ? static_cast<int64_t>(impl->unsafe_storage().nbytes()) : 0;
  resize_tensor(impl, size, std::nullopt);
  if (format.has_value()) {
    TORCH_CHECK(*format != MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl->empty_tensor_restride(*format);
  }
  if (at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory()) {
    at::native::fill_resize_deterministic_(self, old_bytes);
  }
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resize_tensor(self.unsafeGetTensorImpl(), size,
                stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) { return at::native::set_(self, std::move(source)); }

Tensor& set_empty(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  at::Storage storage(at::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), /*resizable=*/true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

void record_stream(Tensor& self, at::Stream stream) {
  auto* caching = dynamic_cast<c10::DeviceAllocator*>(allocator());
  TORCH_INTERNAL_ASSERT(caching != nullptr);
  caching->recordStream(self.storage().data_ptr(), stream);
}

// --- reading ------------------------------------------------------------------------------------------------

at::Scalar local_scalar_dense(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
  // Through a CPU scalar, so that every dtype that torch can read is read by torch's own rules.
  Tensor value = at::detail::empty_cpu({}, self.scalar_type());
  const auto* from = static_cast<const char*>(self.const_data_ptr());
  auto* queue = current_queue(self.device().index());
  check(driver().copy(queue, value.mutable_data_ptr(), from, self.element_size()), "read a scalar");
  wait_for(queue, self.device().index(), "read a scalar", {value.storage()});
  return at::_local_scalar_dense(value);
}

// --- copies -------------------------------------------------------------------------------------------------

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  Tensor target = dst;
  return copy_tensor(target, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  Tensor target = dst;
  target.resize_(self.sizes());
  return copy_tensor(target, self, false);
}

// --- registration -------------------------------------------------------------------------------------------

template <size_t N>
struct Literal {
  char text[N];
  // NOLINTNEXTLINE(google-explicit-constructor): a string literal is meant to become one
  constexpr Literal(const char (&literal)[N]) { std::copy_n(literal, N, text); }
};

// `function` behind a counter of the operator aten::`name`.
template <Literal name, auto function>
struct Structural;

template <Literal name, class Result, class... Args, Result (*function)(Args...)>
struct Structural<name, function> {
  static Result call(Args... args) {
    static OpCounter& counter = op_counter(std::string("aten::") + name.text);
    counter.add(Way::structural);
    return function(std::forward<Args>(args)...);
  }
};

std::map<std::string, Way>& served() {
  static auto* names = new std::map<std::string, Way>;
  return *names;
}

template <Literal name, auto function>
void serve(torch::Library& library) {
  library.impl(name.text, TORCH_FN((Structural<name, function>::call)));
  served()[std::string("aten::") + name.text] = Way::structural;
}

}  // namespace

const std::map<std::string, Way>& structural_operators() { return served(); }

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceGuard guard(storage->device());
  auto* source = storage->allocator() != nullptr ? storage->allocator() : allocator();
  c10::DataPtr fresh = source->allocate(bytes);
  const size_t kept = std::min(bytes, storage->nbytes());
  if (kept > 0) {
    check(driver().copy(current_queue(storage->device().index()), fresh.get(), storage->data(), kept),
          "keep the bytes of a resized storage");
  }
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(bytes);
}

void resize_tensor(c10::TensorImpl* self, IntArrayRef size, at::OptionalIntArrayRef stride) {
  if (self->sizes() == size && (!stride.has_value() || self->strides() == *stride)) return;
  const auto itemsize = self->dtype().itemsize();
  const auto offset = static_cast<size_t>(self->storage_offset());
  size_t bytes = 0;
  if (stride.has_value()) {
    self->set_sizes_and_strides(size, *stride);
    bytes = at::detail::computeStorageNbytes(size, *stride, itemsize, offset);
  } else {
    self->set_sizes_contiguous(size);
    bytes = at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
  }
  // An empty tensor needs no memory, whatever its offset is.
  if (self->numel() == 0) return;
  const auto& storage = self->unsafe_storage();
  TORCH_CHECK(storage, "Tensor: invalid null storage");
  if (bytes > storage.nbytes()) resize_storage(storage.unsafeGetStorageImpl(), bytes);
}

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  serve<"empty.memory_format", &empty>(library);
  serve<"empty_strided", &empty_strided>(library);
  serve<"_efficientzerotensor", &efficient_zero_tensor>(library);
  serve<"_make_dep_token", &make_dep_token>(library);

  serve<"as_strided", &at::native::as_strided_tensorimpl>(library);
  serve<"view", &at::native::view>(library);
  serve<"_reshape_alias", &at::native::_reshape_alias>(library);
  serve<"unfold", &at::native::unfold>(library);
  serve<"view_as_real", &at::native::view_as_real>(library);
  serve<"view_as_complex", &at::native::view_as_complex>(library);

  serve<"resize_", &resize>(library);
  serve<"set_", &set_empty>(library);
  serve<"set_.source_Storage", &set_whole_storage>(library);
  serve<"set_.source_Storage_storage_offset", &set_storage>(library);
  serve<"set_.source_Tensor", &at::native::set_tensor_>(library);
  serve<"is_set_to", &at::native::is_set_to>(library);
  serve<"record_stream", &record_stream>(library);

  serve<"_local_scalar_dense", &local_scalar_dense>(library);
  serve<"copy_", &copy_tensor>(library);
  serve<"_copy_from", &copy_from>(library);
  serve<"_copy_from_and_resize", &copy_from_and_resize>(library);
  serve<"fill_.Scalar", &fill_scalar>(library);
  serve<"fill_.Tensor", &fill_tensor>(library);
  serve<"zero_", &fill_zero>(library);
}

}  // namespace anyxpu
