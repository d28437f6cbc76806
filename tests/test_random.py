"""Random numbers on xpu: Philox's own, the right distributions and ranges, and the generator's rules.

Seeds are fixed, so that a test of a distribution gives one answer for good.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import anyxpu.ops
from tests.refusals import assert_refused_alike
from tests.strided import COMPLEXES, FLOATS, INTEGERS, assert_same_bits

DEVICE = "xpu"
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
DRAWS = 1 << 19


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(20240229)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=DEVICE)


# --- where the bits come from ----------------------------------------------------------------------------------


def philox(seed: int, step: int, items: np.ndarray) -> np.ndarray:
    """Philox4x32-10 as Salmon et al. define it: four 32-bit words for each item, in 64-bit integers."""
    low = np.uint64(0xFFFFFFFF)
    a, b = np.full_like(items, step & 0xFFFFFFFF), np.full_like(items, step >> 32)
    c, d = items & low, items >> np.uint64(32)
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (
            (q >> np.uint64(32)) ^ b ^ np.uint64(k[0]),
            q & low,
            (p >> np.uint64(32)) ^ d ^ np.uint64(k[1]),
            p & low,
        )
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack([a, b, c, d])


def test_the_reference_is_philox():
    # The known answers of Random123, the authors' own implementation.
    zero, ones = philox(0, 0, np.zeros(1, np.uint64)), philox(2**64 - 1, 2**64 - 1, np.full(1, 2**64 - 1, np.uint64))
    assert [hex(int(w)) for w in zero[:, 0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert [hex(int(w)) for w in ones[:, 0]] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def words(seed: int, step: int, count: int) -> np.ndarray:
    """The word of each of ``count`` elements: four for each of 256 work-items, that lie side by side."""
    i = np.arange(count)
    item = i // 1024 * 256 + i % 256
    return philox(seed, step, np.arange(item.max() + 1, dtype=np.uint64))[i % 1024 // 256, item]


@pytest.mark.parametrize("seed", (0, 12345678901234567890))
def test_numbers_are_philoxs_of_the_generators_seed_and_offset(seed, no_host):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    count = 5000
    first = empty(count).uniform_(generator=generator)
    assert_same_bits(first, torch.from_numpy((words(seed, 0, count) >> 8) * 2.0**-24).float())
    second = empty(count, dtype=torch.bool).bernoulli_(0.3, generator=generator)
    assert_same_bits(second, torch.from_numpy(words(seed, 1, count) < 0.3 * 2**32))
    generator.set_offset(2**40)
    third = empty(count).uniform_(generator=generator)
    assert_same_bits(third, torch.from_numpy((words(seed, 2**38, count) >> 8) * 2.0**-24).float())


def test_sixty_four_bits_take_two_steps(no_host):
    generator = torch.Generator(DEVICE).manual_seed(3)
    drawn = empty(3000, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    assert generator.get_offset() == 8
    i = np.arange(3000)
    item, word = i // 1024 * 256 + i % 256, i % 1024 // 256
    items = np.arange(item.max() + 1, dtype=np.uint64)
    both = np.concatenate([philox(3, 0, items), philox(3, 1, items)])
    expected = both[2 * word + 1, item] << np.uint64(32) | both[2 * word, item]
    assert_same_bits(drawn, torch.from_numpy((expected ^ np.uint64(2**63)).view(np.int64)))


# --- the generator's rules -------------------------------------------------------------------------------------

OPERATORS = {
    "random_": lambda g, *s: empty(*s, dtype=torch.int64).random_(generator=g),
    "random_ to": lambda g, *s: empty(*s, dtype=torch.int32).random_(1000, generator=g),
    "random_ from to": lambda g, *s: empty(*s, dtype=torch.int16).random_(-500, 1000, generator=g),
    "uniform_": lambda g, *s: empty(*s).uniform_(generator=g),
    "uniform_ f64": lambda g, *s: empty(*s, dtype=torch.float64).uniform_(generator=g),
    "normal_": lambda g, *s: empty(*s, dtype=torch.bfloat16).normal_(generator=g),
    "normal_ f64": lambda g, *s: empty(*s, dtype=torch.float64).normal_(generator=g),
    "bernoulli_": lambda g, *s: empty(*s).bernoulli_(generator=g),
    "bernoulli_ of a tensor": lambda g, *s: empty(*s).bernoulli_(torch.full(s, 0.5, device=DEVICE), generator=g),
    "bernoulli": lambda g, *s: torch.bernoulli(torch.full(s, 0.5, device=DEVICE), generator=g),
    "rand": lambda g, *s: torch.rand(*s, device=DEVICE, generator=g),
    "randn": lambda g, *s: torch.randn(*s, device=DEVICE, generator=g),
    "randn complex": lambda g, *s: torch.randn(*s, device=DEVICE, generator=g, dtype=torch.complex64),
    "randint": lambda g, *s: torch.randint(-9, 500, s, device=DEVICE, generator=g),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_seed_brings_the_same_numbers_and_calls_differ(name, no_host):
    draw = OPERATORS[name]
    for generator in (None, torch.Generator(DEVICE)):
        seed = generator.manual_seed if generator else torch.xpu.manual_seed
        seed(5)
        first, second = draw(generator, 300).cpu(), draw(generator, 300).cpu()
        assert not first.equal(second)
        seed(5)
        assert draw(generator, 300).cpu().equal(first) and draw(generator, 300).cpu().equal(second)
        seed(6)
        assert not draw(generator, 300).cpu().equal(first)


def test_a_generators_state_is_real_where_tensors_are_fake():
    """What keeps random states in a graph asks for them while it is traced."""
    generator = torch.Generator(DEVICE).manual_seed(7)
    state = generator.get_state()
    with FakeTensorMode() as mode:
        assert generator.get_state().data_ptr() != 0
        assert torch.xpu.get_rng_state().numel() == state.numel()
        fake = mode.from_tensor(state)
        with pytest.raises(RuntimeError):
            generator.set_state(fake)
    assert generator.get_state().equal(state)
    generator.set_state(state)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_given_generator_is_the_only_one_drawn_from(name, no_host):
    torch.manual_seed(5)
    before, host = torch.xpu.get_rng_state(), torch.get_rng_state()
    OPERATORS[name](torch.Generator(DEVICE), 300)
    assert torch.xpu.get_rng_state().equal(before)
    OPERATORS[name](None, 300)
    assert not torch.xpu.get_rng_state().equal(before)
    assert torch.get_rng_state().equal(host), "the CPU's generator stays as it was"


@pytest.mark.parametrize("name", OPERATORS)
def test_memory_of_any_strides_gets_the_same_numbers(name, no_host):
    generator = torch.Generator(DEVICE).manual_seed(1)
    expected = OPERATORS[name](generator, 30, 50)
    dtype, base = expected.dtype, torch.zeros(50, 60, dtype=expected.dtype, device=DEVICE)
    view = base[:, ::2].t()
    same = {
        "random_": lambda: view.random_(generator=generator),
        "random_ to": lambda: view.random_(1000, generator=generator),
        "random_ from to": lambda: view.random_(-500, 1000, generator=generator),
        "uniform_": lambda: view.uniform_(generator=generator),
        "normal_": lambda: view.normal_(generator=generator),
        "bernoulli_": lambda: view.bernoulli_(generator=generator),
        "rand": lambda: torch.rand(30, 50, device=DEVICE, generator=generator, out=view),
    }
    generator.manual_seed(1)
    if name in same:
        same[name]()
        assert_same_bits(view, expected.cpu())
        assert bool((base[:, 1::2].cpu() == torch.zeros((), dtype=dtype)).all()), "nothing else is written"


# --- distributions ---------------------------------------------------------------------------------------------


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """How many standard deviations Pearson's statistic is above what chance gives."""
    degrees = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_numbers_fill_the_interval_evenly_and_never_reach_its_end(dtype, no_host):
    x = empty(DRAWS, dtype=dtype).uniform_().cpu().double()
    bins = min(256, 2 ** DIGITS[dtype])
    counts = torch.histc(x, bins, 0, 1).numpy()
    assert x.min() >= 0 and x.max() < 1
    assert abs(chi_square(counts, DRAWS / bins)) < 4
    assert (x * 2 ** DIGITS[dtype]).frac().eq(0).all(), "all that the significand holds and no more"
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("low", "high"), ((-3.0, 5.0), (1.0, 1.0 + 2**-7), (1000.0, 1024.0), (2.0, 2.0), (0.0, 1e-4)))
def test_uniform_numbers_stay_below_a_bound_that_they_could_be_rounded_to(dtype, low, high, no_host):
    x = empty(1 << 16, dtype=dtype).uniform_(low, high).cpu()
    assert bool((x >= torch.tensor(low, dtype=dtype)).all())
    assert bool((x.double() < high).all()) or low == high
    if low != high and dtype in (torch.float32, torch.float64):
        assert abs(x.double().mean().item() - (low + high) / 2) < 0.01 * (high - low)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_numbers_are_normal(dtype, no_host):
    x = empty(DRAWS, dtype=dtype).normal_(0, 1).cpu().double()
    edges = torch.linspace(-3, 3, 25, dtype=torch.float64) + 2.0**-30  # between what 16 bits can tell apart
    counts = torch.bucketize(x, edges).bincount(minlength=26).numpy()
    width = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(dtype, 0.0)
    cdf = torch.special.ndtr(edges + edges.abs().log2().floor().exp2() * width)  # x is rounded
    expected = torch.diff(cdf, prepend=cdf.new_zeros(1), append=cdf.new_ones(1)).numpy() * DRAWS
    assert abs(chi_square(counts, expected)) < 4
    for power, moment, most in ((1, 0, 0.006), (2, 1, 0.01), (3, 0, 0.02), (4, 3, 0.06), (6, 15, 0.6)):
        assert abs((x**power).mean().item() - moment) < most, power
    assert 4.5 < x.abs().max() < 7
    pairs = x[: DRAWS // 1024 * 1024].view(-1, 4, 256)
    assert abs(np.corrcoef(pairs[:, 0].flatten(), pairs[:, 1].flatten())[0, 1]) < 0.01, "sine and cosine of one angle"


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_normal_numbers_have_the_mean_and_deviation_asked_for(dtype, no_host):
    x = empty(DRAWS, dtype=dtype).normal_(-7, 3).cpu().double()
    assert abs(x.mean() + 7) < 0.02 and abs(x.std() - 3) < 0.02
    assert empty(100).normal_(4, 0).cpu().eq(4).all()


@pytest.mark.parametrize("dtype", COMPLEXES[1:], ids=str)
def test_complex_numbers_have_independent_parts_of_half_the_variance(dtype, no_host):
    x = torch.view_as_real(torch.randn(DRAWS, dtype=dtype, device=DEVICE)).cpu().double()
    assert (x.var(0) - 0.5).abs().max() < 0.01 and x.mean(0).abs().max() < 0.01
    assert abs(np.corrcoef(x[:, 0], x[:, 1])[0, 1]) < 0.01
    u = torch.view_as_real(torch.rand(1000, dtype=dtype, device=DEVICE)).cpu()
    assert u.min() >= 0 and u.max() < 1


@pytest.mark.parametrize("dtype", (torch.bool, *INTEGERS, *FLOATS), ids=str)
def test_random_integers_fill_the_range_of_their_type_evenly(dtype, no_host):
    x = empty(DRAWS, dtype=dtype).random_().cpu().double()
    top = 2.0 ** DIGITS[dtype] if dtype in DIGITS else 1.0 if dtype is torch.bool else float(torch.iinfo(dtype).max)
    bins = 2 if dtype is torch.bool else 32
    assert x.min() >= 0 and x.max() <= top and x.frac().eq(0).all()
    if dtype in DIGITS:  # one more than a power of two; without the last, the bins are even
        x = x[x < top]
    counts = torch.histc(x, bins, 0, top if dtype in DIGITS else top + 1).numpy()
    assert abs(chi_square(counts, counts.mean())) < 4


@pytest.mark.parametrize("dtype", (torch.int8, *INTEGERS, *FLOATS), ids=str)
def test_random_integers_of_a_range_take_every_value_of_it_alike(dtype, no_host):
    low = 3 if dtype not in DIGITS and torch.iinfo(dtype).min == 0 else -7
    x = empty(DRAWS, dtype=dtype).random_(low, low + 13).cpu().long()
    found, counts = x.unique(return_counts=True)
    assert found.tolist() == [*range(low, low + 13)]
    assert abs(chi_square(counts.numpy(), DRAWS / 13)) < 4
    assert empty(50, dtype=dtype).random_(5, 6).cpu().long().eq(5).all()


def test_random_integers_reach_the_ends_of_wide_ranges(no_host):
    low, high = -(2**63), 2**63 - 1
    x = empty(DRAWS, dtype=torch.int64).random_(low, high).cpu().double()
    assert abs(chi_square(torch.histc(x, 64, float(low), float(high)).numpy(), DRAWS / 64)) < 4
    bytes_ = empty(1 << 14, dtype=torch.int8).random_(-128, 128).cpu()
    assert bytes_.unique().numel() == 256
    assert empty(1 << 12, dtype=torch.uint8).random_(250, None).cpu().unique().tolist() == [*range(250, 256)]
    bits = empty(1 << 12, dtype=torch.bool).random_(0, 2).cpu()
    assert 0.45 < bits.double().mean() < 0.55


@pytest.mark.parametrize("dtype", (torch.bool, torch.int8, torch.int64, *FLOATS), ids=str)
def test_bernoulli_numbers_are_ones_as_often_as_asked(dtype, no_host):
    for p in (0.0, 1e-3, 0.3, 0.5, 1.0):
        x = empty(DRAWS, dtype=dtype).bernoulli_(p).cpu().double()
        assert x.unique().numel() == (1 if p in (0, 1) else 2)
        assert abs(x.mean() - p) <= 4 * math.sqrt(p * (1 - p) / DRAWS)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bernoulli_numbers_take_a_probability_each(dtype, no_host):
    p = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=dtype)
    drawn = {
        "bernoulli": torch.bernoulli(p.to(DEVICE).expand(DRAWS // 4, 4)),
        "out": torch.bernoulli(p.to(DEVICE).expand(DRAWS // 4, 4), out=empty(0, dtype=torch.int32)),
        "broadcast": empty(DRAWS // 4, 4, dtype=torch.uint8).bernoulli_(p.to(DEVICE)),
    }
    for what, x in drawn.items():
        rate = x.cpu().double().mean(0)
        assert (rate - p).abs().max() < 0.01 and rate[0] == 0 and rate[3] == 1, what


# --- parameters of each element's own ---------------------------------------------------------------------------


def as_likely(drawn: torch.Tensor, at: torch.Tensor, below: torch.Tensor) -> None:
    """The shares of ``drawn`` up to ``at`` are ``below``, within five deviations of such a share."""
    for x, p in zip(at.tolist(), below.tolist(), strict=True):
        share = (drawn.double() <= x).double().mean().item()
        assert abs(share - p) <= 5 * math.sqrt(max(p * (1 - p), 1e-9) / drawn.numel()), (x, p, share)


def sums_to(log_of_one, most: int) -> torch.Tensor:
    """The distribution function at 0, 1, ... most, of logarithms of what each number's probability is."""
    return torch.tensor([log_of_one(k) for k in range(most + 1)], dtype=torch.float64).exp().cumsum(0)


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 9.99, 10.0, 55.0])
def test_poisson_numbers(rate, no_host):
    drawn = torch.poisson(empty(DRAWS).fill_(rate)).cpu()
    at = torch.arange(int(3 * rate) + 3)
    below = sums_to(
        lambda k: k * math.log(rate) - rate - math.lgamma(k + 1) if rate else (-1e9 if k else 0.0), len(at) - 1
    )
    as_likely(drawn, at, below)


@pytest.mark.parametrize(("trials", "p"), [(1, 0.3), (7, 0.0), (7, 1.0), (40, 0.1), (40, 0.4), (90, 0.75), (300, 0.5)])
def test_binomial_numbers(trials, p, no_host):
    drawn = torch.binomial(empty(DRAWS).fill_(trials), torch.tensor([p], device=DEVICE)).cpu()
    if p in (0.0, 1.0):
        assert bool((drawn == trials * p).all())
        return
    choices = math.lgamma(trials + 1)
    below = sums_to(
        lambda k: (
            choices - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * math.log(p) + (trials - k) * math.log1p(-p)
        ),
        trials,
    )
    as_likely(drawn, torch.arange(trials + 1), below.clamp_max(1))


@pytest.mark.parametrize("shape", [0.07, 0.6, 1.0, 3.5, 400.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gamma_numbers(shape, dtype, no_host):
    drawn = torch._standard_gamma(torch.full((DRAWS,), shape, dtype=dtype, device=DEVICE))
    assert drawn.dtype == dtype and bool((drawn > 0).all())
    if dtype is torch.float32:
        at = drawn.cpu().double().quantile(torch.tensor([0.05, 0.3, 0.7, 0.95], dtype=torch.float64))
        as_likely(drawn.cpu(), at, torch.special.gammainc(torch.tensor(shape, dtype=torch.float64), at))


def test_numbers_of_each_elements_own_distribution(no_host):
    """Rows have their parameters, streams do not repeat, and a seed brings them again."""
    rates = torch.tensor([0.5, 6.0, 30.0], device=DEVICE).expand(1 << 16, 3)
    first, second = torch.poisson(rates), torch.poisson(rates)
    torch.manual_seed(20240229)
    assert torch.equal(torch.poisson(rates), first) and not torch.equal(first, second)
    assert torch.allclose(first.mean(0).cpu(), torch.tensor([0.5, 6.0, 30.0]), rtol=0.02)
    columns = torch.corrcoef(first.t().cpu())
    assert (columns - torch.eye(3)).abs().max() < 0.02
    points = torch._sample_dirichlet(torch.tensor([1.0, 2.0, 5.0], device=DEVICE).expand(1 << 16, 3)).cpu()
    assert torch.allclose(points.sum(1), torch.ones(1 << 16), atol=1e-5)
    assert torch.allclose(points.mean(0), torch.tensor([1.0, 2.0, 5.0]) / 8, atol=0.005)
    assert torch.allclose(points.var(0), torch.tensor([7.0, 12.0, 15.0]) / (64 * 9), rtol=0.05)


@pytest.mark.not_simulated("a kernel that does not execute finds no wrong number")
def test_what_is_no_rate_is_told():
    with pytest.raises(torch.AcceleratorError, match="non-negative"):
        torch.poisson(torch.tensor([1.0, -1.0], device=DEVICE))
        torch.xpu.synchronize()
    assert float(torch.ones(2, device=DEVICE).sum()) == 2


def test_nothing_is_drawn_for_no_elements(no_host):
    for x in (empty(0), empty(3, 0)):
        assert x.uniform_() is x and x.normal_() is x and x.random_() is x and x.bernoulli_() is x


# --- errors and compiled graphs --------------------------------------------------------------------------------

WRONG = {
    "empty range": lambda x: x.random_(5, 5),
    "range beyond the type": lambda x: x.to(torch.int8).random_(0, 500),
    "range before the type": lambda x: x.to(torch.uint8).random_(-1, 5),
    "start beyond the type": lambda x: x.to(torch.int8).random_(200, None),
    "complex integers": lambda x: x.to(torch.complex64).random_(),
    "reversed interval": lambda x: x.uniform_(2, 1),
    "interval beyond the type": lambda x: x.half().uniform_(0, 1e6),
    "interval wider than the type": lambda x: x.half().uniform_(-60000, 60000),
    "uniform integers": lambda x: x.long().uniform_(),
    "negative deviation": lambda x: x.normal_(0, -1),
    "normal integers": lambda x: x.long().normal_(),
    "probability": lambda x: x.bernoulli_(1.5),
    "probability that is none": lambda x: x.bernoulli_(math.nan),
    "overlapping memory": lambda x: x[:1].expand(3).uniform_(),
}


@pytest.mark.not_simulated("a kernel that does not execute finds no wrong number")
@pytest.mark.parametrize("wrong", [1.5, -0.25, math.nan])
def test_what_is_no_probability_is_told(wrong):
    p = torch.rand(1000)
    p[321] = wrong
    for draw in (torch.bernoulli, lambda t: empty(1000).bernoulli_(t)):
        with pytest.raises(torch.AcceleratorError, match="a probability is not between 0 and 1"):
            draw(p.to(DEVICE)).cpu()
    assert torch.bernoulli(torch.ones(3, device=DEVICE)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_drawn_is_refused_as_on_the_cpu(name):
    x = torch.zeros(3)
    assert_refused_alike(WRONG[name], x, x.to(DEVICE))


def test_a_generator_of_another_device_is_refused():
    for draw in OPERATORS.values():
        with pytest.raises(RuntimeError, match="Expected a 'xpu' device type for generator but found 'cpu'"):
            draw(torch.Generator(), 3)


def test_compiled_dropout_draws_its_seed_on_the_device(no_host):
    f = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.25))
    x = torch.ones(1 << 16, device=DEVICE)
    torch.xpu.manual_seed(1)
    first, second = f(x).cpu(), f(x).cpu()
    torch.xpu.manual_seed(1)
    assert f(x).cpu().equal(first) and not first.equal(second)
    assert abs(first.eq(0).double().mean() - 0.25) < 0.01


def test_drawing_is_declared_compiled():
    for op in ("random_.from", "uniform_", "normal_", "bernoulli_.float", "bernoulli.out"):
        assert anyxpu.ops.resolve(f"aten::{op}") == "compiled", op
    for op in ("randint.low_out", "rand", "randn", "randint", "bernoulli"):
        assert anyxpu.ops.resolve(f"aten::{op}") == "composite", op
