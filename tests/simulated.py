"""The tests on a simulated GPU: a plugin of pytest, loaded where ``ANYXPU_SIMULATE`` names a device.

Kernels do not execute there. Every assertion that depends on what they computed is evaluated and cannot fail (which
those are, :mod:`tests.value_checks` finds), in the modules of the tests and in the programs that they start with
``python -c``; ``assert_close`` and ``numpy.testing`` compare sizes and dtypes. All others stay on. A test marked
``not_simulated`` is skipped with the reason that it gives.

With ``ANYXPU_TEST_REPORT`` naming a file, each test adds a line of JSON when it starts and when it has ended.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.assertion.rewrite import rewrite_asserts

from tests.value_checks import CHECK, SAME_FORM, child_program, values_off

REPORT_VARIABLE = "ANYXPU_TEST_REPORT"
NO_DOUBLES = "Required aspect fp64 is not supported on the device"
_counts: Counter[str] = Counter()


def value_check(condition: object) -> None:
    """In place of ``assert condition``, where the condition depends on what a kernel computed."""
    _counts["off"] += 1
    bool(condition)


def same_form(compare: Callable[..., object], *operands: Any, **options: Any) -> bool:
    """In place of ``torch.equal(a, b)`` and its like, as function or method: they are compared, and of one size?"""
    _counts["off"] += 1
    compare(*operands, **options)
    owner = getattr(compare, "__self__", None)
    a, b = ((owner, *operands) if isinstance(owner, torch.Tensor) else operands)[:2]
    return np.shape(a) == np.shape(b)


# --- modules of tests ----------------------------------------------------------------------------------------------
class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the tests with its checks of values off; pytest's own rewriting follows."""

    config: pytest.Config

    def get_code(self, fullname: str) -> types.CodeType:
        source = self.get_data(self.path)
        tree, _ = values_off(ast.parse(source))
        rewrite_asserts(tree, source, self.path, self.config)
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update({CHECK: value_check, SAME_FORM: same_form})
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("tests."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
            spec.loader.config = self._config
        return spec


# --- programs that tests start -------------------------------------------------------------------------------------
def _child_arguments(arguments: Any) -> Any:
    """The same command, its ``-c`` program with checks of values off."""
    if not isinstance(arguments, list | tuple) or "-c" not in arguments[:-1]:
        return arguments
    place = arguments.index("-c") + 1
    if not Path(str(arguments[0])).name.startswith("python") or not isinstance(arguments[place], str):
        return arguments
    program, checks = child_program(arguments[place])
    _counts["off"] += checks
    return [*arguments[:place], program, *arguments[place + 1 :]]


def _rewrite_children() -> None:
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def init(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        start(self, _child_arguments(args), *rest, **options)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]


# --- comparisons that raise ----------------------------------------------------------------------------------------
def compare_forms() -> None:
    def assert_close(actual: Any, expected: Any, **options: Any) -> None:
        _counts["off"] += 1
        if isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor):
            assert actual.shape == expected.shape
            assert actual.dtype == expected.dtype or not options.get("check_dtype", True)
            assert actual.device == expected.device or not options.get("check_device", True)
            assert actual.layout == expected.layout or not options.get("check_layout", True)
            assert actual.stride() == expected.stride() or not options.get("check_stride", False)
        elif isinstance(actual, dict):
            assert actual.keys() == expected.keys()
            for key in actual:
                assert_close(actual[key], expected[key], **options)
        elif isinstance(actual, list | tuple):
            for a, e in zip(actual, expected, strict=True):
                assert_close(a, e, **options)

    def assert_arrays(actual: Any, desired: Any, *_: Any, **__: Any) -> None:
        _counts["off"] += 1
        assert np.shape(desired) in ((), np.shape(actual))

    torch.testing.assert_close = assert_close
    for name in ("assert_array_equal", "assert_allclose", "assert_equal", "assert_array_almost_equal"):
        setattr(np.testing, name, assert_arrays)


# --- the plugin ----------------------------------------------------------------------------------------------------
def pytest_configure(config: pytest.Config) -> None:
    sys.meta_path.insert(0, _Finder(config))
    _rewrite_children()
    compare_forms()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("not_simulated")
        if mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"not simulated: {mark.args[0]}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A test that a device without double precision refuses for that, in the words of a real XPU build, is refused."""
    report = yield
    said = str(call.excinfo.value) if report.failed and call.excinfo is not None else ""
    if NO_DOUBLES in said and not torch.xpu.get_device_properties(0).has_fp64:
        path, line, _ = item.location
        report.outcome, report.longrepr = "skipped", (path, line or 0, "Skipped: the device has no double precision")
    return report


def _write(**line: object) -> None:
    if path := os.environ.get(REPORT_VARIABLE):
        with open(path, "a") as file:
            print(json.dumps(line), file=file)


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(test=nodeid, outcome="started")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    why = ""
    if report.skipped and isinstance(report.longrepr, tuple):
        why = str(report.longrepr[2]).removeprefix("Skipped: ")
    elif report.failed:
        why = report.longreprtext.splitlines()[-1] if report.longreprtext else ""
    if report.when == "teardown" or not report.passed:
        outcome = "ended" if report.when == "teardown" and report.passed else report.outcome
        _write(test=report.nodeid, outcome=outcome, why=why, values_off=_counts["off"])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(test=report.nodeid, outcome="failed", why=report.longreprtext.splitlines()[-1], values_off=0)
    elif report.skipped and isinstance(report.longrepr, tuple):
        _write(test=report.nodeid, outcome="skipped", why=str(report.longrepr[2]), values_off=0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{_counts['off']} value checks off")
