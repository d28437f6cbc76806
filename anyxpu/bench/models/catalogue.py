"""The suites by name, and their models."""

from __future__ import annotations

import importlib
from functools import cache

from anyxpu.bench.models.entry import Entry

SUITES = {
    "hf": "anyxpu.bench.models.hf",
    "timm": "anyxpu.bench.models.timm_suite",
    "torchbench": "anyxpu.bench.models.torchbench",
    "llm": "anyxpu.bench.models.llm",
}
"""Suite -> the module whose ``entries()`` are its models."""


@cache
def entries(suite: str) -> dict[str, Entry]:
    """The suite's models by name."""
    return {entry.name: entry for entry in importlib.import_module(SUITES[suite]).entries()}


def find(suite: str, name: str) -> Entry:
    """One model; KeyError names what there is not."""
    return entries(suite)[name]
