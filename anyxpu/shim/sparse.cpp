// Sparse tensors: COO, and the compressed layouts CSR, CSC, BSR and BSC.
//
// They are made of dense tensors, of indices and of values, and ATen's code for them is the same for the CPU and CUDA
// wherever it is written in operators on these: it serves xpu too, and its operators are counted as what they are.
// Where ATen has a loop of the CPU's, anyxpu/ops/sparse.py computes on the device what it takes, and ATen's CPU kernels
// do the rest on copies.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <set>

#include "shim/arguments.h"
#include "shim/ops.h"
#include "shim/other_layouts.h"

namespace anyxpu {
namespace {

using c10::DispatchKey;
using torch::jit::Stack;

// ATen's code for `key`, on the tensors as they are.
template <DispatchKey key>
void by_code_for(const c10::OperatorHandle& op, Stack* stack) {
  std::optional<c10::Device> device;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size()))
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (!device && on_xpu(t)) device = t.device();
    });
  const c10::OptionalDeviceGuard guard(device);
  op_counter(full_name(op)).add(Way::structural);
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

// Those of which ATen has loops of the CPU's, in themselves or in what they call past the dispatcher.
const std::set<std::string> kLoopsOfCoo = {"_sparse_log_softmax",
                                           "_sparse_log_softmax_backward_data",
                                           "_sparse_mask_projection",
                                           "_sparse_softmax",
                                           "_sparse_softmax_backward_data",
                                           "_sparse_sparse_matmul",
                                           "_sparse_sum_backward",
                                           "hspmm",
                                           "hspmm.out",
                                           "index_select",
                                           "sspaddmm.out"};
const std::set<std::string> kLoopsOfCompressed = {"_to_sparse_bsc",
                                                  "_to_sparse_bsr",
                                                  "_sparse_csr_prod.dim_dtype",
                                                  "_sparse_csr_sum.dim_dtype",
                                                  "_sparse_mm_reduce_impl",
                                                  "_sparse_mm_reduce_impl_backward",
                                                  "add.out",
                                                  "mul.out",
                                                  "sparse_sampled_addmm",
                                                  "sparse_sampled_addmm.out",
                                                  "triangular_solve.X"};

// Those that anyxpu/ops/sparse.py registers, or that are of the host's memory.
const std::set<std::string> kElsewhereOfCoo = {"bmm",       "bmm.out", "_coalesce",  "_pin_memory",
                                               "add.out",   "addmm",   "addmm.out",  "addmm_",
                                               "is_pinned", "mul.out", "sparse_mask"};
const std::set<std::string> kElsewhereOfCompressed = {
    "_to_sparse",  "_to_sparse_bsc", "_to_sparse_bsr", "_to_sparse_csc", "_to_sparse_csr",
    "_pin_memory", "addmm.out",      "addmv.out",      "is_pinned",      "sparse_mask"};

template <DispatchKey key>
void serve(torch::Library& library, const std::set<std::string>& loops, const std::set<std::string>& elsewhere) {
  for_each_aten_kernel(key, [&](const std::string& name, const c10::OperatorHandle&) {
    if (elsewhere.count(name)) return;
    library.impl(name.c_str(), loops.count(name) ? torch::CppFunction::makeFromBoxedFunction<&on_copies>()
                                                 : torch::CppFunction::makeFromBoxedFunction<&by_code_for<key>>());
  });
}

void no_such_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "anyxpu: ", full_name(op), " has no kernel for tensors of kind ",
                              keys.highestPriorityTypeId(),
                              ", on the CPU neither. Call to_dense() or dequantize() first.");
}

// Makers of sparse tensors out of dense ones.
constexpr std::array kMakers{"_to_sparse",     "_to_sparse.sparse_dim", "_to_sparse_csr",
                             "_to_sparse_csc", "_to_sparse_bsr",        "_to_sparse_bsc"};

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparseXPU, library) { serve<DispatchKey::SparseCPU>(library, kLoopsOfCoo, kElsewhereOfCoo); }
TORCH_LIBRARY_IMPL(aten, SparseCsrXPU, library) {
  serve<DispatchKey::SparseCsrCPU>(library, kLoopsOfCompressed, kElsewhereOfCompressed);
}

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  for (const char* name : kMakers) {
    const auto op = aten_operator(name);
    if (op && op->hasKernelForDispatchKey(DispatchKey::CPU))
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&by_code_for<DispatchKey::CPU>>());
  }
  if (aten_operator("_spdiags")) library.impl("_spdiags", torch::CppFunction::makeFromBoxedFunction<&on_copies>());
}

#define ANYXPU_NO_SUCH_KERNEL(key)                                                  \
  TORCH_LIBRARY_IMPL(_, key, library) {                                             \
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&no_such_kernel>()); \
  }
ANYXPU_NO_SUCH_KERNEL(SparseXPU)
ANYXPU_NO_SUCH_KERNEL(SparseCsrXPU)
ANYXPU_NO_SUCH_KERNEL(QuantizedXPU)
#undef ANYXPU_NO_SUCH_KERNEL

}  // namespace anyxpu
