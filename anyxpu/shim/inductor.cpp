// What Inductor's generated wrappers call for every buffer: torch._C._dynamo.guards._empty_strided_xpu, which a wheel
// without XPU compiles to an error.
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "shim/bindings.h"

namespace anyxpu {
namespace {

using Dims = c10::SmallVector<int64_t, 8>;

bool read_dims(PyObject* object, const char* what, Dims* out) {
  if (!PyTuple_CheckExact(object)) {
    PyErr_Format(PyExc_TypeError, "_empty_strided_xpu: %s is a %s; a tuple of ints is needed", what,
                 Py_TYPE(object)->tp_name);
    return false;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(object);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long long value = PyLong_AsLongLong(PyTuple_GET_ITEM(object, i));
    if (value == -1 && PyErr_Occurred()) return false;
    out->push_back(value);
  }
  return true;
}

PyObject* empty_strided_xpu(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 3 || !THPDtype_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "_empty_strided_xpu(sizes: tuple[int, ...], strides: tuple[int, ...], dtype)");
    return nullptr;
  }
  Dims sizes, strides;
  if (!read_dims(args[0], "sizes", &sizes) || !read_dims(args[1], "strides", &strides)) return nullptr;
  const auto dtype = reinterpret_cast<THPDtype*>(args[2])->scalar_type;
  return THPVariable_Wrap(at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(c10::DeviceType::XPU),
                                                            c10::DispatchKeySet(c10::DispatchKey::XPU), dtype));
  END_HANDLE_TH_ERRORS
}

PyMethodDef kEmptyStrided = {
    "_empty_strided_xpu", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(empty_strided_xpu)), METH_FASTCALL,
    "_empty_strided_xpu(sizes, strides, dtype)\n\nAn uninitialised tensor on the current xpu device. sizes and strides "
    "are tuples of ints, in elements."};

}  // namespace

void bind_inductor(pybind11::module_& m) {
  m.add_object("_empty_strided_xpu",
               pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(&kEmptyStrided, nullptr)));
}

}  // namespace anyxpu
