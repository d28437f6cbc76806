#include "shim/other_layouts.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DeviceGuard.h>

#include "shim/arguments.h"
#include "shim/notice.h"
#include "shim/ops.h"

namespace anyxpu {
namespace {

using at::Tensor;
using at::native::NestedTensorImpl;
using c10::IValue;
using torch::jit::Stack;

NestedTensorImpl* nested(const Tensor& t) { return static_cast<NestedTensorImpl*>(t.unsafeGetTensorImpl()); }
at::SparseTensorImpl* coo(const Tensor& t) { return static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl()); }
at::SparseCsrTensorImpl* compressed(const Tensor& t) {
  return static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl());
}

bool is_compressed(const Tensor& t) {
  const auto layout = t.layout();
  return layout == c10::kSparseCsr || layout == c10::kSparseCsc || layout == c10::kSparseBsr ||
         layout == c10::kSparseBsc;
}

// The bytes of a quantized tensor's storage, as a dense tensor.
Tensor bytes_of(const Tensor& t) {
  const auto device = t.device();
  Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(t.storage()), c10::DispatchKeySet(device.is_xpu() ? c10::DispatchKey::XPU : c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(c10::ScalarType::Byte));
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(t.storage().nbytes())});
  return bytes;
}

Tensor quantized_moved(const Tensor& t, c10::Device device) {
  auto quantizer = at::get_qtensorimpl(t)->quantizer();
  // Scales of channels lie where the tensor does.
  if (const auto* channels = dynamic_cast<at::PerChannelAffineQuantizer*>(quantizer.get())) {
    quantizer = at::make_per_channel_affine_quantizer(channels->scales().to(device), channels->zero_points().to(device),
                                                      channels->axis(), t.scalar_type());
  }
  const Tensor bytes = bytes_of(t).to(device);
  Tensor made = at::detail::make_tensor<at::QTensorImpl>(
      c10::Storage(bytes.storage()),
      c10::DispatchKeySet(device.is_xpu() ? c10::DispatchKey::QuantizedXPU : c10::DispatchKey::QuantizedCPU), t.dtype(),
      quantizer);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}

void write_back(const Tensor& target, const Tensor& from) {
  if (target.is_nested()) {
    nested(target)->get_unsafe_storage_as_tensor().copy_(nested(from)->get_unsafe_storage_as_tensor());
  } else if (target.is_sparse()) {
    const Tensor there = moved(from, target.device());
    coo(target)->raw_resize_(from.sparse_dim(), from.dense_dim(), from.sizes());
    coo(target)->set_indices_and_values_unsafe(coo(there)->indices(), coo(there)->values());
    coo(target)->set_coalesced(coo(from)->coalesced());
  } else if (is_compressed(target)) {
    const Tensor there = moved(from, target.device());
    compressed(target)->set_member_tensors(compressed(there)->compressed_indices(), compressed(there)->plain_indices(),
                                           compressed(there)->values(), from.sizes());
  } else if (target.is_quantized()) {
    bytes_of(target).copy_(bytes_of(from));
  } else {
    Tensor dense = target;
    if (dense.sizes() != from.sizes()) resize_tensor(dense.unsafeGetTensorImpl(), from.sizes(), std::nullopt);
    dense.copy_(from);
  }
}

}  // namespace

Tensor moved(const Tensor& t, c10::Device device) {
  if (t.is_nested())
    return at::detail::make_tensor<NestedTensorImpl>(nested(t)->get_unsafe_storage_as_tensor().to(device),
                                                     nested(t)->get_nested_sizes(), nested(t)->get_nested_strides(),
                                                     nested(t)->get_storage_offsets());
  if (t.is_sparse())
    return at::_sparse_coo_tensor_with_dims_and_tensors(t.sparse_dim(), t.dense_dim(), t.sizes(),
                                                        coo(t)->indices().to(device), coo(t)->values().to(device),
                                                        t.options().device(device), coo(t)->coalesced());
  if (is_compressed(t))
    return at::_sparse_compressed_tensor_unsafe(
        compressed(t)->compressed_indices().to(device), compressed(t)->plain_indices().to(device),
        compressed(t)->values().to(device), t.sizes(), t.options().device(device));
  if (t.is_quantized()) return quantized_moved(t, device);
  return t.to(device);
}

void on_copies(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = full_name(op);
  for (const auto& result : schema.returns()) {
    TORCH_CHECK_NOT_IMPLEMENTED(result.alias_info() == nullptr || result.alias_info()->isWrite(), "anyxpu: ", name,
                                " makes a view, and is not served for tensors of this layout on xpu. Use a dense "
                                "tensor or, of a nested one, layout=torch.jagged; or do this part on the CPU.");
  }
  refuse_if_strict(name);
  const size_t count = schema.arguments().size();
  const Stack given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  c10::Device device = xpu_device(-1);
  for (const IValue& value : given)
    for_each_tensor(value, [&](const Tensor& t) {
      if (on_xpu(t)) device = t.device();
    });
  const c10::OptionalDeviceGuard guard(device.has_index() ? std::optional(device) : std::nullopt);
  Stack arguments;
  std::map<const c10::TensorImpl*, Tensor> made;  // a tensor given twice stays one
  const auto copy = [&](const Tensor& t) {
    if (!on_xpu(t)) return t;
    Tensor& one = made[t.unsafeGetTensorImpl()];
    if (one.defined()) return one;
    one = moved(t, c10::kCPU);
    if (t.requires_grad()) one.set_requires_grad(true);  // some kernels make what their gradient needs only then
    return one;
  };
  for (const IValue& value : given) {
    if (value.isDevice() && value.toDevice().is_xpu()) {
      device = value.toDevice();
      arguments.emplace_back(c10::Device(c10::kCPU));
      continue;
    }
    arguments.push_back(map_tensors(value, copy));
  }
  const Stack copies = arguments;
  op_counter(name).add(Way::host);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.callBoxed(&arguments);
  for (size_t i = 0; i < count; ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->isWrite() && given[i].isTensor() && on_xpu(given[i].toTensor()))
      write_back(given[i].toTensor(), copies[i].toTensor());
  }
  notice(name);
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const auto argument = returned_argument(schema, schema.returns()[i]);
    stack->push_back(argument ? given[*argument] : map_tensors(arguments[i], [&](const Tensor& t) {
      return t.defined() ? moved(t, device) : t;
    }));
  }
}

std::optional<c10::OperatorHandle> aten_operator(std::string_view name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {"aten::" + std::string(name.substr(0, dot)),
       dot == std::string_view::npos ? "" : std::string(name.substr(dot + 1))});
}

}  // namespace anyxpu
