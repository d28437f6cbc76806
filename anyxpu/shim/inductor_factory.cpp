// `empty_strided_xpu(size, stride, dtype)`: what Inductor's generated code calls for every buffer. In-tree it is a C
// function too, because it is on the path of every compiled graph.
#include <ATen/EmptyTensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "shim/bindings.h"
#include "shim/runtime.h"

namespace anyxpu {
namespace {

using Extents = c10::SmallVector<int64_t, 8>;

bool read_extents(PyObject* tuple, Extents& out) {
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "empty_strided_xpu expects tuples of ints for size and stride");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    int64_t extent = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (extent == -1 && PyErr_Occurred()) return false;
    out.push_back(extent);
  }
  return true;
}

PyObject* empty_strided(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 3 || !THPDtype_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "empty_strided_xpu takes (size, stride, dtype)");
    return nullptr;
  }
  Extents size, stride;
  if (!read_extents(args[0], size) || !read_extents(args[1], stride)) return nullptr;
  driver();
  auto dtype = reinterpret_cast<THPDtype*>(args[2])->scalar_type;
  return THPVariable_Wrap(at::detail::empty_strided_generic(size, stride, c10::GetAllocator(c10::DeviceType::XPU),
                                                            c10::DispatchKeySet(c10::DispatchKey::XPU), dtype));
  END_HANDLE_TH_ERRORS
}

PyMethodDef method = {"_empty_strided_xpu", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(empty_strided)),
                      METH_FASTCALL, "An uninitialised xpu tensor of this size, stride and dtype."};

}  // namespace

void bind_inductor_factory(pybind11::module_& m) {
  m.attr("empty_strided_xpu") = pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(&method, nullptr));
}

}  // namespace anyxpu
