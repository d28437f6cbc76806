// The last way to serve an operator: ATen's CPU kernel, on the same memory where the host can reach it.
//
// One boxed function under dispatch key XPU stands in for every operator without a kernel of its own. Each xpu tensor
// among the arguments becomes a CPU tensor over the same bytes (HostArguments), the operator runs redispatched to the
// CPU, what it wrote or resized is carried back, and what it made is uploaded (Results).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "shim/arguments.h"
#include "shim/bindings.h"
#include "shim/commands.h"
#include "shim/host_exceptions.h"
#include "shim/host_memory.h"
#include "shim/host_temporaries.h"
#include "shim/notice.h"
#include "shim/ops.h"
#include "shim/recording.h"

namespace anyxpu {
namespace {

using at::Tensor;
using c10::FunctionSchema;
using c10::IValue;
using c10::ScalarType;
using torch::jit::Stack;
using namespace host_exceptions;  // NOLINT: tables for this file alone

// A name without namespace, overload and the mark of the in-place form.
std::string base_of(const std::string& name) {
  std::string base = name.substr(name.find("::") + 2);
  base = base.substr(0, base.find('.'));
  if (base.size() > 1 && base.back() == '_' && base.front() != '_') base.pop_back();
  return base;
}

template <class Table, class Value>
bool listed(const Table& table, const std::string& op, const Value& value) {
  auto found = table.find(op);
  return found != table.end() && found->second.count(value) > 0;
}

// --- devices ------------------------------------------------------------------------------------------------

// The device the operator is for: its xpu tensors', else its device argument's, else the current one.
c10::Device common_device(const c10::OperatorHandle& op, const std::string& name, at::ArrayRef<IValue> arguments) {
  std::optional<c10::Device> device;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& t) {
      if (!device && on_xpu(t)) device = t.device();
    });
  }
  if (!device) {
    for (const auto& argument : arguments) {
      if (argument.isDevice() && argument.toDevice().is_xpu()) {
        return xpu_device(resolve_device(argument.toDevice().index()));
      }
    }
    return xpu_device(current_device());
  }
  const auto& schema = op.schema();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& declared = schema.arguments()[i];
    const bool written = declared.alias_info() != nullptr && declared.alias_info()->isWrite();
    const bool may_be_host = !written && listed(kHostArguments, name, declared.name());
    for_each_tensor(arguments[i], [&](const Tensor& t) {
      if (t.device() == *device) return;
      // Like everywhere in torch, a number in a CPU tensor goes with any device.
      if (t.is_cpu() && (may_be_host || (t.dim() == 0 && !written))) return;
      if (declared.name() == "self" && (name == "aten::index.Tensor" || name == "aten::_unsafe_index.Tensor"))
        TORCH_CHECK(false, "indices should be either on cpu or on the same device as the indexed tensor (", t.device(),
                    ")");
      c10::impl::common_device_check_failure(*device, t, name.c_str(), declared.name().c_str());
    });
  }
  return *device;
}

// --- random numbers -----------------------------------------------------------------------------------------

uint64_t splitmix(uint64_t& state) {  // Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// A CPU engine that depends on the device generator's seed and on how much was drawn from it before: successive
// operators differ, and torch.manual_seed makes them come again.
at::mt19937 engine_from(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  spoil_recording("random numbers");
  const auto [seed, offset] = philox_state(generator, 4, device);
  uint64_t state = seed;
  state = splitmix(state) ^ offset;
  at::mt19937_data_pod data = at::mt19937(seed).data();
  // All of the engine's state, not its 32-bit seed: with so few seeds, long runs would repeat themselves.
  for (auto& word : data.state_) word = static_cast<uint32_t>(splitmix(state));
  at::mt19937 engine(seed);
  engine.set_data(data);
  return engine;
}

at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  if (generator.has_value() && generator->defined()) {
    TORCH_CHECK(generator->device().type() == c10::DeviceType::XPU,
                "Expected a 'xpu' device type for generator but found '", generator->device().type(), "'");
  }
  at::Generator host = at::detail::createCPUGenerator();
  host.get<at::CPUGeneratorImpl>()->set_engine(engine_from(generator, device));
  return host;
}

// For random operators that take no generator and so draw from the CPU's default one: seeds it from the device's for
// as long as this lives, then puts it back. Another thread that draws from it meanwhile gets other numbers.
class SeededDefaultGenerator {
 public:
  explicit SeededDefaultGenerator(c10::DeviceIndex device) : saved_(generator().clone()) {
    std::lock_guard<std::mutex> guard(generator().mutex());
    impl()->set_engine(engine_from(std::nullopt, device));
    impl()->set_next_float_normal_sample(std::nullopt);
    impl()->set_next_double_normal_sample(std::nullopt);
  }
  ~SeededDefaultGenerator() {
    std::lock_guard<std::mutex> guard(generator().mutex());
    auto* saved = saved_.get<at::CPUGeneratorImpl>();
    impl()->set_engine(saved->engine());
    impl()->set_next_float_normal_sample(saved->next_float_normal_sample());
    impl()->set_next_double_normal_sample(saved->next_double_normal_sample());
  }
  SeededDefaultGenerator(const SeededDefaultGenerator&) = delete;
  SeededDefaultGenerator& operator=(const SeededDefaultGenerator&) = delete;

 private:
  static at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }
  static at::CPUGeneratorImpl* impl() { return generator().get<at::CPUGeneratorImpl>(); }
  at::Generator saved_;
};

// --- the call -----------------------------------------------------------------------------------------------

bool is_generator(const c10::Argument& argument) {
  const auto* type = argument.type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool is_written(const std::string& op, const c10::Argument& argument) {
  return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
         listed(kWrittenUnsaid, op, argument.name());
}

// Whether the operator gets memory of its own for this one, which it only writes. Many CPU kernels write an `out` whose
// memory is laid out otherwise than that of a result of their own, or is an argument's too, wrongly or beyond its end.
bool wants_fresh(const c10::OperatorHandle& op, const std::string& name, const c10::Argument& declared,
                 const Tensor& out, at::ArrayRef<IValue> given) {
  if (!declared.is_out() || (op.hasTag(at::Tag::pointwise) && !kNotPointwise.count(name))) return false;
  if (!out.is_contiguous() || out.is_conj() || out.is_neg()) return true;
  bool shared = false;
  for (const IValue& value : given) {
    for_each_tensor(value, [&](const Tensor& t) {
      shared |= t.unsafeGetTensorImpl() != out.unsafeGetTensorImpl() && t.has_storage() && t.is_alias_of(out);
    });
  }
  return shared;
}

// Makes the arguments of kDense as dense as they have to be.
void make_dense(const FunctionSchema& schema, const std::string& name, Stack& arguments) {
  const auto found = kDense.find(name);
  if (found == kDense.end()) return;
  std::optional<at::MemoryFormat> format;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (schema.arguments()[i].name() == "input") format = arguments[i].toTensor().suggest_memory_format();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (found->second.count(schema.arguments()[i].name()))
      arguments[i] = arguments[i].toTensor().contiguous(format.value());
}

// The arguments as the CPU kernel wants them. Returns whether a generator was among them.
bool to_host_arguments(const c10::OperatorHandle& op, const std::string& name, HostMemory& memory, c10::Device device,
                       Stack& arguments) {
  const FunctionSchema& schema = op.schema();
  const Stack given = arguments;
  bool generator = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& declared = schema.arguments()[i];
    IValue& value = arguments[i];
    if (is_generator(declared)) {
      generator = true;
      std::optional<at::Generator> given;
      if (!value.isNone()) given = value.toGenerator();
      value = host_generator(given, device.index());
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    } else if (declared.name() == "pin_memory") {
      value = IValue();
    } else if (value.isTensor() && on_xpu(value.toTensor()) &&
               wants_fresh(op, name, declared, value.toTensor(), given)) {
      value = memory.fresh(value.toTensor());
    } else {
      value = map_tensors(value, [&](const Tensor& t) { return on_xpu(t) ? memory.host(t) : t; });
    }
  }
  return generator;
}

// Of what a CPU kernel lacks, or adds up badly: its arguments in another type, and afterwards its results and what it
// wrote back.
class Widened {
 public:
  Widened(const FunctionSchema& schema, const std::string& name, Stack& arguments) {
    const std::string base = base_of(name);
    adds_ = kWidened.count(name) > 0 && adds_up(schema, arguments);
    const bool asks = kAsks.count(base) > 0;
    moves_ = asks || kMoves.count(base) > 0;
    for (const auto& [type, names] : kLacking)
      if (names.count(base)) lacking_.push_back(type);
    if (!adds_ && !moves_ && lacking_.empty()) return;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool written = is_written(name, schema.arguments()[i]);
      if (arguments[i].isInt() && schema.arguments()[i].name() == "dtype") {
        arguments[i] = wider(arguments[i].toScalarType());
      } else {
        arguments[i] = map_tensors(arguments[i], [&](const Tensor& t) { return widen(t, written); });
      }
    }
    if (asks) made_of_.clear();
  }

  void close(Stack& results) {
    if (made_of_.empty()) return;
    for (const auto& [twin, wide] : written_) {
      at::native::resize_output(twin, wide.sizes());
      twin.copy_(wide);
    }
    for (IValue& result : results) {
      result = map_tensors(result, [&](const Tensor& t) {
        for (const auto& [twin, wide] : written_)
          if (t.is_same(wide)) return twin;
        const auto found = made_of_.find(t.scalar_type());
        if (found == made_of_.end() || t._is_zerotensor()) return t;
        return same_bits(t.scalar_type(), found->second) ? t.view(found->second) : t.to(found->second);
      });
    }
  }

 private:
  // What only puts elements in their places is exact in any type, and who names a type gets it.
  static bool adds_up(const FunctionSchema& schema, const Stack& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = schema.arguments()[i].name();
      if (argument == "accumulate" && !arguments[i].toBool()) return false;
      if (argument == "dtype" && !arguments[i].isNone()) return false;
    }
    return true;
  }

  static bool same_bits(ScalarType a, ScalarType b) {
    return c10::elementSize(a) == c10::elementSize(b) && c10::isIntegralType(a, false) && c10::isIntegralType(b, false);
  }

  // The type that the kernel gets; what it makes of that type is of `type` again.
  ScalarType wider(ScalarType type) {
    const auto as = [&](ScalarType wide) {
      made_of_[wide] = type;
      return wide;
    };
    if (moves_) {
      if (type == ScalarType::UInt16) return as(ScalarType::Short);
      if (type == ScalarType::UInt32) return as(ScalarType::Int);
      if (type == ScalarType::UInt64) return as(ScalarType::Long);
    }
    const bool lacking = std::find(lacking_.begin(), lacking_.end(), type) != lacking_.end();
    if (type == ScalarType::ComplexHalf && lacking) {
      made_of_[ScalarType::Float] = ScalarType::Half;
      return as(ScalarType::ComplexFloat);
    }
    if ((type == ScalarType::Half || type == ScalarType::BFloat16) && (lacking || adds_)) {
      if (type == ScalarType::Half) made_of_[ScalarType::ComplexFloat] = ScalarType::ComplexHalf;
      return as(ScalarType::Float);
    }
    if (type == ScalarType::Bool && lacking) return as(ScalarType::Byte);
    return type;
  }

  Tensor widen(const Tensor& t, bool written) {
    if (!t.defined()) return t;
    const ScalarType type = wider(t.scalar_type());
    if (type == t.scalar_type()) return t;
    if (same_bits(t.scalar_type(), type)) return t.view(type);
    Tensor wide = t.to(type);
    if (written) written_.emplace_back(t, wide);
    return wide;
  }

  bool adds_ = false, moves_ = false;
  std::vector<ScalarType> lacking_;
  std::map<ScalarType, ScalarType> made_of_;
  std::vector<std::pair<Tensor, Tensor>> written_;
};

c10::Device result_device(at::ArrayRef<IValue> arguments, c10::Device device) {
  for (const auto& argument : arguments) {
    if (argument.isDevice()) {
      const auto asked = argument.toDevice();
      return asked.is_xpu() ? xpu_device(asked.has_index() ? asked.index() : device.index()) : asked;
    }
  }
  return device;
}

thread_local bool building = false;
thread_local bool waiting = false;

void run(const c10::OperatorHandle& op, const std::string& name, Stack& arguments) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd),
      "anyxpu: ", name, " has neither a kernel for xpu nor one for the CPU that could stand in for it. ",
      "Register one: torch.library.impl(\"", name, "\", \"XPU\").");
  // Autograd has done its part above us; nothing the CPU kernel calls inside may be recorded again.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
}

}  // namespace

void note_building() noexcept { building = true; }
bool waits_for_kernels() noexcept { return waiting; }

KernelsAwaited::KernelsAwaited() noexcept : outer_(std::exchange(waiting, true)) {}
KernelsAwaited::~KernelsAwaited() { waiting = outer_; }

void notice(const std::string& name) {
  if (std::exchange(building, false)) return;
  static auto* mutex = new std::mutex;
  static auto* said = new std::set<std::string>;
  const std::string base = name.substr(0, name.find('.'));
  {
    std::lock_guard<std::mutex> lock(*mutex);
    if (!said->insert(base).second) return;
  }
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  py::module_::import("anyxpu.ops.notice").attr("ran_on_the_host")(base);
}

namespace {
std::atomic<Eager> the_mode{Eager::compile};
}  // namespace

Eager eager() noexcept { return the_mode.load(std::memory_order_relaxed); }
void set_eager(Eager mode) noexcept { the_mode.store(mode, std::memory_order_relaxed); }

void refuse_if_strict(const std::string& name) {
  if (eager() != Eager::strict) return;
  std::string place;
  if (Py_IsInitialized()) {
    const py::gil_scoped_acquire gil;
    place = py::module_::import("anyxpu.ops.notice").attr("place")().cast<std::string>();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "anyxpu: ", name, place,
                              " has no kernel for xpu that takes these arguments, and ANYXPU_EAGER=strict refuses the "
                              "host. Give it other operands, or let the host serve it: ANYXPU_EAGER=auto.");
}

void refuse_overlap(const std::string& name, at::ArrayRef<Tensor> outs, at::ArrayRef<Tensor> read) {
  const std::string base = base_of(name);
  const bool never_same = kNeverSame.count(base) > 0;
  if (kApartFromFirst.count(base)) {
    if (read.empty() || outs.empty() || read[0].sizes() != outs[0].sizes()) return;
    read = read.slice(0, 1);
  } else if (!never_same && !kApart.count(base)) {
    return;
  }
  for (const Tensor& out : outs) {
    for (const Tensor& t : read) {
      if (!out.defined() || !t.defined() || !out.is_xpu() || !t.is_xpu()) continue;
      if (never_same) {
        at::assert_no_overlap(out, t);
      } else {
        at::assert_no_partial_overlap(out, t);
      }
    }
  }
}

namespace {

// As everywhere in torch, a tensor of the CPU may be written (not read) by indices that lie on xpu: these are brought
// to it. False for any other call.
bool writes_cpu_by_index(const c10::OperatorHandle& op, const std::string& name, Stack* stack) {
  static const std::set<std::string> kWriting = {"aten::index_put", "aten::index_put_", "aten::_index_put_impl",
                                                 "aten::_index_put_impl_", "aten::_unsafe_index_put"};
  if (kWriting.count(name) == 0) return false;
  IValue* given = &*(stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size()));
  if (!given[0].toTensor().is_cpu() || !given[2].toTensor().is_cpu()) return false;
  given[1] = map_tensors(given[1], [](const Tensor& t) { return on_xpu(t) ? t.cpu() : t; });
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  return true;
}

// Whether a call has tensors and none has elements: the CPU's kernel checks the arguments and says the result's shape,
// and there is nothing that a device would have computed.
bool reads_nothing(at::ArrayRef<IValue> arguments) {
  size_t tensors = 0, elements = 0;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& t) {
      ++tensors;
      elements += t.layout() == c10::kStrided && !t.is_nested() ? static_cast<size_t>(t.numel()) : 1;
    });
  }
  return tensors > 0 && elements == 0;
}

void serve_by_host(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto name = full_name(op);
  if (writes_cpu_by_index(op, name, stack)) return;
  const size_t count = schema.arguments().size();
  const Stack given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  const bool nothing = reads_nothing(given);
  if (!nothing) refuse_if_strict(name);
  const auto device = common_device(op, name, given);
  if (schema.arguments().size() > 0 && schema.arguments().back().is_out()) {
    std::vector<Tensor> outs, read;
    for (size_t i = 0; i < count; ++i)
      for_each_tensor(given[i], [&](const Tensor& t) { (schema.arguments()[i].is_out() ? outs : read).push_back(t); });
    refuse_overlap(name, outs, read);
  }
  op_counter(name).add(nothing ? Way::structural : Way::host);

  const c10::DeviceGuard guard(device);
  HostMemory memory(device.index());
  for (size_t i = 0; i < count; ++i) {
    const bool written = is_written(name, schema.arguments()[i]);
    for_each_tensor(given[i], [&](const Tensor& t) {
      if (on_xpu(t)) memory.use(t, written);
    });
  }
  memory.open();
  const HostTemporaries temporaries(name, device.index());
  Stack arguments = given;
  const bool has_generator = to_host_arguments(op, name, memory, device, arguments);
  make_dense(schema, name, arguments);
  Widened widened(schema, name, arguments);
  {
    std::optional<SeededDefaultGenerator> seeded;
    if (!has_generator && op.hasTag(at::Tag::nondeterministic_seeded)) seeded.emplace(device.index());
    {
      const WatchedHost watched(device.index(), name);
      run(op, name, arguments);
    }
    widened.close(arguments);
    if (kByColumns.count(name)) arguments[0] = arguments[0].toTensor().t().contiguous().t();
  }
  memory.close();

  torch::jit::drop(*stack, count);
  const auto target = result_device(given, device);
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (const auto argument = returned_argument(schema, schema.returns()[i])) {
      stack->push_back(given[*argument]);
    } else if (target.is_cpu() || listed(kHostResults, name, i)) {
      stack->push_back(std::move(arguments[i]));
    } else {
      stack->push_back(map_tensors(arguments[i], [&](const Tensor& t) { return memory.result(t, name); }));
    }
  }
  memory.finish();
  if (!nothing) notice(name);
}

}  // namespace

void host_or_kernel(const c10::OperatorHandle& op, Stack* stack, void (*by_host)(const c10::OperatorHandle&, Stack*)) {
  if (C10_UNLIKELY(the_recording != nullptr)) the_recording->spoil_for_now("an operator of the host");
  const size_t count = op.schema().arguments().size();
  const Stack given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  const size_t below = stack->size() - count;
  try {
    return by_host(op, stack);
  } catch (const c10::NotImplementedError&) {
    if (!std::exchange(building, false) || waiting) throw;
  }
  stack->resize(below);
  stack->insert(stack->end(), given.begin(), given.end());
  const KernelsAwaited awaited;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.callBoxed(stack);
}

void host_fallback(const c10::OperatorHandle& op, Stack* stack) { host_or_kernel(op, stack, &serve_by_host); }

const std::vector<std::string>& stubbed_composites() { return kStubbedComposites; }

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  for (const std::string& name : stubbed_composites()) {
    const size_t dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema(
        {"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
    // Of another torch an operator may be missing, or have its gradient from what it is made of.
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
  }
}

TORCH_LIBRARY_IMPL(_, XPU, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&host_fallback>()); }

}  // namespace anyxpu
