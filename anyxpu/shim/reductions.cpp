// Reductions and softmax by compiled kernels: what a call means, in passes over dense memory.
//
// A kernel sees memory as (A, N, B) and reduces N; dimensions that do not lie together are reduced one group after the
// other, the innermost first. Which operators there are and how kernels are made is Python's (ops/reductions.py). What
// is not taken here, the host does.
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "shim/arguments.h"
#include "shim/bindings.h"
#include "shim/classes.h"
#include "shim/notice.h"
#include "shim/ops.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

using at::Tensor;
using c10::IValue;
using c10::ScalarType;
using torch::jit::Stack;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 4096;  // numbers that kernels count in 32 bits

const char* name_of(ScalarType type) { return type_of(type)->name; }

bool narrow(ScalarType type) { return type == ScalarType::Half || type == ScalarType::BFloat16; }

// --- kernels --------------------------------------------------------------------------------------------------

// The kernel of these words. False where there is none, or not yet.
template <class... Words>
bool find(c10::DeviceIndex device, const char* family, Entry* out, const Words&... words) {
  std::string key = std::to_string(device) + family;
  const auto add = [&](const auto& word) {
    key += ' ';
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(word)>>) {
      key += std::to_string(word);
    } else if constexpr (std::is_convertible_v<decltype(word), std::string>) {
      key += word;
    } else {
      for (const auto& part : word) (key += part) += ',';
    }
  };
  (add(words), ...);
  static ClassCache cache;
  return cache.find(key, out,
                    [&](Entry* made) { return ask_kernel(device, family, py::make_tuple(py::cast(words)...), made); });
}

struct Tile {
  int64_t rows, columns;
};

bool on_cpu(c10::DeviceIndex device) { return properties(device).type == AX_DEVICE_CPU; }

// A tile for rows of n numbers: some eight forms, so that a new size mostly compiles nothing.
Tile row_tile(c10::DeviceIndex device, int64_t n, int64_t most) {
  int64_t columns = 8;
  while (columns < std::min(n, most)) columns *= 2;
  // Of more than 64 short rows Xe-HPG spills.
  return {std::clamp<int64_t>((on_cpu(device) ? 256 : 2048) / columns, 1, 64), columns};
}

// The same for sums (`adds`) of `a` rows, or for what is not a sum: on a CPU four rows side by side, in two registers
// each, which do not wait for each other. Measured, over one row in 256 lanes: with AVX-512 0.9 of the speed to 1.2 of
// it for rows of 1,024 and more, 1.5 to 2 times for shorter ones; with AVX2 1.3 to 6.5 times for 32 to 512 numbers, and
// of the largest number to 3.5 times beyond, where its 256 lanes do not stay in registers; sums of more are slower, and
// have one row in as many registers.
Tile summed_row_tile(c10::DeviceIndex device, int64_t a, int64_t n, bool adds) {
  constexpr int64_t kSideBySide = 4, kLongVector = 16, kLongRow = 1024;
  if (!on_cpu(device)) return row_tile(device, n, 2048);
  const int64_t vector = std::clamp<int64_t>(properties(device).gpu_eu_simd_width, 4, kLongVector);
  const int64_t lanes = 2 * vector;
  const bool short_vectors = vector < kLongVector;
  if (short_vectors && a < kSideBySide && !adds) return {1, row_tile(device, n, kSideBySide * lanes).columns};
  if (short_vectors && adds && n >= kLongRow) return {1, kSideBySide * lanes};
  if (a < kSideBySide || (short_vectors && n < 2 * lanes)) return row_tile(device, n, 256);
  const int64_t columns = row_tile(device, n, lanes).columns;
  return {kSideBySide * lanes / columns, columns};
}

// Columns that are read together on a CPU. Measured with AVX-512: of 512 and more 1.5 to 2.1 times as fast by 256 as by
// 32, whose lines are far from each other; of 16 and 64 columns 0.2 to 0.5 times.
Tile strip(c10::DeviceIndex device, int64_t a, int64_t b) {
  constexpr int64_t kLongVector = 16, kWide = 256;
  const bool wide = properties(device).gpu_eu_simd_width >= kLongVector && b >= kWide && a * b >= 2 * kWide;
  return {1, wide ? kWide : 32};
}

// --- one pass ---------------------------------------------------------------------------------------------------

struct What {
  const char* map;
  const char* combine;
  const char* finish;
  ScalarType type, common, computed, out;
  double p = 0, count = 1;
};

// Programs that keep a device busy.
int64_t programs_of(c10::DeviceIndex device) {
  return on_cpu(device) ? 2 * static_cast<int64_t>(properties(device).max_compute_units) : 512;
}

// How many tiles of rows a program does one after the other: on a CPU to begin with a group takes as long as a row.
int64_t tiles_of_a_program(c10::DeviceIndex device, int64_t tiles) {
  constexpr int64_t kShares = 4;  // so that no thread waits long for another's last one
  return on_cpu(device) ? std::max<int64_t>(1, tiles / (kShares * programs_of(device))) : 1;
}

// Of (a, n, b) into (a, parts, b). False where there is no kernel.
// `like`: rows as long as these share a kernel.
bool launch_pass(c10::DeviceIndex device, const What& what, const void* x, void* out, int64_t a, int64_t n, int64_t b,
                 int64_t parts, int64_t chunk, int64_t like, const char* name) {
  const bool rows = b == 1;
  const Tile tile = rows             ? summed_row_tile(device, a, like, std::string_view(what.combine) == "add")
                    : on_cpu(device) ? Tile{1, 128}
                                     : Tile{16, 64};
  Entry entry{};
  if (!find(device, "reduction", &entry, std::string(rows ? "rows" : "columns"), std::string(what.map),
            std::string(what.combine), std::string(what.finish), std::string(name_of(what.type)),
            std::string(name_of(what.common)), std::string(name_of(what.computed)), std::string(name_of(what.out)),
            tile.rows, tile.columns))
    return false;
  Arguments args;
  args.pointer(x);
  args.pointer(out);
  const int64_t tiles = (a + tile.rows - 1) / tile.rows;
  const int64_t down = tiles_of_a_program(device, tiles);
  for (const int64_t size : {a, n, rows ? down : b, parts, chunk}) args.integer(size);
  for (const double number : {what.p, what.count}) {
    if (what.computed == ScalarType::Double) {
      args.value(number_of(number));
    } else {
      args.value(number_of(static_cast<float>(number)));
    }
  }
  const int64_t groups = rows ? (tiles + down - 1) / down * parts : a * parts * ((b + tile.columns - 1) / tile.columns);
  const auto rounds = static_cast<double>(a * n * b) / static_cast<double>(tile.rows * tile.columns);
  args.launch(device, entry, groups, static_cast<uint64_t>(rounds * static_cast<double>(entry.operations)), out, name);
  return true;
}

// Of (a, n, b) into (a, b); in parts where that alone would leave the device idle.
bool reduce_group(const What& what, const Tensor& x, void* out, int64_t a, int64_t n, int64_t b, const char* name) {
  const c10::DeviceIndex device = x.device().index();
  const int64_t at_once = b == 1 ? a : a * ((b + 127) / 128);
  const int64_t least = b == 1 ? 4096 : 64;  // of n, that make a part worth its start
  int64_t parts =
      std::clamp<int64_t>((programs_of(device) + at_once - 1) / at_once, 1, std::max<int64_t>(n / least, 1));
  const int64_t chunk = (n + parts - 1) / parts;
  parts = (n + chunk - 1) / chunk;
  if (parts == 1) return launch_pass(device, what, x.const_data_ptr(), out, a, n, b, 1, n, n, name);
  const Tensor some = at::empty({a * parts * b}, x.options().dtype(what.computed));
  What first = what, then = what;
  first.finish = "done";
  first.out = then.type = then.common = what.computed;
  then.map = "same";
  return launch_pass(device, first, x.const_data_ptr(), some.mutable_data_ptr(), a, n, b, parts, chunk, chunk, name) &&
         launch_pass(device, then, some.const_data_ptr(), out, a, parts, b, 1, parts, programs_of(device), name);
}

using Dims = std::bitset<at::dim_bitset_size>;

// `x` is contiguous; into `out`, contiguous, of the type what.out.
bool reduce(What what, Tensor x, Dims dims, const Tensor& out, const char* name) {
  auto sizes = x.sizes().vec();
  const ScalarType last = what.out;
  const char* finish = what.finish;
  for (;;) {
    // The innermost group of dimensions that are reduced: [begin, end).
    int64_t end = static_cast<int64_t>(sizes.size());
    while (end > 0 && !dims[end - 1]) --end;
    int64_t begin = end;
    while (begin > 0 && dims[begin - 1]) --begin;
    bool more = false;
    for (int64_t d = 0; d < begin; ++d) more |= dims[d];
    const auto product = [&](int64_t from, int64_t to) {
      int64_t all = 1;
      for (int64_t d = from; d < to; ++d) all *= sizes[d];
      return all;
    };
    const int64_t a = product(0, begin), n = product(begin, end), b = product(end, static_cast<int64_t>(sizes.size()));
    what.out = more ? what.computed : last;
    what.finish = more ? "done" : finish;
    if (!more) return reduce_group(what, x, out.mutable_data_ptr(), a, n, b, name);
    Tensor next = at::empty({a * b}, x.options().dtype(what.computed));
    if (!reduce_group(what, x, next.mutable_data_ptr(), a, n, b, name)) return false;
    x = next;
    for (int64_t d = begin; d < end; ++d) {
      sizes[d] = 1;
      dims[d] = false;
    }
    what.map = "same";
    what.type = what.common = what.computed;
  }
}

// --- calls ----------------------------------------------------------------------------------------------------

struct Served {
  std::string name, kind;
  OpCounter* counter;
};

const IValue* argument(const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, std::string_view name) {
  for (size_t i = 0; i < given.size(); ++i)
    if (schema.arguments()[i].name() == name) return &given[i];
  return nullptr;
}

std::optional<ScalarType> dtype_of(const IValue* value) {
  if (value == nullptr || value->isNone()) return std::nullopt;
  return value->toScalarType();
}

// What a call of `kind` does to elements of `type`; false where it is not taken. `common` is what elements become
// first.
bool describe(const std::string& kind, const IValue* order, ScalarType type, std::optional<ScalarType> dtype,
              int64_t count, What* what) {
  const bool integral = c10::isIntegralType(type, true);
  ScalarType common = dtype.value_or(type), out = common;
  *what = {"same", "add", "done", type, common, common, out};
  if (kind == "sum" || kind == "prod") {
    if (!dtype && integral) common = out = ScalarType::Long;
    if (kind == "prod") what->combine = "multiply";
    // All integers are summed in 64 bits: they wrap to the same.
    if (common == ScalarType::Bool) return false;
  } else if (kind == "mean") {
    if (!c10::isFloatingType(common)) return false;
    what->finish = "divided";
    what->count = static_cast<double>(count);
  } else if (kind == "amax" || kind == "amin") {
    what->combine = kind == "amax" ? "larger" : "smaller";
  } else if (kind == "any" || kind == "all") {
    out = type == ScalarType::Byte ? ScalarType::Byte : ScalarType::Bool;
    what->map = "nonzero";
    what->combine = kind == "any" ? "larger" : "smaller";
  } else {  // norm
    if (integral || !c10::isFloatingType(common) || (dtype && c10::elementSize(*dtype) < c10::elementSize(type)))
      return false;
    const auto scalar = order->toScalar();
    if (scalar.isComplex() || scalar.isSymbolic()) return false;
    const double p = scalar.toDouble();
    what->p = p;
    if (p == 2) {
      what->map = "square";
      what->finish = "root";
    } else if (p == 1) {
      what->map = "absolute";
    } else if (std::isinf(p)) {
      what->map = "absolute";
      what->combine = p > 0 ? "larger" : "smaller";
    } else if (p == 0) {
      what->map = "nonzero";
    } else {
      what->map = "power";
      what->finish = "power_root";
    }
  }
  if (type_of(type) == nullptr || type_of(common) == nullptr) return false;
  what->common = common;
  what->out = out;
  what->computed = common;
  if (narrow(common)) what->computed = ScalarType::Float;
  if (c10::isIntegralType(common, true) && std::string_view(what->combine) != "larger" &&
      std::string_view(what->combine) != "smaller")
    what->computed = ScalarType::Long;
  if (common == ScalarType::Bool) what->computed = ScalarType::Char;
  return true;
}

// The dimensions that a call reduces; false where that is the host's to say.
bool dimensions(const Served& served, const IValue* dim, int64_t ndim, Dims* out) {
  if (dim == nullptr || dim->isNone()) {
    *out = at::native::make_dim_mask(std::nullopt, ndim);
    return true;
  }
  if (dim->isInt()) {
    const std::vector<int64_t> one{dim->toInt()};
    *out = at::native::make_dim_mask(at::OptionalIntArrayRef(one), ndim);
    return true;
  }
  if (!dim->isIntList()) return false;
  const auto list = dim->toIntVector();
  if (list.empty() && (served.kind == "any" || served.kind == "all")) return false;
  *out = at::native::make_dim_mask(at::OptionalIntArrayRef(list), ndim);
  return true;
}

// Of so many the host's norms are as good as the kernels'.
constexpr int64_t kMostAddedInTurn = 4096;

// What no elements come to; nothing where that is refused, or the host's to say.
std::optional<double> of_nothing(const std::string& kind, double p) {
  if (kind == "prod" || kind == "all") return 1;
  if (kind == "mean") return std::numeric_limits<double>::quiet_NaN();
  if (kind == "sum" || kind == "any" || (kind == "norm" && p >= 0 && std::isfinite(p))) return 0;
  return std::nullopt;
}

bool reduce_call(const Served& served, const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, Tensor* result) {
  const Tensor& self = given[0].toTensor();
  if (self.numel() > kMost || self.layout() != c10::kStrided) return false;
  Dims dims;
  if (!dimensions(served, argument(schema, given, "dim"), self.dim(), &dims)) return false;
  const IValue* keep = argument(schema, given, "keepdim");
  const bool keepdim = keep != nullptr && keep->toBool();
  std::vector<int64_t> shape;
  int64_t count = 1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (dims[d]) {
      count *= self.size(d);
      if (keepdim) shape.push_back(1);
    } else {
      shape.push_back(self.size(d));
    }
  }
  const IValue* target = argument(schema, given, "out");
  auto dtype = dtype_of(argument(schema, given, "dtype"));
  What what;
  if (!describe(served.kind, argument(schema, given, "ord"), self.scalar_type(), dtype, count, &what)) return false;
  if (what.computed == ScalarType::Double && properties(self.device().index()).has_fp64 == 0) return false;
  // The host's norms add one number after the other: of 2**25 in float32 they are 1.5e-3 off.
  std::optional<KernelsAwaited> awaited;
  if (served.kind == "norm" && count > kMostAddedInTurn) awaited.emplace();
  const auto nothing = of_nothing(served.kind, what.p);
  if (count == 0 && !nothing) return false;
  const c10::DeviceGuard guard(self.device());
  Tensor made;
  if (target != nullptr) {
    const Tensor& out = target->toTensor();
    if (out.scalar_type() != what.out || out.device() != self.device() || out.layout() != c10::kStrided) return false;
    at::native::resize_output(out, shape);
    *result = out;
    if (out.is_contiguous() && !out.is_alias_of(self)) made = out;
  }
  if (!made.defined()) made = at::empty(shape, self.options().dtype(what.out));
  // A number alone is a row of one.
  const Tensor x = self.dim() == 0 ? self.reshape({1}) : self.contiguous();
  if (self.dim() == 0) dims[0] = true;
  if (self.numel() == 0) {
    if (count == 0) made.fill_(*nothing);  // else the result has no elements either
  } else if (!reduce(what, x, dims, made, served.name.c_str())) {
    return false;
  }
  if (!result->defined()) {
    *result = made;
  } else if (!made.is_same(*result)) {
    result->copy_(made);
  }
  return true;
}

// --- softmax --------------------------------------------------------------------------------------------------

// Numbers before, along, and behind a dimension.
std::array<int64_t, 3> around(const Tensor& t, int64_t dim) {
  if (t.dim() == 0) return {1, 1, 1};
  return {c10::multiply_integers(t.sizes().slice(0, dim)), t.size(dim),
          c10::multiply_integers(t.sizes().slice(dim + 1))};
}

bool softmax_call(const Served& served, const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, Tensor* result) {
  const bool backward = served.kind.find("backward") != std::string::npos;
  const bool log = served.kind.starts_with("log");
  const Tensor& first = given[0].toTensor();
  const int64_t given_dim = argument(schema, given, "dim")->toInt();
  if (first.numel() > kMost || !c10::isFloatingType(first.scalar_type()) || type_of(first.scalar_type()) == nullptr)
    return false;
  const int64_t dim = at::maybe_wrap_dim(given_dim, first.dim());
  ScalarType out_type = first.scalar_type();
  if (backward) {
    const Tensor& y = given[1].toTensor();
    out_type = argument(schema, given, "input_dtype")->toScalarType();
    if (y.sizes() != first.sizes() || y.scalar_type() != first.scalar_type() || y.device() != first.device() ||
        (out_type != first.scalar_type() && !(narrow(out_type) && first.scalar_type() == ScalarType::Float)))
      return false;
  } else if (argument(schema, given, "half_to_float")->toBool()) {
    if (out_type != ScalarType::Half) return false;
    out_type = ScalarType::Float;
  }
  const ScalarType computed = narrow(first.scalar_type()) ? ScalarType::Float : first.scalar_type();
  const c10::DeviceIndex device = first.device().index();
  if (computed == ScalarType::Double && properties(device).has_fp64 == 0) return false;
  const IValue* target = argument(schema, given, backward ? "grad_input" : "out");
  if (target != nullptr &&
      (target->toTensor().scalar_type() != out_type || target->toTensor().device() != first.device()))
    return false;

  const c10::DeviceGuard guard(first.device());
  if (first.numel() == 0) {
    if (target != nullptr) at::native::resize_output(target->toTensor(), first.sizes());
    *result = target != nullptr ? target->toTensor() : at::empty(first.sizes(), first.options().dtype(out_type));
    return true;
  }
  const auto [a, n, b] = around(first, dim);
  // Of a few columns each line of memory is read by its own program: they become rows.
  constexpr int64_t kColumns = 8;
  const bool columns = b >= kColumns;
  const auto moved = [&](const Tensor& t) { return (b == 1 || columns ? t : t.transpose(dim, -1)).contiguous(); };
  const Tensor x = moved(first), y = backward ? moved(given[1].toTensor()) : Tensor();
  constexpr int64_t kOnce = 1024;  // numbers of a row that are read once
  const bool one = n <= kOnce;
  // The online form asks for an exponential thrice for a number that lies in a CPU's cache.
  const int64_t reads = one ? 1 : on_cpu(device) && !backward ? 3 : 2;
  const Tile tile = !columns         ? row_tile(device, n,
                                                one              ? kOnce
                                                : on_cpu(device) ? 256
                                                                 : 2048)
                    : on_cpu(device) ? strip(device, a, b)
                                     : Tile{16, 64};
  std::vector<std::string> types{name_of(first.scalar_type())};
  if (backward) types.emplace_back(types[0]);
  const std::string kernel = std::string(columns ? "softmax_columns" : "softmax") + (backward ? "_backward" : "");
  const std::string op(name_of(computed)), out(name_of(out_type));
  Entry entry{};
  if (columns ? !find(device, "softmax", &entry, kernel, types, op, out, log, tile.rows, tile.columns)
              : !find(device, "softmax", &entry, kernel, types, op, out, log, reads, tile.rows, tile.columns))
    return false;
  Tensor made = at::empty(x.sizes(), x.options().dtype(out_type));
  Arguments args;
  args.pointer(x.const_data_ptr());
  if (backward) args.pointer(y.const_data_ptr());
  args.pointer(made.mutable_data_ptr());
  args.integer(columns ? a : a * b);
  args.integer(n);
  const int64_t tiles = (a * b + tile.rows - 1) / tile.rows;  // of rows
  const int64_t down = tiles_of_a_program(device, tiles);
  args.integer(columns ? b : down);
  const auto rounds = static_cast<double>(first.numel()) / static_cast<double>(tile.rows * tile.columns);
  const int64_t groups = columns ? a * ((b + tile.columns - 1) / tile.columns) : (tiles + down - 1) / down;
  args.launch(device, entry, groups, static_cast<uint64_t>(rounds * static_cast<double>(entry.operations)),
              made.const_data_ptr(), served.name.c_str());
  if (b != 1 && !columns) made = made.transpose(dim, -1).contiguous();
  if (target == nullptr) {
    *result = made;
  } else {
    *result = target->toTensor();
    at::native::resize_output(*result, first.sizes());
    result->copy_(made);
  }
  return true;
}

class ReductionKernel : public c10::OperatorKernel {
 public:
  explicit ReductionKernel(Served served) : served_(std::move(served)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const size_t count = schema.arguments().size();
    Tensor result;
    const auto given = torch::jit::last(*stack, count);
    const bool served =
        eager() != Eager::host && given[0].isTensor() && given[0].toTensor().is_xpu() &&
        (served_.kind.find("softmax") != std::string::npos ? softmax_call(served_, schema, given, &result)
                                                           : reduce_call(served_, schema, given, &result));
    if (!served) return complex_or_host(served_.name, op, stack);
    served_.counter->add(Way::compiled);
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(result));
  }

 private:
  Served served_;
};

// False where this torch has no such operator.
bool serve_reduction(const std::string& name, const std::string& kind) {
  return serve_boxed(name, [&] { return std::make_unique<ReductionKernel>(Served{name, kind, &op_counter(name)}); });
}

}  // namespace

void bind_reductions(py::module_& m) {
  m.def("serve_reduction", &serve_reduction, py::arg("name"), py::arg("kind"),
        "Put operator `name` on key XPU, as anyxpu.ops.reductions says. False where torch has none of that name.");
}

}  // namespace anyxpu
