"""torchao's workflows of inference that run on xpu, by name, for ``anyxpu bench quant`` and the tests.

torchao is in the extra ``quant``. It is imported where a workflow's configuration is asked for, and never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Workflow:
    """One configuration of torchao.

    Attributes:
        weight, activation: what they are held in, for tables.
        config: makes the configuration that ``torchao.quantization.quantize_`` takes.
        least: dB, the signal-to-noise ratio that a layer of normally distributed weights has at the least, beside the
            same layer in bfloat16.
        bits: of memory that one weight takes, with its share of the scales.
        on_cpu: does torchao run it on the CPU too?
    """

    weight: str
    activation: str
    config: Callable[[], Any]
    least: float
    bits: float
    on_cpu: bool = True


def _int8(**options: Any) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig(**options, set_inductor_config=False)


def _int8_dynamic() -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)


def _int4() -> Any:
    from torchao.quantization import Int4WeightOnlyConfig

    return Int4WeightOnlyConfig(group_size=128, int4_packing_format="plain_int32", set_inductor_config=False)


def _intx4() -> Any:
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    return IntxWeightOnlyConfig(torch.int4, PerGroup(64))  # type: ignore[attr-defined]


def _int8_int4() -> Any:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerGroup

    return Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(64))  # type: ignore[attr-defined]


def _float8() -> Any:
    from torchao.quantization import Float8WeightOnlyConfig

    return Float8WeightOnlyConfig(set_inductor_config=False)


def _float8_dynamic(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig
        from torchao.quantization.granularity import PerBlock, PerRow, PerTensor

        of: Any = {"tensor": PerTensor(), "row": PerRow(), "block": (PerBlock([1, 128]), PerBlock([128, 128]))}[kind]
        return Float8DynamicActivationFloat8WeightConfig(granularity=of, set_inductor_config=False)

    return make


def _mx(dtype: torch.dtype, native: bool) -> Callable[[], Any]:
    def make() -> Any:
        from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
        from torchao.quantization.quantize_.common import KernelPreference

        kernels = KernelPreference.AUTO if native else KernelPreference.EMULATED
        return MXDynamicActivationMXWeightConfig(activation_dtype=dtype, weight_dtype=dtype, kernel_preference=kernels)

    return make


def _nvfp4() -> Any:
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig

    return NVFP4WeightOnlyConfig()


_FP8, _FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2

WORKFLOWS: dict[str, Workflow] = {
    "int8": Workflow("int8 by rows", "bfloat16", _int8, 40, 8),
    "int8 dynamic": Workflow("int8 by rows", "int8 by rows", _int8_dynamic, 34, 8),
    "int4": Workflow("int4, groups of 128 (plain_int32)", "bfloat16", _int4, 18.5, 4.25, on_cpu=False),
    "intx4": Workflow("int4, groups of 64 (held in int8)", "bfloat16", _intx4, 18.5, 8.25),
    "int8 x int4": Workflow("int4, groups of 64 (held in int8)", "int8 by rows", _int8_int4, 18.5, 8.25),
    "float8": Workflow("float8 by rows", "bfloat16", _float8, 28, 8),
    "float8 tensorwise": Workflow("float8 by tensors", "float8 by tensors", _float8_dynamic("tensor"), 24.5, 8),
    "float8 rowwise": Workflow("float8 by rows", "float8 by rows", _float8_dynamic("row"), 24.5, 8),
    "float8 blockwise": Workflow("float8 128x128", "float8 1x128", _float8_dynamic("block"), 24.5, 8, on_cpu=False),
    "mxfp8": Workflow("mxfp8", "mxfp8", _mx(_FP8, True), 24, 8.25, on_cpu=False),
    "mxfp8 emulated": Workflow("mxfp8", "mxfp8", _mx(_FP8, False), 24, 8.25),
    "mxfp4": Workflow("mxfp4", "mxfp4", _mx(_FP4, True), 11, 4.25, on_cpu=False),
    "mxfp4 emulated": Workflow("mxfp4", "mxfp4", _mx(_FP4, False), 11, 4.25),
    "nvfp4": Workflow("nvfp4", "bfloat16", _nvfp4, 15.5, 4.5),
}
