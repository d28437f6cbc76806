#include "shim/classes.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <pybind11/stl.h>

#include <map>

#include "shim/assertions.h"
#include "shim/bindings.h"
#include "shim/kept_copies.h"
#include "shim/ops.h"
#include "shim/waiting.h"

namespace anyxpu {
namespace {

namespace py = pybind11;

using c10::ScalarType;

constexpr std::array<TypeName, 13> kTypes{{{ScalarType::Float, "fp32", kFloats},
                                           {ScalarType::BFloat16, "bf16", kFloats},
                                           {ScalarType::Half, "fp16", kFloats},
                                           {ScalarType::Double, "fp64", kFloats},
                                           {ScalarType::Bool, "i1", kBools},
                                           {ScalarType::Long, "i64", kIntegers},
                                           {ScalarType::Int, "i32", kIntegers},
                                           {ScalarType::Short, "i16", kIntegers},
                                           {ScalarType::Char, "i8", kIntegers},
                                           {ScalarType::Byte, "u8", kIntegers},
                                           {ScalarType::UInt16, "u16", kIntegers},
                                           {ScalarType::UInt32, "u32", kIntegers},
                                           {ScalarType::UInt64, "u64", kIntegers}}};

PyObject* the_provider = nullptr;  // never given back: operators may run while the process ends

}  // namespace

torch::Library& library_of(const std::string& name_space, c10::DispatchKey key) {
  static auto* libraries = new std::map<std::pair<std::string, c10::DispatchKey>, torch::Library*>;
  torch::Library*& library = (*libraries)[{name_space, key}];
  if (library == nullptr) library = new torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
  return *library;
}

const TypeName* type_of(ScalarType type) {
  for (const TypeName& entry : kTypes)
    if (entry.type == type) return &entry;
  return nullptr;
}

Number number(const c10::Scalar& value, ScalarType common, bool rounded) {
  // What is too large for 16 bits is infinite, as on CUDA; Scalar::to() would raise.
  switch (common) {
    case ScalarType::Half:
      return number_of(rounded ? static_cast<float>(c10::Half(static_cast<float>(value.toDouble())))
                               : static_cast<float>(value.toDouble()));
    case ScalarType::BFloat16:
      return number_of(rounded ? static_cast<float>(c10::BFloat16(static_cast<float>(value.toDouble())))
                               : static_cast<float>(value.toDouble()));
    case ScalarType::Float:
      return number_of(static_cast<float>(value.toDouble()));
    case ScalarType::Double:
      return number_of(value.toDouble());
    case ScalarType::Bool:
      return number_of(static_cast<uint8_t>(value.toBool()));
    case ScalarType::Long:
      return number_of(value.toLong());
    case ScalarType::Int:
      return number_of(static_cast<int32_t>(value.toLong()));
    case ScalarType::Short:
      return number_of(static_cast<int16_t>(value.toLong()));
    case ScalarType::Char:
      return number_of(static_cast<int8_t>(value.toLong()));
    case ScalarType::UInt16:
      return number_of(static_cast<uint16_t>(value.toLong()));
    case ScalarType::UInt32:
      return number_of(static_cast<uint32_t>(value.toLong()));
    case ScalarType::UInt64:
      return number_of(value.toUInt64());
    default:
      return number_of(static_cast<uint8_t>(value.toLong()));
  }
}

bool ask_kernel(c10::DeviceIndex device, const char* family, const py::tuple& words, Entry* out) {
  TORCH_INTERNAL_ASSERT(the_provider != nullptr);
  const py::object made = py::reinterpret_borrow<py::function>(the_provider)(static_cast<int>(device), family, words);
  if (made.is_none()) {
    *out = {};
    return true;
  }
  if (py::isinstance<py::bool_>(made)) return false;
  auto [kernel, lanes, operations, messages] =
      made.cast<std::tuple<py::object, uint32_t, uint64_t, std::vector<std::string>>>();
  *out = {reinterpret_cast<ax_kernel*>(kernel.attr("handle").cast<uintptr_t>()), lanes, operations,
          messages.empty() ? -1 : register_assertions(std::move(messages))};
  kernel.release();  // for good
  return true;
}

void Arguments::launch(c10::DeviceIndex device, const Entry& entry, int64_t groups, uint64_t operations,
                       const void* written, const char* what) {
  if (entry.assertions >= 0) {
    pointer(assertion_record(device));
    integer(entry.assertions);
  }
  const uint32_t grid[3] = {static_cast<uint32_t>(groups), 1, 1};
  const uint32_t local[3] = {entry.lanes, 1, 1};
  ax_queue* const queue = current_queue(device);
  check(launch_writing(written, queue, entry.kernel, grid, local, args_.data(), count_, operations + 1), what);
  note_work(queue, device, operations + 1);
}

void bind_classes(py::module_& m) {
  m.def(
      "set_class_provider",
      [](const py::function& provider) {
        Py_XDECREF(the_provider);
        the_provider = provider.inc_ref().ptr();
      },
      py::arg("provider"), "Set who makes the kernels of signature classes: anyxpu.ops.classes.provide.");
}

}  // namespace anyxpu
