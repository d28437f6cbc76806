"""Operators of sparse and strided nested tensors that kernels of this folder serve, by dispatch key.

Of sparse ones what ATen's own code for them does not do on every device (shim/sparse.cpp); of nested ones what is not
of their sizes alone (shim/nested.cpp).
"""

from __future__ import annotations

from anyxpu.ops import nested_elementwise

# Dispatch key -> operator -> the function of this folder that serves it.
TABLES: dict[str, dict[str, str]] = {
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
        "_to_sparse": "sparse.to_sparse",
        "_to_sparse_bsc": "sparse.to_sparse_bsc",
        "_to_sparse_bsr": "sparse.to_sparse_bsr",
        "_to_sparse_csr": "sparse.to_sparse_csr",
        "_to_sparse_csc": "sparse.to_sparse_csc",
        "addmm.out": "sparse.addmm_out",
        "addmv.out": "sparse.addmv_out",
        "sparse_mask": "sparse.sparse_mask",
    },
    "NestedTensorXPU": {
        **{name: f"nested_elementwise.{nested_elementwise.function(name)}" for name in nested_elementwise.OVERLOADS},
        "linear": "nested.linear",
        "linear_backward": "nested.linear_backward",
        "native_layer_norm": "nested.layer_norm",
        "native_layer_norm_backward": "nested.layer_norm_backward",
        "_softmax": "nested.softmax",
        "_softmax_backward_data": "nested.softmax_backward",
        "sum.dim_IntList": "nested.sum_of",
        "_nested_sum_backward": "nested.sum_backward",
        "embedding": "nested.embedding",
        "matmul": "nested.matmul",
        "bmm": "nested.matmul",
        "matmul_backward": "nested.matmul_backward",
        "to_padded_tensor": "nested.to_padded",
        "_nested_from_padded_and_nested_example": "nested.from_padded_like",
        "_transform_bias_rescale_qkv": "encoder.transform_bias_rescale_qkv",
        "_native_multi_head_attention": "encoder.multi_head_attention",
        "_transformer_encoder_layer_fwd": "encoder.encoder_layer",
    },
}
