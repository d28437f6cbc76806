"""Autotuning on a simulated GPU: every configuration is taken by the driver, none is timed, and the choice is said."""

from __future__ import annotations

import pytest

from anyxpu.triton import untimed
from tests.gpu_support import devices, needs_driver, run_on


def test_fewer_spills_then_more_threads_then_the_first(monkeypatch):
    monkeypatch.setattr(untimed, "_most_threads", lambda registers=0: 512 if registers > 128 else 1024)
    one, four = untimed.Record(0, 128, 1), untimed.Record(0, 128, 4)
    assert four.cost(8) < one.cost(8) < untimed.Record(1, 128, 4).cost(10**6)
    # More threads than the device holds at once are worth no more, and with 256 registers it holds half as many.
    assert four.cost(256) == four.cost(10**6) == one.cost(10**4)
    assert untimed.Record(0, 256, 4).cost(10**6) > four.cost(10**6)


_TRITON = """
    import json, warnings, torch, triton, triton.language as tl

    # Every lane keeps BLOCK / 16 / num_warps values alive across the loop: the larger block spills.
    def kept(x, out, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        a = tl.load(x + i)
        total = tl.zeros((BLOCK,), tl.float32)
        for _ in range(n):
            total = tl.sin(total + a) * tl.sum(total)
        tl.store(out + i, total + a)

    def tuned(*configs):
        configs = [triton.Config({"BLOCK": b}, num_warps=w, pre_hook=None) for b, w in configs]
        kernel = triton.autotune(configs, key=["n"])(triton.jit(kept))
        x = torch.zeros(32768, device="xpu")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            kernel[(2,)](x, x.clone(), 3)
        best = kernel.best_config
        return {"best": [best.kwargs["BLOCK"], best.num_warps], "tried": len(kernel.configs_timings),
                "said": [str(w.message) for w in said if "autotuning" in str(w.message)]}

    print(json.dumps({
        "spills": tuned((16384, 1), (1024, 4)),
        "threads": tuned((256, 2), (256, 4), (256, 2)),
        "first": tuned((512, 4), (256, 4)),
    }))
"""


@needs_driver
@pytest.mark.parametrize("device", devices("bmg"))
def test_triton_autotune_chooses_without_timing(device, tmp_path):
    outcome = run_on(device, _TRITON, tmp_path)
    found = outcome.last()
    assert found["spills"]["best"] == [1024, 4]
    assert found["threads"]["best"] == [256, 4]
    assert found["first"]["best"] == [512, 4]
    (said,) = found["spills"]["said"]
    assert "not timed" in said and device in said and "fewest spills" in said
    assert found["threads"]["said"] == found["first"]["said"] == []
    assert outcome.refused() == {}


_INDUCTOR = """
    import json, warnings, torch
    from torch._inductor import config
    from torch._inductor.runtime import triton_heuristics as th

    seen = []
    original = th.CachingAutotuner.bench
    def bench(self, launcher, *args, **kwargs):
        time = original(self, launcher, *args, **kwargs)
        seen.append([self.fn.__name__, str(launcher.config), launcher.n_regs, launcher.n_spills, time])
        return time
    th.CachingAutotuner.bench = bench

    def f(x, y):
        return torch.softmax(x + y.t(), -1)

    x, y = torch.randn(4000, 3000, device="xpu"), torch.randn(3000, 4000, device="xpu")
    with warnings.catch_warnings(record=True) as said, config.patch(compile_threads=1, max_autotune_pointwise=True,
                                        coordinate_descent_tuning=True, use_static_triton_launcher=STATIC):
        warnings.simplefilter("always")
        torch.compile(f, dynamic=False)(x, y)
    said = [str(w.message) for w in said if "autotuning" in str(w.message)]
    print(json.dumps({"seen": seen, "said": said}))
"""


@needs_driver
@pytest.mark.parametrize("static", [True, pytest.param(False, marks=pytest.mark.full)], ids=["static", "triton"])
@pytest.mark.parametrize("device", devices("bmg"))
@pytest.mark.rotates(3)
def test_inductor_knows_registers_and_spills_and_times_nothing(device, static, tmp_path):
    outcome = run_on(
        device, _INDUCTOR.replace("STATIC", str(static)), tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")
    )
    found = outcome.last()
    assert len(found["seen"]) > 4 and len(found["said"]) == 1
    for _, _, registers, spills, cost in found["seen"]:
        assert registers in (128, 256) and spills >= 0
        assert cost == float("inf") if spills > 16 else spills < cost <= spills + 1
    # One launch for each that was measured and a handful for the program's own.
    assert outcome.accepted("launch") <= 3 * len(found["seen"]) + 40
    assert outcome.refused() == {}
