"""Intel's own GPU driver, simulating a GPU that is not in this machine.

Intel's driver has a capture mode that needs no GPU: enumeration, properties, memory, queues, events, the compiler,
argument checks and launches are the released driver's own; kernels are accepted and do not execute. A program runs
there under the C library that the driver was built for, with the switches that :func:`environment` sets.

The driver comes from Debian (:mod:`anyxpu.simulate.driver`), the Python that runs under its C library is a small
environment of its own (:mod:`anyxpu.simulate.proxy`), and ``interposer.cpp`` stands between the loader and the driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anyxpu import ocloc
from anyxpu.errors import AnyxpuError

# Names the simulated device in a process that runs on one; anyxpu and its tests read it, the driver does not.
VARIABLE = "ANYXPU_SIMULATE"
# A file to which each such process adds a line: what the driver accepted and refused.
LOG_VARIABLE = "ANYXPU_SIMULATE_LOG"
FAULTS_VARIABLE = "ANYXPU_SIMULATE_FAULTS"


class SimulationError(AnyxpuError):
    """A program cannot be run on a simulated GPU; the message says why and the way out."""


@dataclass(frozen=True)
class Hardware:
    """A product as it is sold, for the driver's simulation.

    Attributes:
        product: what it is called.
        shape: slices x Xe cores a slice x vector engines a core; the driver does not start without it.
        device_id: of PCI; the driver takes the device's name from it. 0 leaves the family's first.
        memory: GiB of the card; 0 for one that shares the machine's.
    """

    product: str
    shape: str
    device_id: int = 0
    memory: int = 0


# By the short names that ocloc takes too (ocloc.TARGETS).
DEVICES: dict[str, Hardware] = {
    "dg2": Hardware("Arc A770", "8x4x16", 0x56A0, 16),
    "pvc": Hardware("Data Center GPU Max 1550, one tile", "8x8x8", 0x0BD5, 64),
    "bmg": Hardware("Arc B580", "5x4x8", 0xE20B, 12),
    "lnl": Hardware("Arc 140V (Lunar Lake)", "2x4x8", 0x64A0),
    "ptl": Hardware("Arc B390 (Panther Lake)", "3x4x8", 0xB080),
    "cri": Hardware("Crescent Island", "8x4x8", 0x674C, 160),
}

# Where the simulation ends the process on a program with constants of its own, unless they are larger than what the
# driver pools (constants.h): its OpenCL compiler cannot be handed such a program, and so ocloc makes native code.
COMPILED_BY_OCLOC = frozenset({"cri"})

MOST_DEVICES = 4


@dataclass(frozen=True)
class Simulation:
    """What a program is to see.

    Attributes:
        device: one of :data:`DEVICES`.
        count: how many of it; the driver shows each as a GPU of its own.
        log: see :data:`LOG_VARIABLE`.
        faults: see :data:`FAULTS_VARIABLE`.

    Raises:
        SimulationError: there is no such device, or not so many of it.
    """

    device: str
    count: int = 1
    log: Path | None = None
    faults: str = ""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise SimulationError(f"no device {self.device!r} can be simulated; there are {', '.join(DEVICES)}")
        if not 1 <= self.count <= MOST_DEVICES:
            raise SimulationError(f"{self.count} devices cannot be simulated; 1 to {MOST_DEVICES} can")


def active() -> str | None:
    """The device that this process is simulated on, or None."""
    return os.environ.get(VARIABLE) or None


def environment(simulation: Simulation, driver: Path, opencl: Path) -> Mapping[str, str]:
    """The variables that have Intel's driver simulate; found by trying, and explained in its debug_variables_base.inl.

    Args:
        driver: the library that the Level Zero loader takes as the driver.
        opencl: Intel's OpenCL driver for the same GPU.
    """
    hardware = DEVICES[simulation.device]
    variables = {
        VARIABLE: simulation.device,
        "NEOReadDebugKeys": "1",
        # A capture back end that writes nothing: no simulator is asked, and no file is made.
        "SetCommandStreamReceiver": "1",
        "UseAubStream": "0",
        "ProductFamilyOverride": simulation.device,
        "HardwareInfoOverride": hardware.shape,
        "CreateMultipleRootDevices": str(simulation.count),
        # All but pvc abort where states are kept in a heap of the simulator's.
        "UseBindlessMode": "0",
        "UseExternalAllocatorForSshAndDsh": "0",
        # Copies are the host's work and happen; the driver would leave them to engines that do not run.
        "ExperimentalForceCopyThroughLock": "1",
        "ZE_ENABLE_ALT_DRIVERS": str(driver),
        "OCL_ICD_FILENAMES": str(opencl),
        "ONEAPI_DEVICE_SELECTOR": os.environ.get("ONEAPI_DEVICE_SELECTOR", "level_zero:gpu"),
    }
    if simulation.device in COMPILED_BY_OCLOC:
        variables[ocloc.COMPILER_VARIABLE] = os.environ.get(ocloc.COMPILER_VARIABLE, "ocloc")
        if program := ocloc.find():  # also for processes whose cache is elsewhere
            variables[ocloc.VARIABLE] = program
    if hardware.device_id:
        variables["ForceDeviceId"] = f"{hardware.device_id:#x}"
    if hardware.memory:
        variables["HBMSizePerTileInGigabytes"] = str(hardware.memory)
    if simulation.log is not None:
        variables[LOG_VARIABLE] = str(simulation.log.absolute())
    if simulation.faults:
        variables[FAULTS_VARIABLE] = simulation.faults
    return variables
