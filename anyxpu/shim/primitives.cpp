#include "shim/primitives.h"

#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include "shim/bindings.h"
#include "shim/commands.h"
#include "shim/gil.h"
#include "shim/recording.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

constexpr intptr_t kUsm = 0;  // dnnl_sycl_interop_usm

// dnnl_exec_arg_t
struct ExecArg {
  int arg;
  void* memory;
};

using Guarded = int (*)(void* target, void*, void*, void*, void*, void*, void*);
using Destroy = int (*)(void*);
using Submit = int (*)(void* queue, void* target, void* primitive, void* stream, void* count, void* args, void*, void*);
using Take = int (*)(void* queue, uint64_t operations, void* target, void* primitive, void* stream, void* count,
                     void* args, void*, void*);

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// Of one submission: oneDNN reads a memory's address when the work runs, so a memory is never used again.
class Memories {
 public:
  explicit Memories(Destroy destroy) : destroy_(destroy) {}
  ~Memories() {
    for (const ExecArg& each : made) destroy_(each.memory);
  }
  Memories(const Memories&) = delete;
  Memories& operator=(const Memories&) = delete;

  c10::SmallVector<ExecArg, 12> made;

 private:
  Destroy destroy_;
};

}  // namespace

void Primitive::fail(const char* call, int status) const {
  const py::gil_scoped_acquire gil;
  const py::object error = py::module_::import("anyxpu.onednn.capi").attr("error")(call, status, what_);
  PyErr_SetObject(py::type::handle_of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

void Primitive::run(uintptr_t stream, ax_queue* queue, bool taken, at::ArrayRef<uintptr_t> addresses) {
  TORCH_CHECK_VALUE(addresses.size() == operands_.size(), "anyxpu: ", what_, " takes ", operands_.size(),
                    " addresses, and is given ", addresses.size());
  const auto create = reinterpret_cast<Guarded>(calls_.guarded);
  Memories memories(reinterpret_cast<Destroy>(calls_.memory_destroy));
  for (size_t i = 0; i < operands_.size(); ++i) {
    void* memory = nullptr;
    const int status = create(pointer(calls_.memory_create), &memory, pointer(operands_[i].descriptor),
                              pointer(engine_), pointer(kUsm), pointer(addresses[i]), nullptr);
    if (status != 0) fail("sycl_interop_memory_create", status);
    memories.made.push_back({operands_[i].arg, memory});
  }
  void* const count = pointer(memories.made.size());
  int status = 0;
  {
    const GilReleased no_gil;
    const WatchedPrimitive watched(queue, what_);
    status =
        taken ? reinterpret_cast<Take>(calls_.take)(queue, operations, pointer(calls_.execute), pointer(handle_),
                                                    pointer(stream), count, memories.made.data(), nullptr, nullptr)
              : reinterpret_cast<Submit>(calls_.submit)(queue, pointer(calls_.execute), pointer(handle_),
                                                        pointer(stream), count, memories.made.data(), nullptr, nullptr);
  }
  if (status != 0) fail("sycl_interop_primitive_execute", status);
  if (C10_UNLIKELY(the_recording != nullptr)) the_recording->ran(queue, shared_from_this(), stream, taken, addresses);
}

void bind_primitives(py::module_& m) {
  py::class_<PrimitiveCalls>(m, "PrimitiveCalls", "Addresses of the calls that running a primitive takes.")
      .def(py::init([](uintptr_t guarded, uintptr_t create, uintptr_t destroy, uintptr_t submit, uintptr_t take,
                       uintptr_t execute) { return PrimitiveCalls{guarded, create, destroy, submit, take, execute}; }),
           py::arg("guarded"), py::arg("memory_create"), py::arg("memory_destroy"), py::arg("submit"), py::arg("take"),
           py::arg("execute"));
  py::class_<Primitive, std::shared_ptr<Primitive>>(m, "Primitive", "A primitive of oneDNN with its operands' layouts.")
      .def(py::init([](const PrimitiveCalls& calls, uintptr_t handle, uintptr_t engine,
                       const std::vector<std::pair<int, uintptr_t>>& operands, uint64_t operations, std::string what) {
             std::vector<Primitive::Operand> all;
             for (const auto& [arg, descriptor] : operands) all.push_back({arg, descriptor});
             return std::make_shared<Primitive>(calls, handle, engine, std::move(all), operations, std::move(what));
           }),
           py::arg("calls"), py::arg("handle"), py::arg("engine"), py::arg("operands"), py::arg("operations"),
           py::arg("what"))
      .def(
          "run",
          [](Primitive& self, uintptr_t stream, uintptr_t queue, bool taken, const std::vector<uintptr_t>& addresses) {
            self.run(stream, reinterpret_cast<ax_queue*>(queue), taken, addresses);
          },
          py::arg("stream"), py::arg("queue"), py::arg("taken"), py::arg("addresses"),
          "Enqueue it; an address for each operand.");
}

}  // namespace anyxpu
