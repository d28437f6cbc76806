// Taking by an index by compiled kernels, and joining by copies. Which operators there are and how kernels are made is
// Python's (ops/indexing.py). What is not taken here, the host does.
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/result_type.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <shared_mutex>

#include "shim/arguments.h"
#include "shim/bindings.h"
#include "shim/classes.h"
#include "shim/ops.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

using at::Tensor;
using c10::IValue;
using c10::ScalarType;
using torch::jit::Stack;

constexpr int64_t kMostPerProgram = 1 << 18;                            // of a CPU: elements
constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 65536;  // elements that kernels count in 32 bits

// --- taking ---------------------------------------------------------------------------------------------------

struct Served {
  std::string name, kind;
  OpCounter* counter;
};

int64_t product(at::IntArrayRef sizes, int64_t from, int64_t to) {
  int64_t all = 1;
  for (int64_t d = from; d < to; ++d) all *= sizes[d];
  return all;
}

// `x` (a, n, b) by `index` into `out`, all contiguous. False where there is no kernel, or not yet.
bool take(const Served& served, const Tensor& x, const Tensor& index, const Tensor& out, int64_t a, int64_t n,
          int64_t b, int64_t taken) {
  static ClassCache cache;
  const c10::DeviceIndex device = x.device().index();
  const bool cpu = properties(device).type == AX_DEVICE_CPU, rows = served.kind == "rows";
  int64_t columns = 1024, height = 1;
  // Of a CPU: rows, what they are long, and how many of them a program takes. Of one element each they are what is
  // taken of a row by the same index, or where there is one row elements.
  const bool columnwise = cpu && rows && b == 1 && a > 1, line = cpu && a == 1 && b == 1;
  const bool slices = (rows && !columnwise) || b > 1 || line;
  const int64_t lines = slices ? a * taken : a, length = slices ? b : taken;
  int64_t step = 1;
  if (rows || cpu) {
    columns = cpu ? 8 : 4;
    while (columns < std::min<int64_t>(line ? taken : length, 256)) columns *= cpu ? 2 : 4;
    height = cpu ? 1 : 1024 / columns;
  }
  if (cpu) {
    const int64_t programs = 4 * static_cast<int64_t>(properties(device).max_compute_units);
    step = std::max<int64_t>(1, (lines + programs - 1) / programs);
    step = std::min(step, std::max<int64_t>(1, kMostPerProgram / std::max<int64_t>(length, 1)));
  }
  std::string kernel = columnwise ? "columns" : served.kind;
  if (cpu) kernel = (line ? "line_of_" : "") + kernel + "_in_turn";
  const int64_t width = x.element_size();
  const std::string type = "u" + std::to_string(8 * width);
  const char* of_index = index.scalar_type() == ScalarType::Int ? "i32" : "i64";
  Entry entry{};
  const std::string key = std::to_string(device) + kernel + type + of_index + std::to_string(columns);
  if (!cache.find(key, &entry, [&](Entry* made) {
        return ask_kernel(device, "indexing", py::make_tuple(kernel, type, of_index, height, columns), made);
      }))
    return false;
  Arguments args;
  args.pointer(x.const_data_ptr());
  args.pointer(index.const_data_ptr());
  args.pointer(out.mutable_data_ptr());
  for (const int64_t size : {a, n, b, taken, step}) args.integer(size);
  int64_t groups = (out.numel() + columns - 1) / columns;
  if (cpu)
    groups = (lines + step - 1) / step;
  else if (rows)
    groups = (a * taken + height - 1) / height * ((b + columns - 1) / columns);
  int64_t rounds = groups;
  if (cpu) rounds = line ? (lines + columns - 1) / columns : lines * ((length + columns - 1) / columns);
  args.launch(device, entry, groups, static_cast<uint64_t>(rounds) * entry.operations, out.const_data_ptr(),
              served.name.c_str());
  return true;
}

bool take_call(const Served& served, const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, Tensor* result) {
  const Tensor &self = given[0].toTensor(), &index = given[2].toTensor();
  const bool rows = served.kind == "rows";
  const int64_t dim = at::maybe_wrap_dim(given[1].toInt(), std::max<int64_t>(self.dim(), 1));
  if (self.device() != index.device() || self.numel() == 0) return false;
  const bool into = schema.arguments().back().is_out();
  const bool typed = index.scalar_type() == ScalarType::Long || index.scalar_type() == ScalarType::Int;
  if (index.numel() == 0 && !into && (!rows || (typed && index.dim() == 1 && self.dim() > 0))) {
    auto shape = rows ? self.sizes().vec() : index.sizes().vec();
    if (rows) shape[dim] = 0;
    *result = at::empty(shape, self.options());
    return true;
  }
  if (index.numel() == 0 || self.numel() > kMost || self.element_size() > 8 || !typed) return false;
  const bool number = self.dim() == 0;  // is read as a row of one element
  if (number && rows && index.numel() != 1) return false;
  if (rows || number ? index.dim() > 1 : index.dim() != self.dim()) return false;
  auto shape = self.sizes().vec();
  Tensor x = self;
  if (number) {
    x = self.view({1});
    if (!rows) shape = index.sizes().vec();
  } else if (rows) {
    shape[dim] = index.numel();
  } else {
    shape = index.sizes().vec();
    for (int64_t d = 0; d < self.dim(); ++d) {
      if (d == dim) continue;
      if (shape[d] > self.size(d)) return false;
      x = x.narrow(d, 0, shape[d]);
    }
  }
  if (c10::multiply_integers(shape) > kMost) return false;
  const c10::DeviceGuard guard(self.device());
  const IValue& last = given[given.size() - 1];
  Tensor made;
  if (into) {
    const Tensor& out = last.toTensor();
    if (out.scalar_type() != self.scalar_type() || out.device() != self.device() || out.is_alias_of(self) ||
        out.is_alias_of(index))
      return false;
    at::native::resize_output(out, shape);
    *result = out;
    if (out.is_contiguous()) made = out;
  }
  if (!made.defined()) made = at::empty(shape, self.options());
  x = x.contiguous();
  const Tensor where = (rows ? index : index.to(ScalarType::Long)).contiguous();
  if (!take(served, x, where, made, product(x.sizes(), 0, dim), x.size(dim), product(x.sizes(), dim + 1, x.dim()),
            number ? index.numel() : shape[dim]))
    return false;
  if (!result->defined()) {
    *result = made;
  } else if (!made.is_same(*result)) {
    result->copy_(made);
  }
  return true;
}

// --- joining --------------------------------------------------------------------------------------------------

// Torch leaves out tensors of the one size 0, whatever the others' dimensions are.
bool nothing(const Tensor& t) { return t.dim() == 1 && t.size(0) == 0; }

// All parts as one tensor of one dimension, where they are slices of the slowest dimension of one block of memory, one
// behind the other: so are the norms of a list of tensors.
Tensor neighbours(const std::vector<Tensor>& parts, int64_t dim, ScalarType type) {
  if (dim != 0 || parts.size() < 2) return {};
  const Tensor& first = parts[0];
  int64_t count = 0;
  for (const Tensor& t : parts) {
    if (t.scalar_type() != type || !t.is_contiguous() || t.is_conj() || t.is_neg() ||
        t.storage().unsafeGetStorageImpl() != first.storage().unsafeGetStorageImpl() ||
        t.storage_offset() != first.storage_offset() + count)
      return {};
    count += t.numel();
  }
  return first.as_strided({count}, {1});
}

// Whether the parts lie one behind the other in the result, byte for byte as they are.
bool one_behind_the_other(const Tensor& result, const std::vector<Tensor>& parts, int64_t dim) {
  if (!result.is_contiguous() || result.is_conj() || result.is_neg()) return false;
  if (c10::multiply_integers(result.sizes().slice(0, static_cast<size_t>(dim))) != 1) return false;
  return std::all_of(parts.begin(), parts.end(), [&](const Tensor& t) {
    return t.scalar_type() == result.scalar_type() && t.is_contiguous() && !t.is_conj() && !t.is_neg();
  });
}

bool cat_call(const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, Tensor* result) {
  const bool into = schema.arguments().back().is_out();
  std::vector<Tensor> parts;
  ScalarType type = ScalarType::Undefined;
  auto format = std::optional<c10::MemoryFormat>();
  for (const IValue& value : given[0].toListRef()) {
    const Tensor& t = value.toTensor();
    if (!t.is_xpu() || t.layout() != c10::kStrided || t.is_quantized()) return false;
    type = type == ScalarType::Undefined ? t.scalar_type() : c10::promoteTypes(type, t.scalar_type());
    if (nothing(t)) continue;
    if (!parts.empty() && (t.device() != parts[0].device() || t.dim() != parts[0].dim())) return false;
    parts.push_back(t);
    const auto suggested = t.suggest_memory_format();
    if (format && *format != suggested) {
      format = c10::MemoryFormat::Contiguous;
    } else if (parts.size() == 1) {
      format = suggested;
    }
  }
  if (parts.empty() || parts[0].dim() == 0) return false;
  const int64_t dim = at::maybe_wrap_dim(given[1].toInt(), parts[0].dim());
  auto shape = parts[0].sizes().vec();
  shape[dim] = 0;
  for (const Tensor& t : parts) {
    for (int64_t d = 0; d < t.dim(); ++d)
      if (d != dim && t.size(d) != shape[d]) return false;
    shape[dim] += t.size(dim);
  }
  const c10::DeviceGuard guard(parts[0].device());
  if (into) {
    *result = given[2].toTensor();
    if (result->device() != parts[0].device() || !c10::canCast(type, result->scalar_type()) ||
        at::has_internal_overlap(*result) != at::MemOverlap::No)
      return false;
    for (const Tensor& t : parts)
      if (t.is_alias_of(*result)) return false;
    if (result->sizes() != at::IntArrayRef(shape)) return false;  // the host resizes, in the format that torch gives it
  } else {
    *result = at::empty(shape, parts[0].options().dtype(type).memory_format(*format));
  }
  if (const Tensor whole = neighbours(parts, dim, type); whole.defined()) {
    copy_tensor(*result, whole.view(shape), true);
    return true;
  }
  if (one_behind_the_other(*result, parts, dim)) {
    ax_queue* const queue = current_queue(result->device().index());
    auto* to = static_cast<char*>(result->mutable_data_ptr());
    for (const Tensor& t : parts) {
      if (t.numel() != 0) check(driver().copy(queue, to, t.const_data_ptr(), t.nbytes()), "copy");
      to += t.nbytes();
    }
    return true;
  }
  int64_t at = 0;
  for (const Tensor& t : parts) {
    Tensor place = result->narrow(dim, at, t.size(dim));
    copy_tensor(place, t, true);
    at += t.size(dim);
  }
  return true;
}

class IndexingKernel : public c10::OperatorKernel {
 public:
  explicit IndexingKernel(Served served) : served_(std::move(served)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const size_t count = schema.arguments().size();
    const auto given = torch::jit::last(*stack, count);
    Tensor result;
    const bool served =
        eager() != Eager::host &&
        (served_.kind == "cat" ? cat_call(schema, given, &result)
                               : given[0].toTensor().is_xpu() && take_call(served_, schema, given, &result));
    if (!served) return host_fallback(op, stack);
    served_.counter->add(Way::compiled);
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(result));
  }

 private:
  Served served_;
};

// False where this torch has no such operator.
bool serve_indexing(const std::string& name, const std::string& kind) {
  return serve_boxed(name, [&] { return std::make_unique<IndexingKernel>(Served{name, kind, &op_counter(name)}); });
}

}  // namespace

void bind_indexing(py::module_& m) {
  m.def("serve_indexing", &serve_indexing, py::arg("name"), py::arg("kind"),
        "Put operator `name` on key XPU, as anyxpu.ops.indexing says. False where torch has none of that name.");
}

}  // namespace anyxpu
