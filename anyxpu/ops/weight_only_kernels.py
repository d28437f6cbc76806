"""Weights of 4 or 8 bits in Triton: products of few rows with them, and what they stand for.

Weights are read as words of 32 bits, in each of which 8 or 4 numbers lie, the first in the lowest bits. ``KIND`` says
what they are: 4 bits without a sign, 8 with one, or float8_e4m3fn.

A CPU's core computes slower than it reads here, so that instructions count, and what it reads meanwhile. A number costs
three: an integer is masked, converted where it stands, and multiplied by what :func:`arrange` made smaller in turn.
Products are written as fused multiply-adds, which the compiler makes of none that is written otherwise. Measured with
AVX2, 4096 x 4096 and one row, over the eight neighbouring rows that a program took before: two rows half the weight
apart 1.2 to 1.3 of the speed, and with their lines asked for 2 KiB before 1.3 to 1.5.
"""
# mypy: disable-error-code="no-untyped-def, assignment, var-annotated, index"
# Tuples grow in loops that Triton unrolls.

from __future__ import annotations

import triton
import triton.language as tl

from anyxpu.triton.hints import fetch_line

INT4, INT8, E4M3 = 4, 8, 9
_AHEAD = tl.constexpr(512)
"""How many words before a row's words are read they are asked for: of the next row where this one ends."""
_INT4, _INT8, _E4M3 = tl.constexpr(INT4), tl.constexpr(INT8), tl.constexpr(E4M3)


@triton.jit
def _float(words, at: tl.constexpr, KIND: tl.constexpr):
    """The integer at a place of each word: of 4 bits times 16 ** (at % 4), of 8 times 2 ** 24; both are exact."""
    if KIND == _INT4:
        if at >= 4:
            words >>= 16
        bits = words & (15 << (at % 4 * 4))
    elif at < 3:
        bits = (words << (24 - 8 * at)) & -0x1000000
    else:
        bits = words & -0x1000000
    return bits.to(tl.float32)


@triton.jit
def _of_e4m3(halves, at: tl.constexpr):
    """256th parts of the float8_e4m3fn at a place of two, exact; of NaN, 480 / 256.

    As float16, whose exponent is wider by 8, and of which a CPU makes float32 as fast where it is subnormal.
    """
    if at == 0:
        halves <<= 8
    bits = (halves >> 1) & -0x4080  # the sign, and what it does not spread over
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def arrange(
    x,
    factors,
    out,
    WORDS,
    FACTOR_ROW,
    SCALED: tl.constexpr,
    KIND: tl.constexpr,
    POINTS: tl.constexpr,
    BW: tl.constexpr,
):
    """Bring ``x``, multiplied by its rows' factors, into the order of a weight's words. Grid: (blocks of BW, its rows).

    ``out``: f32 (rows, 32 // bits + POINTS, whole blocks of words): what meets the first number of each word, then the
    second, and so on, each less by what :func:`_float` has too much, of 8 bits by its root; with ``POINTS`` then a
    word's sum, negative, which meets the zero point. Float8 is read by two: what meets the first numbers of BW pairs,
    the second, those of the next BW pairs.
    """
    each: tl.constexpr = 8 if KIND == _INT4 else 4
    row = tl.program_id(1).to(tl.int64)
    start, lanes = tl.program_id(0) * BW, tl.arange(0, BW)
    words = start + lanes
    stride = tl.cdiv(WORDS, BW) * BW
    x += row * WORDS * each
    out += row * stride * (each + POINTS) + words
    whole = tl.zeros([BW], tl.float32)
    for j in tl.static_range(each):
        if KIND == _E4M3:  # noqa: SIM108 (of what is not chosen nothing may be built)
            place = start * 4 + j // 2 * 2 * BW + lanes * 2 + j % 2
        else:
            place = words * each + j
        value = tl.load(x + place, mask=place < WORDS * each, other=0.0).to(tl.float32)
        if SCALED:
            value *= tl.load(factors + row * FACTOR_ROW)
        whole += value
        if KIND != _E4M3:
            value *= 1.0 / (1 << (j % 4 * 4 if KIND == _INT4 else 12))
        tl.store(out + j * stride, value)
    if POINTS:
        tl.store(out + each * stride, -whole)


@triton.jit
def read_below(at, lanes, END, MASKED: tl.constexpr):
    """What lies at addresses, of those lanes that are less than ``END``."""
    if MASKED:
        return tl.load(at, mask=lanes < END, other=0)
    else:
        return tl.load(at)


@triton.jit
def _numbers(w, start, WORDS, KIND: tl.constexpr, MASKED: tl.constexpr, BW: tl.constexpr):
    """The numbers of BW words of a row, as :func:`arrange` has what meets them, and the words."""
    words, made = start + tl.arange(0, BW), ()
    read = read_below(w + words, words, WORDS, MASKED)
    if KIND == _E4M3:
        for half in tl.static_range(2):
            pairs = start * 2 + half * BW + tl.arange(0, BW)
            two = read_below(w.to(tl.pointer_type(tl.int16)) + pairs, pairs, 2 * WORDS, MASKED)
            made += (_of_e4m3(two, 0), _of_e4m3(two, 1))
    else:
        for j in tl.static_range(8 if KIND == _INT4 else 4):
            made += (_float(read, j, KIND),)
    return made, read


@triton.jit
def _factor(factors, start, row, N, WORDS, GROUP: tl.constexpr, EACH: tl.constexpr, BW: tl.constexpr):
    """What belongs to each of BW words of a row, of EACH numbers: one number, or one for each group."""
    group, last = start * EACH // GROUP, WORDS * EACH // GROUP - 1
    factor = tl.load(factors + group * N + row).to(tl.float32)
    for i in tl.static_range(1, BW * EACH // GROUP):
        more = tl.load(factors + tl.minimum(group + i, last) * N + row).to(tl.float32)
        factor = tl.where(tl.arange(0, BW) * EACH >= i * GROUP, more, factor)
    return factor


@triton.jit
def _chunk(
    totals,
    odd,
    x,
    w,
    scales,
    points,
    rows,
    start,
    N,
    WORDS,
    M: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    POINTS: tl.constexpr,
    MASKED: tl.constexpr,
    BW: tl.constexpr,
):
    """Add the products of BW words of each of the rows to the sums of its lanes: M tuples of a few rows, one after the
    other.

    ``odd``: of float8, words whose highest bits say that a number was NaN.
    """
    each: tl.constexpr = 8 if KIND == _INT4 else 4
    together: tl.constexpr = len(rows)
    words, stride = start + tl.arange(0, BW), tl.cdiv(WORDS, BW) * BW
    made, found = (), ()
    numbers, factors, zeros = (), (), ()
    for n in tl.static_range(together):
        row = rows[n]
        begin = w + row.to(tl.int64) * WORDS
        fetch_line((begin + (start + _AHEAD)).to(tl.int64))
        made_of_row, read = _numbers(begin, start, WORDS, KIND, MASKED, BW)
        numbers += made_of_row
        if KIND == _E4M3:
            found += (odd[n] | ((read & 0x7F7F7F7F) + 0x01010101),)
        if GROUP:
            factors += (_factor(scales, start, row, N, WORDS, GROUP, each, BW),)
            if POINTS:
                zeros += (_factor(points, start, row, N, WORDS, GROUP, each, BW),)
    for m in tl.static_range(M):
        at = x + m * (each + POINTS) * stride + words
        sums = ()
        for n in tl.static_range(together):
            if GROUP:
                sums += (tl.zeros([BW], tl.float32),)
            else:
                sums += (totals[m * together + n],)
        for j in tl.static_range(each):
            value, more = tl.load(at + j * stride), ()
            for n in tl.static_range(together):
                more += (tl.fma(numbers[n * each + j], value, sums[n]),)
            sums = more
        for n in tl.static_range(together):
            total, one = totals[m * together + n], sums[n]
            if POINTS:
                one = tl.fma(zeros[n], tl.load(at + each * stride), one)
            if GROUP:
                one = tl.fma(one, factors[n], total)
            made += (one,)
    return made, found


@triton.jit
def few_rows(
    x,
    w,
    scales,
    points,
    out,
    N,
    WORDS,
    ROWS,
    SCALE_ROW,
    M: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    POINTS: tl.constexpr,
    TAIL: tl.constexpr,
    BN: tl.constexpr,
    TOGETHER: tl.constexpr,
    BW: tl.constexpr,
):
    """All rows of ``x``, ROWS of them and M at the most, with BN * TOGETHER rows of ``w``. Grid: (blocks of those,).

    ``x`` is :func:`arrange`'s. ``GROUP``: how many share a scale, which divide BW words' or are divided by them;
    0: all of a row. ``TAIL``: BW does not divide WORDS. ``TOGETHER``: rows of ``w`` that are read at once. They lie as
    far from each other as they can, since a CPU's core fetches ahead of what is read in one page at one place.
    """
    part = tl.cdiv(N, TOGETHER)
    end = WORDS // BW * BW
    first = tl.program_id(0) * BN
    index = tl.arange(0, M * TOGETHER)
    for row in range(first, tl.minimum(first + BN, part)):
        rows, totals, odd = (), (), ()
        for n in tl.static_range(TOGETHER):
            rows += (tl.minimum(row + n * part, N - 1),)
        for _ in tl.static_range(TOGETHER * M):
            totals += (tl.zeros([BW], tl.float32),)
        if KIND == _E4M3:
            for _ in tl.static_range(TOGETHER):
                odd += (tl.zeros([BW], tl.int32),)
        for start in range(0, end, BW):
            totals, odd = _chunk(
                totals, odd, x, w, scales, points, rows, start, N, WORDS, M, GROUP, KIND, POINTS, False, BW
            )
        if TAIL:
            totals, odd = _chunk(
                totals, odd, x, w, scales, points, rows, end, N, WORDS, M, GROUP, KIND, POINTS, True, BW
            )
        gathered = tl.zeros([M * TOGETHER, BW], tl.float32)
        for k in tl.static_range(M * TOGETHER):
            gathered = tl.where(index[:, None] == k, totals[k][None, :], gathered)
        result = tl.sum(gathered, 1)
        if KIND == _E4M3:
            nan = tl.zeros([M * TOGETHER, BW], tl.int32)
            for n in tl.static_range(TOGETHER):
                nan = tl.where(index[:, None] % TOGETHER == n, (odd[n] & -0x7F7F7F80)[None, :], nan)
            result = tl.where(tl.max((nan != 0).to(tl.int32), 1) > 0, float("nan"), result)
        places = row + index % TOGETHER * part
        known = (places < N) & (index // TOGETHER < ROWS)
        if not GROUP:
            times: tl.constexpr = 256.0 if KIND == _E4M3 else 2.0**-12
            result *= tl.load(scales + places * SCALE_ROW, mask=known, other=0.0).to(tl.float32) * times
        tl.store(out + (index // TOGETHER).to(tl.int64) * N + places, result.to(out.dtype.element_ty), mask=known)


@triton.jit
def _meant(bytes, KIND: tl.constexpr):
    """The numbers that bytes are."""
    if KIND == _INT8:
        return bytes.to(tl.float32)
    else:
        value = _of_e4m3(bytes.to(tl.int16), 0) * 256
        return tl.where((bytes & 127) == 127, float("nan"), value)


@triton.jit
def dequantize(
    w, scales, points, out, N, WORDS, GROUP: tl.constexpr, KIND: tl.constexpr, POINTS: tl.constexpr, BW: tl.constexpr
):
    """What one row's numbers stand for, rounded once; those of 8 bits have one scale. Grid: (blocks of BW words, N)."""
    each: tl.constexpr = 8 if KIND == _INT4 else 4
    row = tl.program_id(1)
    depth = WORDS * each
    k = tl.program_id(0) * (BW * each) + tl.arange(0, BW * each)
    inside = k < depth
    if KIND == _INT4:
        words = tl.load(w + row.to(tl.int64) * WORDS + k // 8, mask=inside, other=0)
        value = ((words >> k % 8 * 4) & 15).to(tl.float32)
        groups = k // GROUP * N + row
        if POINTS:
            value -= tl.load(points + groups, mask=inside, other=0).to(tl.float32)
        value *= tl.load(scales + groups, mask=inside, other=0.0).to(tl.float32)
    else:
        bytes = w.to(tl.pointer_type(tl.int8)) + row.to(tl.int64) * depth + k
        value = _meant(tl.load(bytes, mask=inside, other=0), KIND) * tl.load(scales + row).to(tl.float32)
    tl.store(out + row.to(tl.int64) * depth + k, value.to(out.dtype.element_ty), mask=inside)
