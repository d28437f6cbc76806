// Nested tensors of the strided layout, whose elements are of different sizes and lie in one buffer.
//
// What only looks at the sizes, or makes a view, is ATen's own code, which asks nothing of the device; all else is
// computed by ATen's CPU kernels on copies. (The jagged layout is made of dense tensors in Python and needs none of
// this but for attention, which goes through the strided one.)
#include <ATen/NestedTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "shim/arguments.h"
#include "shim/notice.h"
#include "shim/ops.h"

namespace anyxpu {
namespace {

using at::Tensor;
using at::native::NestedTensorImpl;
using c10::IValue;
using torch::jit::Stack;

NestedTensorImpl* nested_impl(const Tensor& t) { return static_cast<NestedTensorImpl*>(t.unsafeGetTensorImpl()); }

// The same tensor over a buffer on `device`.
Tensor moved(const Tensor& t, c10::Device device) {
  if (!t.is_nested()) return t.to(device);
  const auto* impl = nested_impl(t);
  return at::detail::make_tensor<NestedTensorImpl>(nested_impl(t)->get_unsafe_storage_as_tensor().to(device),
                                                   impl->get_nested_sizes(), impl->get_nested_strides(),
                                                   impl->get_storage_offsets());
}

void write_back(const Tensor& target, const Tensor& from) {
  if (target.is_nested()) {
    nested_impl(target)->get_unsafe_storage_as_tensor().copy_(nested_impl(from)->get_unsafe_storage_as_tensor());
  } else {
    Tensor dense = target;
    dense.copy_(from);
  }
}

void on_copies(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = full_name(op);
  for (const auto& result : schema.returns()) {
    TORCH_CHECK_NOT_IMPLEMENTED(result.alias_info() == nullptr || result.alias_info()->isWrite(), "anyxpu: ", name,
                                " makes a view, and is not served for nested tensors of the strided layout on xpu. ",
                                "Use layout=torch.jagged, or do this part on the CPU.");
  }
  const size_t count = schema.arguments().size();
  const Stack given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  c10::Device device = xpu_device(-1);
  Stack arguments;
  for (const IValue& value : given) {
    if (value.isDevice() && value.toDevice().is_xpu()) {
      device = value.toDevice();
      arguments.emplace_back(c10::Device(c10::kCPU));
      continue;
    }
    arguments.push_back(map_tensors(value, [&](const Tensor& t) {
      if (!t.defined() || !t.device().is_xpu()) return t;
      device = t.device();
      return moved(t, c10::kCPU);
    }));
  }
  const Stack copies = arguments;
  op_counter(name).add(Way::host);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.callBoxed(&arguments);
  for (size_t i = 0; i < count; ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->isWrite() && given[i].isTensor())
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

void by_nested_cpu(const c10::OperatorHandle& op, Stack* stack) {
  op_counter(full_name(op)).add(Way::structural);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU), stack);
}

void by_cpu(const c10::OperatorHandle& op, Stack* stack) {
  op_counter(full_name(op)).add(Way::structural);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Of the sizes, or a view, or a copy of the buffer as a whole: the code for NestedTensorCPU touches no element itself.
constexpr std::array<std::string_view, 20> kOfSizes{"_nested_tensor_size",
                                                    "_nested_tensor_strides",
                                                    "_nested_tensor_storage_offsets",
                                                    "is_same_size",
                                                    "detach",
                                                    "alias",
                                                    "values",
                                                    "unbind.int",
                                                    "select.int",
                                                    "transpose.int",
                                                    "view",
                                                    "chunk",
                                                    "split_with_sizes",
                                                    "squeeze",
                                                    "squeeze.dim",
                                                    "unsqueeze",
                                                    "empty_like",
                                                    "clone",
                                                    "_to_copy",
                                                    "copy_"};

// Makers of nested tensors out of dense ones: of the buffer that is given, and by reading elements.
constexpr std::array kOverBuffer{"_nested_view_from_buffer", "_nested_view_from_buffer_copy"};
constexpr std::array kFromElements{"_nested_tensor_from_mask", "_nested_tensor_from_mask_left_aligned",
                                   "_nested_from_padded", "_nested_from_padded_and_nested_example"};

bool has_kernel(const std::string& name, c10::DispatchKey key) {
  const size_t dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  return op && op->hasKernelForDispatchKey(key);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, NestedTensorXPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_copies>());
}

// Each by name: what torch makes of others for dense tensors would be taken before the fallback.
TORCH_LIBRARY_IMPL(aten, NestedTensorXPU, library) {
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.rfind("aten::", 0) != 0) continue;
    const auto found = c10::Dispatcher::singleton().findSchema(op);
    if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU)) continue;
    const std::string name = op.name.substr(6) + (op.overload_name.empty() ? "" : "." + op.overload_name);
    const bool of_sizes = std::find(kOfSizes.begin(), kOfSizes.end(), name) != kOfSizes.end();
    library.impl(name.c_str(), of_sizes ? torch::CppFunction::makeFromBoxedFunction<&by_nested_cpu>()
                                        : torch::CppFunction::makeFromBoxedFunction<&on_copies>());
  }
}

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  for (const char* name : kOverBuffer)
    if (has_kernel(name, c10::DispatchKey::CPU))
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
  for (const char* name : kFromElements)
    if (has_kernel(name, c10::DispatchKey::CPU))
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_copies>());
}

}  // namespace anyxpu
