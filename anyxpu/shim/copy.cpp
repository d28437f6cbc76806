// copy_ in all its forms: host and device, two devices, any strides, any conversion.
//
// A transfer moves the same bytes in the same layout, by the driver. Everything else is put together from transfers
// and one kernel on the device (ops/kernels/copy.cl); what that kernel cannot express is converted on the host, and
// counted as such when both sides are on a device.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include "shim/arguments.h"
#include "shim/assertions.h"
#include "shim/device_kernels.h"
#include "shim/pinned.h"

namespace anyxpu {
namespace {

using at::Tensor;

// Ordinary host memory up to this size is staged through pinned memory, so that a non-blocking copy need not wait.
constexpr size_t kStagedBytes = size_t{1} << 20;

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// One run of bytes on both sides, in the same order.
bool same_layout(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

bool transferable(const Tensor& dst, const Tensor& src) { return same_bits(dst, src) && same_layout(dst, src); }

// Uninitialised memory laid out as `like` where that is dense, else contiguous.
Tensor dense_like(const Tensor& like, c10::ScalarType dtype, c10::Device device) {
  const auto options = like.options().dtype(dtype).device(device);
  if (like.is_non_overlapping_and_dense()) return at::empty_strided(like.sizes(), like.strides(), options);
  return at::empty(like.sizes(), options);
}

// The same values without conjugate or negative bit, in one run. A CPU tensor.
Tensor plain_on_host(const Tensor& src) {
  Tensor plain = src.resolve_conj().resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

// --- on one device ------------------------------------------------------------------------------------------

const char* type_name(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return "bool";
    case c10::ScalarType::Byte:
      return "u8";
    case c10::ScalarType::Char:
      return "i8";
    case c10::ScalarType::UInt16:
      return "u16";
    case c10::ScalarType::Short:
      return "i16";
    case c10::ScalarType::UInt32:
      return "u32";
    case c10::ScalarType::Int:
      return "i32";
    case c10::ScalarType::UInt64:
      return "u64";
    case c10::ScalarType::Long:
      return "i64";
    case c10::ScalarType::Half:
      return "f16";
    case c10::ScalarType::BFloat16:
      return "bf16";
    case c10::ScalarType::Float8_e4m3fn:
      return "f8e4m3";
    case c10::ScalarType::Float8_e5m2:
      return "f8e5m2";
    case c10::ScalarType::Float:
      return "f32";
    case c10::ScalarType::Double:
      return "f64";
    case c10::ScalarType::ComplexHalf:
      return "c32";
    case c10::ScalarType::ComplexFloat:
      return "c64";
    case c10::ScalarType::ComplexDouble:
      return "c128";
    default:
      return nullptr;
  }
}

std::string bits_name(size_t bytes) { return "b" + std::to_string(8 * bytes); }

struct Conversion {
  const char* family = nullptr;  // nullptr: no kernel expresses it
  std::string source, destination;
};

Conversion conversion(const Tensor& dst, const Tensor& src) {
  // Same type and both bits as they are: whatever the type is, its bits are moved.
  if (same_bits(dst, src)) {
    const auto bits = bits_name(src.element_size());
    return {"copy", bits, bits};
  }
  static constexpr const char* kFamilies[] = {"copy", "copy_negate", "copy_conjugate", "copy_negate_conjugate"};
  const char* from = type_name(src.scalar_type());
  const char* to = type_name(dst.scalar_type());
  if (from == nullptr || to == nullptr) return {};
  // A conjugate bit says something only of complex numbers; converting drops or invents the imaginary part.
  const bool conjugate = src.is_complex() && src.is_conj() != dst.is_conj();
  const bool negate = src.is_neg() != dst.is_neg();
  return {kFamilies[(negate ? 1 : 0) + (conjugate ? 2 : 0)], from, to};
}

at::TensorIterator copy_iterator(const Tensor& dst, const Tensor& src) {
  return at::TensorIteratorConfig()
      .add_output(dst)
      .add_const_input(src)
      .resize_outputs(false)
      .check_all_same_dtype(false)
      .check_all_same_device(false)
      .build();
}

bool dense_walk(const at::TensorIteratorBase& it) {
  return it.ndim() <= 1 &&
         (it.ndim() == 0 || (it.strides(0)[0] == it.element_size(0) && it.strides(1)[0] == it.element_size(1)));
}

// False where no kernel expresses it.
bool copy_by_kernel(at::TensorIteratorBase& it, const Tensor& dst, const Tensor& src) {
  const auto index = dst.device().index();
  const auto how = conversion(dst, src);
  if (how.family == nullptr) return false;
  const bool narrow = it.can_use_32bit_indexing(), pieces = by_pieces(it, index);
  if (pieces && !narrow) {
    for (auto& part : it.with_32bit_indexing())
      if (!copy_by_kernel(part, dst, src)) return false;
    return true;
  }
  const int along = pieces ? tiled_along(it) : 0;
  Walk walk = narrow ? Walk::strided32 : Walk::strided64;
  if (along > 0) {
    walk = Walk::tiled32;
  } else if (pieces && it.shape()[0] >= kShortestRun) {
    walk = Walk::rows32;
  } else if (dense_walk(it)) {
    walk = Walk::dense;
  }
  auto* kernel = device_kernel(index, how.family, how.source, how.destination, walk);
  if (kernel == nullptr) return false;

  void* to = it.data_ptr(0);
  const void* from = it.data_ptr(1);
  uint64_t count = it.numel();
  Walk32 walk32{};
  Walk64 walk64{};
  ax_arg args[5] = {{&to, sizeof(to), AX_ARG_POINTER},
                    {&from, sizeof(from), AX_ARG_POINTER},
                    {&count, sizeof(count), AX_ARG_VALUE},
                    {&walk32, sizeof(walk32), AX_ARG_VALUE},
                    {}};
  if (walk == Walk::tiled32 || walk == Walk::rows32) {
    const auto cut = along > 0 ? tile_walk(walk32, it, along) : row_walk(walk32, it);
    count = static_cast<uint64_t>(cut.count);
    args[4] = {&cut.per_group, sizeof(cut.per_group), AX_ARG_VALUE};
    launch_pieces(index, kernel, cut, it.numel(), args, 5, "copy");
    return true;
  }
  if (walk == Walk::strided32) {
    walk32 = walk32_of(it);
  } else if (walk == Walk::strided64) {
    walk64 = walk64_of(it);
    args[3] = {&walk64, sizeof(walk64), AX_ARG_VALUE};
  }
  launch_elements(index, kernel, it.numel(), args, walk == Walk::dense ? 3 : 4, "copy");
  return true;
}

void transfer(const Tensor& dst, const Tensor& src, c10::Stream stream) {
  check(driver().copy(queue(stream), dst.mutable_data_ptr(), src.const_data_ptr(), src.nbytes()), "copy");
}

void copy_by_host(const Tensor& dst, const Tensor& src) {
  static OpCounter& counter = op_counter("aten::copy_");
  counter.add(Way::host);
  // Both as they lie in memory, which any device moves; what is asked for beyond that is the host's to do.
  const auto plain = [](Tensor t) {
    if (t.is_conj()) t = t.conj();
    return t.is_neg() ? t._neg_view() : t;
  };
  Tensor there = plain(dst), host = plain(src).to(c10::kCPU);
  if (src.is_conj() != dst.is_conj()) host = host.conj_physical();
  if (src.is_neg() != dst.is_neg()) host = host.neg();
  copy_tensor(there, host.to(dst.scalar_type()).expand(dst.sizes()), /*non_blocking=*/false);
}

void copy_on_device(const Tensor& dst, const Tensor& src) {
  if (transferable(dst, src)) {
    at::assert_no_partial_overlap(dst, src);
    if (dst.const_data_ptr() != src.const_data_ptr()) transfer(dst, src, current_stream(dst.device().index()));
    return;
  }
  auto it = copy_iterator(dst, src);
  if (it.numel() > 0 && !copy_by_kernel(it, dst, src)) copy_by_host(dst, src);
}

// Whether a kernel can bring `src`'s type to `dst`'s on a device; if not, the host side of a copy converts.
bool convertible(const Tensor& dst, const Tensor& src, c10::DeviceIndex device) {
  if (dst.scalar_type() == src.scalar_type()) return true;
  const char* from = type_name(src.scalar_type());
  const char* to = type_name(dst.scalar_type());
  return from != nullptr && to != nullptr && device_kernel(device, "copy", from, to, Walk::dense) != nullptr;
}

// --- between host and device --------------------------------------------------------------------------------

// Ordinary host memory into pinned memory that lives until the stream has read it.
void transfer_staged(const Tensor& dst, const Tensor& src, c10::Stream stream) {
  c10::DataPtr staging = pinned_allocator()->allocate(src.nbytes());
  std::memcpy(staging.get(), src.const_data_ptr(), src.nbytes());
  check(driver().copy(queue(stream), dst.mutable_data_ptr(), staging.get(), src.nbytes()), "copy to the device");
  record_pinned(staging.get(), stream);
}

// `src` is the host's.
void transfer_to_device(const Tensor& dst, const Tensor& src, bool non_blocking) {
  const auto stream = current_stream(dst.device().index());
  const bool pinned = non_blocking && is_pinned_ptr(src.const_data_ptr());
  if (non_blocking && !pinned && src.nbytes() <= kStagedBytes) return transfer_staged(dst, src, stream);
  transfer(dst, src, stream);
  if (pinned) {
    record_pinned(src.const_data_ptr(), stream);
  } else {
    wait_for(queue(stream), stream.device_index(), "copy to the device", {src.storage()});
  }
}

// `dst` is the host's. To ordinary memory it is never asynchronous: nobody could know when to read it.
void transfer_to_host(const Tensor& dst, const Tensor& src, bool non_blocking) {
  const auto stream = current_stream(src.device().index());
  transfer(dst, src, stream);
  if (non_blocking && record_pinned(dst.const_data_ptr(), stream)) return;
  wait_for(queue(stream), stream.device_index(), "copy from the device", {dst.storage()});
}

void copy_to_device(const Tensor& dst, const Tensor& src, bool non_blocking) {
  if (transferable(dst, src)) return transfer_to_device(dst, src, non_blocking);
  // One value for all: no memory of the host's is needed once it is read.
  if (src.numel() == 1 && !dst.is_conj() && !dst.is_neg()) {
    Tensor target = dst;
    at::assert_no_internal_overlap(dst);
    fill_tensor(target, src.reshape({}));
    return;
  }
  Tensor plain = plain_on_host(src);
  if (!convertible(dst, plain, dst.device().index())) plain = plain.to(dst.scalar_type());
  if (transferable(dst, plain)) return transfer_to_device(dst, plain, false);
  Tensor arrived = dense_like(plain, plain.scalar_type(), dst.device());
  // A copy made here dies with this call; only the caller's own memory may still be read later.
  const bool callers = plain.const_data_ptr() == src.const_data_ptr();
  transfer_to_device(arrived, plain, non_blocking && (callers || plain.nbytes() <= kStagedBytes));
  copy_on_device(dst, arrived);
}

void copy_to_host(const Tensor& dst, const Tensor& src, bool non_blocking) {
  if (transferable(dst, src)) return transfer_to_host(dst, src, non_blocking);
  const auto dtype = convertible(dst, src, src.device().index()) ? dst.scalar_type() : src.scalar_type();
  const bool keep_layout = same_layout(dst, src) || !dst.is_contiguous() || dst.sizes() != src.sizes();
  Tensor ready = src;
  if (dtype != src.scalar_type() || src.is_conj() || src.is_neg() || !src.is_non_overlapping_and_dense() ||
      !keep_layout) {
    ready = keep_layout ? dense_like(src, dtype, src.device()) : at::empty(src.sizes(), src.options().dtype(dtype));
    copy_on_device(ready, src);
  }
  if (transferable(dst, ready)) return transfer_to_host(dst, ready, non_blocking);
  Tensor arrived = dense_like(ready, dtype, c10::kCPU);
  transfer_to_host(arrived, ready, false);
  Tensor target = dst;
  target.copy_(arrived);
}

// --- between two devices ------------------------------------------------------------------------------------

void order(c10::Stream first, c10::Stream then) {
  c10::Event event(c10::DeviceType::XPU);
  event.record(first);
  event.block(then);
}

// On the source's stream, between two events: the destination's earlier work is over before it is written, and its
// later work sees what was written.
void copy_between_devices(const Tensor& dst, const Tensor& src) {
  const auto from = current_stream(src.device().index());
  const auto to = current_stream(dst.device().index());
  if (transferable(dst, src)) {
    order(to, from);
    transfer(dst, src, from);
    return order(from, to);
  }
  Tensor ready = src;
  if (!src.is_non_overlapping_and_dense() || src.is_conj() || src.is_neg()) {
    const c10::DeviceGuard guard(src.device());
    ready = at::empty(src.sizes(), src.options());
    copy_on_device(ready, src);
  }
  const c10::DeviceGuard guard(dst.device());
  Tensor arrived = dense_like(ready, ready.scalar_type(), dst.device());
  copy_between_devices(arrived, ready);
  copy_on_device(dst, arrived);
}

// --- the front door -----------------------------------------------------------------------------------------

void check_copyable(const Tensor& self, const Tensor& src) {
  TORCH_CHECK(self.defined(), "self is undefined");
  TORCH_CHECK(src.defined(), "src is undefined");
  TORCH_CHECK_NOT_IMPLEMENTED(!src.is_meta(), "Cannot copy out of meta tensor; no data!");
  for (const Tensor* t : {&self, &src}) {
    TORCH_CHECK_NOT_IMPLEMENTED(t->layout() == c10::kStrided && !t->is_quantized(),
                                "anyxpu: copy_ of a tensor of layout ", t->layout(), " and type ", t->scalar_type(),
                                " to or from xpu is not supported; make it dense on its own device first.");
  }
}

// Throws torch's own words where `src` does not broadcast to `self`.
void check_broadcast(const Tensor& self, const Tensor& src) {
  if (self.sizes() == src.sizes()) return;
  const auto sizes = at::infer_size(self.sizes(), src.sizes());
  TORCH_CHECK(self.sizes() == at::IntArrayRef(sizes), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", at::IntArrayRef(sizes));
}

// `src` broadcasts to `self`, and both have elements.
void route(Tensor& self, const Tensor& src, bool non_blocking) {
  if (!on_xpu(self)) return copy_to_host(self, src, non_blocking);
  if (!on_xpu(src)) return copy_to_device(self, src, non_blocking);
  if (self.device() == src.device()) return copy_on_device(self, src);
  copy_between_devices(self, src);
}

}  // namespace

Tensor& copy_tensor(Tensor& self, const Tensor& src, bool non_blocking) {
  check_copyable(self, src);
  if (self.is_same(src)) return self;
  if (src._is_zerotensor()) return self.zero_();
  if (on_xpu(self) != on_xpu(src) && !self.is_cpu() && !src.is_cpu()) {
    // Another kind of accelerator: by way of the host.
    return self.copy_(src.to(c10::kCPU), non_blocking);
  }
  check_broadcast(self, src);
  if (self.numel() == 0) return self;
  // On the device of the memory that is written, so that temporaries lie there.
  const c10::DeviceGuard guard(on_xpu(self) ? self.device() : src.device());
  route(self, src, non_blocking);
  return self;
}

}  // namespace anyxpu
