// Kernels over memory of any strides: what ops/kernels/copy.cl is given. The structures are the kernel's, byte for
// byte.
#pragma once

#include <ATen/TensorIterator.h>

#include "shim/ops.h"

namespace anyxpu {

inline constexpr int kMaxDims = 24;         // -DMAX_DIMS
inline constexpr int kElementsPerItem = 4;  // -DELEMENTS_PER_ITEM
inline constexpr int kLocalSize = 256;

struct Dim32 {
  uint32_t size, magic, shift;
  int32_t dst_stride, src_stride;
};
struct Walk32 {
  uint32_t dims;
  Dim32 dim[kMaxDims];
};
struct Dim64 {
  uint64_t size;
  int64_t dst_stride, src_stride;
};
struct Walk64 {
  uint64_t dims;
  Dim64 dim[kMaxDims];
};

// The dimensions of an iterator whose first operand is the destination and whose second, where there is one, is the
// source. Throws when there are more than kMaxDims that cannot be merged.
Walk32 walk32_of(const at::TensorIteratorBase& iterator);
Walk64 walk64_of(const at::TensorIteratorBase& iterator);

}  // namespace anyxpu
