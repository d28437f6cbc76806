// Tensors that are not dense: nested, sparse and quantized ones, on another device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

namespace anyxpu {

// The same tensor, of whichever layout, over buffers on `device`.
at::Tensor moved(const at::Tensor& t, c10::Device device);

// Runs an operator by ATen's CPU kernels on copies of its arguments; counted as host. What was written is brought back.
void on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The operator `name` of aten ("add.out") of this torch, if it has it.
std::optional<c10::OperatorHandle> aten_operator(std::string_view name);

// Calls visit(name, operator) for each operator of aten that has a kernel for `key`.
template <class Visit>
void for_each_aten_kernel(c10::DispatchKey key, Visit visit) {
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.rfind("aten::", 0) != 0) continue;
    const auto found = c10::Dispatcher::singleton().findSchema(op);
    if (!found || !found->hasKernelForDispatchKey(key)) continue;
    visit(op.name.substr(6) + (op.overload_name.empty() ? "" : "." + op.overload_name), *found);
  }
}

}  // namespace anyxpu
