// The host path asked for by name: what a library's kernel does with a call that it declines.
#include "shim/host_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "shim/arguments.h"
#include "shim/ops.h"
#include "shim/other_layouts.h"

namespace anyxpu {

namespace py = pybind11;

py::object host_call(const std::string& name, const std::string& overload, const py::args& args,
                     const py::kwargs& kwargs) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  // A tensor that stands for a number is a number in Python.
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  auto stack = torch::jit::createStackForSchema(op.schema(), torch::jit::tuple_slice(args), kwargs, std::nullopt);
  bool dense = true;
  for (const auto& value : stack)
    for_each_tensor(value, [&](const at::Tensor& t) {
      dense &= !on_xpu(t) || (t.layout() == c10::kStrided && !t.is_nested() && !t.is_quantized());
    });
  {
    py::gil_scoped_release no_gil;
    if (dense) {
      host_fallback(op, &stack);
    } else {
      host_or_kernel(op, &stack, &on_copies);
    }
  }
  return torch::jit::createPyObjectForStack(std::move(stack));
}

}  // namespace anyxpu
