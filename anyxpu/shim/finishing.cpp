// The end of the process. Autograd's thread of a device lets go of a graph after backward() has returned, and takes the
// GIL for the tensors that Python knows; if the interpreter is just finishing, that ends the process by
// std::terminate. So the last thing before is to wait until these threads have nothing more to do.
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include "shim/bindings.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

namespace py = pybind11;
namespace autograd = torch::autograd;

struct Nothing : autograd::Node {
  autograd::variable_list apply(autograd::variable_list&& inputs) override { return {}; }
};

// torch holds nodes by its own pointer from 2.13 on, and by std::shared_ptr before.
using NodePointer = decltype(autograd::Edge::function);

template <class Kind>
NodePointer make_node() {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<autograd::Node>>) {
    return std::make_shared<Kind>();
  } else {
    return c10::make_intrusive<Kind>();
  }
}

// A backward of nothing: the device's thread takes it after it has let go of the graphs before.
void backward_of_nothing(c10::DeviceIndex device) {
  const at::Tensor gradient = at::empty({0}, at::TensorOptions().device(c10::DeviceType::XPU, device));
  const NodePointer node = make_node<Nothing>();
  node->add_input_metadata(gradient);
  autograd::Engine::get_default_engine().execute({autograd::Edge(node, 0)}, {gradient}, /*keep_graph=*/false,
                                                 /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace

void bind_finishing(py::module_& m) {
  m.def(
      "finish_backward",
      [] {
        for (c10::DeviceIndex device = 0; device < device_count(); ++device) backward_of_nothing(device);
      },
      py::call_guard<py::gil_scoped_release>(),
      "Wait until autograd's threads of all devices have let go of the graphs that they have walked.");
}

}  // namespace anyxpu
