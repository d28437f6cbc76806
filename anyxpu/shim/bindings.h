// Each area of the shim adds its Python face to the one extension module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace anyxpu {

void bind_runtime(pybind11::module_& m);      // driver, devices, streams, generators
void bind_memory(pybind11::module_& m);       // allocator, pinned memory
void bind_launch(pybind11::module_& m);       // modules, kernels, launchers
void bind_indexing(pybind11::module_& m);     // taking by an index, joining
void bind_reductions(pybind11::module_& m);   // sums and the like, softmax
void bind_foreach(pybind11::module_& m);      // operators on lists of tensors, optimizers
void bind_classes(pybind11::module_& m);      // kernels of signature classes
void bind_pointwise(pybind11::module_& m);    // operators by compiled kernels
void bind_ops(pybind11::module_& m);          // structural operators, host fallback
void bind_distributed(pybind11::module_& m);  // the backend xccl
void bind_finishing(pybind11::module_& m);    // the end of the process
void bind_sharing(pybind11::module_& m);      // storages in memory that processes share
void bind_primitives(pybind11::module_& m);   // what oneDNN runs
void bind_replay(pybind11::module_& m);       // operators written in Python
void bind_profiler(pybind11::module_& m);     // xpu's half of torch.profiler
void bind_inductor(pybind11::module_& m);     // what Inductor's generated wrappers call

}  // namespace anyxpu
