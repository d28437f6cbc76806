// Modules, kernels, and the launcher that stands on the path of every kernel launch.
//
// A Launcher is made once a kernel from its argument types; calling it converts each argument by its declared type
// into the bytes that the driver takes. Nothing is allocated and no Python attribute is looked up on the way.
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
// After Python.h, which it does not include by itself.
#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shim/assertions.h"
#include "shim/bindings.h"
#include "shim/commands.h"
#include "shim/kept_copies.h"
#include "shim/recording.h"
#include "shim/runtime.h"
#include "shim/waiting.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

// --- modules and kernels ----------------------------------------------------------------------------------------
struct FormatName {
  std::string_view name;
  ax_module_format format;
};

constexpr std::array<FormatName, 3> kFormats{
    {{"opencl_c", AX_MODULE_OPENCL_C}, {"spirv", AX_MODULE_SPIRV}, {"native", AX_MODULE_NATIVE}}};

ax_module_format format_of(std::string_view name) {
  for (const FormatName& entry : kFormats)
    if (entry.name == name) return entry.format;
  TORCH_CHECK_VALUE(false, "anyxpu: no module format '", name, "'; it is one of opencl_c, spirv, native");
}

// Destroying a handle of a driver that this (forked) process cannot talk to would touch its dead threads.
template <typename Handle>
void destroy(ax_status (*ax_driver::*function)(Handle*), Handle* handle) noexcept {
  if (handle != nullptr && !in_bad_fork()) (driver().*function)(handle);
}

struct Module {
  Module(ax_module* handle, c10::DeviceIndex device) : handle(handle), device(device) {}
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module() { destroy(&ax_driver::module_destroy, handle); }
  ax_module* const handle;
  const c10::DeviceIndex device;
};

struct Kernel {
  Kernel(std::shared_ptr<Module> module, ax_kernel* handle, std::string name)
      : module(std::move(module)), handle(handle), name(std::move(name)) {
    name_kernel(handle, this->name);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() {
    forget_kernel(handle);
    forget_reads(handle);
    destroy(&ax_driver::kernel_destroy, handle);
  }
  const std::shared_ptr<Module> module;  // outlives its kernels
  ax_kernel* const handle;
  const std::string name;
};

std::shared_ptr<Module> load_module(int device, const std::string& format, const std::string& data,
                                    const std::string& options) {
  const ax_module_format wanted = format_of(format);
  py::gil_scoped_release no_gil;
  ax_module* handle = nullptr;
  check(driver().module_create(device, wanted, data.data(), data.size(), options.c_str(), &handle), "build a module");
  return std::make_shared<Module>(handle, resolve_device(static_cast<c10::DeviceIndex>(device)));
}

py::bytes native_code(const Module& module) {
  uint64_t size = 0;
  check(driver().module_native(module.handle, nullptr, &size), "read a module's native code");
  std::string code(size, '\0');
  check(driver().module_native(module.handle, code.data(), &size), "read a module's native code");
  return py::bytes(code);
}

std::shared_ptr<Kernel> find_kernel(const std::shared_ptr<Module>& module, const std::string& name) {
  ax_kernel* handle = nullptr;
  check(driver().kernel_create(module->handle, name.c_str(), &handle), "find a kernel");
  return std::make_shared<Kernel>(module, handle, name);
}

py::dict kernel_info(const Kernel& kernel) {
  ax_kernel_info info{};
  check(driver().kernel_information(kernel.handle, &info), "query a kernel");
  py::dict out;
  out["max_work_group_size"] = info.max_work_group_size;
  out["sub_group_size"] = info.sub_group_size;
  out["local_mem_size"] = info.local_mem_size;
  out["private_mem_size"] = info.private_mem_size;
  out["spill_size"] = info.spill_size;
  out["concurrent_groups"] = info.concurrent_groups;
  out["called"] = info.called;
  return out;
}

// --- converting arguments -----------------------------------------------------------------------------------------
using Slot = uint64_t;

// Each converter writes the argument's bytes into `slot`; false, with a Python error set, where it cannot.
using Converter = bool (*)(PyObject* object, Slot* slot, int index);

bool wrong_pointer(int index) {
  PyErr_Format(
      PyExc_ValueError,
      "Pointer argument (at %d) cannot be accessed from Triton (cpu tensor?): the device reads xpu tensors and "
      "pinned host tensors; move it with .to('xpu') or pin_memory()",
      index);
  return false;
}

bool tensor_pointer(const at::Tensor& tensor, Slot* slot, int index) {
  if (C10_UNLIKELY(!tensor.is_xpu())) {
    // A tensor without elements has no bytes that could be out of reach.
    const bool reachable = tensor.numel() == 0 || (tensor.is_cpu() && tensor.is_pinned());
    if (!reachable) return wrong_pointer(index);
  }
  *slot = reinterpret_cast<Slot>(tensor.mutable_data_ptr());
  return true;
}

bool address(PyObject* integer, Slot* slot) {
  *slot = PyLong_AsUnsignedLongLong(integer);
  return *slot != static_cast<Slot>(-1) || !PyErr_Occurred();
}

bool convert_pointer(PyObject* object, Slot* slot, int index) {
  if (THPVariable_Check(object)) return tensor_pointer(THPVariable_Unpack(object), slot, index);
  if (object == Py_None) {
    *slot = 0;
    return true;
  }
  if (PyLong_Check(object)) return address(object, slot);
  static PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* result = PyObject_CallMethodNoArgs(object, data_ptr);
  if (result == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Format(PyExc_TypeError,
                   "Pointer argument (at %d) must be a torch.Tensor, an int, None or have data_ptr(); it is a %s",
                   index, Py_TYPE(object)->tp_name);
    }
    return false;
  }
  const bool fine = PyLong_Check(result) && address(result, slot);
  if (!fine && !PyErr_Occurred())
    PyErr_Format(PyExc_TypeError, "data_ptr() of the pointer argument (at %d) did not return an int", index);
  Py_DECREF(result);
  return fine;
}

bool out_of_range(PyObject* object, const char* type, int index) {
  PyErr_Format(PyExc_OverflowError, "Argument (at %d) is %S, which does not fit its declared type %s", index, object,
               type);
  return false;
}

template <typename T>
constexpr const char* kTypeName = nullptr;
template <>
constexpr const char* kTypeName<int8_t> = "i8";
template <>
constexpr const char* kTypeName<int16_t> = "i16";
template <>
constexpr const char* kTypeName<int32_t> = "i32";
template <>
constexpr const char* kTypeName<int64_t> = "i64";
template <>
constexpr const char* kTypeName<uint8_t> = "u8";
template <>
constexpr const char* kTypeName<uint16_t> = "u16";
template <>
constexpr const char* kTypeName<uint32_t> = "u32";
template <>
constexpr const char* kTypeName<uint64_t> = "u64";

// Any object with __index__: ints, bools, NumPy's and torch's integers.
template <typename T>
bool convert_integer(PyObject* object, Slot* slot, int index) {
  PyObject* integer = PyNumber_Index(object);
  if (integer == nullptr) return false;
  bool fits;
  if constexpr (std::is_same_v<T, uint64_t>) {
    fits = address(integer, slot);
    if (!fits) PyErr_Clear();
  } else {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(integer, &overflow);
    fits = overflow == 0 && value >= static_cast<long long>(std::numeric_limits<T>::min()) &&
           value <= static_cast<long long>(std::numeric_limits<T>::max());
    *slot = 0;
    const T narrow = static_cast<T>(value);
    std::memcpy(slot, &narrow, sizeof(T));
  }
  if (!fits) out_of_range(integer, kTypeName<T>, index);
  Py_DECREF(integer);
  return fits;
}

bool convert_bool(PyObject* object, Slot* slot, int index) {
  const int truth = PyObject_IsTrue(object);
  *slot = truth > 0 ? 1 : 0;
  return truth >= 0;
}

template <typename T>
bool convert_float(PyObject* object, Slot* slot, int index) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred()) return false;
  // Through float, as the kernel's own conversion of a Python float would go.
  const T bits = std::is_same_v<T, double> ? T(value) : T(static_cast<float>(value));
  *slot = 0;
  std::memcpy(slot, &bits, sizeof(T));
  return true;
}

struct Conversion {
  std::string_view type;
  uint32_t bytes;
  Converter convert;
};

constexpr std::array<Conversion, 13> kConversions{{
    {"i1", 1, convert_bool},
    {"i8", 1, convert_integer<int8_t>},
    {"i16", 2, convert_integer<int16_t>},
    {"i32", 4, convert_integer<int32_t>},
    {"i64", 8, convert_integer<int64_t>},
    {"u8", 1, convert_integer<uint8_t>},
    {"u16", 2, convert_integer<uint16_t>},
    {"u32", 4, convert_integer<uint32_t>},
    {"u64", 8, convert_integer<uint64_t>},
    {"fp16", 2, convert_float<c10::Half>},
    {"bf16", 2, convert_float<c10::BFloat16>},
    {"fp32", 4, convert_float<float>},
    {"fp64", 8, convert_float<double>},
}};

// One argument of a launcher; `convert` is null for a constexpr, which the kernel does not take.
struct Parameter {
  Converter convert;
  uint32_t bytes;
  ax_arg_kind kind;
};

Parameter parameter_of(const std::string& type) {
  if (type == "constexpr") return {nullptr, 0, AX_ARG_VALUE};
  if (!type.empty() && type[0] == '*') return {convert_pointer, sizeof(void*), AX_ARG_POINTER};
  for (const Conversion& entry : kConversions)
    if (entry.type == type) return {entry.convert, entry.bytes, AX_ARG_VALUE};
  TORCH_CHECK_TYPE(false, "anyxpu: a kernel argument of type '", type,
                   "' cannot be launched; known are pointers (*...), constexpr, i1 to i64, u8 to u64, fp16, bf16, "
                   "fp32 and fp64");
}

// A seed or an offset that is another in every call: an int of Python's with a mark.
PyTypeObject* drawn_type() {
  static auto* type = [] {
    const py::object made =
        py::module_::import("builtins").attr("type")("Drawn", py::make_tuple(py::type::of(py::int_(0))), py::dict());
    return reinterpret_cast<PyTypeObject*>(py::object(made).release().ptr());
  }();
  return type;
}

void note_drawn(PyObject* object, size_t index) {
  if (Py_TYPE(object) != drawn_type()) return;
  const py::handle number(object);
  const auto part = number.attr("part").cast<bool>() ? Drawn::offset : Drawn::seed;
  the_recording->takes_drawn(static_cast<uint32_t>(index), {part, number.attr("draw").cast<uint32_t>()});
}

// --- the launcher ---------------------------------------------------------------------------------------------------
// A loop's count of rounds: ceil(argument / step).
struct Rounds {
  size_t argument;  // of the kernel's own arguments
  uint64_t step;
};

// A part of what one work-group does: so many operations, as often as the loops around them go round.
struct WorkTerm {
  uint64_t operations;
  std::vector<Rounds> loops;
};

struct Plan {
  std::vector<Parameter> parameters;
  uint32_t local[3];
  uint32_t shared_bytes;
  std::vector<WorkTerm> work;    // empty: unknown
  int32_t assertions = -1;       // their number, where the kernel has some
  bool cooperative = false;      // its programs may wait for each other
  bool makes_addresses = false;  // and so may write what none of its arguments points to
  uint64_t reads = 0;            // arguments that it only reads through, as note_reads has them
};

// More than any driver does before a launch returns; sums and products stop here.
constexpr uint64_t kMuchWork = uint64_t{1} << 30;

// So many operations take a driver long enough, where it does them itself, for other threads to have the GIL meanwhile.
constexpr uint64_t kWorthTheGil = 2'000'000;

using Args = c10::SmallVector<ax_arg, 32>;

uint64_t rounds_of(const Rounds& loop, const Args& args) {
  const ax_arg& arg = args[loop.argument];
  int64_t end = 0;
  if (arg.size == sizeof(int32_t)) {
    int32_t narrow = 0;
    std::memcpy(&narrow, arg.value, sizeof(narrow));
    end = narrow;
  } else {
    std::memcpy(&end, arg.value, sizeof(end));
  }
  return end <= 0 ? 0 : (std::min<uint64_t>(end, kMuchWork) - 1) / loop.step + 1;
}

// What `groups` work-groups do together, as ax_driver::launch wants to know it.
uint64_t work_of(const std::vector<WorkTerm>& terms, const uint32_t groups[3], const Args& args) {
  uint64_t sum = 0;
  for (const WorkTerm& term : terms) {
    uint64_t product = std::min(term.operations, kMuchWork);
    for (const Rounds& loop : term.loops) product = std::min(product * rounds_of(loop, args), kMuchWork);
    sum = std::min(sum + product, kMuchWork);
  }
  for (int i = 0; i < 3; ++i) sum = std::min(sum * groups[i], kMuchWork);
  return sum;
}

// A program that waits for one that has not begun would wait for ever.
void check_concurrent(const Kernel& kernel, const uint32_t groups[3]) {
  ax_kernel_info info{};
  check(driver().kernel_information(kernel.handle, &info), "query a kernel");
  const uint64_t all = uint64_t{groups[0]} * groups[1] * groups[2];
  TORCH_CHECK(info.concurrent_groups == 0 || all <= info.concurrent_groups, "anyxpu: ", kernel.name,
              " was launched over ", all, " programs with launch_cooperative_grid=True, and this device runs ",
              info.concurrent_groups,
              " of them at once: one that waits for the others would wait for ever. Launch at most ",
              info.concurrent_groups, ", or without that option where no program waits for another");
}

struct Launcher {
  PyObject_HEAD;
  vectorcallfunc vectorcall;
  const Plan* plan;
  // The kernel of the last call, kept alive: nearly every launcher is called with one kernel only.
  PyObject* kernel_object;
  const Kernel* kernel;
  bool bound;  // to one kernel, which a call then does not name
};

// Arguments before the kernel's own: grid x, y, z, the queue, and the kernel unless the launcher is bound to one.
Py_ssize_t leading(const Launcher& launcher) { return launcher.bound ? 4 : 5; }

bool unsigned_argument(PyObject* object, const char* name, uint64_t limit, uint64_t* out) {
  PyObject* integer = PyNumber_Index(object);
  if (integer == nullptr) return false;
  *out = PyLong_AsUnsignedLongLong(integer);
  const bool fine = !(*out == static_cast<uint64_t>(-1) && PyErr_Occurred()) && *out <= limit;
  if (!fine) {
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s is %S; it must lie between 0 and %llu", name, integer,
                 static_cast<unsigned long long>(limit));
  }
  Py_DECREF(integer);
  return fine;
}

bool read_grid(PyObject* const* args, uint32_t groups[3]) {
  static constexpr const char* kNames[] = {"grid_x", "grid_y", "grid_z"};
  for (int i = 0; i < 3; ++i) {
    uint64_t value = 0;
    if (!unsigned_argument(args[i], kNames[i], std::numeric_limits<uint32_t>::max(), &value)) return false;
    groups[i] = static_cast<uint32_t>(value);
  }
  return true;
}

bool remember_kernel(Launcher* self, PyObject* object) {
  if (C10_LIKELY(object == self->kernel_object)) return true;
  if (!py::isinstance<Kernel>(object)) {
    PyErr_Format(PyExc_TypeError, "a launcher calls a Kernel, not a %s", Py_TYPE(object)->tp_name);
    return false;
  }
  Py_INCREF(object);
  Py_XSETREF(self->kernel_object, object);
  self->kernel = py::handle(object).cast<const Kernel*>();
  if (self->plan->reads != 0) note_reads(self->kernel->handle, self->plan->reads);
  return true;
}

// A launch that failed becomes anyxpu.errors.KernelError, which names the kernel; on a lost device
// torch.AcceleratorError.
PyObject* raise_launch_error(const Kernel& kernel, ax_status status) {
  const std::string message = driver().last_error();
  if (status == AX_DEVICE_LOST) {
    const py::object lost = py::module_::import("torch").attr("AcceleratorError");
    PyErr_SetString(lost.ptr(), lost_device("kernel " + kernel.name + ": cannot launch: " + message).c_str());
    return nullptr;
  }
  const py::object error =
      py::module_::import("anyxpu.errors").attr("KernelError")(kernel.name, "", "cannot launch: " + message);
  PyErr_SetObject(py::type::handle_of(error).ptr(), error.ptr());
  return nullptr;
}

PyObject* call(Launcher* self, PyObject* const* args, Py_ssize_t count) {
  const Plan& plan = *self->plan;
  const Py_ssize_t first = leading(*self);
  const auto expected = first + static_cast<Py_ssize_t>(plan.parameters.size());
  if (C10_UNLIKELY(count != expected)) {
    PyErr_Format(PyExc_TypeError, "this launcher takes %zd arguments (grid x, y, z, queue%s and %zd); it got %zd",
                 expected, self->bound ? "" : ", kernel", expected - first, count);
    return nullptr;
  }
  uint32_t groups[3];
  uint64_t queue = 0;
  if (!read_grid(args, groups) || !unsigned_argument(args[3], "the queue handle", UINT64_MAX, &queue) ||
      !(self->bound || remember_kernel(self, args[4])))
    return nullptr;
  if (C10_UNLIKELY(queue == 0)) {
    PyErr_SetString(PyExc_ValueError, "the queue handle is 0; take it from torch._C._xpu_getCurrentRawStream(device)");
    return nullptr;
  }

  if (C10_UNLIKELY(the_recording != nullptr)) the_recording->keep(self->kernel_object);
  if (C10_UNLIKELY(plan.cooperative)) check_concurrent(*self->kernel, groups);
  if (C10_UNLIKELY(plan.makes_addresses)) drop_copies();

  const size_t most = plan.parameters.size() + 2;
  c10::SmallVector<Slot, 32> slots(most);
  Args out;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const Parameter& parameter = plan.parameters[i];
    if (parameter.convert == nullptr) continue;
    PyObject* const given = args[first + static_cast<Py_ssize_t>(i)];
    if (!parameter.convert(given, &slots[i], static_cast<int>(i))) return nullptr;
    if (C10_UNLIKELY(the_recording != nullptr) && parameter.bytes == sizeof(uint64_t) && parameter.kind == AX_ARG_VALUE)
      note_drawn(given, out.size());
    out.push_back({&slots[i], parameter.bytes, static_cast<uint32_t>(parameter.kind)});
  }
  if (plan.assertions >= 0) {
    slots[most - 2] = reinterpret_cast<Slot>(assertion_record(self->kernel->module->device));
    out.push_back({&slots[most - 2], sizeof(void*), AX_ARG_POINTER});
    out.push_back({&plan.assertions, sizeof(plan.assertions), AX_ARG_VALUE});
  }
  if (plan.shared_bytes) out.push_back({nullptr, plan.shared_bytes, AX_ARG_LOCAL});

  auto* const enqueued = reinterpret_cast<ax_queue*>(queue);
  const Kernel& kernel = *self->kernel;
  const uint64_t operations = work_of(plan.work, groups, out);
  // To give the GIL up costs as much as a launch that only enqueues, or does little.
  const py::object kept = py::reinterpret_borrow<py::object>(self->kernel_object);  // which another thread may replace
  PyThreadState* const state = operations >= kWorthTheGil ? PyEval_SaveThread() : nullptr;
  const ax_status status = driver().launch(enqueued, kernel.handle, groups, plan.local, out.data(),
                                           static_cast<uint32_t>(out.size()), operations);
  if (state != nullptr) PyEval_RestoreThread(state);
  if (C10_UNLIKELY(status != AX_OK)) return raise_launch_error(kernel, status);
  note_work(enqueued, static_cast<c10::DeviceIndex>(kernel.module->device), operations);
  Py_RETURN_NONE;
}

PyObject* launcher_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  if (C10_UNLIKELY(keywords != nullptr && PyTuple_GET_SIZE(keywords) != 0)) {
    PyErr_SetString(PyExc_TypeError, "a launcher takes no keyword arguments");
    return nullptr;
  }
  return call(reinterpret_cast<Launcher*>(object), args, PyVectorcall_NARGS(flags));
  END_HANDLE_TH_ERRORS
}

// [(operations, [(argument, step), ...]), ...]
std::vector<WorkTerm> read_work(PyObject* object, const std::vector<Parameter>& parameters) {
  std::vector<const Parameter*> taken;  // by the kernel
  for (const Parameter& parameter : parameters)
    if (parameter.convert != nullptr) taken.push_back(&parameter);
  std::vector<WorkTerm> work;
  for (const py::handle term : py::reinterpret_borrow<py::object>(object)) {
    const auto pair = term.cast<std::pair<uint64_t, std::vector<std::pair<size_t, uint64_t>>>>();
    WorkTerm& made = work.emplace_back(WorkTerm{pair.first, {}});
    for (const auto& [argument, step] : pair.second) {
      const bool countable = argument < taken.size() && taken[argument]->kind == AX_ARG_VALUE &&
                             (taken[argument]->bytes == 4 || taken[argument]->bytes == 8);
      TORCH_CHECK_VALUE(countable && step > 0, "anyxpu: a loop of the kernel is said to count to argument ", argument,
                        " in steps of ", step, ", which is no integer argument and step of it");
      made.loops.push_back({argument, step});
    }
  }
  return work;
}

uint64_t bits_of(const std::vector<uint32_t>& indices) {
  uint64_t bits = 0;
  for (const uint32_t index : indices)
    if (index < 64) bits |= uint64_t{1} << index;
  return bits;
}

Plan* make_plan(PyObject* arg_types, const std::array<unsigned, 3>& local, unsigned shared_bytes, PyObject* work) {
  auto plan = std::make_unique<Plan>();
  for (const py::handle type : py::reinterpret_borrow<py::object>(arg_types))
    plan->parameters.push_back(parameter_of(type.cast<std::string>()));
  std::copy(local.begin(), local.end(), plan->local);
  plan->shared_bytes = shared_bytes;
  if (work != nullptr) plan->work = read_work(work, plan->parameters);
  return plan.release();
}

PyObject* launcher_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"arg_types", "local",       "shared_bytes",    "work",  "assertions",
                                "kernel",    "cooperative", "makes_addresses", "reads", nullptr};
  int cooperative = 0;
  int makes_addresses = 0;
  PyObject* arg_types = nullptr;
  PyObject* work = nullptr;
  PyObject* assertions = nullptr;
  PyObject* kernel = nullptr;
  PyObject* reads = nullptr;
  std::array<unsigned, 3> local{};
  unsigned shared_bytes = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O(III)|IOOOppO", const_cast<char**>(names), &arg_types, &local[0],
                                   &local[1], &local[2], &shared_bytes, &work, &assertions, &kernel, &cooperative,
                                   &makes_addresses, &reads))
    return nullptr;
  std::unique_ptr<Plan> plan(make_plan(arg_types, local, shared_bytes, work));
  plan->cooperative = cooperative != 0;
  plan->makes_addresses = makes_addresses != 0;
  if (reads != nullptr) plan->reads = bits_of(py::handle(reads).cast<std::vector<uint32_t>>());
  if (assertions != nullptr) {
    auto messages = py::reinterpret_borrow<py::object>(assertions).cast<std::vector<std::string>>();
    if (!messages.empty()) plan->assertions = register_assertions(std::move(messages));
  }
  auto* self = reinterpret_cast<Launcher*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = launcher_call;
  self->plan = plan.release();
  if (kernel != nullptr && kernel != Py_None) {
    if (!remember_kernel(self, kernel)) {
      Py_DECREF(self);
      return nullptr;
    }
    self->bound = true;
  }
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

void launcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Launcher*>(object);
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(self->kernel_object);
  delete self->plan;
  type->tp_free(object);
  Py_DECREF(type);
}

constexpr const char* kLauncherDoc =
    "Launcher(arg_types, local, shared_bytes=0, work=(), assertions=(), kernel=None, cooperative=False, "
    "makes_addresses=False, reads=())\n\n"
    "Calls a kernel: launcher(grid_x, grid_y, grid_z, queue_handle, kernel, *args) enqueues grid work-groups of "
    "`local`\n"
    "work-items each and returns None, before they have run or (what a CPU device does soon) after that.\n\n"
    "Args:\n"
    "    arg_types: one type per element of args, in Triton's names: '*...' for a pointer (a torch.Tensor on xpu or\n"
    "        pinned, an int address, None, or an object with data_ptr()), 'i1', 'i8'..'i64', 'u8'..'u64', 'fp16', "
    "'bf16',\n"
    "        'fp32', 'fp64', or 'constexpr' for one that the kernel does not take.\n"
    "    local: work-items of a work-group in x, y and z.\n"
    "    shared_bytes: if above 0, a last kernel argument of that many bytes of local memory.\n"
    "    work: what one work-group does, for the driver to know what is little (see anyxpu.triton.work.terms); () is\n"
    "        unknown.\n"
    "    assertions: messages of the conditions that the kernel checks; it takes their record and number as well.\n"
    "    kernel: bind the launcher to this one; a call then leaves it out.\n"
    "    cooperative: its programs wait for each other, so that all of them must run at once.\n"
    "    makes_addresses: it may write to memory that none of its arguments points to.\n"
    "    reads: indices of the kernel's own arguments that are pointers it only reads through; copies that are kept "
    "of\n"
    "        what they point to stay.\n\n"
    "Raises:\n"
    "    ValueError: a pointer argument the device cannot reach. TypeError, OverflowError: an argument that does not "
    "fit\n"
    "        its type. anyxpu.errors.KernelError: the driver refused the launch. RuntimeError: more programs than run "
    "at "
    "once\n"
    "        of a cooperative kernel.";

PyMemberDef launcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launcher, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot launcher_slots[] = {
    {Py_tp_members, launcher_members},
    {Py_tp_doc, const_cast<char*>(kLauncherDoc)},
    {Py_tp_new, reinterpret_cast<void*>(launcher_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(launcher_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {0, nullptr},
};

PyObject* make_launcher_type() {
  static PyType_Spec spec = {"anyxpu_shim.Launcher", sizeof(Launcher), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, launcher_slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return type;
}

}  // namespace

py::tuple drawn_numbers(uint32_t draw, uint64_t seed, uint64_t offset) {
  const py::handle type(reinterpret_cast<PyObject*>(drawn_type()));
  const auto number = [&](uint64_t value, bool is_offset) {
    py::object made = type(value);
    made.attr("part") = is_offset;
    made.attr("draw") = draw;
    return made;
  };
  return py::make_tuple(number(seed, false), number(offset, true));
}

void bind_launch(py::module_& m) {
  py::class_<Module, std::shared_ptr<Module>>(m, "Module", "Code loaded for one device.")
      .def("kernel", &find_kernel, py::arg("name"), "The kernel of that name; it keeps the module alive.")
      .def("native", &native_code, "The module's native code, which load_module takes as format 'native'.");
  py::class_<Kernel, std::shared_ptr<Kernel>>(m, "Kernel", "One kernel of a Module.")
      .def_property_readonly("handle", [](const Kernel& k) { return reinterpret_cast<uintptr_t>(k.handle); })
      .def_property_readonly("name", [](const Kernel& k) { return k.name; })
      .def(
          "call_it", [](const Kernel& k, const std::string& name) { name_kernel(k.handle, name); }, py::arg("name"),
          "What profilers call it; its function's name else.")
      .def(
          "only_reads",
          [](const Kernel& k, const std::vector<uint32_t>& indices) { note_reads(k.handle, bits_of(indices)); },
          py::arg("indices"), "Which of its arguments are pointers that it only reads through; no others else.")
      .def("info", &kernel_info,
           "A dict of max_work_group_size and sub_group_size (work-items), local_mem_size, private_mem_size and "
           "spill_size (bytes); 0 where unknown.");
  m.def("load_module", &load_module, py::arg("device"), py::arg("format"), py::arg("data"), py::arg("options") = "",
        "Build or load code for a device. format is 'opencl_c' (text), 'spirv' or 'native' (what Module.native() gave, "
        "or the offline compiler's zebin); options are OpenCL C build options. RuntimeError holds the build log.");
  m.attr("Launcher") = py::reinterpret_steal<py::object>(make_launcher_type());
}

}  // namespace anyxpu
