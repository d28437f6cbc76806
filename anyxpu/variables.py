"""The environment variables that anyxpu reads, and what is wrong with those that are set.

No package but the standard library is needed: ``anyxpu doctor`` reads it too.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from anyxpu import build, ocloc

Check = Callable[[str], str]  # what was expected, or "" where the value will do


def _anything(value: str) -> str:
    return ""


def _switch(value: str) -> str:
    return "" if value in ("0", "1") else "0 or 1"


def _number(low: int, high: int) -> Check:
    return lambda value: "" if value.isdecimal() and low <= int(value) <= high else f"a number from {low} to {high}"


def _one_of(*words: str) -> Check:
    return lambda value: "" if value in words else f"one of {', '.join(words)}"


def _seconds(value: str) -> str:
    try:
        return "" if float(value) > 0 else "seconds above 0"
    except ValueError:
        return "seconds above 0"


def _there(value: str) -> str:
    return "" if Path(value).exists() else "a path that is there"


# "" is unset for all of them.
TABLE: Mapping[str, Check] = {
    "ANYXPU_ACCELERATOR": _one_of("xpu", "cuda"),
    "ANYXPU_BUILD_VERBOSE": _switch,
    "ANYXPU_CACHE_DIR": _anything,
    "ANYXPU_DEVICES": _number(0, 64),
    "ANYXPU_DISABLE": _switch,
    "ANYXPU_DRIVER": _one_of(*build.DRIVERS),
    "ANYXPU_EAGER": _one_of("compile", "auto", "host", "strict"),
    "ANYXPU_ENTRIES": _switch,
    "ANYXPU_FULL": _switch,
    "ANYXPU_FUZZ_KERNELS": _number(0, 1_000_000),
    "ANYXPU_GPU_COMPILER": _one_of("driver", "ocloc"),
    "ANYXPU_GPU_DRIVER": _there,
    "ANYXPU_HOST_ACCESS": _switch,
    "ANYXPU_KEEP_WEIGHTS": _switch,
    "ANYXPU_LOG_COMPILES": _anything,
    "ANYXPU_NULL_FAULTS": _anything,
    "ANYXPU_NULL_MEMORY": _anything,
    "ANYXPU_OCLOC": _there,
    "ANYXPU_OCLOC_TIMEOUT": _seconds,
    "ANYXPU_REPLAY": _switch,
    "ANYXPU_SIMULATE": _one_of(*ocloc.TARGETS),
    "ANYXPU_SIMULATE_FAULTS": _anything,
    "ANYXPU_SIMULATE_LOG": _anything,
    "ANYXPU_TEST_DAY": _anything,
    "ANYXPU_TEST_SEED": _anything,
    "ANYXPU_WARM": _anything,
    "ANYXPU_XCCL": _one_of("oneccl", "gloo"),
}

# What torch 2.11 to 2.15 read in PYTORCH_ALLOC_CONF, of any device.
ALLOCATOR_KEYS = (
    "backend",
    "expandable_segments",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "garbage_collection_threshold",
    "graph_capture_record_stream_reuse",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_hip_host_register",
    "roundup_power2_divisions",
    "throw_on_cudamalloc_oom",
)
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def complaints(environment: Mapping[str, str] | None = None) -> list[str]:
    """One sentence for each variable that is no variable of ours, or whose value means nothing."""
    return list(_complaints(os.environ if environment is None else environment))


def _complaints(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(environment.items()):
        if not name.startswith("ANYXPU_") or name.startswith("ANYXPU_TEST_"):  # the latter are the tests' own
            continue
        if name not in TABLE:
            yield f"{name} is no variable of anyxpu and has no effect{_nearest(name, TABLE)}"
        elif value and (expected := TABLE[name](value)):
            yield f"{name}={value!r}: expected {expected}"
    name = next((n for n in ALLOCATOR_VARIABLES if environment.get(n)), "")
    for part in _keys(environment.get(name, "")):
        if part not in ALLOCATOR_KEYS:
            yield f"{name} has {part!r}, which torch does not know, and ignores{_nearest(part, ALLOCATOR_KEYS)}"


def _keys(settings: str) -> Iterator[str]:
    """The names in ``name:value,name:[a:b,c:d]``."""
    depth, start = 0, 0
    for i, c in enumerate(f"{settings},"):
        depth += (c == "[") - (c == "]")
        if c == "," and depth == 0:
            if key := settings[start:i].partition(":")[0].strip():
                yield key
            start = i + 1


def _nearest(name: str, known: Mapping[str, Check] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f" (is {near[0]} meant?)" if near else ""
