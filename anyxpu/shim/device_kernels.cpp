// Kernels asked of Python once and kept, the description of strided memory, and the launch over it.
#include "shim/device_kernels.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <tuple>

#include "shim/kept_copies.h"
#include "shim/waiting.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

constexpr const char* kWalkNames[] = {"dense", "strided32", "strided64", "rows32", "tiled32"};

using Key = std::tuple<int, std::string, std::string, std::string, int>;

struct Kernels {
  std::shared_mutex mutex;
  std::map<Key, ax_kernel*> made;
  PyObject* provider = nullptr;
};

// Never destroyed, nor are the Python objects that own its kernels: operators may run while the process ends.
Kernels& kernels() {
  static auto* all = new Kernels;
  return *all;
}

ax_kernel* ask_provider(const Key& key) {
  py::gil_scoped_acquire gil;
  auto* provider = kernels().provider;
  TORCH_CHECK(provider != nullptr,
              "anyxpu: operators are not registered; import torch loads anyxpu by itself, "
              "unless ANYXPU_DISABLE is set");
  const auto& [device, family, source, destination, walk] = key;
  py::object kernel =
      py::reinterpret_borrow<py::function>(provider)(device, family, source, destination, kWalkNames[walk]);
  if (kernel.is_none()) return nullptr;
  auto handle = kernel.attr("handle").cast<uintptr_t>();
  kernel.release();
  return reinterpret_cast<ax_kernel*>(handle);
}

// Finds `magic` and `shift` so that i / size == (mul_hi(i, magic) + i) >> shift for all i < 2^31: Granlund and
// Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994, figure 4.1.
void set_divisor(Dim32& dim, uint32_t size) {
  dim.size = size;
  dim.shift = 0;
  while ((uint64_t{1} << dim.shift) < size) ++dim.shift;
  dim.magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << dim.shift) - size)) / size + 1);
}

void check_dims(const at::TensorIteratorBase& iterator) {
  TORCH_CHECK_NOT_IMPLEMENTED(iterator.ndim() <= kMaxDims, "anyxpu: a copy or fill over ", iterator.ndim(),
                              " dimensions that cannot be merged; at most ", kMaxDims,
                              " are supported. Copy it in slices.");
}

template <class Walked, class SetSize>
Walked walk_of(const at::TensorIteratorBase& iterator, SetSize set_size) {
  check_dims(iterator);
  Walked walk{};
  // A walk has at least one dimension, so that the kernel's last one is always there.
  walk.dims = std::max(iterator.ndim(), 1);
  set_size(walk.dim[0], 1);
  for (int d = 0; d < iterator.ndim(); ++d) {
    set_size(walk.dim[d], iterator.shape()[d]);
    walk.dim[d].dst_stride = iterator.strides(0)[d];
    if (iterator.ntensors() > 1) walk.dim[d].src_stride = iterator.strides(1)[d];
  }
  return walk;
}

}  // namespace

void set_kernel_provider(void* python_callable) {
  auto* callable = static_cast<PyObject*>(python_callable);
  Py_INCREF(callable);
  kernels().provider = callable;
}

ax_kernel* device_kernel(c10::DeviceIndex device, const char* family, const std::string& source,
                         const std::string& destination, Walk walk) {
  auto& all = kernels();
  Key key(device, family, source, destination, static_cast<int>(walk));
  {
    std::shared_lock<std::shared_mutex> lock(all.mutex);
    if (auto found = all.made.find(key); found != all.made.end()) return found->second;
  }
  // Not under the lock: the provider compiles, and another thread may hold the GIL and want this lock. Two threads
  // that ask at once may both make it; the first one's stays.
  ax_kernel* made = ask_provider(key);
  std::unique_lock<std::shared_mutex> lock(all.mutex);
  return all.made.try_emplace(std::move(key), made).first->second;
}

namespace {

void launch_groups(c10::DeviceIndex device, ax_kernel* kernel, int64_t count, int64_t group, uint32_t local_size,
                   uint64_t operations, ax_arg* args, uint32_t arg_count, const char* what) {
  const uint32_t groups[3] = {static_cast<uint32_t>((count + group - 1) / group), 1, 1};
  const uint32_t local[3] = {local_size, 1, 1};
  ax_queue* const queue = current_queue(device);
  // The first argument is what they write; of what they read kept copies stay.
  const void* written = *static_cast<void* const*>(args[0].value);
  check(launch_writing(written, queue, kernel, groups, local, args, arg_count, operations), what);
  note_work(queue, device, operations);
}

// Of each element a read and a write, mostly with a conversion or an index between them.
uint64_t operations_of(int64_t elements) { return static_cast<uint64_t>(elements) * 4; }

}  // namespace

void launch_elements(c10::DeviceIndex device, ax_kernel* kernel, int64_t count, ax_arg* args, uint32_t arg_count,
                     const char* what) {
  constexpr int64_t kGroup = int64_t{kLocalSize} * kElementsPerItem;
  launch_groups(device, kernel, count, kGroup, kLocalSize, operations_of(count), args, arg_count, what);
}

void launch_pieces(c10::DeviceIndex device, ax_kernel* kernel, const Pieces& pieces, int64_t elements, ax_arg* args,
                   uint32_t arg_count, const char* what) {
  launch_groups(device, kernel, pieces.count, pieces.per_group, 1, operations_of(elements), args, arg_count, what);
}

Walk32 walk32_of(const at::TensorIteratorBase& iterator) {
  return walk_of<Walk32>(iterator, [](Dim32& dim, int64_t size) { set_divisor(dim, static_cast<uint32_t>(size)); });
}

bool by_pieces(const at::TensorIteratorBase& iterator, c10::DeviceIndex device) {
  return properties(device).type == AX_DEVICE_CPU && iterator.ndim() > 0 && iterator.ndim() + 2 <= kMaxDims;
}

int tiled_along(const at::TensorIteratorBase& it) {
  if (it.strides(0)[0] != it.element_size(0) || it.strides(1)[0] == it.element_size(1) || it.shape()[0] < 2) return 0;
  for (int d = 1; d < it.ndim(); ++d)
    if (it.strides(1)[d] == it.element_size(1) && it.shape()[d] > 1) return d;
  return 0;
}

namespace {

// Appends how many pieces of `size` elements a dimension makes.
int64_t cut(Walk32& walk, uint32_t d, uint32_t size) {
  const uint32_t count = (walk.dim[d].size + size - 1) / size;
  set_divisor(walk.dim[walk.dims++], count);
  return count;
}

// Appends the other dimensions. Returns the pieces of them all.
Pieces with_others(Walk32& walk, const Walk32& plain, uint32_t along, int64_t count, int64_t elements) {
  for (uint32_t d = 1; d < plain.dims; ++d) {
    if (d == along) continue;
    walk.dim[walk.dims++] = plain.dim[d];
    count *= plain.dim[d].size;
  }
  return {count, static_cast<uint32_t>(std::max<int64_t>(1, kElementsPerGroup / elements))};
}

}  // namespace

Pieces row_walk(Walk32& walk, const at::TensorIteratorBase& iterator) {
  const Walk32 plain = walk32_of(iterator);
  walk.dim[0] = plain.dim[0];
  walk.dims = 1;
  const int64_t count = cut(walk, 0, kRun);
  return with_others(walk, plain, 0, count, std::min<int64_t>(plain.dim[0].size, kRun));
}

Pieces tile_walk(Walk32& walk, const at::TensorIteratorBase& iterator, int along) {
  const Walk32 plain = walk32_of(iterator);
  walk.dim[0] = plain.dim[0];
  walk.dim[1] = plain.dim[along];
  walk.dims = 2;
  const int64_t count = cut(walk, 0, kTile);
  return with_others(walk, plain, along, count * cut(walk, 1, kTile), kTile * kTile);
}

Walk64 walk64_of(const at::TensorIteratorBase& iterator) {
  return walk_of<Walk64>(iterator, [](Dim64& dim, int64_t size) { dim.size = static_cast<uint64_t>(size); });
}

}  // namespace anyxpu
