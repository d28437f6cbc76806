// What schemas do not say of operators whose CPU kernels stand in on xpu, and where those kernels fall short.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace anyxpu::host_exceptions {

using c10::ScalarType;

// Arguments that torch keeps on the CPU beside tensors of another device: indices and lengths.
inline const std::map<std::string, std::set<std::string>> kHostArguments = {
    {"aten::index.Tensor", {"indices"}},
    {"aten::index.Tensor_out", {"indices"}},
    {"aten::index_put", {"indices"}},
    {"aten::index_put_", {"indices"}},
    {"aten::index_put.out", {"indices"}},
    {"aten::_index_put_impl_", {"indices"}},
    {"aten::_index_put_impl", {"indices"}},
    {"aten::_index_put_impl.out", {"indices"}},
    {"aten::_unsafe_index.Tensor", {"indices"}},
    {"aten::_unsafe_index_put", {"indices"}},
    {"aten::_pack_padded_sequence", {"lengths"}},
    {"aten::_pack_padded_sequence_backward", {"batch_sizes"}},
    {"aten::lstm.data", {"batch_sizes"}},
    {"aten::gru.data", {"batch_sizes"}},
    {"aten::rnn_tanh.data", {"batch_sizes"}},
    {"aten::rnn_relu.data", {"batch_sizes"}},
};

// Results that torch keeps on the CPU.
inline const std::map<std::string, std::set<size_t>> kHostResults = {
    {"aten::_pack_padded_sequence", {1}},
};

// Arguments that are written although the schema does not say so.
inline const std::map<std::string, std::set<std::string>> kWrittenUnsaid = {
    {"aten::native_batch_norm", {"running_mean", "running_var"}},
    {"aten::batch_norm_update_stats", {"running_mean", "running_var"}},
};

// Arguments that a CPU kernel takes to lie densely, in the memory format that `input` suggests. Who calls it sees to
// that for CPU and CUDA tensors, and not for xpu's: Intel's kernels take any strides.
inline const std::map<std::string, std::set<std::string>> kDense = {
    {"aten::native_group_norm", {"input"}},
    {"aten::native_group_norm.out", {"input"}},
    {"aten::native_group_norm_backward", {"grad_out", "input"}},
    {"aten::native_group_norm_backward.out", {"grad_out", "input"}},
};

// Matrices that lie in memory column by column on every device but the CPU, which torch's formulas of sparse tensors
// count on.
inline const std::set<std::string> kByColumns = {"aten::nonzero"};

// CPU kernels that add up many elements (or multiply them) in f16 or bf16, where a sum soon stops growing. They get
// f32.
inline const std::set<std::string> kWidened = {
    "aten::_embedding_bag_backward",
    "aten::_embedding_bag_dense_backward",
    "aten::_fused_sgd_",
    "aten::_fused_sgd_.tensor_lr",
    "aten::_index_put_impl_",
    "aten::embedding_dense_backward",
    "aten::grid_sampler_2d_backward",
    "aten::grid_sampler_3d_backward",
    "aten::histc",
    "aten::histc.out",
    "aten::index_add.out",
    "aten::index_put_",
    "aten::index_reduce.out",
    "aten::prod",
    "aten::prod.int_out",
    "aten::put_",
    "aten::reflection_pad1d_backward.grad_input",
    "aten::reflection_pad2d_backward",
    "aten::reflection_pad2d_backward.grad_input",
    "aten::reflection_pad3d_backward.grad_input",
    "aten::replication_pad1d_backward.grad_input",
    "aten::replication_pad2d_backward",
    "aten::replication_pad2d_backward.grad_input",
    "aten::replication_pad3d_backward",
    "aten::replication_pad3d_backward.grad_input",
    "aten::segment_reduce",
};

// Types that these operators have on Intel's devices and whose CPU kernels lack them: those get the next wider one.
// Names without overload, of functional, in-place and `out=` forms.
inline const std::map<ScalarType, std::set<std::string>> kLacking = {
    {ScalarType::ComplexHalf,
     {"_fft_c2c",
      "_fft_c2r",
      "acos",
      "acosh",
      "addcdiv",
      "addcmul",
      "angle",
      "asin",
      "asinh",
      "atan",
      "atanh",
      "cos",
      "cosh",
      "cumsum",
      "cumprod",
      "div",
      "exp",
      "expm1",
      "lerp",
      "log",
      "log10",
      "log1p",
      "log2",
      "logaddexp",
      "mean",
      "nansum",
      "pow",
      "prod",
      "sgn",
      "sigmoid",
      "sigmoid_backward",
      "sin",
      "sinh",
      "sqrt",
      "rsqrt",
      "sum",
      "tan",
      "tanh",
      "trace",
      "tanh_backward",
      "reciprocal"}},
    {ScalarType::Half,
     {"_fft_c2r", "_fft_r2c", "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa_backward", "_upsample_bilinear2d_aa",
      "_upsample_bilinear2d_aa_backward", "_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa_backward", "avg_pool3d",
      "avg_pool3d_backward", "multi_margin_loss", "multi_margin_loss_backward", "multilabel_margin_loss_forward",
      "multilabel_margin_loss_backward", "rrelu_with_noise", "rrelu_with_noise_backward"}},
    {ScalarType::BFloat16,
     {"_fft_c2r", "_fft_r2c", "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa_backward", "_upsample_bilinear2d_aa",
      "_upsample_bilinear2d_aa_backward", "_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa_backward", "avg_pool3d",
      "avg_pool3d_backward", "multi_margin_loss", "multi_margin_loss_backward", "multilabel_margin_loss_forward",
      "multilabel_margin_loss_backward"}},
    {ScalarType::Bool, {"abs", "trace"}},
};

// Operators that put elements elsewhere, whatever these are: unsigned integers beyond 8 bits, which few CPU kernels
// have, go through as signed ones of the same bits.
inline const std::set<std::string> kMoves = {
    "_index_put_impl_", "flip",           "gather",        "index_copy", "index_put",
    "index_select",     "masked_scatter", "masked_select", "put",        "roll",
    "scatter",          "take",           "tril",          "triu",       "unfold_backward",
    "repeat_interleave"};

// The same, where only the elements' being zero or not is asked: their results are no such elements.
inline const std::set<std::string> kAsks = {"count_nonzero", "nonzero", "nonzero_static"};

// Operators that torch refuses where what is written overlaps what is read: an `out` that is shifted against an
// argument, and of the second ones an argument itself too. Others are computed into new memory.
inline const std::set<std::string> kApart = {
    "aminmax",    "bernoulli",    "cumprod",        "cumsum",       "index_add",
    "index_copy", "index_reduce", "_logcumsumexp",  "logcumsumexp", "max",
    "min",        "mode",         "nan_to_num",     "normal",       "renorm",
    "scatter",    "scatter_add",  "scatter_reduce", "sort",         "topk"};
inline const std::set<std::string> kNeverSame = {"cat",          "gather",        "index_select", "kthvalue",
                                                 "linalg_cross", "masked_select", "take"};
inline const std::set<std::string> kApartFromFirst = {"addbmm", "addmm", "addmv", "baddbmm"};

// CPU kernels that claim to work element by element at any strides, and do not.
inline const std::set<std::string> kNotPointwise = {"aten::gelu.out"};

// Operators that torch makes of others on every device and that end, with no operator between, in a table of kernels
// where xpu has none ("DispatchStub"): the host runs all of them but those with a function of ours.
// tests/test_stubbed_composites.py finds such.
inline const std::vector<std::string> kStubbedComposites{"_batch_norm_no_update",
                                                         "_batch_norm_no_update.out",
                                                         "conj_physical_",
                                                         "kaiser_window",
                                                         "kaiser_window.beta",
                                                         "kaiser_window.periodic",
                                                         "kaiser_window.out",
                                                         "kaiser_window.beta_out",
                                                         "kaiser_window.periodic_out",
                                                         "ldexp.Tensor",
                                                         "ldexp.out",
                                                         "ldexp_",
                                                         "mode.values"};

}  // namespace anyxpu::host_exceptions
