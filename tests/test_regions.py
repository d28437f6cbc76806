"""torchvision's operators on xpu, against their definitions in NumPy in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyxpu
from anyxpu.bench.models.packages import detectors_work

ops = torch.ops.torchvision
_IMAGE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_POOLED}, {_IMAGE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_IMAGE}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, int sampling_ratio, {_IMAGE})"
    " -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, {_IMAGE}) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt "
    "stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt "
    "stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
# As torchvision defines them, whose wheels of PyPI do not load beside a CPU build of torch.
if not detectors_work():
    DEFINED = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        DEFINED.define(schema)

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 3e-3}
DTYPES = tuple(TOLERANCE)


@pytest.fixture(autouse=True)
def can_compute(request: pytest.FixtureRequest) -> None:
    """float64 is not asked of a device that does not compute in it."""
    parameters = getattr(request.node, "callspec", None)
    doubles = parameters is not None and parameters.params.get("dtype") is torch.float64
    if doubles and not torch.xpu.get_device_properties().has_fp64:
        pytest.skip("this device does not compute in float64")


@pytest.fixture
def on_device() -> Any:
    """That nothing was the host's, said at the end."""
    anyxpu.ops.reset_counters()
    yield
    assert not [op for op, ways in anyxpu.ops.counters().items() if "host" in ways]


def near(found: Tensor, want: np.ndarray, dtype: torch.dtype) -> None:
    assert (found.dtype, tuple(found.shape), found.device.type) == (dtype, want.shape, "xpu")
    scale = max(np.abs(want).max(initial=0.0), 1.0)
    error = np.abs(found.cpu().double().numpy() - want).max(initial=0.0)
    assert error <= TOLERANCE[dtype] * scale, f"off by {error}, largest {scale}"


def regions(k: int, images: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """Some of them reach out of the image, some are empty, some the wrong way round."""
    a, b = (torch.rand(k, 2, dtype=torch.float64) * torch.tensor([width, height]) * 1.4 - 2 for _ in range(2))
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    high[0], low[-1], high[-1] = low[0], high[-1].clone(), low[-1].clone()
    return torch.cat([torch.randint(0, images, (k, 1)).double(), low, high], dim=1).to(dtype)


def samples(place: float, size: int) -> list[tuple[int, float]]:
    """Pixels along an axis that a place is made of, and their shares."""
    if place < -1 or place > size:
        return []
    place = max(place, 0.0)
    low = int(place)
    if low >= size - 1:
        return [(size - 1, 1.0)]
    return [(low, 1 - (place - low)), (low + 1, place - low)]


Weights = list[tuple[int, int, float]]
Bin = Callable[[np.ndarray, int, int], Weights]


def aligned_bin(size: tuple[int, int], pooled: tuple[int, int], scale: float, grid: int, shift: float,
                least: bool) -> Bin:  # fmt: skip
    def of(roi: np.ndarray, ph: int, pw: int) -> Weights:
        axes = []
        for axis, p in ((1, ph), (0, pw)):
            begin, end = roi[1 + axis] * scale - shift, roi[3 + axis] * scale - shift
            length = max(end - begin, 1.0) if least else end - begin
            each, n = length / pooled[1 - axis], 0
            n = grid if grid > 0 else math.ceil(each)
            places = [begin + p * each + (i + 0.5) * each / n for i in range(n)]
            axes.append((n, [samples(place, size[1 - axis]) for place in places]))
        (rows, ys), (columns, xs) = axes
        count = max(rows * columns, 1)
        return [
            (y, x, a * b / count) for one in ys for other in xs for y, a in one for x, b in other
        ]  # fmt: skip

    return of


def bounds(roi: np.ndarray, axis: int, p: int, pooled: int, scale: float, last: int, most: int) -> range:
    def nearest(v: float) -> int:
        return math.floor(v + 0.5) if v >= 0 else math.ceil(v - 0.5)

    begin, end = nearest(roi[1 + axis] * scale), nearest(roi[3 + axis] * scale)
    # The product in float32, as where a bin ends depends on its last digit.
    each = np.float32(max(end - begin + last, 1)) / np.float32(pooled)
    low, high = math.floor(np.float32(p) * each) + begin, math.ceil(np.float32(p + 1) * each) + begin
    return range(min(max(low, 0), most), min(max(high, 0), most))


def averaged(x: np.ndarray, rois: np.ndarray, pooled: tuple[int, int], weights: Bin, each: bool) -> np.ndarray:
    """What bins' weights make of the images; ``each``: a channel for each bin."""
    channels = x.shape[1] // (pooled[0] * pooled[1]) if each else x.shape[1]
    out = np.zeros((len(rois), channels, *pooled))
    for k, c, ph, pw in itertools.product(*map(range, out.shape)):
        plane = x[int(rois[k, 0]), (c * pooled[0] + ph) * pooled[1] + pw if each else c]
        out[k, c, ph, pw] = sum(plane[i, j] * w for i, j, w in weights(rois[k], ph, pw))
    return out


def given_back(grad: np.ndarray, rois: np.ndarray, image: tuple[int, ...], weights: Bin, each: bool) -> np.ndarray:
    """The gradient of :func:`averaged`."""
    out = np.zeros(image)
    pooled = grad.shape[2:]
    for k, c, ph, pw in itertools.product(*map(range, grad.shape)):
        channel = (c * pooled[0] + ph) * pooled[1] + pw if each else c
        for i, j, w in weights(rois[k], ph, pw):
            out[int(rois[k, 0]), channel, i, j] += grad[k, c, ph, pw] * w
    return out


@pytest.mark.rotates(6)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("grid", [0, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_aligned_regions_are_means_of_samples(dtype: torch.dtype, grid: int, aligned: bool, on_device: None) -> None:
    image, pooled, scale = (2, 3, 9, 13), (4, 3), 0.5
    x = torch.randn(image, dtype=torch.float64).to(dtype)
    # In halves, that samples lie where both sides say they do.
    rois = (regions(6, 2, 18, 26, torch.float64) * 2).round() / 2
    weights = aligned_bin(image[2:], pooled, scale, grid, 0.5 if aligned else 0.0, not aligned)
    given = rois.to(dtype).xpu()
    found = ops.roi_align(x.xpu(), given, scale, *pooled, grid, aligned)
    near(found, averaged(x.double().numpy(), rois.numpy(), pooled, weights, False), dtype)
    grad = torch.randn(found.shape, dtype=torch.float64).to(dtype)
    back = ops._roi_align_backward(grad.xpu(), given, scale, *pooled, *image, grid, aligned)
    near(back, given_back(grad.double().numpy(), rois.numpy(), image, weights, False), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("grid", [0, 3])
def test_aligned_regions_with_a_channel_for_each_bin(dtype: torch.dtype, grid: int, on_device: None) -> None:
    image, pooled, scale = (2, 12, 8, 7), (2, 3), 0.25
    x = torch.randn(image, dtype=torch.float64).to(dtype)
    rois = (regions(5, 2, 30, 26, torch.float64) * 2).round() / 2
    rois[:, 3:] = torch.maximum(rois[:, 3:], rois[:, 1:3] + 1)  # an empty one is 0 / 0
    weights = aligned_bin(image[2:], pooled, scale, grid, 0.5, False)
    given = rois.to(dtype).xpu()
    found, channels = ops.ps_roi_align(x.xpu(), given, scale, *pooled, grid)
    near(found, averaged(x.double().numpy(), rois.numpy(), pooled, weights, True), dtype)
    assert channels.dtype is torch.int32 and channels[3].flatten().tolist() == list(range(12))
    grad = torch.randn(found.shape, dtype=torch.float64).to(dtype)
    back = ops._ps_roi_align_backward(grad.xpu(), given, channels, scale, *pooled, grid, *image)
    near(back, given_back(grad.double().numpy(), rois.numpy(), image, weights, True), dtype)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pooled_regions_are_the_largest_of_their_bins(dtype: torch.dtype, on_device: None) -> None:
    image, pooled, scale = (2, 3, 9, 13), (3, 4), 0.5
    x = torch.randn(image, dtype=torch.float64).to(dtype)
    rois = regions(6, 2, 18, 26, torch.float64).round()
    given = rois.to(dtype).xpu()
    found, where = ops.roi_pool(x.xpu(), given, scale, *pooled)
    plain, want, places = x.double().numpy(), np.zeros(found.shape), np.full(found.shape, -1)
    for k, c, ph, pw in itertools.product(*map(range, want.shape)):
        rows = bounds(rois[k].numpy(), 1, ph, pooled[0], scale, 1, image[2])
        columns = bounds(rois[k].numpy(), 0, pw, pooled[1], scale, 1, image[3])
        pixels = [(plain[int(rois[k, 0]), c, i, j], -(i * image[3] + j)) for i in rows for j in columns]
        if pixels:
            want[k, c, ph, pw], place = max(pixels)
            places[k, c, ph, pw] = -place
    near(found, want, dtype)
    assert where.dtype is torch.int32 and where.cpu().tolist() == places.tolist()
    grad = torch.randn(found.shape, dtype=torch.float64).to(dtype)
    back = ops._roi_pool_backward(grad.xpu(), given, where, scale, *pooled, *image)
    summed = np.zeros(image)
    for k, c, ph, pw in itertools.product(*map(range, want.shape)):
        if places[k, c, ph, pw] >= 0:
            summed[int(rois[k, 0]), c].flat[places[k, c, ph, pw]] += float(grad[k, c, ph, pw])
    near(back, summed, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pooled_regions_with_a_channel_for_each_bin(dtype: torch.dtype, on_device: None) -> None:
    image, pooled, scale = (2, 12, 8, 9), (2, 3), 0.5
    x = torch.randn(image, dtype=torch.float64).to(dtype)
    rois = regions(6, 2, 16, 18, torch.float64).round()
    given = rois.to(dtype).xpu()

    def weights(short: int) -> Bin:
        def of(roi: np.ndarray, ph: int, pw: int) -> Weights:
            rows = bounds(roi, 1, ph, pooled[0], scale, 0, image[2] - short)
            columns = bounds(roi, 0, pw, pooled[1], scale, 0, image[3] - short)
            return [(i, j, 1 / (len(rows) * len(columns))) for i in rows for j in columns]

        return of

    found, channels = ops.ps_roi_pool(x.xpu(), given, scale, *pooled)
    near(found, averaged(x.double().numpy(), rois.numpy(), pooled, weights(1), True), dtype)
    assert channels[0].flatten().tolist() == list(range(12))
    grad = torch.randn(found.shape, dtype=torch.float64).to(dtype)
    back = ops._ps_roi_pool_backward(grad.xpu(), given, channels, scale, *pooled, *image)
    near(back, given_back(grad.double().numpy(), rois.numpy(), image, weights(0), True), dtype)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300, 1200])
@pytest.mark.parametrize("most", [0.0, 0.3, 0.7])
def test_of_boxes_that_overlap_the_best_is_kept(count: int, most: float, on_device: None) -> None:
    corner, size = torch.rand(count, 2) * 40, torch.rand(count, 2) * 20
    boxes, scores = torch.cat([corner, corner + size], dim=1), torch.randint(0, 50, (count,)) / 50
    found = ops.nms(boxes.xpu(), scores.xpu(), most)
    left, top, right, bottom = boxes.numpy().T
    area, kept = (right - left) * (bottom - top), []
    order = np.argsort(-scores.numpy(), kind="stable")
    alive = np.ones(count, bool)
    for i in order:
        if not alive[i]:
            continue
        kept.append(int(i))
        wide = np.minimum(right, right[i]) - np.maximum(left, left[i])
        high = np.minimum(bottom, bottom[i]) - np.maximum(top, top[i])
        both = np.maximum(wide, 0) * np.maximum(high, 0)
        alive &= ~(both / (area + area[i] - both) > np.float32(most))
    assert found.dtype is torch.int64 and found.is_xpu
    assert found.tolist() == kept


def test_no_boxes_and_no_regions(on_device: None) -> None:
    assert ops.nms(torch.empty(0, 4, device="xpu"), torch.empty(0, device="xpu"), 0.5).shape == (0,)
    x, rois = torch.randn(1, 4, 5, 5, device="xpu"), torch.empty(0, 5, device="xpu")
    assert ops.roi_align(x, rois, 1.0, 2, 2, 2, True).shape == (0, 4, 2, 2)
    assert ops._roi_pool_backward(x[:0], rois, x[:0].int(), 1.0, 5, 5, 1, 4, 5, 5).abs().sum().item() == 0


def test_a_region_of_no_image_is_nothing(on_device: None) -> None:
    x, rois = torch.randn(2, 4, 5, 5, device="xpu"), torch.tensor([[7.0, 0, 0, 4, 4], [-3.0, 0, 0, 4, 4]]).xpu()
    assert ops.roi_align(x, rois, 1.0, 2, 2, 2, True).abs().sum().item() == 0
    assert ops._roi_align_backward(torch.ones(2, 4, 2, 2).xpu(), rois, 1.0, 2, 2, 2, 4, 5, 5, 2, True).sum().item() == 0


def test_regions_without_an_end_or_a_place_end(on_device: None) -> None:
    inf, nan = float("inf"), float("nan")
    rois = torch.tensor(
        [[0, 0, 0, inf, 4], [0, -inf, 1, inf, 3], [0, nan, 0, 3, 3], [nan, 0, 0, 3, 3], [0, 0, 0, 3, 3]]
    )
    x = torch.randn(1, 4, 5, 5)
    for function in (ops.roi_align, ops.roi_pool, ops.ps_roi_align, ops.ps_roi_pool):
        words = {ops.roi_align: (0, True), ops.ps_roi_align: (0,)}.get(function, ())
        found = function(x.xpu(), rois.xpu(), 1.0, 2, 2, *words)
        found = found[0] if isinstance(found, tuple) else found
        alone = function(x.xpu(), rois[4:].xpu(), 1.0, 2, 2, *words)
        assert torch.equal(found[4:], alone[0] if isinstance(alone, tuple) else alone)
    torch.xpu.synchronize()


def deformed(
    x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor, stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int], groups: int, parts: int,
) -> Tensor:  # fmt: skip
    """The definition, in tensors that autograd differentiates."""
    (n, c, h, w), (kh, kw), (oh, ow) = x.shape, weight.shape[2:], offset.shape[2:]
    moves = offset.view(n, parts, kh, kw, 2, oh, ow)
    y = torch.arange(oh).view(-1, 1) * stride[0] - padding[0] + (torch.arange(kh) * dilation[0]).view(-1, 1, 1, 1)
    z = torch.arange(ow) * stride[1] - padding[1] + (torch.arange(kw) * dilation[1]).view(-1, 1, 1)
    y, z = moves[..., 0, :, :] + y, moves[..., 1, :, :] + z
    low_y, low_z = y.detach().floor(), z.detach().floor()
    total = torch.zeros(n, c, kh, kw, oh, ow, dtype=x.dtype)
    for i, j in itertools.product((0, 1), (0, 1)):
        a, b = low_y + i, low_z + j
        share = (1 - (y - a).abs()) * (1 - (z - b).abs())
        inside = (a >= 0) & (a < h) & (b >= 0) & (b < w)
        at = (a.clamp(0, h - 1) * w + b.clamp(0, w - 1)).long().repeat_interleave(c // parts, dim=1)
        pixels = x.flatten(2).gather(2, at.flatten(2)).view(total.shape)
        total = total + pixels * (share * inside).repeat_interleave(c // parts, dim=1)
    if mask is not None:
        total = total * mask.view(n, parts, kh, kw, oh, ow).repeat_interleave(c // parts, dim=1)
    columns = total.view(n, groups, -1, oh * ow)
    return (weight.view(groups, weight.shape[0] // groups, -1) @ columns).view(n, -1, oh, ow) + bias.view(-1, 1, 1)


CONVOLUTIONS = {
    "plain": ((2, 4, 7, 6), (5, 4, 3, 3), (1, 1), (1, 1), (1, 1), 1, 1),
    "groups": ((3, 8, 9, 8), (6, 4, 3, 2), (2, 1), (1, 0), (1, 2), 2, 4),
    "pointwise": ((1, 6, 5, 5), (6, 2, 1, 1), (1, 2), (0, 0), (1, 1), 3, 3),
}


@pytest.mark.rotates(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_deformable_convolutions_and_their_gradients(name: str, masked: bool, dtype: torch.dtype) -> None:
    image, kernel, stride, padding, dilation, groups, parts = CONVOLUTIONS[name]
    n, (kh, kw) = image[0], kernel[2:]
    windows = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(image[2:], kernel[2:], stride, padding, dilation, strict=True)
    ]
    shapes = (image, kernel, (n, 2 * parts * kh * kw, *windows), (n, parts * kh * kw, *windows), (kernel[0],))
    x, weight, offset, mask, bias = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)
    # Never on a pixel, where the slope is another on each side.
    offset = ((torch.randint(-160, 160, offset.shape) * 2 + 1) / 64).to(dtype)
    given = (x, weight, offset, mask if masked else torch.zeros(n, 1, dtype=dtype), bias)
    there = [t.xpu() for t in given]
    numbers = (*stride, *padding, *dilation, groups, parts, masked)
    exact = [t.double().requires_grad_() for t in (x, weight, offset, mask, bias)]
    anyxpu.ops.reset_counters()
    found = ops.deform_conv2d(*there, *numbers)
    want = deformed(*exact[:3], exact[3] if masked else None, exact[4], stride, padding, dilation, groups, parts)
    near(found, want.detach().numpy(), dtype)
    grad = torch.randn(found.shape, dtype=torch.float64).to(dtype)
    back = ops._deform_conv2d_backward(grad.xpu(), *there, *numbers)
    assert not [op for op, ways in anyxpu.ops.counters().items() if "host" in ways and dtype is not torch.float64]
    want.backward(grad.double())
    for one, leaf, about in zip(back, exact, given, strict=True):
        near(one, np.zeros(about.shape) if leaf.grad is None else leaf.grad.numpy(), dtype)


def test_what_does_not_fit_is_no_call_of_these_kernels() -> None:
    from anyxpu.ops import deformable
    from anyxpu.ops import regions as pooling

    x, rois = torch.randn(1, 4, 5, 5, device="xpu"), torch.randn(2, 5, device="xpu")
    assert pooling.roi_align(x, rois[:, :4], 1.0, 2, 2, 2, True) is NotImplemented
    assert pooling.roi_align(x, rois.double(), 1.0, 2, 2, 2, True) is NotImplemented
    assert pooling.roi_align(x, rois, 1.0, 0, 2, 2, True) is NotImplemented
    assert pooling.ps_roi_pool(x, rois, 1.0, 2, 3) is NotImplemented
    assert pooling.nms(rois, rois[:, 0], 0.5) is NotImplemented
    grad = torch.randn(3, 4, 2, 2, device="xpu")  # of three regions
    assert pooling.roi_align_backward(grad, rois, 1.0, 2, 2, 1, 4, 5, 5, 2, True) is NotImplemented
    assert pooling.roi_pool_backward(grad, rois, grad.int(), 1.0, 2, 2, 1, 4, 5, 5) is NotImplemented
    assert pooling.ps_roi_pool_backward(grad, rois, grad.int(), 1.0, 2, 2, 1, 16, 5, 5) is NotImplemented
    weight, bias = torch.randn(3, 4, 3, 3, device="xpu"), torch.randn(3, device="xpu")
    short = torch.zeros(1, 17, 5, 5, device="xpu")
    call = deformable.deform_conv2d(x, weight, short, short, bias, 1, 1, 1, 1, 1, 1, 1, 1, False)
    assert call is NotImplemented
