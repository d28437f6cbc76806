"""What depends on a kernel's results is told from what does not, and only the first is off on a simulated GPU."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap

import pytest
import torch

from tests import simulated
from tests.value_checks import CHECK, SAME_FORM, child_program, prints_values, values_off

pytestmark = pytest.mark.not_simulated("it is about the sources of tests")
PRELUDE = "import torch\nimport numpy as np\nx = torch.ones(2, 3, device='cpu')\n"


def off(source: str) -> list[str]:
    """The lines of ``source`` whose assertions are off."""
    text = PRELUDE + textwrap.dedent(source)
    _, lines = values_off(ast.parse(text))
    return [text.splitlines()[line - 1].strip() for line in lines]


def run(source: str) -> None:
    """Run a program as it would be on a simulated GPU."""
    tree, _ = values_off(ast.parse(PRELUDE + textwrap.dedent(source)))
    exec(compile(tree, "test", "exec"), {CHECK: simulated.value_check, SAME_FORM: simulated.same_form})


READS = [
    "assert x.tolist() == [1]",
    "assert x[0, 0].item() == 7",
    "assert float(x.sum()) > 9",
    "assert (x == 2).all()",
    "assert not x.any()",
    "assert x.eq(2).all() or x.isnan().all()",
    "assert all(torch.equal(a, a + 1) for a in x)",
    "assert np.abs(x.numpy()).max() > 5",
    "assert 5 in x.unique().tolist()",
    "assert x.unique().numel() == 6",
    "assert f'{x}' == '3'",
    "assert [int(v) for v in x.flatten()] == [3]",
]


@pytest.mark.parametrize("check", READS)
def test_a_check_of_values_is_off(check):
    assert off(check) == [check]
    with pytest.raises(AssertionError):
        exec(PRELUDE + check, {})
    run(check)


KEPT = [
    "assert x.shape == (3, 2)",
    "assert x.stride() == (1, 3)",
    "assert x.dtype == torch.int32",
    "assert x.device.type == 'xpu'",
    "assert x.t().is_contiguous()",
    "assert len(x) == 3 and x.numel() == 5",
    "assert type(x) is np.ndarray",
    "assert x is None",
    "assert x.data_ptr() == x[1].data_ptr()",
    "assert [a.shape for a in (x, x.t())] == []",
    "counts = {'host': x.dim()}\nassert counts == {}",
    "calls = []\ncalls.append('copy')\nassert calls == []",
    "assert torch.iinfo(torch.int8).max == 1",
]


@pytest.mark.parametrize("check", KEPT)
def test_a_check_of_form_stays_on_and_fails(check):
    assert off(check) == []
    with pytest.raises(AssertionError):
        run(check)


def test_of_two_checks_in_one_assertion_only_that_of_values_is_off():
    assert off("assert x.tolist() == [1] and x.shape == (2, 3)") == ["assert x.tolist() == [1] and x.shape == (2, 3)"]
    run("assert x.tolist() == [1] and x.shape == (2, 3)")
    with pytest.raises(AssertionError):
        run("assert x.tolist() == [1] and x.shape == (2, 4)")


@pytest.mark.parametrize("compare", ["torch.equal(x, y)", "x.equal(y)", "np.array_equal(x.numpy(), y)"])
def test_what_is_compared_whole_must_be_of_one_size(compare):
    run(f"y = x + 1\nassert {compare}")
    with pytest.raises(AssertionError):
        run(f"y = torch.ones(3, 2)\nassert {compare}")


def test_what_an_expression_raises_is_raised_though_its_check_is_off():
    with pytest.raises(RuntimeError, match="size of tensor"):
        run("assert (x + torch.ones(7)).tolist() == [1]")
    with pytest.raises(RuntimeError, match="converted to Scalar"):
        run("assert x.item() == 1")


def test_values_are_followed_through_names_functions_containers_and_conditions():
    source = """
    def total(t):
        return t.sum()

    def names(t):
        return t.shape, "done"

    read = total(x)
    shape, word = names(torch.ones(2))
    failed = []
    if read > 3:
        failed.append("sum")
    kept = []
    for a in (1, 2):
        kept.append(a)
    assert read == 5
    assert not failed
    assert kept == [1, 2]
    assert word == "done"
    assert total(3 + 4) == 7
    assert [n for n in "ab" if x[0, 0] > 3] == ["a"]
    """
    assert off(source) == ["assert read == 5", "assert not failed", 'assert [n for n in "ab" if x[0, 0] > 3] == ["a"]']


def test_a_functions_result_is_what_its_arguments_are():
    source = """
    def same(value):
        return value

    assert same(x.tolist()) == [1]
    assert same("a") == "b"
    """
    assert off(source) == ["assert same(x.tolist()) == [1]"]


def test_that_work_is_still_under_way_is_no_claim_but_that_it_is_done_is():
    assert off("assert not event.query()\nassert event.query()") == ["assert not event.query()"]


def test_text_of_a_program_that_prints_values_is_a_value():
    assert prints_values("import torch\nprint(torch.ones(2).tolist())")
    assert not prints_values("import torch\nprint(torch.ones(2).shape, 'tolist')")
    assert off("assert start('''import torch\nprint(torch.ones(2))''') == '1'")
    assert not off("assert start('''import torch\nprint(torch.xpu.device_count())''') == '1'")


def test_a_program_of_a_test_runs_with_its_checks_of_values_off():
    def status(program: str) -> int:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode

    wrong, checks = child_program(PRELUDE + "assert x.tolist() == [] and torch.equal(x, x + 1)\n")
    assert (status(wrong), checks) == (0, 2)
    assert status(child_program(PRELUDE + "assert x.tolist() == [] and x.dim() == 3\n")[0]) == 1
    assert status(child_program(PRELUDE + "torch.testing.assert_close(x, x + 1)\n")[0]) == 0
    assert child_program("this is no Python") == ("this is no Python", 0)


def test_assert_close_compares_sizes_dtypes_and_what_is_asked(monkeypatch):
    for module in (torch.testing, simulated.np.testing):
        for name in dir(module):
            if name.startswith("assert_"):
                monkeypatch.setattr(module, name, getattr(module, name))  # put back after the test
    simulated.compare_forms()
    close, x = torch.testing.assert_close, torch.ones(2, 3)
    close(x, x + 1)
    close([x, {"a": x}], [x + 1, {"a": x - 1}])
    close(x.t(), torch.ones(3, 2))
    for wrong in (x.t(), x.double(), x.to("meta")):
        with pytest.raises(AssertionError):
            close(x, wrong)
    with pytest.raises(AssertionError):
        close(x.t(), torch.ones(3, 2), check_stride=True)
    with pytest.raises(AssertionError):
        simulated.np.testing.assert_array_equal(simulated.np.ones(3), simulated.np.ones(4))
