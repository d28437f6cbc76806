"""``anyxpu simulate DEVICE -- COMMAND``: putting the parts together and handing the process over."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from anyxpu.simulate import Simulation, SimulationError, driver, environment, proxy


def prepare(simulation: Simulation, command: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
    """What to execute, and with which environment.

    Raises:
        SimulationError: the driver is missing, the command is, or its Python cannot run with the driver.
        anyxpu.build.BuildError: what stands between loader and driver does not build.
    """
    if not command:
        raise SimulationError("there is no command to run: anyxpu simulate DEVICE -- COMMAND")
    folder = driver.folder()
    words, binaries = proxy.resolve(command, folder)
    variables = environment(simulation, driver.interposer(folder), driver.opencl(folder))
    path = os.pathsep.join((str(binaries), os.environ.get("PATH", os.defpath)))
    return words, {**os.environ, **variables, "PATH": path}


def run(simulation: Simulation, command: Sequence[str]) -> None:
    """Become the command, on the simulated device; does not return.

    Raises:
        SimulationError, anyxpu.build.BuildError: see :func:`prepare`.
    """
    words, variables = prepare(simulation, command)
    os.execve(words[0], words, dict(variables))
