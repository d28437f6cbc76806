// The Python face of the operators: who serves what, how often, and where kernels come from.
#include <ATen/native/Resize.h>

#include "shim/bindings.h"
#include "shim/host_call.h"
#include "shim/notice.h"
#include "shim/ops.h"
#include "shim/recording.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

py::dict counters() {
  py::dict all;
  for_each_counter([&](const std::string& name, OpCounter& counter) {
    py::dict ways;
    for (size_t i = 0; i < kWayNames.size(); ++i) {
      if (const auto count = counter.get(static_cast<Way>(i))) ways[kWayNames[i]] = count;
    }
    if (!ways.empty()) all[py::str(name)] = ways;
  });
  return all;
}

Way way_named(const std::string& name) {
  for (size_t i = 0; i < kWayNames.size(); ++i) {
    if (name == kWayNames[i]) return static_cast<Way>(i);
  }
  throw py::value_error("no such way to serve an operator: " + name);
}

// Counts one operator without looking its name up each time.
class Counted {
 public:
  Counted(const std::string& name, const std::string& way) : counter_(op_counter(name)), way_(way_named(way)) {}
  void operator()() const { counter_.add(way_); }

 private:
  OpCounter& counter_;
  Way way_;
};

// While a call is recorded, its seed and offset are numbers that know what they are: a launch that takes them as they
// come takes others when the call is repeated.
py::object drawn_state(const std::optional<at::Generator>& generator, uint64_t increment, c10::DeviceIndex device) {
  const auto [seed, offset] = philox_state(generator, increment, device);
  if (the_recording == nullptr) return py::make_tuple(seed, offset);
  if (generator && generator->defined()) {
    the_recording->spoil("a generator of the caller's");
    return py::make_tuple(seed, offset);
  }
  return drawn_numbers(the_recording->drew(increment), seed, offset);
}

std::vector<std::string> structural_names() {
  std::vector<std::string> names;
  for (const auto& entry : structural_operators()) names.push_back(entry.first);
  return names;
}

}  // namespace

void bind_ops(py::module_& m) {
  m.def("op_counters", &counters, "dict[operator][way] = how often, for what was called at least once.");
  m.def(
      "reset_op_counters", [] { for_each_counter([](const std::string&, OpCounter& counter) { counter.reset(); }); },
      "Set every operator's counts to zero.");
  m.def(
      "count_op", [](const std::string& name, const std::string& way) { op_counter(name).add(way_named(way)); },
      py::arg("name"), py::arg("way"), "Count one call of operator `name`, served in the way `way`.");
  py::class_<Counted>(m, "OpCount", "Calling it counts one call of operator `name`, served in the way `way`.")
      .def(py::init<const std::string&, const std::string&>(), py::arg("name"), py::arg("way"))
      .def("__call__", &Counted::operator());
  m.def(
      "philox_state", &drawn_state, py::arg("generator"), py::arg("increment"), py::arg("device"),
      "Reserve `increment` philox outputs a work-item of a generator (None: the device's own); (seed, offset) to use.");
  m.def("stubbed_composites", &stubbed_composites, "Composites of torch, without namespace, that the host serves.");
  m.def("structural_operators", &structural_names, "The operators that the shim serves without arithmetic.");
  m.def(
      "set_kernel_provider", [](const py::function& provider) { set_kernel_provider(provider.ptr()); },
      py::arg("provider"),
      "Set who makes device kernels: provider(device, family, source, destination, walk) -> Kernel or None.");
  m.def(
      "eager", [] { return kEagerNames[static_cast<size_t>(eager())]; },
      "How eager operators are served: compile, auto, host or strict.");
  m.def(
      "set_eager",
      [](const std::string& name) {
        for (size_t i = 0; i < kEagerNames.size(); ++i) {
          if (name == kEagerNames[i]) return set_eager(static_cast<Eager>(i));
        }
        throw py::value_error("no way to serve eager operators is called " + name);
      },
      py::arg("mode"), "Set what ANYXPU_EAGER says.");
  m.def(
      "refuse_overlap",
      [](const std::string& name, const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& read) {
        refuse_overlap(name, outs, read);
      },
      py::arg("name"), py::arg("outs"), py::arg("read"),
      "Raise torch's error where operator `name` does not allow that `outs` overlap what it reads.");
  m.def(
      "resize_output",
      [](const at::Tensor& out, const std::vector<int64_t>& sizes, at::MemoryFormat format) {
        const bool resized = at::native::resize_output(out, sizes);
        if (resized && format != at::MemoryFormat::Contiguous) out.unsafeGetTensorImpl()->empty_tensor_restride(format);
        return resized;
      },
      py::arg("out"), py::arg("sizes"), py::arg("format"),
      "Give an operator's `out` its sizes, with torch's warning where it has others and elements.");
  m.def("note_building", &note_building, "Say nothing of this thread's next host call: its kernel is being built.");
  m.def("waits_for_kernels", &waits_for_kernels,
        "Is no kernel of this thread's call to be left to the host meanwhile?");
  m.def(
      "call_with_kernels_awaited",
      [](const py::function& function, const py::args& arguments) {
        const KernelsAwaited awaited;
        return function(*arguments);
      },
      py::arg("function"), "Call a function, whose operators leave nothing to the host while a kernel is built.");
  m.def("host_call", &host_call, py::arg("name"), py::arg("overload"),
        "Run operator `name`.`overload` on the host path with the arguments that follow.");
  m.def("set_host_copies", &set_host_copies, py::arg("always"),
        "Run host operators on copies even where the host can read device memory; for tests.");
}

}  // namespace anyxpu
