// Operators that are written in Python, and their calls repeated without it.
//
// The first call of a kind (same operator; operands' types, sizes, strides and places to each other; numbers and
// settings: call_kind.h) runs its Python function. So do the next two, which are recorded (recording.h); where both
// asked the same of the device, that is a program (program.h), and from then on it is run in Python's place. A
// recording that holds anything else than memory, launches, copies, fills and primitives makes none.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "shim/arguments.h"
#include "shim/bindings.h"
#include "shim/call_kind.h"
#include "shim/classes.h"
#include "shim/program.h"
#include "shim/recording.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

constexpr size_t kMostKinds = 1024;   // of calls of one operator; then all are forgotten
constexpr size_t kMostPrograms = 4;   // of one kind: kept copies may be there or not
constexpr uint32_t kMostSpoilt = 16;  // recordings in a row, after which a kind is left to Python

std::atomic<bool> enabled{true};
std::atomic<uint64_t> runs{0};

class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex device) : before_(current_device()), changed_(before_ != device) {
    if (C10_UNLIKELY(changed_)) set_current_device(device);
  }
  ~OnDevice() {
    if (C10_UNLIKELY(changed_)) set_current_device(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const c10::DeviceIndex before_;
  const bool changed_;
};

struct Calls {
  uint32_t spoilt = 0;                             // in a row
  std::shared_ptr<Program> candidate;              // of the last recording
  std::vector<std::shared_ptr<Program>> programs;  // the latest first
};

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view bytes) const noexcept {
    uint64_t h = 0x9E3779B97F4A7C15;
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, 8);
      h = (h ^ word) * 0xD6E8FEB86659FD93;
      h ^= h >> 32;
    }
    return h;
  }
};

// An operator's kernel: its Python function, and what was made of its calls. Never destroyed.
class Operator {
 public:
  Operator(std::string name, const py::function& function)
      : name_(std::move(name)), function_(function.inc_ref().ptr()) {}

  void call(const c10::OperatorHandle& op, Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const Stack given = torch::jit::pop(*stack, schema.arguments().size());
    const Answers answers;
    CallKind kind;
    // What is recorded is recorded whole: an operator in an operator leaves the steps to the outer one.
    const bool known = the_recording == nullptr && enabled.load(std::memory_order_relaxed) && kind.read(given);
    if (!known) return by_python(schema, given, stack);
    const OnDevice on_device(kind.device);
    ax_queue* const queue = current_queue(kind.device);
    bool record = false;
    if (const auto program = find(kind, queue, &record)) {
      run(*program, kind.tensors, kind.device, queue, stack);
      runs_.fetch_add(1, std::memory_order_relaxed);
      runs.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (!record) return by_python(schema, given, stack);
    const size_t below = stack->size();
    std::vector<Before> before;
    for (const Tensor* each : kind.tensors) before.emplace_back(*each);
    Recording recording(kind.tensors, kind.device, queue);
    by_python(schema, given, stack);
    // Not in braces: they would be a list of two values.
    const at::ArrayRef<IValue> results(stack->data() + below, stack->size() - below);
    learn(kind, recording, program_of(recording, before, kind.tensors, results, queue));
  }

  void call_python(const c10::OperatorHandle& op, Stack* stack) {
    const Stack given = torch::jit::pop(*stack, op.schema().arguments().size());
    by_python(op.schema(), given, stack);
  }

  void forget() {
    std::unordered_map<std::string, Calls, Hash, std::equal_to<>> former;
    const std::unique_lock lock(mutex_);
    former.swap(kinds_);
  }

  py::dict about() {
    const std::shared_lock lock(mutex_);
    size_t programs = 0;
    for (const auto& [bytes, calls] : kinds_) programs += calls.programs.size();
    py::dict said;
    said["kinds"] = kinds_.size();
    said["programs"] = programs;
    said["runs"] = runs_.load();
    said["spoilt"] = why_ == nullptr ? py::object(py::none()) : py::object(py::str(why_.load()));
    return said;
  }

  const std::string& name() const { return name_; }

 private:
  std::shared_ptr<Program> find(const CallKind& kind, ax_queue* queue, bool* record) {
    c10::SmallVector<std::shared_ptr<Program>, 2> programs;
    {
      const std::shared_lock lock(mutex_);
      const auto found = kinds_.find(kind.bytes());
      if (found != kinds_.end()) {
        programs.append(found->second.programs.begin(), found->second.programs.end());
        *record = found->second.spoilt < kMostSpoilt;
      }
    }
    for (const auto& each : programs)
      if (fits(*each, kind.tensors, queue)) return each;
    if (!programs.empty() || *record) return nullptr;
    const std::unique_lock lock(mutex_);
    if (kinds_.size() >= kMostKinds) {
      for (auto& [bytes, calls] : kinds_) {
        drop(std::move(calls.candidate));
        for (auto& program : calls.programs) drop(std::move(program));
      }
      kinds_.clear();
    }
    kinds_.try_emplace(std::string(kind.bytes()));
    return nullptr;
  }

  void learn(const CallKind& kind, const Recording& recording, std::shared_ptr<Program> made) {
    const std::unique_lock lock(mutex_);
    const auto found = kinds_.find(kind.bytes());
    if (found == kinds_.end()) return;
    Calls& calls = found->second;
    if (made == nullptr) {
      if (!recording.for_now) ++calls.spoilt;
      why_ = recording.spoilt();
      drop(std::move(calls.candidate));
      return;
    }
    calls.spoilt = 0;
    if (calls.candidate == nullptr || !calls.candidate->same(*made)) {
      if (calls.candidate != nullptr) why_ = "two calls of a kind that differ";
      drop(std::exchange(calls.candidate, std::move(made)));
      return;
    }
    drop(std::move(calls.candidate));
    calls.programs.insert(calls.programs.begin(), std::move(made));
    if (calls.programs.size() > kMostPrograms) {
      drop(std::move(calls.programs.back()));
      calls.programs.pop_back();
    }
  }

  // With the lock. A program's objects are Python's: it is freed later, without the lock, which a thread that holds the
  // GIL may want.
  void drop(std::shared_ptr<Program> program) {
    if (program != nullptr) dropped_.push_back(std::move(program));
  }

  void by_python(const c10::FunctionSchema& schema, at::ArrayRef<IValue> given, Stack* stack) {
    const py::gil_scoped_acquire gil;
    free_dropped();
    py::list positional;
    py::dict named;
    const auto& arguments = schema.arguments();
    const auto is_default = [&](size_t i) {
      const auto& value = arguments[i].default_value();
      return value.has_value() && *value == given[i];
    };
    size_t first_named = 0;
    while (first_named < arguments.size() && !arguments[first_named].kwarg_only()) ++first_named;
    size_t needed = first_named;
    while (needed > 0 && is_default(needed - 1)) --needed;
    for (size_t i = 0; i < needed; ++i) positional.append(in_python(arguments[i], given[i]));
    for (size_t i = first_named; i < arguments.size(); ++i)
      if (!is_default(i)) named[py::str(arguments[i].name())] = in_python(arguments[i], given[i]);
    const py::object made = py::reinterpret_borrow<py::object>(function_)(*py::tuple(positional), **named);
    const auto& returns = schema.returns();
    if (returns.size() == 1) {
      stack->push_back(torch::jit::toIValue(made, returns[0].type()));
    } else if (!returns.empty()) {
      const auto all = made.cast<py::sequence>();
      TORCH_CHECK(all.size() == returns.size(), name_, " returned ", all.size(), " results; it has ", returns.size());
      for (size_t i = 0; i < returns.size(); ++i)
        stack->push_back(torch::jit::toIValue(py::object(all[i]), returns[i].type()));
    }
  }

  // With the GIL.
  void free_dropped() {
    std::vector<std::shared_ptr<Program>> all;  // freed after the lock
    const std::unique_lock lock(mutex_);
    all.swap(dropped_);
  }

  static py::object in_python(const c10::Argument& argument, const IValue& value) {
    if (value.isNone()) return py::none();
    c10::TypePtr type = argument.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    switch (type->kind()) {
      case c10::TypeKind::ScalarTypeType:
        return py::reinterpret_borrow<py::object>(
            reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(value.toInt()))));
      case c10::TypeKind::LayoutType:
        return py::reinterpret_borrow<py::object>(
            reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<c10::Layout>(value.toInt()))));
      case c10::TypeKind::MemoryFormatType:
        return py::reinterpret_borrow<py::object>(
            torch::utils::getTHPMemoryFormat(static_cast<c10::MemoryFormat>(value.toInt())));
      default:
        return torch::jit::toPyObject(value);
    }
  }

  const std::string name_;
  PyObject* const function_;
  std::shared_mutex mutex_;
  std::unordered_map<std::string, Calls, Hash, std::equal_to<>> kinds_;
  std::vector<std::shared_ptr<Program>> dropped_;
  std::atomic<uint64_t> runs_{0};
  std::atomic<const char*> why_{nullptr};  // the last recording made no program
};

std::vector<Operator*>& operators() {
  static auto* all = new std::vector<Operator*>;  // with the GIL
  return *all;
}

class OperatorKernel final : public c10::OperatorKernel {
 public:
  explicit OperatorKernel(Operator* its) : its_(its) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { its_->call(op, stack); }

 private:
  Operator* its_;
};

// Above autograd: a composition, whose parts have gradients. Where none is asked for it is a call like others.
class ComposedKernel final : public c10::OperatorKernel {
 public:
  explicit ComposedKernel(Operator* its) : its_(its) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    bool composed = false;
    for (const IValue& value : torch::jit::last(*stack, op.schema().arguments().size()))
      for_each_tensor(value, [&](const Tensor& t) { composed |= is_differentiated(t); });
    if (composed) return its_->call_python(op, stack);
    const at::AutoDispatchBelowAutograd below_autograd;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }

 private:
  static bool is_differentiated(const Tensor& t) {
    constexpr c10::DispatchKeySet kWrapped({c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched,
                                            c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
    return (c10::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(0).defined() ||
           t.key_set().has_any(kWrapped);
  }

  Operator* its_;
};

void serve_python(const std::string& name_space, const std::string& name, const py::function& function,
                  bool composition) {
  auto* made = new Operator(name_space + "::" + name, function);
  operators().push_back(made);
  library_of(name_space, c10::DispatchKey::XPU)
      .impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OperatorKernel>(made)));
  if (composition)
    library_of(name_space, c10::DispatchKey::AutogradXPU)
        .impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ComposedKernel>(made)));
}

// By operator: what serves calls with complex operands.
std::map<std::string, Operator*>& complex_operators() {
  static auto* all = new std::map<std::string, Operator*>;  // filled while torch is imported, and read from then on
  return *all;
}

}  // namespace

void complex_or_host(const std::string& name, const c10::OperatorHandle& op, Stack* stack) {
  bool complex = false;
  for (const IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    complex |= value.isComplexDouble();
    for_each_tensor(value, [&](const Tensor& t) { complex |= t.is_complex(); });
  }
  const auto found = complex ? complex_operators().find(name) : complex_operators().end();
  if (found == complex_operators().end()) return host_fallback(op, stack);
  found->second->call(op, stack);
}

void bind_replay(py::module_& m) {
  m.def("serve_python", &serve_python, py::arg("namespace"), py::arg("name"), py::arg("function"),
        py::arg("composition") = false,
        "Put a Python function on key XPU for operator `name`; its calls are repeated without Python where they can. A "
        "composition is put above autograd as well.");
  m.def(
      "serve_complex",
      [](const std::string& name, const py::function& function) {
        auto* made = new Operator(name, function);
        operators().push_back(made);
        complex_operators()[name] = made;
      },
      py::arg("name"), py::arg("function"),
      "Have a Python function serve operator `name`, of pointwise or reducing kernels, where an operand is complex.");
  m.def(
      "keep_recorded",
      [](const py::object& object) {
        if (the_recording != nullptr) the_recording->keep(object.ptr());
      },
      py::arg("object"), "What is being recorded uses this object's memory.");
  py::class_<Tally, std::shared_ptr<Tally>>(m, "Tally", "A number of calls, which those without Python add to as well.")
      .def(py::init<>())
      .def(
          "add",
          [](const std::shared_ptr<Tally>& self) {
            self->add();
            if (the_recording != nullptr) the_recording->tallies.push_back(self);
          },
          "One more.")
      .def("reset", &Tally::reset, "Begin at 0.")
      .def("__int__", [](const Tally& self) { return self.count(); });
  m.def(
      "set_replay", [](bool on) { return enabled.exchange(on); }, py::arg("on"),
      "Whether calls are repeated without Python; returns whether they were.");
  m.def(
      "forget_programs",
      [] {
        for (Operator* each : operators()) each->forget();
      },
      "Forget what was made of calls so far.");
  m.def(
      "replays",
      [] {
        py::dict all;
        for (Operator* each : operators()) {
          py::dict about = each->about();
          if (about["kinds"].cast<size_t>() > 0) all[py::str(each->name())] = std::move(about);
        }
        return all;
      },
      "dict[operator] of kinds, programs, runs and why the last recording made no program, of those called.");
  m.def("replay_runs", [] { return runs.load(); }, "How many calls were repeated without Python.");
}

}  // namespace anyxpu
