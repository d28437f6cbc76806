"""Running a program on a simulated Intel GPU, for tests that need one from the ordinary suite."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

from anyxpu.simulate import Simulation
from anyxpu.simulate.run import prepare
from tests.gpu_support import needs_driver

__all__ = ["ADAPTERS", "needs_driver", "on_gpu"]

# Both adapters of Unified Runtime: SYCL takes the newer one on Xe2 and later, and either is an owner's.
ADAPTERS = {"v1": "0", "v2": "1"}


def on_gpu(
    device: str,
    source: str,
    folder: Path,
    *,
    count: int = 1,
    adapter: str | None = None,
    faults: str = "",
    status: int = 0,
    timeout: float = 300,
    **variables: str,
) -> str:
    """Run ``source`` on a simulated device, with compile caches of its own in ``folder``; what it printed.

    Fails the test if the process leaves with another status, and shows what it said.
    """
    words, environment = prepare(Simulation(device, count, faults=faults), ["python", "-X", "faulthandler", "-"])
    caches = {name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    chosen = {"SYCL_UR_USE_LEVEL_ZERO_V2": ADAPTERS[adapter]} if adapter else {}
    done = subprocess.run(
        words,
        input=textwrap.dedent(source),
        env={**environment, **caches, **chosen, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout
