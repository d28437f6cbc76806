"""The versions of torch that anyxpu is made for; the install, ``anyxpu doctor`` and the README have them from here.

Needs the standard library alone.
"""

from __future__ import annotations

import re

# torch's minor versions, oldest first, each with the Triton that it brings.
SUPPORTED: dict[str, str] = {"2.11": "3.6", "2.12": "3.7", "2.13": "3.7", "2.14": "3.8", "2.15": "3.9"}

# Of these the whole test suite passes on two (of 2.15 that was CUDA's build); its core passes on 2.11, 2.12 and 2.14.
WHOLE_SUITE = ("2.13", "2.15")

OLDEST, NEWEST = next(iter(SUPPORTED)), next(reversed(SUPPORTED))


def minor(version: str) -> tuple[int, int]:
    """``(2, 13)`` of ``"2.13.0+cpu"``; (0, 0) of what is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def too_old(version: str) -> str:
    """What to say of a torch that is older than any supported; "" for others."""
    if minor(version) >= minor(OLDEST):
        return ""
    return f"torch {version} is older than {OLDEST}, the oldest that anyxpu supports: pip install 'torch>={OLDEST}'"


def newer(version: str) -> str:
    """What to say of a torch that is newer than any of them; "" for others."""
    if minor(version) <= minor(NEWEST):
        return ""
    return (
        f"anyxpu is made for torch {OLDEST} to {NEWEST}, and this is {version}. It goes on; what does not fit is "
        "left out with a warning of its own, and `anyxpu doctor` lists it."
    )


def within(version: str, since: str, until: str) -> bool:
    """Is torch's minor version in the range? Both ends count; "" is no bound."""
    return (not since or minor(version) >= minor(since)) and (not until or minor(version) <= minor(until))
