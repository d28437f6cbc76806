"""Operators served by kernels of this folder: their registration on dispatch key XPU."""

from __future__ import annotations

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
}


def register() -> None:
    """Put every operator of :data:`TABLE` on dispatch key XPU. Compiles nothing and starts no driver."""
    serve.register({name: f"anyxpu.ops.{function}" for name, function in TABLE.items()}, "compiled")
    for name in TABLE:
        registry.declare(f"aten::{name}", "compiled")
