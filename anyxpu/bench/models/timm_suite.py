"""timm's models of PyTorch's dynamo benchmark (``benchmarks/dynamo/timm_models_list.txt``), with random weights."""

from __future__ import annotations

import functools

import torch
from torch import nn

from anyxpu.bench.models.entry import Entry, Inputs, Size
from anyxpu.bench.models.packages import Images, load

# Name -> upstream's batch.
_MODELS = {
    "adv_inception_v3": 128,
    "beit_base_patch16_224": 64,
    "botnet26t_256": 128,
    "cait_m36_384": 4,
    "coat_lite_mini": 128,
    "convit_base": 64,
    "convmixer_768_32": 32,
    "convnext_base": 64,
    "crossvit_9_240": 128,
    "cspdarknet53": 64,
    "deit_base_distilled_patch16_224": 64,
    "deit_tiny_patch16_224": 128,
    "dla102": 128,
    "dm_nfnet_f0": 128,
    "dpn107": 32,
    "eca_botnext26ts_256": 128,
    "eca_halonext26ts": 128,
    "ese_vovnet19b_dw": 128,
    "fbnetc_100": 128,
    "fbnetv3_b": 128,
    "gernet_l": 128,
    "ghostnet_100": 128,
    "gluon_inception_v3": 128,
    "gmixer_24_224": 128,
    "gmlp_s16_224": 128,
    "hrnet_w18": 128,
    "inception_v3": 128,
    "jx_nest_base": 32,
    "lcnet_050": 128,
    "levit_128": 128,
    "mixer_b16_224": 128,
    "mixnet_l": 128,
    "mnasnet_100": 128,
    "mobilenetv2_100": 128,
    "mobilenetv3_large_100": 128,
    "mobilevit_s": 64,
    "nfnet_l0": 128,
    "pit_b_224": 64,
    "pnasnet5large": 16,
    "poolformer_m36": 64,
    "regnety_002": 128,
    "repvgg_a2": 128,
    "res2net101_26w_4s": 64,
    "res2net50_14w_8s": 128,
    "res2next50": 128,
    "resmlp_12_224": 128,
    "resnest101e": 64,
    "rexnet_100": 128,
    "sebotnet33ts_256": 64,
    "selecsls42b": 128,
    "spnasnet_100": 128,
    "swin_base_patch4_window7_224": 64,
    "swsl_resnext101_32x16d": 32,
    "tf_efficientnet_b0": 128,
    "tf_mixnet_l": 32,
    "tinynet_a": 128,
    "tnt_s_patch16_224": 128,
    "twins_pcpvt_base": 64,
    "visformer_small": 128,
    "vit_base_patch14_dinov2": 16,
    "vit_base_patch16_224": 64,
    "volo_d1_224": 64,
    "xcit_large_24_p8_224": 5,
}
# What upstream grants: rounding errors of many batch norms and scaled weights grow (REQUIRE_HIGHER_TOLERANCE).
_TOLERANT = (
    "adv_inception_v3",
    "botnet26t_256",
    "cspdarknet53",
    "eca_botnext26ts_256",
    "eca_halonext26ts",
    "fbnetc_100",
    "fbnetv3_b",
    "gluon_inception_v3",
    "inception_v3",
    "mobilevit_s",
    "sebotnet33ts_256",
    "selecsls42b",
)


def _build(name: str) -> nn.Module:
    import timm

    return Images(timm.create_model(name, pretrained=False, drop_rate=0.0, drop_path_rate=None))


def _inputs(name: str, g: torch.Generator, size: Size) -> Inputs:
    import timm

    with torch.device("meta"):  # under an old name timm finds the model, and its configuration by the model alone
        shape = timm.create_model(name, pretrained=False).pretrained_cfg["input_size"]
    return {"images": torch.randn(size.batch, *shape, generator=g)}


def entries() -> list[Entry]:
    """All of the suite; the pixels of an image are the model's own.

    Raises:
        ImportError: timm or torchvision is not there; it says what installs them.
    """
    load("timm", "timm")
    return [
        Entry(
            name=name,
            build=functools.partial(_build, name),
            inputs=functools.partial(_inputs, name),
            small=Size(2, 0),
            upstream=Size(batch, 0),
            tolerance=(8e-2, 8e-2) if name in _TOLERANT else None,
        )
        for name, batch in _MODELS.items()
    ]
