"""anyxpu's changes to torch's Python: each may be impossible, and nothing but that change is lost.

The names it needs are torch's internals, and another version may not have them.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from anyxpu import patches, supported
from tests.conftest import RunPython

ROOT = Path(__file__).parents[1]


class _Without:
    """What ``found`` is, but for the name given (dotted: of something in it)."""

    def __init__(self, found: Any, name: str) -> None:
        self.__dict__["_hidden"] = (found, *name.partition("."))

    def __getattr__(self, name: str) -> Any:
        found, first, _, rest = self.__dict__["_hidden"]
        if name != first:
            return getattr(found, name)
        if not rest:
            raise AttributeError(name)
        return _Without(getattr(found, first), rest)


NAMES = [(patch, name) for patch in patches.TABLE for name in patch.needs]


@pytest.mark.parametrize(("patch", "name"), NAMES, ids=[f"{patch.name}-{name}" for patch, name in NAMES])
def test_a_change_is_left_out_where_torch_has_not_its_name(patch: patches.Patch, name: str) -> None:
    if not patch.is_for(torch.__version__):
        pytest.skip(f"{patch.name} is not for this torch or device")
    module = importlib.import_module(patch.module)
    stand_in = _Without(module, name)
    before = dict(vars(stand_in))
    with pytest.warns(UserWarning, match=re.escape(repr(patch.name))) as caught:
        # What it does otherwise switches something off for the whole process; a process of its own below shows it.
        reason = patches.apply(dataclasses.replace(patch, otherwise=""), stand_in)
    assert name in reason and torch.__version__ in reason
    assert patch.without in str(caught[0].message) and len(caught) == 1
    assert vars(stand_in) == before


@pytest.mark.parametrize("patch", patches.TABLE, ids=lambda patch: patch.name)
def test_a_change_that_fails_is_left_out(patch: patches.Patch) -> None:
    if not patch.is_for(torch.__version__):
        pytest.skip(f"{patch.name} is not for this torch or device")
    failing = dataclasses.replace(patch, change="anyxpu.errors:not_there", otherwise="")
    with pytest.warns(UserWarning, match=re.escape(patch.without)):
        assert "AttributeError" in patches.apply(failing, importlib.import_module(patch.module))


def test_each_change_is_made_in_this_torch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        states = patches.examine()
    left_out = {p.name: states[p.name] for p in patches.TABLE if states[p.name] and p.is_for(torch.__version__)}
    assert left_out == {} and states.keys() == {patch.name for patch in patches.TABLE}


EVERYTHING_BROKEN = """
import dataclasses, warnings
from anyxpu import patches
# That one hides a refusal of FakeTensorMode's own in a torch built for CUDA; one without its name has no refusal.
kept = [p for p in patches.TABLE if p.name == "fake-tensors-beside-cuda"]
broken = [dataclasses.replace(p, needs=("not_in_this_torch",)) for p in patches.TABLE if p not in kept]
patches.TABLE = (*kept, *broken)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    def f(x, y): return torch.softmax(x @ y, -1).cumsum(0)
    x, y = torch.randn(33, 65), torch.randn(65, 40)
    expected = f(x, y)
    torch.testing.assert_close(torch.compile(f)(x, y), expected)
    patches.examine()
said = [str(w.message) for w in caught if "leaves out" in str(w.message)]
for p in broken:
    assert sum(repr(p.name) in s for s in said) == p.is_for(torch.__version__), (p.name, said)
torch.testing.assert_close(torch.compile(f)(x.to("xpu"), y.to("xpu")).cpu(), expected, rtol=1e-4, atol=1e-5)
print(len(said))
"""


@pytest.mark.not_simulated("compares results; what is broken is the same there")
@pytest.mark.rotates(2)
def test_compiling_goes_on_with_every_change_broken(run_python: RunPython) -> None:
    done = run_python(EVERYTHING_BROKEN)
    assert int(done.stdout.split()[-1]) == sum(patch.is_for(torch.__version__) for patch in patches.TABLE) - 1


@pytest.mark.parametrize(
    ("version", "old", "new"), [("2.10.0", True, False), ("2.11.0", False, False), ("3.0.1+cu140", False, True)]
)
def test_a_torch_outside_of_what_is_supported_is_told(version: str, old: bool, new: bool) -> None:
    assert bool(supported.too_old(version)) is old
    assert bool(supported.newer(version)) is new


NEWER = """
import warnings
from anyxpu import supported
supported.SUPPORTED, supported.NEWEST = {"2.11": "3.6"}, "2.11"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
said = [str(w.message) for w in caught]
assert sum("is made for torch" in s for s in said) == 1, said
assert torch.ones(3, device="xpu").sum().item() == 3
"""


@pytest.mark.skipif(supported.minor(torch.__version__) == (2, 11), reason="2.11 is not newer than 2.11")
@pytest.mark.not_simulated("about the torch, not the device")
def test_a_torch_newer_than_any_supported_is_used_with_one_warning(run_python: RunPython) -> None:
    run_python(NEWER)


def test_the_readme_and_the_package_name_the_same_versions() -> None:
    readme, project = (ROOT / "README.md").read_text(), (ROOT / "pyproject.toml").read_text()
    assert f"torch {supported.OLDEST} to {supported.NEWEST}" in readme
    assert f'"torch>={supported.OLDEST}"' in project
    assert f'"triton>={supported.SUPPORTED[supported.OLDEST]}"' in project
