"""Random kernels do on the device what NumPy says they mean; those that once failed stay right.

``ANYXPU_FUZZ_KERNELS`` is how many are drawn. A kernel that fails is made as small as it still fails, and its file is
named in the error: move it into ``tests/found``, or write what it shows as a kernel of its own at the end of this file.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from triton.runtime.errors import OutOfResources

from anyxpu.cache import cache_dir
from tests.conftest import FULL
from tests.fuzz_programs import KINDS, Argument, Program, draw_program, packed
from tests.triton_support import launch

FOUND = sorted((Path(__file__).parent / "found").glob("*.py"))
KERNELS = int(os.environ.get("ANYXPU_FUZZ_KERNELS", "2000" if FULL else "80"))
INTERPRETED = max(20, KERNELS // 20)

# What the interpreter of Triton 3.7 refuses or gets wrong: bf16 (taken for 16-bit integers in masked loads), halves in
# casts to f8, sorts and flips of floats, ~ of unsigned numbers, the type of a loop's counter, overflow inside a scan.
NOT_INTERPRETED = re.compile(r"bfloat16|float8|~|tl\.(sort|topk|flip|associative_scan|cumsum|reduce)|for i")

# Loose values come from functions that are good to a few last places, of numbers up to 400.
TOLERANCE = {"f32": 2e-5, "f64": 1e-10}

MODULE = """\
# {reason}
{source}
ARGUMENTS = {arguments}
GRID = {grid}
OPTIONS = {options}
EXPECTED = {expected}
"""


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def write(program: Program, expected: dict[str, Any], path: Path, reason: str) -> None:
    """The kernel, its arguments and what it should leave in them, as a module."""
    arguments = "".join(
        f'    ("{a.name}", "{a.kind.name}", {packed(a.data)}, {a.skip}, {a.output}, {a.loose}),\n'
        for a in program.arguments
    )
    outputs = "".join(f'    "{name}": {packed(data)},\n' for name, data in expected.items())
    text = MODULE.format(
        reason=reason,
        source=program.source(),
        arguments=f"[\n{arguments}]",
        grid=program.grid,
        options=program.options,
        expected=f"{{\n{outputs}}}",
    )
    path.write_text(text)


def tensors(arguments: list[Argument], device: str) -> list[Any]:
    """The arguments as a kernel takes them: arrays on the device, some of them not at an aligned address."""
    out: list[Any] = []
    for a in arguments:
        if not isinstance(a.data, np.ndarray):
            out.append(a.data)
            continue
        values = a.kind.tensor(a.data)
        memory = torch.zeros(values.numel() + a.skip, dtype=values.dtype)
        memory[a.skip :] = values
        out.append(memory.to(device)[a.skip :])
    return out


def check(arguments: list[Argument], results: list[Any], expected: dict[str, Any]) -> None:
    """Raise AssertionError unless every output is what was expected: exactly, or nearly where it is loose."""
    for a, tensor in zip(arguments, results, strict=True):
        if not a.output:
            continue
        got, wanted = a.kind.array(tensor.cpu()), expected[a.name]
        if a.loose:
            t = TOLERANCE[a.kind.name]
            np.testing.assert_allclose(got, wanted, rtol=t, atol=t, err_msg=a.name)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=a.name)


def run_on_device(kernel: Any, arguments: list[Argument], grid: int, options: dict[str, Any]) -> list[Any]:
    moved = tensors(arguments, "xpu")
    kernel[(grid,)](*moved, **options)
    return moved


def search(kernels: int) -> Any:
    """Settings of a search: as many kernels, as long as it takes, and the smallest that fails."""
    return settings(
        max_examples=kernels,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )


def test_random_kernels_do_what_numpy_says():
    last = cache_dir("failed") / f"fuzz-{os.getpid()}.py"
    done = 0

    @search(KERNELS)
    @given(st.data())
    def one(data):
        nonlocal done
        program = draw_program(lambda n: data.draw(st.integers(0, n - 1)) if n > 1 else 0)
        expected = program.expected()
        done += 1
        # Written before it is run: should the process die, the kernel is known.
        write(program, expected, last, "a kernel of tests/test_triton_fuzz.py that failed")
        kernel = module(last).kernel
        try:
            check(program.arguments, run_on_device(kernel, program.arguments, program.grid, program.options), expected)
        except OutOfResources:
            assert torch.xpu.get_device_capability()["type"] == "gpu"  # whose local memory a whole tensor may not fit
        except Exception as error:
            error.add_note(f"the kernel, its arguments and the expected results are in {last}")
            raise

    one()
    assert done >= KERNELS // 2, "most drawings were the same, so that little was tested"
    last.unlink()


def arguments_of(made: Any) -> list[Argument]:
    return [
        Argument(name, KINDS[kind], data, skip=skip, output=output, loose=loose)
        for name, kind, data, skip, output, loose in made.ARGUMENTS
    ]


def interpretable(program: Program) -> bool:
    body = program.source().split("def kernel")[1]
    return not NOT_INTERPRETED.search(body) and all(a.kind.name != "bf16" for a in program.arguments)


INTERPRET = """
    import sys
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from tests.test_triton_fuzz import arguments_of, check, module, tensors
    for path in sorted(Path({folder!r}).glob("*.py")):
        made = module(path)
        arguments = arguments_of(made)
        for device in ("cpu", "xpu"):
            results = tensors(arguments, device)
            try:
                made.kernel[(made.GRID,)](*results)
                check(arguments, results, made.EXPECTED)
            except Exception as error:
                sys.exit(f"{{path.read_text()}}{{error}}")
        print("interpreted", path.stem)
"""


def test_numpys_meaning_is_the_interpreters(tmp_path, run_python):
    """Without this, a mistake in what the tests expect and one in the compiler could hide each other."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    seed = drawn = 0
    while drawn < INTERPRETED:
        seed += 1
        program = draw_program(random.Random(seed).randrange, steps=8, largest=256)
        if interpretable(program):
            drawn += 1
            write(program, program.expected(), folder / f"kernel{drawn}.py", f"seed {seed}")
    source = INTERPRET.format(root=str(Path(__file__).parents[1]), folder=str(folder))
    done = run_python(source, TRITON_INTERPRET="1")
    assert done.stdout.count("interpreted") == INTERPRETED


@pytest.mark.parametrize("path", FOUND, ids=lambda p: p.stem)
def test_a_kernel_that_once_failed_is_right(path):
    made = module(path)
    arguments = arguments_of(made)
    check(arguments, run_on_device(made.kernel, arguments, made.GRID, made.OPTIONS), made.EXPECTED)


# --- what was found, in kernels of its own


@triton.jit
def turned_addresses_kernel(x, y, o):
    turned = tl.arange(0, 4)[:, None] + tl.arange(0, 128)[None, :] * 4
    at = tl.arange(0, 4)[:, None] * 128 + tl.arange(0, 128)[None, :]
    v = tl.load(x + turned)
    mask = (v & 1) != 0
    tl.atomic_add(o + (v & 63), tl.load(y + at, mask=mask, other=0), mask=mask)


def test_a_tile_of_addresses_can_be_kept():
    x, y = torch.randint(1000, (2, 512), dtype=torch.int32)
    o = torch.zeros(64, dtype=torch.int32)
    launch(turned_addresses_kernel, (1,), x, y, o)
    turned = x.view(128, 4).t()
    odd = turned % 2 == 1
    assert torch.equal(o, torch.zeros_like(o).index_add_(0, turned[odd] & 63, y.view(4, 128)[odd]))


@triton.jit
def gather_across_warps_kernel(x, o, M: tl.constexpr):
    at = tl.arange(0, M)[:, None, None] * 4 + tl.arange(0, 2)[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    _, second = tl.split(tl.load(x + at))
    index = tl.min(at, 2)
    taken = tl.gather(second, tl.cat(index, index) & (M - 1), 0)
    tl.store(o + tl.arange(0, 2 * M)[:, None] * 2 + tl.arange(0, 2)[None, :], taken)


@pytest.mark.parametrize("warps", [1, 2, 4])
def test_a_gather_may_reach_into_other_warps(warps):
    x, o = torch.randn(512, 2, 2), torch.zeros(1024, 2)
    launch(gather_across_warps_kernel, (1,), x, o, M=512, num_warps=warps, keep_warps=True)
    index = (torch.arange(2048).view(512, 2, 2).amin(2) & 511).repeat(2, 1)
    assert torch.equal(o, x[..., 1].gather(0, index))
