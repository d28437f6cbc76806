// Kernels over memory of any strides: what ops/kernels/copy.cl is given. The structures are the kernel's, byte for
// byte.
#pragma once

#include <ATen/TensorIterator.h>

#include "shim/ops.h"

namespace anyxpu {

inline constexpr int kMaxDims = 24;         // -DMAX_DIMS
inline constexpr int kElementsPerItem = 4;  // -DELEMENTS_PER_ITEM
inline constexpr int kLocalSize = 256;      // -DLOCAL_SIZE
inline constexpr int kRun = 1024;           // -DRUN: elements along the first dimension
inline constexpr int kTile = 16;            // -DTILE: elements along each side
inline constexpr int kShortestRun = 4;      // of fewer elements, many work-items do better
inline constexpr int kElementsPerGroup = 4096;

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
// What the kernels for CPU devices are launched over: runs or tiles, as many a work-group as make it worth its start.
struct Pieces {
  int64_t count;
  uint32_t per_group;
};

// Whether a device is one whose vectors are made of the loops of one work-item. A GPU's are made of many work-items,
// and its caches hold what a sub-group reads across.
bool by_pieces(const at::TensorIteratorBase& iterator, c10::DeviceIndex device);
// The dimension along which the source is dense, where the destination is dense along the first; 0 where there is none.
int tiled_along(const at::TensorIteratorBase& iterator);
// The walk of copy_rows32: the first dimension, how many runs it is cut into, the others.
Pieces row_walk(Walk32& walk, const at::TensorIteratorBase& iterator);
// The walk of copy_tiled32: the first dimension, the one along which the source is dense, how many tiles each is cut
// into, the others.
Pieces tile_walk(Walk32& walk, const at::TensorIteratorBase& iterator, int along);
// Launches `kernel` with one work-item a work-group. The first argument is what it writes, the last `pieces.per_group`.
void launch_pieces(c10::DeviceIndex device, ax_kernel* kernel, const Pieces& pieces, int64_t elements, ax_arg* args,
                   uint32_t arg_count, const char* what);

}  // namespace anyxpu
