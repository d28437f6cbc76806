"""What Intel's driver says of native code for a GPU that is not here, and how long it takes to make it.

A process on the simulated device answers, line by line: it loads a binary and reads the kernel's properties as a
program on that GPU would, or compiles OpenCL C as :mod:`anyxpu.triton.compiler` has it compiled there.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

from anyxpu import ocloc
from anyxpu.errors import AnyxpuError
from anyxpu.simulate import Simulation
from anyxpu.simulate.run import prepare


class DriverProcess:
    """A process on a simulated device that answers; use as a context manager.

    Raises:
        SimulationError: the driver is not there.
    """

    def __init__(self, target: str) -> None:
        self._words, environment = prepare(Simulation(target), ["python", "-m", __name__])
        # Times are of compiling, not of finding what was compiled before.
        self._environment = {**environment, "NEO_CACHE_PERSISTENT": "0"}
        self.compiles = environment.get(ocloc.COMPILER_VARIABLE) != "ocloc"
        """Does this driver compile OpenCL C on such a device? The simulated cri ends a process that asks for it."""
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._words,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)

    def properties(self, binary: bytes, kernel: str) -> dict[str, int]:
        """The driver's properties of a kernel in native code; see ``Kernel.info`` of the shim.

        Raises:
            AnyxpuError: the driver does not take the binary.
        """
        return dict(self._ask(load=base64.b64encode(binary).decode(), kernel=kernel))

    def compile_seconds(self, source: str, options: str) -> float:
        """Seconds that the driver takes from OpenCL C to native code, in its process."""
        return float(self._ask(compile=source, options=options)["seconds"])

    def _ask(self, **question: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait(60)
            self._process = self._start()  # the next question is another kernel's
            raise AnyxpuError(f"the process on the simulated device ended with status {status}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AnyxpuError(answer["error"])
        return answer


def _answer(question: dict[str, str]) -> dict[str, Any]:
    from anyxpu.shim import lib

    if "load" in question:
        module = lib().load_module(0, "native", base64.b64decode(question["load"]), "")
        return dict(module.kernel(question["kernel"]).info())
    start = time.perf_counter()
    lib().load_module(0, "opencl_c", question["compile"].encode(), question["options"]).native()
    return {"seconds": time.perf_counter() - start}


def main() -> None:
    """Answer until there are no more questions."""
    import torch

    # What the driver prints is not to come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.xpu.init()
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line))
        except RuntimeError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
