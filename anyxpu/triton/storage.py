"""Which memory the arrays of a kernel live in.

On Intel's CPU driver a private array would be natural, and is wrong: where a value comes from one of two arrays, its
optimiser chooses between their addresses and loads once, while its vectoriser has spread each array over the lanes in
a way that such a load does not follow; results are then silently wrong (seen with driver 2026.22.10). So arrays there
are in local memory, which on a CPU is ordinary memory, with the lanes side by side: loads and stores have unit stride
as the text says, and nothing is left to guess. Arrays that are never needed at the same time share their memory.

Small arrays (emit.UNROLL_LIMIT) are private all the same, because they end up in registers: every loop over them is
unrolled, so that no index is left, and an element is read into a variable before anything chooses between two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NAME = re.compile(r"\ba\d+\b")
_BYTES = {"uchar": 1, "char": 1, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}


@dataclass(frozen=True)
class Request:
    """An array that the printed text uses: its name, C type, elements in all lanes, and where it was declared."""

    name: str
    c_type: str
    elements: int
    line: int
    depth: int


def size_of(c_type: str) -> int:
    return _BYTES.get(c_type, 8)


def place(lines: list[str], requests: Sequence[Request], jumps: bool) -> tuple[list[str], int]:
    """Give every array a slot of local memory.

    Args:
        lines: the kernel's text, two blanks a depth; each request's own line is overwritten.
        requests: in the order of their lines.
        jumps: whether the text has ``goto``; nothing is shared then, as lines no longer follow one another in time.

    Returns:
        The slots' declarations, for the head of the kernel, and the bytes they take.
    """
    last = _last_lines(lines, requests)
    slots: dict[str, list[tuple[int, int]]] = {}  # C type -> (elements, first line at which it is free again)
    for request in requests:
        end = len(lines) if jumps else last[request.name]
        index = _fit(slots.setdefault(request.c_type, []), request, end)
        pointer = f"{request.c_type} __local*"  # in this order, as the elements may be pointers to global memory
        lines[request.line] = f"{'  ' * request.depth}{pointer} const {request.name} = {_slot(request.c_type, index)};"
    declarations = [
        f"  {c} __local {_slot(c, i)}[{elements}] __attribute__((aligned(64)));"
        for c, of_type in slots.items()
        for i, (elements, _) in enumerate(of_type)
    ]
    total = sum(elements * size_of(c) for c, of_type in slots.items() for elements, _ in of_type)
    return declarations, total


def _slot(c_type: str, index: int) -> str:
    return f"{re.sub(r'[^a-z]', '_', c_type)}_slot{index}"


def _fit(slots: list[tuple[int, int]], request: Request, end: int) -> int:
    """The smallest free slot that is large enough, else the largest free one, enlarged, else a new one."""
    free = [i for i, (_, until) in enumerate(slots) if until < request.line]
    enough = [i for i in free if slots[i][0] >= request.elements]
    if not free:
        slots.append((request.elements, end))
        return len(slots) - 1
    index = min(enough, key=lambda i: slots[i][0]) if enough else max(free, key=lambda i: slots[i][0])
    slots[index] = (max(slots[index][0], request.elements), end)
    return index


def _last_lines(lines: list[str], requests: Sequence[Request]) -> dict[str, int]:
    """The last line that needs each array: its last mention, or the end of the loop or branch that this is in.

    A loop that mentions an array declared outside of it may read it again in its next round.
    """
    depth_of = [(len(line) - len(line.lstrip())) // 2 for line in lines]
    mentioned: dict[str, int] = {}
    for i, line in enumerate(lines):
        for name in _NAME.findall(line):
            mentioned[name] = i
    out = {}
    for r in requests:
        end = mentioned.get(r.name, r.line)
        while end < len(lines) and depth_of[end] > r.depth:
            end += 1
        out[r.name] = end
    return out
