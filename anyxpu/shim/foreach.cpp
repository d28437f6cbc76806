// Operators on lists of tensors, and fused optimizers: one launch for all tensors of a list.
//
// What tensors there are, and where, the kernel reads in a table that is written here. Lists that are not alike in type
// and layout go as torch makes these operators of others. Which operators there are and how kernels are made is
// Python's (ops/foreach.py, foreach_kernels.py).
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <cmath>
#include <unordered_map>

#include "shim/arguments.h"
#include "shim/bindings.h"
#include "shim/classes.h"
#include "shim/kept_copies.h"
#include "shim/ops.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

using at::Tensor;
using c10::IValue;
using c10::ScalarType;
using torch::jit::Stack;
using List = std::vector<Tensor>;

// What a function's argument is; foreach_kernels.py has the same numbers.
enum Role : int { kList = 0, kNumber = 1, kOwn = 2, kSingle = 3 };

constexpr int64_t kMostElements = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostTensors = 1 << 20;

// --- lists ----------------------------------------------------------------------------------------------------

List list_of(const IValue& value) {
  List made;
  const auto elements = value.toListRef();
  made.reserve(elements.size());
  for (const IValue& element : elements) made.push_back(element.toTensor());
  return made;
}

// Whether a kernel can go through them side by side: floats of one type on one device, each tensor as dense and of the
// same strides as its neighbours in the other lists.
bool alike(const std::vector<List>& lists) {
  const List& first = lists[0];
  if (first.empty() || static_cast<int64_t>(first.size()) > kMostTensors) return false;
  const Tensor& head = first[0];
  if (!head.is_xpu() || !c10::isFloatingType(head.scalar_type()) || type_of(head.scalar_type()) == nullptr)
    return false;
  if (head.scalar_type() == ScalarType::Double && properties(head.device().index()).has_fp64 == 0) return false;
  for (size_t l = 0; l < lists.size(); ++l) {
    if (lists[l].size() != first.size()) return false;
    for (size_t i = 0; i < first.size(); ++i) {
      const Tensor& t = lists[l][i];
      if (!t.defined() || t.layout() != c10::kStrided || t.device() != head.device() ||
          t.scalar_type() != head.scalar_type() || t.numel() > kMostElements)
        return false;
      if (l == 0 ? !t.is_non_overlapping_and_dense()
                 : t.sizes() != first[i].sizes() || t.strides() != first[i].strides())
        return false;
    }
  }
  return true;
}

// Whether tensors of the first list, which is written, are there twice, or are read in another place of a list: then
// they are to be done one after the other.
bool shared(const std::vector<List>& lists) {
  std::unordered_map<const void*, size_t> seen;
  for (size_t l = 0; l < lists.size(); ++l) {
    for (size_t i = 0; i < lists[l].size(); ++i) {
      const Tensor& t = lists[l][i];
      if (t.numel() == 0) continue;
      const auto found = seen.find(t.const_data_ptr());
      if (found != seen.end() && (l == 0 || found->second != i)) return true;
      if (l == 0) seen.emplace(t.const_data_ptr(), i);
    }
  }
  return false;
}

// --- tables ---------------------------------------------------------------------------------------------------

// A tensor's row, and for each program which tensor and which of its steps it does.
struct Table {
  std::vector<int64_t> rows, chunks;
  int64_t width = 0, step = 0, elements = 0;
  Tensor memory;  // on the device: rows, then chunks, then what is behind them

  void add_chunks(int64_t tensor, int64_t numel) {
    for (int64_t at = 0; at * step < numel; ++at) chunks.push_back(tensor << 32 | at);
    elements += numel;
  }
  const int64_t* on_device(size_t from) const { return memory.const_data_ptr<int64_t>() + from; }

  void upload(c10::Device device, const std::vector<int64_t>& behind = {}) {
    std::vector<const std::vector<int64_t>*> parts{&rows, &chunks, &behind};
    const bool pinned = properties(device.index()).type != AX_DEVICE_CPU;
    const auto count = static_cast<int64_t>(rows.size() + chunks.size() + behind.size());
    Tensor host = at::empty({count}, at::TensorOptions().dtype(at::kLong).pinned_memory(pinned));
    int64_t* to = host.mutable_data_ptr<int64_t>();
    for (const auto* part : parts) to = std::copy(part->begin(), part->end(), to);
    memory = at::empty({count}, at::TensorOptions().dtype(at::kLong).device(device));
    copy_tensor(memory, host, pinned);
  }
};

int64_t step_of(c10::DeviceIndex device) { return properties(device).type == AX_DEVICE_CPU ? 16384 : 32768; }
int64_t lanes_of(c10::DeviceIndex device, int64_t on_cpu) {
  return properties(device).type == AX_DEVICE_CPU ? on_cpu : 512;  // of 1024 Xe-HPG spills
}

int64_t address(const Tensor& t) { return reinterpret_cast<int64_t>(t.const_data_ptr()); }

int64_t bits_of(double number, ScalarType computed) {
  const Number made = computed == ScalarType::Double ? number_of(number) : number_of(static_cast<float>(number));
  int64_t bits = 0;
  std::memcpy(&bits, made.bytes, made.size);
  return bits;
}

ScalarType computed_of(ScalarType type) { return type == ScalarType::Double ? type : ScalarType::Float; }

// The kernel of these words. False where there is none, or not yet.
bool find(c10::DeviceIndex device, const std::string& key, const std::function<py::tuple()>& words, Entry* out) {
  static ClassCache cache;
  return cache.find(std::to_string(device) + key, out,
                    [&](Entry* made) { return ask_kernel(device, "foreach", words(), made); });
}

void note(const List& written) {
  for (const Tensor& t : written)
    if (t.numel() > 0) note_written(t.const_data_ptr());
}

void launch(const Table& table, c10::DeviceIndex device, const Entry& entry, Arguments& args, int64_t lanes,
            const char* name) {
  const auto rounds = static_cast<double>(table.elements) / static_cast<double>(lanes);
  args.launch(device, entry, static_cast<int64_t>(table.chunks.size()),
              static_cast<uint64_t>(rounds * static_cast<double>(entry.operations)), table.memory.const_data_ptr(),
              name);
}

void number_argument(Arguments& args, double value, ScalarType computed) {
  if (computed == ScalarType::Double) {
    args.value(number_of(value));
  } else {
    args.value(number_of(static_cast<float>(value)));
  }
}

// --- functions ------------------------------------------------------------------------------------------------

struct Served {
  std::string name, kind, function, roles;
  OpCounter* counter;
};

bool real(const c10::Scalar& value) { return !value.isComplex() && !value.isSymbolic(); }

bool map_call(const Served& served, const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, IValue* result) {
  std::vector<List> lists;
  std::vector<int> roles, which;
  std::vector<double> numbers;
  std::vector<std::vector<double>> own;
  std::vector<Tensor> singles;
  size_t argument = 0;
  for (const char role : served.roles) {
    if (role == '1') {
      roles.push_back(kNumber);
      which.push_back(static_cast<int>(numbers.size()));
      numbers.push_back(1);
      continue;
    }
    const IValue& value = given[argument++];
    if (role == 'I') continue;
    if (role == 'L') {
      roles.push_back(kList);
      which.push_back(static_cast<int>(lists.size()));
      lists.push_back(list_of(value));
    } else if (role == 'N') {
      const c10::Scalar number = value.toScalar();
      if (!real(number)) return false;
      roles.push_back(kNumber);
      which.push_back(static_cast<int>(numbers.size()));
      numbers.push_back(number.toDouble());
    } else if (role == 'Z') {
      std::vector<double> each;
      if (value.isTensor()) {
        const Tensor& t = value.toTensor();
        if (!t.is_cpu() || t.dim() != 1 || t.is_complex()) return false;
        const Tensor wide = t.to(at::kDouble).contiguous();
        each.assign(wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel());
      } else {
        for (const IValue& element : value.toListRef()) {
          if (!real(element.toScalar())) return false;
          each.push_back(element.toScalar().toDouble());
        }
      }
      roles.push_back(kOwn);
      which.push_back(static_cast<int>(own.size()));
      own.push_back(std::move(each));
    } else {
      const Tensor& t = value.toTensor();
      if (t.numel() != 1 || t.dim() != 0) return false;
      if (t.is_cpu()) {
        const c10::Scalar number = t.item();
        if (!real(number)) return false;
        roles.push_back(kNumber);
        which.push_back(static_cast<int>(numbers.size()));
        numbers.push_back(number.toDouble());
      } else {
        roles.push_back(kSingle);
        which.push_back(static_cast<int>(singles.size()));
        singles.push_back(t);
      }
    }
  }
  if (lists.empty() || !alike(lists)) return false;
  const Tensor& head = lists[0][0];
  const auto tensors = static_cast<int64_t>(lists[0].size());
  for (const Tensor& t : singles)
    if (t.device() != head.device() || type_of(t.scalar_type()) == nullptr || t.scalar_type() != head.scalar_type())
      return false;
  for (const auto& each : own)
    if (static_cast<int64_t>(each.size()) != tensors) return false;
  const bool in_place = schema.returns().empty() || schema.arguments()[0].alias_info() != nullptr;
  if (in_place && shared(lists)) return false;

  const c10::DeviceIndex device = head.device().index();
  const c10::DeviceGuard guard(head.device());
  const ScalarType type = head.scalar_type(), computed = computed_of(type);
  const int64_t lanes = lanes_of(device, 256);
  Table table;
  table.width = 2 + static_cast<int64_t>(lists.size()) + static_cast<int64_t>(own.size());
  // A row: how many, the result, the operands, the numbers.
  for (size_t k = 0; k < roles.size(); ++k) {
    if (roles[k] == kList) which[k] += 2;
    if (roles[k] == kOwn) which[k] += 2 + static_cast<int>(lists.size());
  }
  std::vector<std::string> single_types;
  for (const Tensor& t : singles) single_types.emplace_back(type_of(t.scalar_type())->name);
  std::string key = served.function + type_of(type)->name;
  for (size_t k = 0; k < roles.size(); ++k) key += std::to_string(roles[k]) + "," + std::to_string(which[k]) + " ";
  Entry entry{};
  const auto words = [&] {
    return py::make_tuple("mapped", type_of(type)->name, type_of(computed)->name,
                          py::make_tuple(served.function, roles, which, single_types, numbers.size(), table.width),
                          lanes);
  };
  if (!find(device, key, words, &entry)) return false;

  List out;
  if (in_place) {
    out = lists[0];
  } else {
    out.reserve(lists[0].size());
    for (const Tensor& t : lists[0]) out.push_back(at::empty_strided(t.sizes(), t.strides(), t.options()));
  }
  table.step = step_of(device);
  table.rows.reserve(static_cast<size_t>(table.width * tensors));
  for (int64_t i = 0; i < tensors; ++i) {
    table.rows.push_back(out[i].numel());
    table.rows.push_back(address(out[i]));
    for (const List& list : lists) table.rows.push_back(address(list[i]));
    for (const auto& each : own) table.rows.push_back(bits_of(each[i], computed));
    table.add_chunks(i, out[i].numel());
  }
  if (table.elements > 0) {
    table.upload(head.device());
    note(out);
    Arguments args;
    args.pointer(table.on_device(0));
    args.pointer(table.on_device(table.rows.size()));
    for (const Tensor& t : singles) args.pointer(t.const_data_ptr());
    for (const double value : numbers) number_argument(args, value, computed);
    args.integer(table.step);
    launch(table, device, entry, args, lanes, served.name.c_str());
  }
  if (!in_place) *result = IValue(std::move(out));
  return true;
}

// --- norms ----------------------------------------------------------------------------------------------------

bool norm_call(const Served& served, at::ArrayRef<IValue> given, IValue* result) {
  const List list = list_of(given[0]);
  if (!real(given[1].toScalar()) || !given[2].isNone() || !alike({list})) return false;
  const double order = given[1].toScalar().toDouble();
  const bool largest = std::isinf(order) && order > 0;
  if (order != 1 && order != 2 && !largest) return false;
  for (const Tensor& t : list)
    if (t.numel() == 0) return false;
  const Tensor& head = list[0];
  const c10::DeviceIndex device = head.device().index();
  const c10::DeviceGuard guard(head.device());
  const ScalarType type = head.scalar_type(), computed = computed_of(type);
  const char* combine = largest ? "larger" : "add";
  const int64_t lanes = lanes_of(device, 128);
  Entry parts{}, whole{};
  const std::string key = std::string(type_of(type)->name) + std::to_string(order);
  const auto first = [&] {
    return py::make_tuple("partial_norms", type_of(type)->name, type_of(computed)->name,
                          py::make_tuple(order == 2 ? "square" : "absolute", combine), lanes);
  };
  const auto then = [&] {
    return py::make_tuple("norms", type_of(type)->name, type_of(computed)->name,
                          py::make_tuple(combine, order == 2 ? "root" : "done"), 64);
  };
  const bool there = find(device, "parts" + key, first, &parts);
  if (!find(device, "whole" + key, then, &whole) || !there) return false;
  Table table;
  table.step = step_of(device);
  table.width = 2;
  std::vector<int64_t> places;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto before = static_cast<int64_t>(table.chunks.size());
    table.rows.push_back(list[i].numel());
    table.rows.push_back(address(list[i]));
    table.add_chunks(static_cast<int64_t>(i), list[i].numel());
    places.push_back(before << 32 | (static_cast<int64_t>(table.chunks.size()) - before));
  }
  table.upload(head.device(), places);
  const auto tensors = static_cast<int64_t>(list.size());
  const Tensor partials = at::empty({static_cast<int64_t>(table.chunks.size())}, head.options().dtype(computed));
  const Tensor out = at::empty({tensors}, head.options());
  {
    Arguments args;
    args.pointer(table.on_device(0));
    args.pointer(table.on_device(table.rows.size()));
    args.pointer(partials.const_data_ptr());
    args.integer(table.step);
    launch(table, device, parts, args, lanes, served.name.c_str());
  }
  Arguments args;
  args.pointer(partials.const_data_ptr());
  args.pointer(table.on_device(table.rows.size() + table.chunks.size()));
  args.pointer(out.const_data_ptr());
  args.launch(device, whole, tensors, table.chunks.size() * whole.operations / 16, out.const_data_ptr(),
              served.name.c_str());
  List made;
  made.reserve(list.size());
  for (int64_t i = 0; i < tensors; ++i) made.push_back(out.select(0, i));
  *result = IValue(std::move(made));
  return true;
}

// --- optimizers -----------------------------------------------------------------------------------------------

const IValue& named(const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, const char* name) {
  for (size_t i = 0; i < given.size(); ++i)
    if (schema.arguments()[i].name() == name) return given[i];
  static const IValue none;
  return none;
}

// A float32 of one element on the device; false where `value` is something else.
bool single(const IValue& value, c10::Device device, Tensor* out) {
  if (value.isNone()) return true;
  const Tensor& t = value.toTensor();
  if (t.numel() != 1 || t.device() != device || t.scalar_type() != ScalarType::Float) return false;
  *out = t;
  return true;
}

// `words`: what the kernel is built for beside its width and the flags that all optimizers have.
bool optimizer_call(const Served& served, const c10::FunctionSchema& schema, at::ArrayRef<IValue> given) {
  const bool adam = served.kind.starts_with("adam");
  const auto at = [&](const char* name) -> const IValue& { return named(schema, given, name); };
  std::vector<List> lists{list_of(given[0]), list_of(given[1])};
  List steps;
  const bool largest = adam && at("amsgrad").toBool();
  const double momentum = adam ? 0 : at("momentum").toDouble();
  if (adam) {
    lists.push_back(list_of(given[2]));
    lists.push_back(list_of(given[3]));
    if (largest) lists.push_back(list_of(given[4]));
    steps = list_of(at("state_steps"));
    if (steps.size() != lists[0].size()) return false;
  } else if (momentum != 0) {
    lists.push_back(list_of(given[2]));
  }
  if (!alike(lists) || shared(lists)) return false;
  const Tensor& head = lists[0][0];
  for (const Tensor& t : steps)
    if (t.device() != head.device() || t.scalar_type() != ScalarType::Float || t.numel() != 1) return false;
  Tensor scale, found, rate;
  double lr = 0;
  if (!single(at("grad_scale"), head.device(), &scale) || !single(at("found_inf"), head.device(), &found)) return false;
  if (at("lr").isTensor()) {
    const Tensor& t = at("lr").toTensor();
    if (t.is_cpu() && t.numel() == 1) {
      lr = t.item().toDouble();
    } else if (!single(at("lr"), head.device(), &rate)) {
      return false;
    }
  } else {
    lr = at("lr").toDouble();
  }

  const c10::DeviceIndex device = head.device().index();
  const c10::DeviceGuard guard(head.device());
  const ScalarType type = head.scalar_type(), computed = computed_of(type);
  const int64_t lanes = lanes_of(device, 64);
  Table table;
  table.step = step_of(device);
  table.width = 1 + static_cast<int64_t>(lists.size()) + (adam ? 1 : 0);
  const bool maximize = at("maximize").toBool();
  const bool first = !adam && at("is_first_step").toBool(), nesterov = !adam && at("nesterov").toBool();
  const std::array<bool, 4> common{rate.defined(), scale.defined(), found.defined(), maximize};
  const std::vector<bool> more =
      adam ? std::vector<bool>{largest, served.kind == "adamw"} : std::vector<bool>{momentum != 0, first, nesterov};
  std::string key = (adam ? "adam" : "sgd") + std::string(type_of(type)->name);
  for (const bool flag : common) key += flag ? '1' : '0';
  for (const bool flag : more) key += flag ? '1' : '0';
  Entry entry{};
  const auto words = [&] {
    py::list flags;
    flags.append(table.width);
    for (const bool flag : common) flags.append(flag);
    for (const bool flag : more) flags.append(flag);
    return py::make_tuple(adam ? "adam" : "sgd", type_of(type)->name, type_of(computed)->name, flags, lanes);
  };
  if (!find(device, key, words, &entry)) return false;
  for (size_t i = 0; i < lists[0].size(); ++i) {
    table.rows.push_back(lists[0][i].numel());
    for (const List& list : lists) table.rows.push_back(address(list[i]));
    if (adam) table.rows.push_back(address(steps[i]));
    table.add_chunks(static_cast<int64_t>(i), lists[0][i].numel());
  }
  if (table.elements == 0) return true;
  table.upload(head.device());
  for (const List& list : lists) note(list);
  Arguments args;
  const void* const none = table.on_device(0);
  args.pointer(none);
  args.pointer(table.on_device(table.rows.size()));
  for (const Tensor* t : {&rate, &scale, &found}) args.pointer(t->defined() ? t->const_data_ptr() : none);
  args.integer(table.step);
  std::vector<double> numbers{lr};
  if (adam) {
    const double beta1 = at("beta1").toDouble(), beta2 = at("beta2").toDouble();
    for (const double value : {beta1, beta2, 1 - beta1, 1 - beta2, std::log(beta1), std::log(beta2)})
      numbers.push_back(value);
    numbers.push_back(at("weight_decay").toDouble());
    numbers.push_back(at("eps").toDouble());
  } else {
    numbers.push_back(momentum);
    numbers.push_back(1 - at("dampening").toDouble());
    numbers.push_back(at("weight_decay").toDouble());
  }
  for (const double value : numbers) number_argument(args, value, computed);
  launch(table, device, entry, args, lanes, served.name.c_str());
  return true;
}

bool unscale_call(const Served& served, at::ArrayRef<IValue> given) {
  const List list = list_of(given[0]);
  if (!alike({list}) || shared({list})) return false;
  const Tensor& head = list[0];
  Tensor found, inverse;
  if (!single(given[1], head.device(), &found) || !single(given[2], head.device(), &inverse)) return false;
  const c10::DeviceIndex device = head.device().index();
  const c10::DeviceGuard guard(head.device());
  const ScalarType type = head.scalar_type(), computed = computed_of(type);
  const int64_t lanes = lanes_of(device, 128);
  Table table;
  table.step = step_of(device);
  table.width = 2;
  Entry entry{};
  const auto words = [&] {
    return py::make_tuple("unscaled", type_of(type)->name, type_of(computed)->name, py::make_tuple(table.width), lanes);
  };
  if (!find(device, std::string("unscaled") + type_of(type)->name, words, &entry)) return false;
  for (size_t i = 0; i < list.size(); ++i) {
    table.rows.push_back(list[i].numel());
    table.rows.push_back(address(list[i]));
    table.add_chunks(static_cast<int64_t>(i), list[i].numel());
  }
  if (table.elements == 0) return true;
  table.upload(head.device());
  note(list);
  note({found});
  Arguments args;
  args.pointer(table.on_device(0));
  args.pointer(table.on_device(table.rows.size()));
  args.pointer(inverse.const_data_ptr());
  args.pointer(found.const_data_ptr());
  args.integer(table.step);
  launch(table, device, entry, args, lanes, served.name.c_str());
  return true;
}

class ForeachKernel : public c10::OperatorKernel {
 public:
  explicit ForeachKernel(Served served) : served_(std::move(served)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const size_t count = schema.arguments().size();
    const auto given = torch::jit::last(*stack, count);
    IValue result;
    if (eager() == Eager::host || !serve(schema, given, &result)) {
      if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
        return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CompositeExplicitAutograd), stack);
      return host_fallback(op, stack);
    }
    served_.counter->add(Way::compiled);
    std::optional<IValue> returned;
    if (!schema.returns().empty()) returned = result.isNone() ? given[0] : std::move(result);
    torch::jit::drop(*stack, count);
    if (returned) stack->emplace_back(std::move(*returned));
  }

 private:
  bool serve(const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, IValue* result) const {
    if (served_.kind == "mapped") return map_call(served_, schema, given, result);
    if (served_.kind == "norm") return norm_call(served_, given, result);
    if (served_.kind == "non_finite_check_and_unscale") return unscale_call(served_, given);
    return optimizer_call(served_, schema, given);
  }

  Served served_;
};

// False where this torch has no such operator.
bool serve_foreach(const std::string& name, const std::string& kind, const std::string& function,
                   const std::string& roles) {
  return serve_boxed(
      name, [&] { return std::make_unique<ForeachKernel>(Served{name, kind, function, roles, &op_counter(name)}); });
}

}  // namespace

void bind_foreach(py::module_& m) {
  m.def("serve_foreach", &serve_foreach, py::arg("name"), py::arg("kind"), py::arg("function"), py::arg("roles"),
        "Put operator `name` on key XPU, as anyxpu.ops.foreach says. False where torch has none of that name.");
}

}  // namespace anyxpu
