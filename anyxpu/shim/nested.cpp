// Nested tensors of the strided layout, whose elements are of different sizes and lie in one buffer.
//
// What only looks at the sizes, or makes a view, is ATen's own code, which asks nothing of the device. What is served
// by kernels is registered over this by ops/other_layouts.py; all else is computed by ATen's CPU kernels on copies.
// (The jagged layout is made of dense tensors in Python and needs none of this but for attention, which goes through
// the strided one.)
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "shim/arguments.h"
#include "shim/ops.h"
#include "shim/other_layouts.h"

namespace anyxpu {
namespace {

using torch::jit::Stack;

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

bool has_kernel(std::string_view name, c10::DispatchKey key) {
  const auto op = aten_operator(name);
  return op && op->hasKernelForDispatchKey(key);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, NestedTensorXPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_copies>());
}

// Each by name: what torch makes of others for dense tensors would be taken before the fallback.
TORCH_LIBRARY_IMPL(aten, NestedTensorXPU, library) {
  for_each_aten_kernel(c10::DispatchKey::NestedTensorCPU, [&](const std::string& name, const c10::OperatorHandle&) {
    const bool of_sizes = std::find(kOfSizes.begin(), kOfSizes.end(), name) != kOfSizes.end();
    library.impl(name.c_str(), of_sizes ? torch::CppFunction::makeFromBoxedFunction<&by_nested_cpu>()
                                        : torch::CppFunction::makeFromBoxedFunction<&on_copies>());
  });
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
