// Tensors of quantized types (qint8, quint8, qint32), whose elements stand for (element - zero point) * scale.
//
// Quantizing and dequantizing are made of dense operators, looking at a tensor is ATen's own code, and all else is
// computed by ATen's CPU kernels on copies.
#include <ATen/ATen.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <set>

#include "shim/arguments.h"
#include "shim/ops.h"
#include "shim/other_layouts.h"

namespace anyxpu {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::ScalarType;
using torch::jit::Stack;

void count(const char* name) { op_counter(name).add(Way::structural); }

// A quantized tensor over the memory of `elements`, which are of the type that lies under `type`.
Tensor over(const Tensor& elements, ScalarType type, at::QuantizerPtr quantizer) {
  Tensor made = at::detail::make_tensor<at::QTensorImpl>(c10::Storage(elements.storage()),
                                                         c10::DispatchKeySet(DispatchKey::QuantizedXPU),
                                                         c10::scalarTypeToTypeMeta(type), std::move(quantizer));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(elements.sizes(), elements.strides(), elements.storage_offset());
  return made;
}

// The elements of a quantized tensor as they lie, as a dense tensor over the same memory.
Tensor elements_of(const Tensor& t) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(t.storage()), c10::DispatchKeySet(t.device().is_xpu() ? DispatchKey::XPU : DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(c10::toUnderlying(t.scalar_type())));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}

bool whole_bytes(ScalarType type) {
  return type == ScalarType::QInt8 || type == ScalarType::QUInt8 || type == ScalarType::QInt32;
}

// Scales or zero points of channels, to go with a tensor of so many dimensions.
Tensor along(const Tensor& channels, int64_t axis, int64_t dims) {
  std::vector<int64_t> shape(static_cast<size_t>(dims), 1);
  shape[static_cast<size_t>(axis)] = channels.numel();
  return channels.view(shape);
}

// What ATen rounds to: the nearest integer, an even one of two.
Tensor rounded(const Tensor& t, const Tensor& scaled, const Tensor& zero_point, ScalarType type) {
  const bool is_signed = type == ScalarType::QInt8;
  return at::add(at::round(scaled), zero_point)
      .clamp(is_signed ? -128 : 0, is_signed ? 127 : 255)
      .to(c10::toUnderlying(type), false, false, t.suggest_memory_format());
}

std::string full(const char* name) { return std::string("aten::") + name; }

template <class... Arguments>
Tensor computed_on_copies(const char* name, const char* overload, Arguments... arguments) {
  Stack stack{c10::IValue(arguments)...};
  on_copies(c10::Dispatcher::singleton().findSchemaOrThrow(full(name).c_str(), overload), &stack);
  return stack.back().toTensor();
}

bool narrow(const Tensor& self, ScalarType type) {
  return self.scalar_type() == ScalarType::Float && (type == ScalarType::QInt8 || type == ScalarType::QUInt8);
}

Tensor by_tensor(const Tensor& self, double scale, int64_t zero_point, ScalarType type) {
  if (!narrow(self, type) || !(scale > 0))
    return computed_on_copies("quantize_per_tensor", "", self, scale, zero_point, type);
  count("aten::quantize_per_tensor");
  const float inverse = 1.0f / static_cast<float>(scale);
  const Tensor zero = at::scalar_tensor(static_cast<double>(zero_point), self.options());
  return over(rounded(self, at::mul(self, inverse), zero, type), type,
              at::make_per_tensor_affine_quantizer(scale, zero_point, type));
}

Tensor by_tensor_of_tensors(const Tensor& self, const Tensor& scale, const Tensor& zero_point, ScalarType type) {
  return by_tensor(self, scale.item().toDouble(), zero_point.item().toLong(), type);
}

Tensor by_channel(const Tensor& self, const Tensor& scales, const Tensor& zero_points, int64_t axis, ScalarType type) {
  const bool fine = axis >= 0 && axis < self.dim() && scales.dim() == 1 && scales.numel() == self.size(axis) &&
                    zero_points.sizes() == scales.sizes() && c10::isIntegralType(zero_points.scalar_type(), false) &&
                    scales.device() == self.device() && zero_points.device() == self.device();
  if (!narrow(self, type) || !fine)
    return computed_on_copies("quantize_per_channel", "", self, scales, zero_points, axis, type);
  count("aten::quantize_per_channel");
  const Tensor inverse = at::reciprocal(scales.to(ScalarType::Float));
  const Tensor scaled = at::mul(self, along(inverse, axis, self.dim()));
  const Tensor zero = along(zero_points.to(ScalarType::Float), axis, self.dim());
  return over(rounded(self, scaled, zero, type), type,
              at::make_per_channel_affine_quantizer(scales, zero_points, axis, type));
}

ScalarType quantized_type(ScalarType elements) {
  switch (elements) {
    case ScalarType::Char:
      return ScalarType::QInt8;
    case ScalarType::Byte:
      return ScalarType::QUInt8;
    case ScalarType::Int:
      return ScalarType::QInt32;
    default:
      TORCH_CHECK(false, "a quantized tensor is made of elements of int8, uint8 or int32, not ", elements);
  }
}

Tensor make_per_tensor(const Tensor& self, double scale, int64_t zero_point) {
  count("aten::_make_per_tensor_quantized_tensor");
  const ScalarType type = quantized_type(self.scalar_type());
  return over(self.clone(), type, at::make_per_tensor_affine_quantizer(scale, zero_point, type));
}

Tensor make_per_channel(const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t axis) {
  count("aten::_make_per_channel_quantized_tensor");
  const ScalarType type = quantized_type(self.scalar_type());
  return over(self.clone(), type, at::make_per_channel_affine_quantizer(scale, zero_point, axis, type));
}

using Format = std::optional<at::MemoryFormat>;

Tensor empty_elements(c10::IntArrayRef size, ScalarType type, std::optional<c10::Device> device, Format format) {
  TORCH_CHECK(whole_bytes(type), "anyxpu: tensors of ", type,
              " are not supported on xpu; qint8, quint8 and qint32 are");
  return at::empty(size, at::dtype(c10::toUnderlying(type)).device(device.value_or(xpu_device(-1))), format);
}

Tensor empty_by_tensor(c10::IntArrayRef size, std::optional<ScalarType> type, std::optional<c10::Layout>,
                       std::optional<c10::Device> device, std::optional<bool>, double scale, int64_t zero_point,
                       Format format) {
  TORCH_CHECK(type.has_value(), "the dtype of a quantized tensor has to be given");
  count("aten::_empty_affine_quantized");
  return over(empty_elements(size, *type, device, format), *type,
              at::make_per_tensor_affine_quantizer(scale, zero_point, *type));
}

Tensor empty_by_channel(c10::IntArrayRef size, const Tensor& scales, const Tensor& zero_points, int64_t axis,
                        std::optional<ScalarType> type, std::optional<c10::Layout>, std::optional<c10::Device> device,
                        std::optional<bool>, Format format) {
  TORCH_CHECK(type.has_value(), "the dtype of a quantized tensor has to be given");
  count("aten::_empty_per_channel_affine_quantized");
  const Tensor made = empty_elements(size, *type, device, format);
  return over(
      made, *type,
      at::make_per_channel_affine_quantizer(scales.to(made.device()), zero_points.to(made.device()), axis, *type));
}

Tensor elements(const Tensor& self) {
  if (!whole_bytes(self.scalar_type())) return computed_on_copies("int_repr", "", self);
  count("aten::int_repr");
  return elements_of(self).clone(self.suggest_memory_format());
}

Tensor dequantized(const Tensor& self) {
  const auto quantizer = at::get_qtensorimpl(self)->quantizer();
  const auto scheme = quantizer->qscheme();
  if (!whole_bytes(self.scalar_type()) || (scheme != c10::kPerTensorAffine && scheme != c10::kPerChannelAffine))
    return computed_on_copies("dequantize", "self", self);
  count("aten::dequantize.self");
  const Tensor numbers = elements_of(self).to(ScalarType::Float, false, false, self.suggest_memory_format());
  if (scheme == c10::kPerTensorAffine) {
    const auto* one = static_cast<at::PerTensorAffineQuantizer*>(quantizer.get());
    return at::sub(numbers, one->zero_point()).mul_(static_cast<double>(static_cast<float>(one->scale())));
  }
  const auto* channels = static_cast<at::PerChannelAffineQuantizer*>(quantizer.get());
  const Tensor zero = along(channels->zero_points().to(ScalarType::Float), channels->axis(), self.dim());
  return at::sub(numbers, zero).mul_(along(channels->scales().to(ScalarType::Float), channels->axis(), self.dim()));
}

Tensor cloned(const Tensor& self, std::optional<at::MemoryFormat> format) {
  if (!whole_bytes(self.scalar_type())) return computed_on_copies("clone", "", self, format);
  count("aten::clone");
  return over(elements_of(self).clone(format), self.scalar_type(), at::get_qtensorimpl(self)->quantizer());
}

// Between two devices, or to quantized elements from numbers.
Tensor& copied(Tensor& self, const Tensor& src, bool non_blocking) {
  count("aten::copy_");
  TORCH_CHECK(self.is_quantized(), "a quantized tensor is not copied into one of ", self.scalar_type(),
              ": call dequantize() on it");
  TORCH_CHECK(!src.is_quantized() || self.scalar_type() == src.scalar_type(), "a quantized tensor of ",
              src.scalar_type(), " is not copied into one of ", self.scalar_type());
  if (src.is_quantized()) {
    const Tensor from = moved(src, self.device());
    elements_of(self).copy_(elements_of(from), non_blocking);
    at::set_quantizer_(self, at::get_qtensorimpl(from)->quantizer());
    return self;
  }
  const auto quantizer = at::get_qtensorimpl(self)->quantizer();
  TORCH_CHECK(quantizer->qscheme() == c10::kPerTensorAffine && src.scalar_type() == ScalarType::Float,
              "numbers are copied into tensors that are quantized by tensor, and only float32");
  const auto* one = static_cast<at::PerTensorAffineQuantizer*>(quantizer.get());
  const Tensor made =
      at::quantize_per_tensor(src.to(self.device()), one->scale(), one->zero_point(), self.scalar_type());
  elements_of(self).copy_(elements_of(made));
  return self;
}

Tensor to_copy(const Tensor& self, std::optional<ScalarType> type, std::optional<c10::Layout>,
               std::optional<c10::Device> device, std::optional<bool>, bool, Format format) {
  TORCH_CHECK(type.value_or(self.scalar_type()) == self.scalar_type(), "a quantized tensor is not converted to ", *type,
              ": call dequantize() or int_repr() on it");
  count("aten::_to_copy");
  const c10::Device target = device.value_or(self.device());
  const Tensor there = target == self.device() ? self.clone() : moved(self, target);
  return format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve ? there : there.contiguous(*format);
}

// ATen's code for the CPU, on the tensor as it is: it looks at it, or makes a view of it.
void by_cpu(const c10::OperatorHandle& op, Stack* stack) {
  op_counter(full_name(op)).add(Way::structural);
  op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::QuantizedCPU), stack);
}

const std::set<std::string> kLooks = {"empty_quantized",
                                      "_reshape_alias",
                                      "as_strided",
                                      "q_per_channel_axis",
                                      "qscheme",
                                      "q_scale",
                                      "q_per_channel_scales",
                                      "q_zero_point",
                                      "set_.source_Storage_storage_offset",
                                      "q_per_channel_zero_points",
                                      "squeeze",
                                      "squeeze.dim",
                                      "squeeze.dims",
                                      "unfold",
                                      "unsqueeze",
                                      "view"};
const std::set<std::string> kOurs = {"_empty_affine_quantized", "_empty_per_channel_affine_quantized", "clone",
                                     "dequantize.self", "int_repr"};

// Makers of quantized tensors out of dense ones, with whichever CPU kernel.
constexpr std::array kMakers{"quantize_per_tensor_dynamic", "quantize_per_tensor.tensors"};

}  // namespace

TORCH_LIBRARY_IMPL(aten, QuantizedXPU, library) {
  for_each_aten_kernel(DispatchKey::QuantizedCPU, [&](const std::string& name, const c10::OperatorHandle&) {
    if (kOurs.count(name)) return;
    library.impl(name.c_str(), kLooks.count(name) ? torch::CppFunction::makeFromBoxedFunction<&by_cpu>()
                                                  : torch::CppFunction::makeFromBoxedFunction<&on_copies>());
  });
  library.impl("_empty_affine_quantized", &empty_by_tensor);
  library.impl("_empty_per_channel_affine_quantized", &empty_by_channel);
  library.impl("clone", &cloned);
  library.impl("_to_copy", &to_copy);
  library.impl("copy_", &copied);
  library.impl("dequantize.self", &dequantized);
  library.impl("int_repr", &elements);
}

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  library.impl("quantize_per_tensor", &by_tensor);
  library.impl("quantize_per_tensor.tensor_qparams", &by_tensor_of_tensors);
  library.impl("quantize_per_channel", &by_channel);
  library.impl("_make_per_tensor_quantized_tensor", &make_per_tensor);
  library.impl("_make_per_channel_quantized_tensor", &make_per_channel);
  for (const char* name : kMakers) {
    const auto op = aten_operator(name);
    if (op && op->hasKernelForDispatchKey(DispatchKey::CPU))
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_copies>());
  }
}

}  // namespace anyxpu
