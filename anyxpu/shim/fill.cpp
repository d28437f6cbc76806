// fill_ and zero_: a pattern of bytes, by the driver where the memory is dense and by a kernel where it is not.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <c10/core/DeviceGuard.h>

#include "shim/device_kernels.h"

namespace anyxpu {
namespace {

using at::Tensor;

void fill_by_kernel(at::TensorIteratorBase& it, c10::DeviceIndex index, const void* pattern, uint32_t width) {
  const bool narrow = it.can_use_32bit_indexing(), pieces = by_pieces(it, index);
  if (pieces && !narrow) {
    for (auto& part : it.with_32bit_indexing()) fill_by_kernel(part, index, pattern, width);
    return;
  }
  Walk walk = narrow ? Walk::strided32 : Walk::strided64;
  if (pieces && it.shape()[0] >= kShortestRun) walk = Walk::rows32;
  const std::string bits = "b" + std::to_string(8 * width);
  auto* kernel = device_kernel(index, "fill", bits, bits, walk);
  TORCH_CHECK_NOT_IMPLEMENTED(kernel != nullptr,
                              "anyxpu: this device cannot build the kernel that fills strided memory");
  void* to = it.data_ptr(0);
  uint64_t count = it.numel();
  Walk32 walk32{};
  Walk64 walk64{};
  ax_arg args[5] = {{&to, sizeof(to), AX_ARG_POINTER},
                    {pattern, width, AX_ARG_VALUE},
                    {&count, sizeof(count), AX_ARG_VALUE},
                    {&walk32, sizeof(walk32), AX_ARG_VALUE},
                    {}};
  if (walk == Walk::rows32) {
    const auto cut = row_walk(walk32, it);
    count = static_cast<uint64_t>(cut.count);
    args[4] = {&cut.per_group, sizeof(cut.per_group), AX_ARG_VALUE};
    return launch_pieces(index, kernel, cut, it.numel(), args, 5, "fill");
  }
  if (narrow) {
    walk32 = walk32_of(it);
  } else {
    walk64 = walk64_of(it);
    args[3] = {&walk64, sizeof(walk64), AX_ARG_VALUE};
  }
  launch_elements(index, kernel, it.numel(), args, 4, "fill");
}

void fill_strided(const Tensor& self, const void* pattern, uint32_t width) {
  // Writing one value twice to one place is no conflict, so that overlap need not be checked.
  auto it = at::TensorIteratorConfig()
                .set_check_mem_overlap(false)
                .check_all_same_dtype(false)
                .add_output(self)
                .resize_outputs(false)
                .build();
  fill_by_kernel(it, self.device().index(), pattern, width);
}

// `pattern` is one element of `self`'s type.
void fill_pattern(const Tensor& self, const void* pattern) {
  if (self.numel() == 0) return;
  const c10::DeviceGuard guard(self.device());
  const auto width = static_cast<uint32_t>(self.element_size());
  if (!self.is_non_overlapping_and_dense()) return fill_strided(self, pattern, width);
  check(driver().fill(current_queue(self.device().index()), self.mutable_data_ptr(), pattern, width, self.numel()),
        "fill");
}

}  // namespace

Tensor& fill_scalar(Tensor& self, const at::Scalar& value) {
  // Through a CPU scalar, so that torch's own rules say what fits into the dtype.
  Tensor one = at::detail::empty_cpu({}, self.scalar_type());
  one.fill_(value);
  fill_pattern(self, one.const_data_ptr());
  return self;
}

Tensor& fill_tensor(Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (value.device().type() == c10::DeviceType::XPU) {
    // On the stream, without asking for the value, unless elements overlap: a copy refuses those.
    if (at::has_internal_overlap(self) == at::MemOverlap::No) return copy_tensor(self, value, false);
    return fill_scalar(self, value.to(self.scalar_type()).item());
  }
  const Tensor one = value.resolve_conj().resolve_neg().to(self.scalar_type());
  fill_pattern(self, one.const_data_ptr());
  return self;
}

Tensor& fill_zero(Tensor& self) {
  static constexpr char kZeros[16] = {};
  fill_pattern(self, kZeros);
  return self;
}

}  // namespace anyxpu
