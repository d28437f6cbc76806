#include "shim/call_kind.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include <bit>
#include <cstring>

#include "shim/ops.h"

namespace anyxpu {
namespace {

using at::Tensor;
using c10::IValue;

constexpr size_t kMostTensors = 64;   // of one call
constexpr uintptr_t kAlignment = 64;  // of operands, as far as kernels' choices can depend on it

}  // namespace

bool CallKind::read(at::ArrayRef<IValue> given) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithmsWarnOnly()) return false;  // it warns at every call
  using Backend = at::Float32Backend;
  using Op = at::Float32Op;
  const auto precision = [&](Op op) { return static_cast<int64_t>(context.float32Precision(Backend::MKLDNN, op)); };
  int64_t flags = 0;
  for (const bool flag :
       {context.deterministicAlgorithms(), context.deterministicFillUninitializedMemory(), c10::GradMode::is_enabled(),
        context.userEnabledFlashSDP(), context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(),
        context.userEnabledOverrideableSDP(), at::autocast::is_autocast_enabled(c10::DeviceType::XPU)})
    flags = flags * 2 + (flag ? 1 : 0);
  add(flags);
  add(precision(Op::MATMUL) | precision(Op::CONV) << 8 | precision(Op::RNN) << 16 |
      static_cast<int64_t>(c10::get_default_dtype_as_scalartype()) << 24 | static_cast<int64_t>(eager()) << 32);
  for (const IValue& each : given)
    if (!value(each)) return false;
  return !tensors.empty();
}

template <class List>
bool CallKind::list(char tag, const List& elements) {
  add(tag);
  add(static_cast<int64_t>(elements.size()));
  for (const auto& each : elements) {
    if constexpr (std::is_same_v<std::decay_t<decltype(each)>, double>)
      add(std::bit_cast<int64_t>(each));
    else
      add(static_cast<int64_t>(each));
  }
  return true;
}

bool CallKind::value(const IValue& value) {
  if (value.isTensor()) return tensor(value.toTensor());
  if (value.isNone()) return add('n'), true;
  if (value.isBool()) return add('b'), add(value.toBool()), true;
  if (value.isInt()) return add('i'), add(value.toInt()), true;
  if (value.isDouble()) return add('d'), add(std::bit_cast<int64_t>(value.toDouble())), true;
  if (value.isIntList()) return list('I', value.toIntVector());
  if (value.isDoubleList()) return list('D', value.toDoubleVector());
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return add('c'), add(std::bit_cast<int64_t>(number.real())), add(std::bit_cast<int64_t>(number.imag())), true;
  }
  if (value.isString()) return list('s', value.toStringView());
  if (value.isDevice())
    return add('v'), add(static_cast<int64_t>(value.toDevice().type())), add(value.toDevice().index()), true;
  if (!value.isList()) return false;  // a generator
  const auto elements = value.toListRef();
  add('L');
  add(static_cast<int64_t>(elements.size()));
  for (const IValue& each : elements)
    if (!this->value(each)) return false;
  return true;
}

// A number in a tensor of the host's is part of the kind.
bool CallKind::host_number(const Tensor& t) {
  const bool plain = t.layout() == c10::kStrided && t.numel() == 1 && t.has_storage() && !t.is_conj() && !t.is_neg() &&
                     !t._is_zerotensor() && !t.unsafeGetTensorImpl()->is_python_dispatch();
  if (!plain || t.element_size() > static_cast<int64_t>(sizeof(c10::complex<double>))) return false;
  int64_t words[2] = {};
  std::memcpy(words, t.const_data_ptr(), t.element_size());
  add('h');
  add(static_cast<int64_t>(t.scalar_type()) | t.dim() << 16 | (t.unsafeGetTensorImpl()->is_wrapped_number() ? 256 : 0) |
      (t.requires_grad() ? 512 : 0));
  add(words[0]);
  add(words[1]);
  return true;
}

bool CallKind::tensor(const Tensor& t) {
  if (!t.defined()) return add('u'), true;
  if (t.is_cpu()) return host_number(t);
  const bool plain = t.is_xpu() && t.layout() == c10::kStrided && !t.is_nested() && !t.is_quantized() && !t.is_conj() &&
                     !t.is_neg() && !t._is_zerotensor() && t.has_storage() &&
                     !t.unsafeGetTensorImpl()->is_python_dispatch();
  if (!plain || tensors.size() == kMostTensors) return false;
  if (device >= 0 && t.device().index() != device) return false;
  device = t.device().index();
  const auto* address = static_cast<const char*>(t.const_data_ptr());
  add('t');
  add(static_cast<int64_t>(t.scalar_type()) | (t.requires_grad() ? 256 : 0) | t.dim() << 16 |
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) % kAlignment) << 32);
  add(device);
  for (const int64_t size : t.sizes()) add(size);
  for (const int64_t stride : t.strides()) add(stride);
  // How it lies to an operand of the same storage.
  const auto* storage = t.storage().unsafeGetStorageImpl();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->storage().unsafeGetStorageImpl() != storage) continue;
    add('a');
    add(static_cast<int64_t>(i) << 1 | (tensors[i]->unsafeGetTensorImpl() == t.unsafeGetTensorImpl() ? 1 : 0));
    add(address - static_cast<const char*>(tensors[i]->const_data_ptr()));
    break;
  }
  tensors.push_back(&t);
  return true;
}

}  // namespace anyxpu
