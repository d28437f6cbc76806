"""Inductor for GPUs, on simulated ones: what it makes is compiled, loaded and launched by Intel's own driver.

Values are not looked at: kernels do not execute there. Shapes, dtypes, what served each operator, which kind of kernel
was generated, and what the driver refused are.
"""

from __future__ import annotations

import json

import pytest

from anyxpu.simulate import DEVICES
from tests.gpu_support import EVERYDAY, devices, needs_driver, run_on
from tests.on_gpu.inductor import CASES
from tests.on_gpu.inductor import EVERYDAY as EVERYDAY_CASES

_PROGRAM = """
    import sys
    from tests.on_gpu.inductor import main
    main(sys.argv[1:])
"""


def _check(device, cases, folder):
    outcome = run_on(device, _PROGRAM, folder, *cases, timeout=3600)
    rows = [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith('{"case"')]
    assert [row["case"] for row in rows] == list(cases)
    wrong = {row["case"]: row for row in rows if "error" in row or row["missing"] or row["host"]}
    wrong |= {row["case"]: row for row in rows if "error" not in row and row["found"] != row["expected"]}
    assert wrong == {}, outcome.stderr[-4000:]
    assert outcome.refused() == {}
    assert outcome.accepted("launch") >= len(cases)


@needs_driver
@pytest.mark.parametrize("device", EVERYDAY)
@pytest.mark.rotates(3)
def test_one_of_each_kind_compiles_and_launches(device, tmp_path):
    _check(device, EVERYDAY_CASES, tmp_path)


@needs_driver
@pytest.mark.full
@pytest.mark.parametrize("device", DEVICES)
def test_every_kind_compiles_and_launches(device, tmp_path):
    _check(device, tuple(CASES), tmp_path)


_LIMITS = """
    import json, torch, triton, triton.language as tl
    from triton.runtime.errors import OutOfResources

    @triton.jit
    def add(x, out, n, B: tl.constexpr):
        i = tl.arange(0, B) + tl.program_id(0) * B
        tl.store(out + i, tl.load(x + i, i < n) + 1, i < n)

    @triton.jit
    def product(x, out, B: tl.constexpr):
        i = tl.arange(0, B)
        at = i[:, None] * B + i[None, :]
        tl.store(out + at, tl.dot(tl.load(x + at), tl.load(x + at)))

    def tried(function, *arguments, **options):
        try:
            kernel = function[(2,)](*arguments, **options)
        except OutOfResources as error:
            return str(error)
        torch.xpu.synchronize()
        return [kernel.n_regs, kernel.n_max_threads, kernel.metadata.warp_size * kernel.metadata.num_warps]

    def doubles():
        try:
            return str(torch.compile(lambda t: t.double() * 2)(torch.zeros(64, device="xpu")).dtype)
        except Exception as error:
            return str(error)

    x = torch.zeros(1 << 14, device="xpu")
    h = torch.zeros(64, 64, device="xpu", dtype=torch.float16)
    found = {f"{mode} {warps}": tried(add, x, x, 1 << 14, B=4096, num_warps=warps, grf_mode=mode)
             for mode in ("128", "256") for warps in (4, 32, 64, 128)}
    found["product"] = tried(product, h, torch.zeros(64, 64, device="xpu"), B=64, num_warps=4)
    wide = torch.zeros(256, 256, device="xpu")
    found["large"] = tried(product, wide, wide, B=256, num_warps=8)
    properties = torch.xpu.get_device_properties()
    print(json.dumps({"found": found, "limit": properties.max_work_group_size, "local": properties.local_mem_size,
                      "fp64": properties.has_fp64, "doubles": doubles()}))
"""


@needs_driver
@pytest.mark.parametrize("device", devices("dg2"))
@pytest.mark.rotates(2)
def test_sizes_of_groups_and_types_follow_the_device(device, tmp_path):
    answer = run_on(device, _LIMITS, tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")).last()
    found, limit = answer["found"], answer["limit"]
    for mode in (128, 256):
        # With 256 registers half as many threads are resident, and a work-group has to be resident as a whole.
        most = limit if mode == 128 else limit // 2
        for warps in (4, 32, 64, 128):
            said = found[f"{mode} {warps}"]
            if 16 * warps <= most:
                assert said[0] == mode and said[1] >= said[2] == 16 * warps
            else:
                assert f"Required: {16 * warps}, Hardware limit: {most}" in said
    # The matrix engine of dg2 takes sub-groups of 8.
    assert found["product"][2] == (32 if device == "dg2" else 64)
    assert f"shared memory, Required: {2 * 4 * 256**2}, Hardware limit: {answer['local']}" in found["large"]
    if answer["fp64"]:
        assert answer["doubles"] == "torch.float64"
    else:
        assert "Required aspect fp64 is not supported on the device" in answer["doubles"]
    assert answer["fp64"] is (device != "dg2")
