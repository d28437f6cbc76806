// Pointwise operators: torch's TensorIterator says what a call means, and a kernel of its signature class runs it.
//
// Which operators there are, by which rules, and how their kernels are made is Python's (ops/pointwise.py). Here is the
// path of every call: the iterator is built, the class is looked up, and the kernel is launched. A class is asked of
// Python once and kept. What a row does not take, the host does.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/div.h>
#include <ATen/ops/result_type.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/TypeCast.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>

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

constexpr int kMaxOperands = 6;  // the result among them
constexpr int kMaxParams = 4;
constexpr int kMaxDims = 6;

enum class Rule : uint8_t { same, promote, promote_float, compare, test, where, fill };
constexpr std::array<const char*, 7> kRules = {"same", "promote", "float", "compare", "test", "where", "fill"};
// How an operand lies along a dimension; pointwise_kernels.py has the same numbers.
enum Lies : uint8_t { kNumber = 0, kOne = 1, kDense = 2, kStrided = 3 };

// --- numbers ---------------------------------------------------------------------------------------------------

// Whether a parameter of this value is one of the common type; if not, torch has something to say about it.
bool fits(const c10::Scalar& value, ScalarType common) {
  if (value.isComplex() || value.isSymbolic()) return false;
  if (common == ScalarType::Bool) return value.isIntegral(true);
  if (!c10::isIntegralType(common, false)) {
    if (value.isBoolean()) return false;
    const double number = value.toDouble();
    if (common == ScalarType::Half) return !c10::overflows<c10::Half, double>(number);
    return common == ScalarType::Double || !c10::overflows<float, double>(number);
  }
  if (!value.isIntegral(false)) return false;
  if (value.type() == ScalarType::UInt64) return common == ScalarType::UInt64;  // more than int64 holds
  const int64_t number = value.toLong();
  switch (common) {
    case ScalarType::Long:
      return true;
    case ScalarType::Int:
      return !c10::overflows<int32_t, int64_t>(number);
    case ScalarType::Short:
      return !c10::overflows<int16_t, int64_t>(number);
    case ScalarType::Char:
      return !c10::overflows<int8_t, int64_t>(number);
    case ScalarType::UInt16:
      return number >= 0 && !c10::overflows<uint16_t, int64_t>(number);
    case ScalarType::UInt32:
      return number >= 0 && !c10::overflows<uint32_t, int64_t>(number);
    case ScalarType::UInt64:
      return number >= 0;
    default:
      return number >= 0 && !c10::overflows<uint8_t, int64_t>(number);
  }
}

// What a tensor of that type is filled with: integers without the fraction, bool by whether there is anything.
c10::Scalar filling(const c10::Scalar& value, ScalarType type) {
  constexpr double kExact = 1LL << 53;
  if (!value.isFloatingPoint() || !c10::isIntegralType(type, true)) return value;
  const double number = value.toDouble();
  if (type == ScalarType::Bool) return number != 0;
  return std::fabs(number) < kExact ? c10::Scalar(static_cast<int64_t>(number)) : value;
}

// A tensor without dimensions in the host's memory.
c10::Scalar value_of(const at::TensorBase& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return *t.const_data_ptr<float>();
    case ScalarType::Double:
      return *t.const_data_ptr<double>();
    case ScalarType::Long:
      return *t.const_data_ptr<int64_t>();
    case ScalarType::Int:
      return *t.const_data_ptr<int32_t>();
    case ScalarType::Bool:
      return *t.const_data_ptr<bool>();
    default:
      return Tensor(t).item();
  }
}

Tensor tensor_of(const c10::Scalar& value) {
  ScalarType type = ScalarType::Long;
  if (value.isFloatingPoint()) type = ScalarType::Double;
  if (value.isBoolean() || value.type() == ScalarType::UInt64) type = value.type();
  Tensor made = at::detail::empty_cpu({}, type);
  if (type == ScalarType::Double) {
    *made.mutable_data_ptr<double>() = value.toDouble();
  } else if (type == ScalarType::Bool) {
    *made.mutable_data_ptr<bool>() = value.toBool();
  } else if (type == ScalarType::UInt64) {
    *made.mutable_data_ptr<uint64_t>() = value.toUInt64();
  } else {
    *made.mutable_data_ptr<int64_t>() = value.toLong();
  }
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// --- kernels --------------------------------------------------------------------------------------------------

// What distinguishes one kernel from another, of one function.
struct Class {
  int8_t device;
  int8_t common;
  uint8_t operands;  // the result among them
  uint8_t params;
  uint8_t dims;
  uint8_t tile;  // index into the device's tiles
  uint8_t raw;
  uint8_t logical;
  uint32_t variant;  // of the row's words
  int8_t types[kMaxOperands];
  uint8_t lies[2][kMaxOperands];
  uint8_t none[2];  // nor any padding
  bool operator==(const Class& other) const { return std::memcmp(this, &other, sizeof(Class)) == 0; }
};
static_assert(std::has_unique_object_representations_v<Class>);

struct HashClass {
  size_t operator()(const Class& key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&key), sizeof(key)});
  }
};

struct Tile {
  int32_t rows, columns;
};
// The first is a line's. A CPU's programs hold a few registers' numbers at once, a GPU's a thousand.
constexpr std::array<Tile, 5> kCpuTiles{{{1, 256}, {1, 256}, {4, 64}, {16, 16}, {64, 4}}};
constexpr std::array<Tile, 5> kGpuTiles{{{1, 1024}, {4, 256}, {16, 64}, {64, 16}, {64, 16}}};
constexpr int64_t kMostPerProgram = 16384;  // elements, on a CPU
constexpr int64_t kLeastPerProgram = 2048;

// --- rows -----------------------------------------------------------------------------------------------------

struct Row {
  std::string name;  // of the overload
  std::string function;
  Rule rule;
  std::string roles;
  uint8_t kinds;
  bool exact;
  int out = -1;  // index of the argument that is written; -1: the result is new
  OpCounter* counter;

  std::shared_mutex mutex;
  std::unordered_map<Class, Entry, HashClass> made;
  std::vector<std::string> variants;
};

uint32_t variant_number(Row& row, const std::string& words) {
  if (words.empty()) return 0;
  {
    const std::shared_lock lock(row.mutex);
    const auto found = std::find(row.variants.begin(), row.variants.end(), words);
    if (found != row.variants.end()) return static_cast<uint32_t>(found - row.variants.begin()) + 1;
  }
  const std::unique_lock lock(row.mutex);
  row.variants.push_back(words);
  return static_cast<uint32_t>(row.variants.size());
}

// False where there is no kernel yet.
bool ask(const Row& row, const std::string& variant, const Class& key, const Tile& tile, Entry* out) {
  const py::gil_scoped_acquire gil;
  py::list types, kinds;
  for (int k = 0; k < key.operands; ++k) types.append(type_of(static_cast<ScalarType>(key.types[k]))->name);
  for (int d = 0; d < std::max<int>(key.dims, 1); ++d) {
    py::list along;
    for (int k = 0; k < key.operands; ++k)
      along.append(d < 2 || key.lies[0][k] == kNumber ? key.lies[d < 2 ? d : 0][k] : uint8_t{kStrided});
    kinds.append(along);
  }
  const auto words = py::make_tuple(row.function, variant, type_of(static_cast<ScalarType>(key.common))->name, types,
                                    kinds, static_cast<int>(key.raw), static_cast<int>(key.params),
                                    static_cast<bool>(key.logical), py::make_tuple(tile.rows, tile.columns));
  return ask_kernel(key.device, "pointwise", words, out);
}

bool find(Row& row, const std::string& variant, const Class& key, const Tile& tile, Entry* out) {
  {
    const std::shared_lock lock(row.mutex);
    if (const auto found = row.made.find(key); found != row.made.end()) {
      *out = found->second;
      return true;
    }
  }
  // Not under the lock: it compiles, and another thread may hold the GIL and want this lock.
  if (!ask(row, variant, key, tile, out)) return false;
  const std::unique_lock lock(row.mutex);
  *out = row.made.try_emplace(key, *out).first->second;
  return true;
}

// --- one call -------------------------------------------------------------------------------------------------

// Operands that are the caller's, or made for the call. Another reference to a tensor that Python holds would be told
// to Python, which takes the GIL.
class Operands {
 public:
  const Tensor& operator[](int k) const { return *seen_[k]; }
  void borrow(int k, const Tensor& t) { seen_[k] = &t; }
  void own(int k, Tensor t) {
    own_[k] = std::move(t);
    seen_[k] = &own_[k];
  }
  void swap(int a, int b) { std::swap(seen_[a], seen_[b]); }

 private:
  std::array<const Tensor*, kMaxOperands> seen_{};
  std::array<Tensor, kMaxOperands> own_;
};

struct Call {
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  Operands operands;  // without the result
  std::array<c10::Scalar, kMaxParams> params;
  std::array<bool, kMaxOperands> left_out{};  // of the operands: they take part in the types alone
  int count = 0, params_count = 0;
  uint8_t raw = 0;
  std::string variant;
  const Tensor* out = nullptr;  // null: new
};

// A number whose common exponents have functions of their own.
const char* usual_exponent(const c10::Scalar& value) {
  static constexpr std::array<std::pair<double, const char*>, 6> kUsual{
      {{2, "2"}, {3, "3"}, {-2, "-2"}, {-1, "-1"}, {0.5, "0.5"}, {-0.5, "-0.5"}}};
  if (value.isBoolean()) return nullptr;
  const double number = value.toDouble();
  for (const auto& [usual, word] : kUsual)
    if (number == usual) return word;
  return nullptr;
}

bool takes(const Row& row, const Tensor& t, int operand) {
  if (t.layout() != c10::kStrided || type_of(t.scalar_type()) == nullptr) return false;
  if (t.scalar_type() != ScalarType::Bool || (row.kinds & kBools) != 0 || row.rule == Rule::promote_float ||
      row.rule == Rule::fill || row.rule == Rule::where)
    return true;
  // Beside another type it is one of that type; torch refuses to subtract it all the same.
  return row.roles.size() > 1 && row.function != "sub" && row.function != "rsub";
}

// An argument by its role. False where the row does not take it.
bool take(const Row& row, size_t argument, const Tensor& t, Call& call) {
  if (row.roles[argument] != 'T' || call.count == kMaxOperands - 1 || !takes(row, t, call.count)) return false;
  call.operands.borrow(call.count++, t);
  return true;
}

bool take(const Row& row, size_t argument, const c10::Scalar& number, Call& call) {
  const char role = row.roles[argument];
  if (role == 'P' || role == 'M') {
    if (call.params_count == kMaxParams) return false;
    if (role == 'M' && at::result_type(call.operands[0], number) != call.operands[0].scalar_type()) return false;
    const bool fills = row.rule == Rule::fill;
    call.params[call.params_count++] = fills ? filling(number, call.operands[0].scalar_type()) : number;
    return true;
  }
  if (call.count == kMaxOperands - 1 || number.isComplex() || number.isSymbolic()) return false;
  if (role == 'E') {
    if (const char* word = usual_exponent(number)) {
      call.variant += word;
      call.left_out[call.count] = true;
    }
  }
  call.operands.own(call.count++, tensor_of(number));
  return true;
}

bool take(const Row& row, const c10::FunctionSchema& schema, size_t argument, const IValue& value, Call& call) {
  const char role = row.roles[argument];
  if (role == 'V') {
    if (value.isString()) {
      if (value.toStringRef() != "none" && value.toStringRef() != "tanh" && value.toStringRef() != "floor" &&
          value.toStringRef() != "trunc")
        return false;  // for torch's own words
      if (value.toStringRef() != "none") call.variant += value.toStringRef();
    } else if (value.isBool() && value.toBool()) {
      call.variant += "True";
    }
    return true;
  }
  if (value.isNone()) {
    call.variant += "-" + schema.arguments()[argument].name();
    return true;
  }
  return role == 'T' ? take(row, argument, value.toTensor(), call) : take(row, argument, value.toScalar(), call);
}

// What all arguments together mean, `out` among them where one is written. False where the row does not take them.
bool complete(const Row& row, const Tensor* out, Call& call) {
  // torch's rsub is sub the other way round, which decides how the result lies.
  if (row.function == "rsub") call.operands.swap(0, 1);
  call.out = out;
  if (out != nullptr && (!out->is_xpu() || out->layout() != c10::kStrided || type_of(out->scalar_type()) == nullptr))
    return false;
  if (row.rule == Rule::where) {
    call.raw = 1;
    // As torch does on every device, so that the result lies as its does.
    const ScalarType common = at::result_type(call.operands[1], call.operands[2]);
    for (int k = 1; k < 3; ++k)
      if (call.operands[k].dim() > 0 && call.operands[k].scalar_type() != common)
        call.operands.own(k, call.operands[k].to(common));
    // TensorIterator takes one number of the host, and this operator two.
    if (call.operands[0].is_xpu() && call.operands[1].is_cpu() && call.operands[2].is_cpu() &&
        call.operands[1].dim() == 0)
      call.operands.own(1, call.operands[1].to(call.operands[0].device(), common));
  }
  if (row.rule == Rule::fill) call.raw = 2;
  return true;
}

bool read(const Row& row, const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, Call& call) {
  for (size_t i = 0; i < row.roles.size(); ++i)
    if (!take(row, schema, i, given[i], call)) return false;
  return complete(row, row.out >= 0 ? &given[static_cast<size_t>(row.out)].toTensor() : nullptr, call);
}

// Whether the operands' types are such as the rule asks for.
bool fitting(const Row& row, const Call& call) {
  switch (row.rule) {
    case Rule::same:
      for (int k = 1; k < call.count; ++k)
        if (call.operands[k].scalar_type() != call.operands[0].scalar_type()) return false;
      return call.out == nullptr || call.out->scalar_type() == call.operands[0].scalar_type();
    case Rule::test:
      return call.out == nullptr || call.out->scalar_type() == ScalarType::Bool;
    case Rule::where:
      return call.operands[0].scalar_type() == ScalarType::Bool && call.operands[0].is_xpu();
    case Rule::fill: {
      if (call.operands[1].scalar_type() != ScalarType::Bool ||
          at::has_internal_overlap(*call.out) == at::MemOverlap::Yes)
        return false;
      if (call.count < 3) return true;
      const Tensor& value = call.operands[2];
      if (value.is_cpu() && value.dim() == 0 && call.operands[0].scalar_type() == ScalarType::Half)
        (void)value.item().to<c10::Half>();  // raises, in torch's words, what is too large
      return value.dim() == 0 && c10::canCast(value.scalar_type(), call.operands[0].scalar_type());
    }
    default:
      return true;
  }
}

at::TensorIterator iterate(const Row& row, const Call& call, ScalarType* common) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(row.function != "threshold");  // done twice it is what it is done once
  const Tensor fresh;
  config.add_output(call.out != nullptr ? *call.out : fresh);
  for (int k = 0; k < call.count; ++k) config.add_const_input(call.operands[k]);
  switch (row.rule) {
    case Rule::same:
    case Rule::promote:
    case Rule::promote_float:
      config.allow_cpu_scalars(true)
          .promote_inputs_to_common_dtype(true)
          .promote_integer_inputs_to_float(row.rule == Rule::promote_float)
          .cast_common_dtype_to_outputs(true)
          .enforce_safe_casting_to_output(true);
      break;
    case Rule::compare:
      config.allow_cpu_scalars(true).promote_inputs_to_common_dtype(true);
      if (call.out == nullptr) config.declare_static_dtype(ScalarType::Bool);
      break;
    case Rule::test:
      config.check_all_same_dtype(false);
      if (call.out == nullptr) config.declare_static_dtype(ScalarType::Bool);
      *common = call.operands[0].scalar_type();
      break;
    case Rule::where:
      *common = at::result_type(call.operands[1], call.operands[2]);
      config.check_all_same_dtype(false).allow_cpu_scalars(true);
      if (call.out == nullptr) config.declare_static_dtype(*common);
      break;
    case Rule::fill:
      *common = call.operands[0].scalar_type();
      config.check_all_same_dtype(false).allow_cpu_scalars(true).resize_outputs(false);
      break;
  }
  at::TensorIterator made = config.build();
  if (row.rule != Rule::test && row.rule != Rule::where && row.rule != Rule::fill) *common = made.common_dtype();
  return made;
}

// A launch of one kernel over an iterator of 32-bit sizes.
class Launch {
 public:
  Launch(Row& row, const Call& call, ScalarType common, at::TensorIteratorBase& it)
      : row_(row), call_(call), common_(common), it_(it) {
    const c10::DeviceIndex device = it.device(0).index();
    on_cpu_ = properties(device).type == AX_DEVICE_CPU;
    key_ = {};
    key_.device = static_cast<int8_t>(device);
    key_.common = static_cast<int8_t>(common);
    key_.params = static_cast<uint8_t>(call.params_count);
    key_.dims = static_cast<uint8_t>(std::max(1, it.ndim()));
    key_.logical = row.rule == Rule::compare || row.rule == Rule::test;
    int raw = 0;
    for (int k = 0; k <= call.count; ++k) {
      if (k > 0 && call.left_out[k - 1]) continue;
      if (k > 0 && (call.raw >> (k - 1) & 1) != 0) key_.raw |= 1 << raw;
      if (k > 0) ++raw;
      operands_[key_.operands++] = k;
    }
    for (int d = 0; d < std::min<int>(key_.dims, 2); ++d)
      for (int k = 0; k < key_.operands; ++k) key_.lies[d][k] = lies(operands_[k], d);
    for (int k = 0; k < key_.operands; ++k)
      key_.types[k] =
          static_cast<int8_t>(key_.lies[0][k] == kNumber ? common : it.tensor_base(operands_[k]).scalar_type());
    key_.tile = tile();
    key_.variant = variant_number(row, call.variant);
  }

  // False where there is no kernel for it, or not yet.
  bool run() {
    const Tile& tile = (on_cpu_ ? kCpuTiles : kGpuTiles)[key_.tile];
    Entry entry{};
    if (!find(row_, call_.variant, key_, tile, &entry) || entry.kernel == nullptr) return false;
    void* const out = it_.data_ptr(0);
    args_.pointer(out);
    for (int k = 1; k < key_.operands; ++k) {
      if (key_.lies[0][k] == kNumber) {
        args_.value(number(value_of(it_.tensor_base(operands_[k])), common_, !row_.exact));
      } else {
        args_.pointer(it_.data_ptr(operands_[k]));
      }
    }
    // A function's own numbers are computed with as they are.
    for (int p = 0; p < call_.params_count; ++p) args_.value(number(call_.params[p], common_, false));
    const int64_t groups = key_.dims == 1 ? line(tile) : grid(tile);
    const auto operations = static_cast<uint64_t>(static_cast<double>(it_.numel()) / (tile.rows * tile.columns) *
                                                  static_cast<double>(entry.operations));
    args_.launch(key_.device, entry, groups, operations, out, row_.name.c_str());
    return true;
  }

 private:
  uint8_t lies(int operand, int d) const {
    if (it_.is_cpu_scalar(operand)) return kNumber;
    if (d >= it_.ndim()) return operand == 0 ? kDense : kOne;
    const int64_t stride = it_.strides(operand)[d];
    if (stride == 0 && operand > 0) return kOne;
    return stride == it_.element_size(operand) ? kDense : kStrided;
  }

  uint8_t tile() const {
    if (key_.dims == 1) return 0;
    for (int k = 0; k < key_.operands; ++k)
      if (key_.lies[0][k] == kStrided && key_.lies[1][k] == kDense) return 3;  // read along the other dimension
    const int64_t size = it_.shape()[0];
    return size > 128 ? 1 : size > 32 ? 2 : size > 8 ? 3 : 4;
  }

  // Elements for a program, a multiple of `tile`: on a CPU enough to be worth its start.
  int64_t share(int64_t all, int64_t tile) const {
    if (!on_cpu_) return tile;
    const int64_t programs = 4 * static_cast<int64_t>(properties(key_.device).max_compute_units);
    const int64_t each = std::clamp((all + programs - 1) / programs, kLeastPerProgram, kMostPerProgram);
    return (std::min(all, each) + tile - 1) / tile * tile;
  }

  int64_t line(const Tile& tile) {
    const int64_t n = it_.numel();
    const int64_t step = share(n, tile.columns);
    args_.integer(n);
    strides(0);
    args_.integer(step);
    return (n + step - 1) / step;
  }

  int64_t grid(const Tile& tile) {
    const auto shape = it_.shape();
    const int64_t each = share(it_.numel(), static_cast<int64_t>(tile.rows) * tile.columns);
    const auto up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
    const int64_t step =
        std::min(up(shape[0], tile.columns), std::max<int64_t>(tile.columns, up(each / tile.rows, tile.columns)));
    const int64_t rows =
        std::min(up(shape[1], tile.rows), std::max<int64_t>(tile.rows, each / step / tile.rows * tile.rows));
    for (const int64_t size : shape) args_.integer(size);
    for (int d = 0; d < key_.dims; ++d) strides(d);
    args_.integer(step);
    args_.integer(rows);
    int64_t programs = ((shape[0] + step - 1) / step) * ((shape[1] + rows - 1) / rows);
    for (int d = 2; d < key_.dims; ++d) programs *= shape[d];
    return programs;
  }

  void strides(int d) {
    for (int k = 0; k < key_.operands; ++k) {
      const uint8_t kind = d < 2 || key_.lies[0][k] == kNumber ? key_.lies[d < 2 ? d : 0][k] : uint8_t{kStrided};
      if (kind == kStrided) args_.integer(it_.strides(operands_[k])[d] / it_.element_size(operands_[k]));
    }
  }

  Row& row_;
  const Call& call_;
  const ScalarType common_;
  at::TensorIteratorBase& it_;
  bool on_cpu_ = false;
  Class key_;
  std::array<int, kMaxOperands> operands_{};  // of the kernel -> of the iterator
  Arguments args_;
  static_assert(Arguments::kMost >= size_t{kMaxOperands * (kMaxDims + 1) + kMaxParams + kMaxDims + 2});
};

// Operators whose `out` torch wants of the operand's type, where others take any type that the result may be cast to.
constexpr std::string_view kOwnType[] = {"abs",   "ceil", "floor", "frac",  "gelu",       "hardshrink", "neg",
                                         "round", "sgn",  "sign",  "trunc", "softshrink", "softplus"};

// Whether `out` is of a type that is the host's to judge.
bool refuses_out(const Row& row, const Call& call, ScalarType common) {
  if (call.out == nullptr) return false;
  if (row.rule == Rule::where) return call.out->scalar_type() != common;
  std::string_view base = std::string_view(row.name).substr(0, row.name.find('.'));
  base.remove_prefix(base.rfind(':') + 1);  // aten::
  return std::find(std::begin(kOwnType), std::end(kOwnType), base) != std::end(kOwnType) &&
         call.out->scalar_type() != call.operands[0].scalar_type();
}

// Whether torch refuses the call for its arguments; the host then says so in torch's words.
bool refuses(const Row& row, const Call& call) {
  const auto number = [&](int p) { return call.params[p].toDouble(); };
  if (row.function == "softshrink") return !(number(0) >= 0);
  if (row.function == "polygamma") return number(0) < 0;
  if (row.function == "clamp") return call.variant == "-min-max";
  // Of the result of a negative slope it is open what it was made of.
  const bool of_result = call.variant.find("True") != std::string::npos;
  return of_result && (row.function == "elu_backward" || row.function == "leaky_relu_backward") && number(0) < 0;
}

// Whether the row computes with this common type, on this device.
bool computes(const Row& row, const Call& call, ScalarType common, c10::DeviceIndex device) {
  const TypeName* type = type_of(common);
  if (type == nullptr || (row.kinds & type->kind) == 0) return false;
  if (common == ScalarType::Double && properties(device).has_fp64 == 0) return false;
  for (int p = 0; p < call.params_count; ++p)
    if (!fits(call.params[p], common)) return false;
  if (refuses_out(row, call, common)) return false;
  // Of integers these are the host's: an error, or a fraction that is cut off.
  if (c10::isIntegralType(common, true)) {
    for (int k = 0; k < call.count; ++k)
      if (call.left_out[k] && value_of(call.operands[k]).toDouble() < 0) return false;
  }
  return true;
}

// False where the host has to do it. `*result` is what the call makes, where it is to be new.
bool serve(Row& row, const Call& call, Tensor* result) {
  if (!fitting(row, call) || refuses(row, call)) return false;
  std::optional<c10::Device> device;
  for (int k = 0; k < call.count && !device; ++k)
    if (call.operands[k].is_xpu()) device = call.operands[k].device();
  if (!device) return false;
  const c10::DeviceGuard guard(*device);
  ScalarType common = ScalarType::Undefined;
  at::TensorIterator it = iterate(row, call, &common);
  if (call.out == nullptr) *result = it.output(0);
  if (!computes(row, call, common, device->index())) return false;
  if (it.numel() == 0) return true;
  if (it.ndim() > kMaxDims) return false;
  if (it.can_use_32bit_indexing()) return Launch(row, call, common, it).run();
  for (auto& part : it.with_32bit_indexing())
    if (!Launch(row, call, common, part).run()) return false;
  return true;
}

// A division that rounds to nothing is true division, whose results are floats: another operator's rule.
bool divides_truly(const Row& row, at::ArrayRef<IValue> given) {
  return row.function == "div" && row.roles.size() == 3 && given[2].isNone();
}

Tensor divided_truly(const Row& row, at::ArrayRef<IValue> given) {
  if (row.out < 0) return at::div(given[0].toTensor(), given[1].toTensor());
  Tensor out = given[static_cast<size_t>(row.out)].toTensor();
  return at::div_out(out, given[0].toTensor(), given[1].toTensor());
}

class PointwiseKernel : public c10::OperatorKernel {
 public:
  explicit PointwiseKernel(std::shared_ptr<Row> row) : row_(std::move(row)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const size_t count = schema.arguments().size();
    const auto given = torch::jit::last(*stack, count);
    Tensor result;
    if (divides_truly(*row_, given)) {
      result = divided_truly(*row_, given);
    } else {
      Call call;
      if (eager() == Eager::host || !read(*row_, schema, given, call) || !serve(*row_, call, &result))
        return complex_or_host(row_->name, op, stack);
      if (call.out != nullptr) result = *call.out;
      row_->counter->add(Way::compiled);
    }
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(result));
  }

 private:
  std::shared_ptr<Row> row_;
};

// The same for an operator of these C++ types, without a stack: to put tensors on one takes the GIL for each.
template <class Result, class... Given>
auto unboxed(std::shared_ptr<Row> row, c10::OperatorHandle op) {
  constexpr bool fresh = std::is_same_v<Result, Tensor>;
  return [row = std::move(row), op](Given... given) -> Result {
    [[maybe_unused]] Tensor result;
    Call call;
    const auto all = std::tie(given...);
    const Tensor* const out = fresh ? nullptr : &std::get<0>(all);
    size_t argument = 0;
    if (eager() != Eager::host && (take(*row, argument++, given, call) && ...) && complete(*row, out, call) &&
        serve(*row, call, &result)) {
      row->counter->add(Way::compiled);
      if constexpr (fresh) return result;
    } else {
      Stack stack;
      (stack.emplace_back(given), ...);
      complex_or_host(row->name, op, &stack);
      if constexpr (fresh) return std::move(stack[0]).toTensor();
    }
    if constexpr (!fresh) return std::get<0>(all);
  };
}

template <class Result, class... Given>
bool put_if(const std::string& name, const std::shared_ptr<Row>& row, const c10::OperatorHandle& op) {
  if (op.schema().arguments().size() != sizeof...(Given) || row->roles.size() != sizeof...(Given)) return false;
  if (!std::is_same_v<Result, Tensor> && row->out != 0) return false;
  if (std::is_same_v<Result, Tensor> && row->out >= 0) return false;
  const auto& arguments = op.schema().arguments();
  size_t at = 0;
  const auto is_like = [&]<class Type>(std::type_identity<Type>) {
    const c10::Type& type = *arguments[at++].type();
    return std::is_same_v<std::decay_t<Type>, Tensor> ? type.kind() == c10::TypeKind::TensorType
                                                      : type.kind() == c10::TypeKind::NumberType;
  };
  if (!(is_like(std::type_identity<Given>{}) && ...)) return false;
  const size_t colons = name.find("::");
  library_of(name.substr(0, colons), c10::DispatchKey::XPU)
      .impl(name.substr(colons + 2).c_str(), unboxed<Result, Given...>(row, op));
  return true;
}

// The shapes that most calls have. False for another one.
bool put_unboxed(const std::string& name, const std::shared_ptr<Row>& row, const c10::OperatorHandle& op) {
  using In = const Tensor&;
  using Number = const c10::Scalar&;
  return put_if<Tensor, In>(name, row, op) || put_if<Tensor, In, In>(name, row, op) ||
         put_if<Tensor, In, Number>(name, row, op) || put_if<Tensor, In, In, Number>(name, row, op) ||
         put_if<Tensor, In, In, In>(name, row, op) || put_if<Tensor&, Tensor&>(name, row, op) ||
         put_if<Tensor&, Tensor&, In>(name, row, op) || put_if<Tensor&, Tensor&, Number>(name, row, op) ||
         put_if<Tensor&, Tensor&, In, Number>(name, row, op);
}

uint8_t kinds_of(const std::string& letters) {
  uint8_t kinds = 0;
  for (const char letter : letters) kinds |= letter == 'f' ? kFloats : letter == 'i' ? kIntegers : kBools;
  return kinds;
}

// False where this torch has no such operator.
bool serve_pointwise(const std::string& name, const std::string& function, const std::string& rule,
                     const std::string& roles, const std::string& kinds, bool exact) {
  const size_t dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  if (!op) return false;
  auto row = std::make_shared<Row>();
  const auto known = std::find(kRules.begin(), kRules.end(), rule);
  TORCH_CHECK_VALUE(known != kRules.end(), "anyxpu: no rule of pointwise operators is called ", rule);
  row->name = name;
  row->function = function;
  row->rule = static_cast<Rule>(known - kRules.begin());
  row->roles = roles;
  row->kinds = kinds_of(kinds);
  row->exact = exact;
  row->counter = &op_counter(name);
  const auto& arguments = op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) row->out = static_cast<int>(i);
  const size_t written_apart = row->out >= 0 && arguments[row->out].is_out() ? 1 : 0;
  TORCH_CHECK_VALUE(arguments.size() == roles.size() + written_apart, "anyxpu: ", name, " takes ", arguments.size(),
                    " arguments, and its roles are ", roles);
  if (put_unboxed(name, row, *op)) return true;
  return serve_boxed(name, [&] { return std::make_unique<PointwiseKernel>(std::move(row)); });
}

}  // namespace

void bind_pointwise(py::module_& m) {
  m.def("serve_pointwise", &serve_pointwise, py::arg("name"), py::arg("function"), py::arg("rule"), py::arg("roles"),
        py::arg("kinds"), py::arg("exact"),
        "Put operator `name` on key XPU, as a row of anyxpu.ops.pointwise says. False where torch has none of that "
        "name.");
}

}  // namespace anyxpu
