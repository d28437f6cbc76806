"""Operators served by kernels of this folder: their registration on dispatch key XPU."""

from __future__ import annotations

import torch

from anyxpu.ops import registry, serve

# Operator -> the function of this folder that serves it, imported at the first call. argsort, msort, sort without
# `stable`, randint, rand, randn and the like are torch's compositions of these.
TABLE: dict[str, str] = {
    "sort.stable": "sorting.sort",
    "sort.values_stable": "sorting.sort_out",
    "topk": "sorting.topk",
    "topk.values": "sorting.topk_out",
    "scatter_add_": "scattering.scatter_add_",
    "scatter_add.out": "scattering.scatter_add_out",
    "scatter_reduce_.two": "scattering.scatter_reduce_",
    "scatter_reduce.two_out": "scattering.scatter_reduce_out",
    "random_": "random.random_",
    "random_.to": "random.random_to",
    "random_.from": "random.random_from",
    "uniform_": "random.uniform_",
    "normal_": "random.normal_",
    "bernoulli_.float": "random.bernoulli_",
    "bernoulli_.Tensor": "random.bernoulli_tensor_",
    "bernoulli.out": "random.bernoulli_out",
    "native_layer_norm": "norms.layer_norm",
    "native_layer_norm_backward": "norms.layer_norm_backward",
    "native_batch_norm": "channels.batch_norm",
    "native_batch_norm_backward": "channels.batch_norm_backward",
    "_native_batch_norm_legit": "channels.batch_norm",
    "_native_batch_norm_legit.no_stats": "channels.batch_norm_no_stats",
    "native_group_norm": "channels.group_norm",
    "native_group_norm_backward": "channels.group_norm_backward",
    "max_pool2d_with_indices": "pooling.max_pool2d",
    "max_pool2d_with_indices.out": "into pooling.max_pool2d",
    "max_pool2d_with_indices_backward": "pooling.max_pool2d_backward",
    "max_pool2d_with_indices_backward.grad_input": "into pooling.max_pool2d_backward",
    "avg_pool2d": "pooling.avg_pool2d",
    "avg_pool2d.out": "into pooling.avg_pool2d",
    "avg_pool2d_backward": "pooling.avg_pool2d_backward",
    "avg_pool2d_backward.grad_input": "into pooling.avg_pool2d_backward",
    "_adaptive_avg_pool2d": "pooling.adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward": "pooling.adaptive_avg_pool2d_backward",
    "max_pool3d_with_indices": "pooling.max_pool3d",
    "max_pool3d_with_indices.out": "into pooling.max_pool3d",
    "max_pool3d_with_indices_backward": "pooling.max_pool3d_backward",
    "max_pool3d_with_indices_backward.grad_input": "into pooling.max_pool3d_backward",
    "avg_pool3d": "pooling.avg_pool3d",
    "avg_pool3d.out": "into pooling.avg_pool3d",
    "avg_pool3d_backward": "pooling.avg_pool3d_backward",
    "avg_pool3d_backward.grad_input": "into pooling.avg_pool3d_backward",
    "_adaptive_avg_pool3d": "pooling.adaptive_avg_pool3d",
    "_adaptive_avg_pool3d_backward": "pooling.adaptive_avg_pool3d_backward",
    "adaptive_avg_pool2d.out": "into pooling.adaptive_avg_pool2d",
    "adaptive_avg_pool3d.out": "into pooling.adaptive_avg_pool3d",
    "adaptive_avg_pool3d_backward.grad_input": "into pooling.adaptive_avg_pool3d_backward",
    "upsample_nearest1d": "resizing.nearest1d",
    "upsample_nearest1d.out": "into resizing.nearest1d",
    "upsample_nearest1d_backward": "resizing.nearest1d_backward",
    "upsample_nearest1d_backward.grad_input": "into resizing.nearest1d_backward",
    "_upsample_nearest_exact1d": "resizing.exact1d",
    "_upsample_nearest_exact1d.out": "into resizing.exact1d",
    "_upsample_nearest_exact1d_backward": "resizing.exact1d_backward",
    "_upsample_nearest_exact1d_backward.grad_input": "into resizing.exact1d_backward",
    "upsample_linear1d": "resizing.linear1d",
    "upsample_linear1d.out": "into resizing.linear1d",
    "upsample_linear1d_backward": "resizing.linear1d_backward",
    "upsample_linear1d_backward.grad_input": "into resizing.linear1d_backward",
    "upsample_nearest2d": "resizing.nearest2d",
    "upsample_nearest2d.out": "into resizing.nearest2d",
    "upsample_nearest2d_backward": "resizing.nearest2d_backward",
    "upsample_nearest2d_backward.grad_input": "into resizing.nearest2d_backward",
    "_upsample_nearest_exact2d": "resizing.exact2d",
    "_upsample_nearest_exact2d.out": "into resizing.exact2d",
    "_upsample_nearest_exact2d_backward": "resizing.exact2d_backward",
    "_upsample_nearest_exact2d_backward.grad_input": "into resizing.exact2d_backward",
    "upsample_bilinear2d": "resizing.bilinear2d",
    "upsample_bilinear2d.out": "into resizing.bilinear2d",
    "upsample_bilinear2d_backward": "resizing.bilinear2d_backward",
    "upsample_bilinear2d_backward.grad_input": "into resizing.bilinear2d_backward",
    "upsample_nearest3d": "resizing.nearest3d",
    "upsample_nearest3d.out": "into resizing.nearest3d",
    "upsample_nearest3d_backward": "resizing.nearest3d_backward",
    "upsample_nearest3d_backward.grad_input": "into resizing.nearest3d_backward",
    "_upsample_nearest_exact3d": "resizing.exact3d",
    "_upsample_nearest_exact3d.out": "into resizing.exact3d",
    "_upsample_nearest_exact3d_backward": "resizing.exact3d_backward",
    "_upsample_nearest_exact3d_backward.grad_input": "into resizing.exact3d_backward",
    "upsample_trilinear3d": "resizing.trilinear3d",
    "upsample_trilinear3d.out": "into resizing.trilinear3d",
    "upsample_trilinear3d_backward": "resizing.trilinear3d_backward",
    "upsample_trilinear3d_backward.grad_input": "into resizing.trilinear3d_backward",
    "native_dropout": "random.dropout",
    "embedding_dense_backward": "indexing.embedding_dense_backward",
    "index.Tensor": "taking.index",
    "index.Tensor_out": "into taking.index",
    "_index_put_impl_": "taking.index_put",
    "scatter.src": "taking.scatter",
    "scatter.value": "taking.scatter",
    "scatter.src_out": "into taking.scatter",
    "scatter.value_out": "into taking.scatter",
    "scatter_.src": "taking.scatter_",
    "scatter_.value": "taking.scatter_",
    "cumsum": "scans.cumsum",
    "cumsum_": "scans.cumsum_",
    "cumsum.out": "scans.cumsum_out",
    "cumprod": "scans.cumprod",
    "cumprod_": "scans.cumprod_",
    "cumprod.out": "scans.cumprod_out",
    "argmax": "extremes.argmax",
    "argmax.out": "into extremes.argmax",
    "argmin": "extremes.argmin",
    "argmin.out": "into extremes.argmin",
    "max.dim": "extremes.max_dim",
    "max.dim_max": "into extremes.max_dim",
    "min.dim": "extremes.min_dim",
    "min.dim_min": "into extremes.min_dim",
    "aminmax": "extremes.aminmax",
    "aminmax.out": "into extremes.aminmax",
    "arange.start_out": "filling.arange_out",
    "tril": "filling.tril",
    "tril.out": "into filling.tril",
    "tril_": "filling.tril_",
    "triu": "filling.triu",
    "triu.out": "into filling.triu",
    "triu_": "filling.triu_",
    "mse_loss": "composed.mse_loss",
    "mse_loss.out": "into composed.mse_loss",
    "mse_loss_backward": "composed.mse_loss_backward",
    "mse_loss_backward.grad_input": "into composed.mse_loss_backward",
    "smooth_l1_loss": "composed.smooth_l1_loss",
    "smooth_l1_loss.out": "into composed.smooth_l1_loss",
    "smooth_l1_loss_backward": "composed.smooth_l1_loss_backward",
    "smooth_l1_loss_backward.grad_input": "into composed.smooth_l1_loss_backward",
    "huber_loss": "composed.huber_loss",
    "huber_loss.out": "into composed.huber_loss",
    "huber_loss_backward": "composed.huber_loss_backward",
    "huber_loss_backward.out": "into composed.huber_loss_backward",
    "log_sigmoid_forward": "composed.log_sigmoid",
    "log_sigmoid_backward": "composed.log_sigmoid_backward",
    "glu": "composed.glu",
    "glu.out": "into composed.glu",
    "glu_backward": "composed.glu_backward",
    "_prelu_kernel": "composed.prelu",
    "_prelu_kernel_backward": "composed.prelu_backward",
    "nan_to_num.out": "into composed.nan_to_num",
    "var.correction": "composed.var",
    "var.correction_out": "into composed.var",
    "std.correction": "composed.std",
    "std.correction_out": "into composed.std",
    "var_mean.correction": "composed.var_mean",
    "std_mean.correction": "composed.std_mean",
    "nonzero": "taking.nonzero",
    "nonzero.out": "into taking.nonzero",
    "masked_select": "composed.masked_select",
    "masked_select.out": "into composed.masked_select",
    "masked_scatter_": "composed.masked_scatter_",
    "isin.Tensor_Tensor": "composed.isin",
    "isin.Tensor_Tensor_out": "into composed.isin",
    "multinomial": "composed.multinomial",
    "multinomial.out": "into composed.multinomial",
    "exponential_": "composed.exponential_",
    "flip": "taking.flip",
    "roll": "composed.roll",
    "equal": "composed.equal",
    "count_nonzero.dim_IntList": "composed.count_nonzero",
    "_convert_indices_from_coo_to_csr": "sparse.offsets_of",
    "_convert_indices_from_coo_to_csr.out": "into sparse.offsets_of",
    "_convert_indices_from_csr_to_coo": "sparse.places_of",
    "_convert_indices_from_csr_to_coo.out": "into sparse.places_of",
    "_amp_update_scale_": "statistics.amp_update_scale_",
    "histc": "statistics.histc",
    "histc.out": "statistics.histc_out",
    "nansum": "statistics.nansum",
    "nansum.out": "statistics.nansum_out",
    "nll_loss_forward": "losses.nll_loss_forward",
    "nll_loss_backward": "losses.nll_loss_backward",
    "_fused_sdp_choice": "fused_attention.choice",
    "_scaled_dot_product_fused_attention_overrideable": "fused_attention.overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward": "fused_attention.overrideable_backward",
    "_scaled_dot_product_flash_attention": "fused_attention.by_flash",
    "_scaled_dot_product_flash_attention_backward": "fused_attention.by_flash_backward",
    "_scaled_dot_product_efficient_attention": "fused_attention.efficient",
    "_scaled_dot_product_efficient_attention_backward": "fused_attention.efficient_backward",
    "_flash_attention_forward": "packed_attention.flash_forward",
    "_flash_attention_forward_no_dropout_inplace": "packed_attention.flash_forward_into",
    "_flash_attention_backward": "packed_attention.flash_backward",
    "_efficient_attention_forward": "packed_attention.efficient_forward",
    "_efficient_attention_backward": "packed_attention.efficient_backward",
    "_convert_weight_to_int4pack": "weight_only.convert_weight_to_int4pack",
    "_weight_int4pack_mm_with_scales_and_zeros": "weight_only.int4pack_mm",
    "_weight_int8pack_mm": "weight_only.int8pack_mm",
    "_scaled_mm": "scaled.scaled_mm",
    "_scaled_mm.out": "scaled.scaled_mm_out",
    "_scaled_mm_v2": "scaled.scaled_mm_v2",
    "_scaled_mm_v2.out": "scaled.scaled_mm_v2",
    "_scaled_grouped_mm": "scaled_groups.scaled_grouped_mm",
    "_scaled_grouped_mm_v2": "scaled_groups.scaled_grouped_mm_v2",
}

# Of sparse tensors, by dispatch key: what ATen's own code for them does not do on every device (shim/sparse.cpp).
SPARSE: dict[str, dict[str, str]] = {
    "SparseXPU": {
        "_coalesce": "sparse.coalesce",
        "add.out": "sparse.add_out",
        "mul.out": "sparse.mul_out",
        "sparse_mask": "sparse.sparse_mask",
        "addmm": "sparse.addmm",
        "addmm_": "sparse.addmm_",
        "addmm.out": "sparse.addmm_out",
        "bmm": "sparse.bmm",
        "bmm.out": "sparse.bmm_out",
    },
    "SparseCsrXPU": {
        "_to_sparse_csr": "sparse.to_sparse_csr",
        "_to_sparse_csc": "sparse.to_sparse_csc",
        "addmm.out": "sparse.addmm_out",
        "addmv.out": "sparse.addmv_out",
        "sparse_mask": "sparse.sparse_mask",
    },
}

# Defined by torchao, which has kernels of its own for other devices; registered before that is imported, if it ever is.
TORCHAO: dict[str, str] = {"scaled_int8_mm": "scaled_int8.scaled_int8_mm"}

# Ours, which compiled graphs call (anyxpu.inductor.narrow_weights).
OWN: dict[str, tuple[str, str]] = {
    "_weight_float8_mm": ("(Tensor self, Tensor weight, Tensor scales) -> Tensor", "weight_only.float8_mm"),
}
_defined: list[torch.library.Library] = []  # definitions end with their Library


def _define() -> None:
    if _defined:
        return
    _defined.append(torch.library.Library("anyxpu", "FRAGMENT"))
    for name, (signature, _) in OWN.items():
        _defined[0].define(name + signature)
    _defined[0].impl("_weight_float8_mm", lambda x, w, _: x.new_empty(x.shape[0], w.shape[0]), "Meta")


def _path(function: str) -> str:
    into = "into " if function.startswith("into ") else ""
    return f"{into}anyxpu.ops.{function.removeprefix('into ')}"


def register() -> None:
    """Put every operator of :data:`TABLE` on dispatch key XPU. Compiles nothing and starts no driver."""
    serve.register({name: _path(function) for name, function in TABLE.items()}, "compiled")
    serve.register({name: f"anyxpu.ops.{path}" for name, path in TORCHAO.items()}, "compiled", namespace="torchao")
    _define()
    serve.register({name: f"anyxpu.ops.{path}" for name, (_, path) in OWN.items()}, "compiled", namespace="anyxpu")
    for key, table in SPARSE.items():
        serve.register({name: _path(function) for name, function in table.items()}, "compiled", key=key)
    for name in TABLE:
        registry.declare(f"aten::{name}", "compiled")
