"""Where each element of a tensor lives: which register of which lane of which warp.

A layout is a linear map over GF(2), as in "Linear Layouts: Robust Code Generation of Efficient Tensor Computation
Using F2" (Zhou et al., 2025): bit i of the register, lane or warp number contributes ``reg[i]``, ``lane[i]`` or
``warp[i]`` by XOR. Here the map's result is an element's row-major offset, an int whose bits are the tensor's
coordinates one after the other (every extent is a power of two), so reshape, transpose, broadcast and slice are maps
of bits as well and one function, :func:`register_map`, tells for all of them whether data must cross lanes.

The placement inside one encoding is ours to choose, because every op reads it from here. Where Triton's ``blocked``
gives a lane ``sizePerThread`` neighbouring elements, we give neighbours to neighbouring lanes and let the lane's
registers stride over them: a compiler that vectorises across lanes then sees unit-stride loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from anyxpu.errors import UnsupportedOperation
from anyxpu.triton.ir import Encoding, Tensor


def log2(n: int) -> int:
    """The exponent of a power of two; ValueError for any other number."""
    if n <= 0 or n & (n - 1):
        raise ValueError(f"{n} is not a power of two")
    return n.bit_length() - 1


@dataclass(frozen=True)
class Layout:
    """Bases as row-major element offsets; a zero lane or warp basis means that both halves hold copies."""

    reg: tuple[int, ...]
    lane: tuple[int, ...]
    warp: tuple[int, ...]

    @property
    def registers(self) -> int:
        return 1 << len(self.reg)

    def map(self, fn: Callable[[int], int]) -> Layout:
        """The layout with ``fn`` (a linear map of offsets) applied to every basis."""
        return Layout(*(tuple(map(fn, bases)) for bases in (self.reg, self.lane, self.warp)))


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    out, step = [], 1
    for extent in reversed(shape):
        out.append(step)
        step *= extent
    return tuple(reversed(out))


def flat(coordinates: Sequence[int], shape: Sequence[int]) -> int:
    return sum(c * s for c, s in zip(coordinates, strides(shape), strict=True))


def unflat(offset: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple((offset // s) % e for s, e in zip(strides(shape), shape, strict=True))


def axis_bits(axis: int, shape: Sequence[int]) -> int:
    """The mask of the offset's bits that are the coordinate along ``axis``."""
    return (shape[axis] - 1) * strides(shape)[axis]


class _Builder:
    """Lays powers of two of each dimension out, innermost first; what exceeds the shape becomes zero bases."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = shape
        self.strides = strides(shape)
        self.used = [1] * len(shape)
        self.groups: dict[str, list[int]] = {"reg": [], "lane": [], "warp": []}

    def take(self, group: str, dim: int, extent: int) -> None:
        for _ in range(log2(extent)):
            inside = self.used[dim] < self.shape[dim]
            if inside:
                self.groups[group].append(self.used[dim] * self.strides[dim])
                self.used[dim] *= 2
            elif group != "reg":
                self.groups[group].append(0)

    def done(self, order: Iterable[int]) -> Layout:
        for dim in order:
            self.take("reg", dim, self.shape[dim] // self.used[dim])
        return Layout(tuple(self.groups["reg"]), tuple(self.groups["lane"]), tuple(self.groups["warp"]))


def _blocked(shape: tuple[int, ...], e: Encoding) -> Layout:
    """The encoding's tile a warp, filled with lanes first; what one lane then has left of it are registers.

    Only the tile's extents count, not how the encoding divides them between registers and lanes, so that encodings
    for different vector widths often are the same layout.
    """
    order = e["order"]
    b = _Builder(shape)
    tile = [r * lanes for r, lanes in zip(e["sizePerThread"], e["threadsPerWarp"], strict=True)]
    left = math.prod(e["threadsPerWarp"])
    across = [1] * len(shape)
    for dim in order:
        across[dim] = min(left, tile[dim])
        left //= across[dim]
    for dim in order:
        b.take("lane", dim, across[dim])
    for dim in order:
        b.take("reg", dim, tile[dim] // across[dim])
    for dim in order:
        b.take("warp", dim, e["warpsPerCTA"][dim])
    return b.done(order)


def _slice(shape: tuple[int, ...], e: Encoding) -> Layout:
    dim = e["dim"]
    parent_shape = (*shape[:dim], 1, *shape[dim:])
    return encoded(parent_shape, e["parent"])


def _linear(shape: tuple[int, ...], e: Encoding) -> Layout:
    """The bases as given, clipped to the shape; what they leave out is laid over more registers."""

    def bases(key: str) -> list[int]:
        return [flat([c & (s - 1) for c, s in zip(b, shape, strict=True)], shape) for b in e.get(key, ())]

    reg, lane, warp = ([b for b in bases("register") if b], bases("lane"), bases("warp"))
    seen = _Echelon([*reg, *lane, *warp])
    for i in range(log2(flat([s - 1 for s in shape], shape) + 1)):
        if seen.solve(1 << i) is None:
            reg.append(1 << i)
            seen = _Echelon([*reg, *lane, *warp])
    return Layout(tuple(reg), tuple(lane), tuple(warp))


def _dot_operand(shape: tuple[int, ...], e: Encoding) -> Layout:
    """Rows (or columns) as the parent spreads them; the contracted dimension whole in every lane's registers."""
    parent: Encoding = e["parent"]
    if parent.kind != "blocked":
        raise UnsupportedOperation(f"a dot operand's parent layout {parent.kind!r} is not supported")
    k = len(shape) - 1 if e["opIdx"] == 0 else len(shape) - 2
    outer_shape = tuple(1 if i == k else s for i, s in enumerate(shape))
    outer = _blocked(outer_shape, parent).map(lambda offset: flat(unflat(offset, outer_shape), shape))
    inner = tuple(strides(shape)[k] << i for i in range(log2(shape[k])))
    return Layout(inner + outer.reg, outer.lane, outer.warp)


# Of the tile that one matrix instruction accumulates; it has as many columns as the sub-group has lanes.
ACCUMULATOR_ROWS = 8


def _accumulator(shape: tuple[int, ...], e: Encoding) -> Layout:
    """Lanes along the columns of a tile, its rows in the first registers; tiles over warps, then over registers."""
    b = _Builder(shape)
    row, column = (max(len(shape) - 2, 0), len(shape) - 1)
    b.take("lane", column, e["columns"])
    b.take("reg", row, e["rows"])
    for dim in range(len(shape)):
        b.take("warp", dim, e["warpsPerCTA"][dim])
    return b.done(reversed(range(len(shape))))


def _lines(shape: tuple[int, ...], e: Encoding) -> Layout:
    """One element in ``step`` along ``dim``: those that begin a cache line, for prefetch.py. Others have no place."""
    b = _Builder(shape)
    b.used[e["dim"]] = min(e["step"], shape[e["dim"]])
    for group, key in (("lane", "threadsPerWarp"), ("warp", "warpsPerCTA")):
        for dim in e["order"]:
            b.take(group, dim, e[key][dim])
    return b.done(e["order"])


_ENCODINGS = {
    "accumulator": _accumulator,
    "blocked": _blocked,
    "lines": _lines,
    "slice": _slice,
    "linear": _linear,
    "generic_linear": _linear,
    "dot_op": _dot_operand,
}


@lru_cache(maxsize=4096)
def encoded(shape: tuple[int, ...], encoding: Encoding | None) -> Layout:
    """The layout that ``encoding`` means for a tensor of ``shape``."""
    if encoding is None or encoding.kind not in _ENCODINGS:
        kind = None if encoding is None else encoding.kind
        raise UnsupportedOperation(f"a tensor of shape {shape} has the layout {kind!r}, which is not supported")
    return _ENCODINGS[encoding.kind](shape, encoding)


def of(tensor: Tensor) -> Layout:
    return encoded(tensor.shape, tensor.encoding)


def canonical(shape: Sequence[int], lanes: int, warps: int, order: Sequence[int]) -> Layout:
    """Lanes, then registers, then copies over warps, dimensions innermost first as ``order`` lists them."""
    b = _Builder(shape)
    left = lanes
    for dim in order:
        n = min(left, shape[dim])
        b.take("lane", dim, n)
        left //= n
    b.groups["lane"] += [0] * log2(left)
    b.groups["warp"] += [0] * log2(warps)
    return b.done(order)


@dataclass(frozen=True)
class BitMap:
    """A linear map of a register number's bits, plus a constant: ``x -> const ^ bases[0]·x0 ^ bases[1]·x1 …``"""

    bases: tuple[int, ...]
    const: int = 0

    @property
    def is_identity(self) -> bool:
        return self.const == 0 and all(b == 1 << i for i, b in enumerate(self.bases))

    def after(self, inner: BitMap) -> BitMap:
        """This map applied to what ``inner`` gives."""
        return BitMap(tuple(self.linear(b) for b in inner.bases), self.linear(inner.const) ^ self.const)

    def linear(self, x: int) -> int:
        out, i = 0, 0
        while x:
            if x & 1:
                out ^= self.bases[i] if i < len(self.bases) else 0
            x >>= 1
            i += 1
        return out


def identity(registers: int) -> BitMap:
    return BitMap(tuple(1 << i for i in range(log2(registers))))


def register_map(source: Layout, wanted: Layout, const: int = 0) -> BitMap | None:
    """How to read a tensor laid out as ``source`` where ``wanted`` is asked for, without crossing lanes.

    Both layouts give offsets in the source's own space; ``const`` is XORed to every wanted offset. Returns the map
    from wanted register numbers to source register numbers, or None where some lane needs another lane's data.
    """
    if source.lane != wanted.lane or source.warp != wanted.warp:
        return None
    basis = _Echelon(source.reg)
    bases = [basis.solve(b) for b in wanted.reg]
    shift = basis.solve(const)
    if shift is None or any(b is None for b in bases):
        return None
    return BitMap(tuple(b for b in bases if b is not None), shift)


@dataclass(frozen=True)
class Route:
    """Where each element of a conversion comes from, if it stays in its warp: bits of registers and of lanes by XOR.

    Wanted register ``k`` of a lane is register ``registers(k)`` of lane ``turned(k)`` XOR ``lanes(own lane)``, where
    each set bit i of the own lane changes the register by ``picks["lane"][i]``, and each of the warp by
    ``picks["warp"][i]``.
    """

    registers: BitMap
    turned: BitMap
    lanes: tuple[int, ...]
    picks: dict[str, tuple[int, ...]]

    @property
    def stays(self) -> bool:
        """Each lane holds all that it wants, if in other registers than its neighbours."""
        own = all(b == 1 << i for i, b in enumerate(self.lanes))
        return own and self.turned.const == 0 and not any(self.turned.bases)

    @property
    def choices(self) -> int:
        """From how many registers each element is chosen."""
        return 1 << sum(p != 0 for picks in self.picks.values() for p in picks)


def route(source: Layout, wanted: Layout, const: int = 0) -> Route | None:
    """How ``wanted`` is read from ``source`` within each warp, or None where warps hold what others want.

    As in :func:`register_map`, offsets are in the source's own space, and ``const`` is XORed to every wanted one. Where
    lanes hold copies, each reads its own.
    """
    registers = _Echelon(source.reg)
    anywhere = _Echelon((*source.reg, *source.lane))
    own = (1 << len(source.reg)) - 1

    def apart(bits: int) -> tuple[int, int]:
        return bits & own, bits >> len(source.reg)

    across = [anywhere.solve(b) for b in (*wanted.reg, const)]
    warps = [anywhere.solve(s ^ w) for s, w in zip(source.warp, wanted.warp, strict=True)]
    if any(b is None or apart(b)[1] for b in warps) or any(b is None for b in across):
        return None
    lanes, picks = [], []
    for i, (has, wants) in enumerate(zip(source.lane, wanted.lane, strict=True)):
        here = registers.solve(has ^ wants)
        there = anywhere.solve(wants) if here is None else here | 1 << len(source.reg) + i
        if there is None:
            return None
        register, lane = apart(there)
        picks.append(register)
        lanes.append(lane | (1 << i if has == 0 else 0))
    parts = [apart(b) for b in across if b is not None]
    return Route(
        BitMap(tuple(r for r, _ in parts[:-1]), parts[-1][0]),
        BitMap(tuple(t for _, t in parts[:-1]), parts[-1][1]),
        tuple(lanes),
        {"lane": tuple(picks), "warp": tuple(apart(b)[0] for b in warps if b is not None)},
    )


def swaps(source: Layout, wanted: Sequence[int]) -> tuple[Layout, list[tuple[int, int]]] | None:
    """Which bits of the lane and of the register change places, one pair after the other, so that lanes are ``wanted``.

    Returns:
        The layout that this comes to, and the pairs; None where a wanted basis is neither a lane's nor a register's.
    """
    lanes, registers, pairs = list(source.lane), list(source.reg), []
    for i, basis in enumerate(wanted):
        if lanes[i] == basis:
            continue
        if basis in lanes[i + 1 :]:  # by way of a register, which must be one
            if not registers:
                return None
            pairs.append((lanes.index(basis, i + 1), 0))
            lane = pairs[-1][0]
            lanes[lane], registers[0] = registers[0], lanes[lane]
        if basis not in registers:
            return None
        pairs.append((i, registers.index(basis)))
        lanes[i], registers[pairs[-1][1]] = basis, lanes[i]
    return Layout(tuple(registers), tuple(lanes), source.warp), pairs


class _Echelon:
    """Gaussian elimination over GF(2): which register bits XOR to a given offset."""

    def __init__(self, bases: Sequence[int]) -> None:
        self.rows: dict[int, tuple[int, int]] = {}
        for i, base in enumerate(bases):
            offset, bits = self._reduce(base, 1 << i)
            if offset:
                self.rows[offset.bit_length()] = (offset, bits)

    def _reduce(self, offset: int, bits: int) -> tuple[int, int]:
        while offset and offset.bit_length() in self.rows:
            o, b = self.rows[offset.bit_length()]
            offset ^= o
            bits ^= b
        return offset, bits

    def solve(self, offset: int) -> int | None:
        left, bits = self._reduce(offset, 0)
        return None if left else bits
