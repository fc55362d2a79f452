"""Normals and Laplaces: accurate quantiles, the same bits everywhere, and no integer out of their reach."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from numpy.typing import NDArray
from scipy import special, stats

from dpca_tasks.noise import variates
from dpca_tasks.noise.keystream import WORDS_PER_TILE, SecretKey, subkey, uniforms_of
from dpca_tasks.noise.variates import fill_exponentials, fill_normal_magnitudes, laplaces, normals

KEY = subkey(bytes(32), label="test", info=b"variates")
FINE_STEPS = 2.0**28

type Draw = Callable[..., NDArray[np.float64]]
both = pytest.mark.parametrize("draw", [normals, laplaces])


def quantiles(fill: Callable[..., None], u: NDArray[np.float64]) -> NDArray[np.float64]:
    made = u.copy()
    fill(made, made.view(np.int64))
    return made


def uniforms_of_all_sizes(count: int) -> NDArray[np.float64]:
    spread = np.random.default_rng(0)
    branch_points = [1.0, 0.15, math.nextafter(0.15, 0), 1 - 2.0**-53, 2 * math.exp(-25), 2.0**-191]
    return np.concatenate([2.0 ** -spread.uniform(0, 191, count), spread.uniform(0, 1, count), np.array(branch_points)])


def test_normal_magnitudes_are_quantiles_to_the_last_bits() -> None:
    u = uniforms_of_all_sizes(400)
    with mp.workdps(80):
        for made, p in zip(quantiles(fill_normal_magnitudes, u).tolist(), u.tolist(), strict=True):
            exact = mp.mpf(made)
            for _ in range(3):  # Newton, from an error of 1e-15
                exact += (mp.erfc(exact / mp.sqrt(2)) - mp.mpf(p)) / (2 * mp.npdf(exact))
            assert abs(mp.mpf(made) - exact) <= 1e-15 * exact


def test_normal_magnitudes_agree_with_scipy() -> None:
    u = uniforms_of_all_sizes(20_000)
    np.testing.assert_allclose(quantiles(fill_normal_magnitudes, u), -special.ndtri(u / 2), rtol=1e-14)


def test_exponentials_are_logarithms_to_the_last_bits() -> None:
    u = uniforms_of_all_sizes(20_000)
    np.testing.assert_allclose(quantiles(fill_exponentials, u), -np.log(u), rtol=4.5e-16)


def test_compiled_loops_round_after_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python neither fuses nor reorders operations, so equal bits show that the loops do not."""
    u = uniforms_of_all_sizes(1500)
    compiled: list[Any] = [fill_normal_magnitudes, fill_exponentials]
    expected = [quantiles(fill, u) for fill in compiled]
    for part in ("_minus_log", "_central_magnitude", "_tail_magnitude", "_far_magnitude"):
        monkeypatch.setattr(variates, part, getattr(variates, part).py_func)
    for fill, bits in zip(compiled, expected, strict=True):
        np.testing.assert_array_equal(quantiles(fill.py_func, u), bits)


@pytest.mark.parametrize(
    ("draw", "digest"),
    [
        (normals, "26a2969d062964353940123d20fd917dd322b896df2d387f47aedaa2ab343950"),
        (laplaces, "4bac4d89ad3180e8b4dd2273d6d385711bee33c1adfd23aaf967ee871325da27"),
    ],
)
def test_a_key_gives_these_bits_on_every_machine(draw: Draw, digest: str) -> None:
    made = draw(KEY, start=0, stop=50_000)
    assert hashlib.sha256(made.astype("<f8").tobytes()).hexdigest() == digest


@both
@given(start=st.integers(0, 2**40), length=st.integers(0, 3 * WORDS_PER_TILE), data=st.data())
def test_any_range_can_be_drawn_on_its_own(draw: Draw, start: int, length: int, data: st.DataObject) -> None:
    whole = draw(KEY, start=start, stop=start + length)
    low, high = sorted(data.draw(st.integers(0, length)) for _ in range(2))
    np.testing.assert_array_equal(draw(KEY, start=start + low, stop=start + high), whole[low:high])


@both
def test_keys_give_unrelated_variates(draw: Draw) -> None:
    other = SecretKey(bytes([*KEY.secret[:-1], KEY.secret[-1] ^ 1]))
    first, second = (draw(key, start=0, stop=200_000) for key in (KEY, other))
    # Fixed keys; independent draws are out of this bound with probability 1e-6.
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.9 / math.sqrt(200_000)


@pytest.mark.parametrize(("draw", "law"), [(normals, stats.norm), (laplaces, stats.laplace)])
def test_variates_follow_their_law(draw: Draw, law: Any) -> None:
    """At fixed keys; a right law would be refused with probability 1e-4 a key."""
    for index in range(5):
        made = draw(subkey(bytes(32), label="test", info=bytes([index])), start=0, stop=200_000)
        assert stats.kstest(made, law.cdf).pvalue > 1e-4
        in_tail = np.sum(np.abs(made) > law.isf(5e-4))
        assert stats.binomtest(int(in_tail), made.size, 1e-3).pvalue > 1e-4
        assert abs(np.corrcoef(made[:-1], made[1:])[0, 1]) < 3.9 / math.sqrt(made.size)


def magnitudes_of(u: list[int]) -> NDArray[np.float64]:
    """The normal magnitudes of uniforms given as multiples of 2^-191."""
    high, middle, low = (
        np.array([(n >> shift & (2**64 - 1)) << left & (2**64 - 1) for n in u], np.uint64)
        for shift, left in ((128, 1), (64, 0), (0, 0))
    )
    made, _ = uniforms_of(high, lambda places: (middle[places], low[places]))
    return quantiles(fill_normal_magnitudes, made)


@pytest.mark.parametrize("std", [4, 6, 7, 9, 12])
def test_no_integer_is_out_of_reach_in_the_tail(std: int) -> None:
    """At 2^28 steps a std, each of 200 consecutive integers is hit; with 53-bit uniforms most are not."""
    integers = np.arange(int(std * FINE_STEPS), int(std * FINE_STEPS) + 200)
    with mp.workdps(80):
        tails = [mp.erfc(mp.mpf(int(n)) / FINE_STEPS / mp.sqrt(2)) for n in integers]
        fine = [int(mp.nint(tail * mp.mpf(2) ** 191)) for tail in tails]
        first, last = (int(mp.floor(tails[i] * mp.mpf(2) ** 53)) + j for i, j in ((-1, 0), (0, 1)))
    reached = np.rint(magnitudes_of(fine) * FINE_STEPS)
    np.testing.assert_array_equal(reached, integers)
    if std >= 6:
        coarse = magnitudes_of([k << 138 for k in range(max(first, 1), last + 1)])
        reached = np.rint(coarse * FINE_STEPS)
        assert np.isin(integers, reached).mean() < {6: 0.5, 7: 0.01}.get(std, 0.006)
