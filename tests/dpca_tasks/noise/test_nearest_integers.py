"""Integers decided exactly: the mass of every integer is the ideal one, whatever floats propose."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from mpmath import mp
from numpy.typing import NDArray

from dpca_tasks.noise import nearest_integers, variates
from dpca_tasks.noise.distributions import LARGEST_SCALE
from dpca_tasks.noise.keystream import WORDS_PER_TILE, Further, Words, subkey, uniforms_of
from dpca_tasks.noise.nearest_integers import DISTANCE, LAPLACE, NORMAL, UNIFORM_BITS, Standard
from dpca_tasks.noise.variates import laplaces, normals

KEY = subkey(bytes(32), label="test", info=b"nearest integers")
FINE = 2.0**28
WORD = 2**64

type Rule = Callable[[list[int], float], NDArray[np.float64]]
both = pytest.mark.parametrize("standard", [NORMAL, LAPLACE], ids=["normal", "laplace"])


def words_of(bits: list[int]) -> tuple[Words, Further]:
    """A random word of each magnitude's 191 bits, with the sign +, and what gives the two further ones."""
    high, middle, low = (np.array([(h >> shift) % WORD for h in bits], np.uint64) for shift in (128, 64, 0))
    return high << np.uint64(1), lambda places: (middle[places], low[places])


def decided(standard: Standard) -> Rule:
    """The rule in use."""
    return lambda bits, scale: standard.of_words(*words_of(bits), np.full(len(bits), scale))


def rounded(standard: Standard) -> Rule:
    """Floats, rounded: what the rule would be without decisions."""

    def rule(bits: list[int], scale: float) -> NDArray[np.float64]:
        made, _ = uniforms_of(*words_of(bits))
        standard.fill(made, made.view(np.int64))
        return np.rint(made * scale)

    return rule


def beyond(standard: Standard, edge: mp.mpf) -> mp.mpf:
    """``P(|Z| > edge)``."""
    return mp.erfc(edge / mp.sqrt(2)) if standard is NORMAL else mp.exp(-edge)


def count_above(rule: Rule, integer: int, scale: float) -> int:
    """How many of the 2^191 magnitudes give more than an integer: those below one that bisection finds."""
    low, high = 0, 1 << UNIFORM_BITS
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rule([middle], scale)[0] > integer else (low, middle)
    return low


def mass(rule: Rule, integer: int, scale: float) -> mp.mpf:
    above = count_above(rule, integer, scale)
    from_here = count_above(rule, integer - 1, scale) if integer else 1 << UNIFORM_BITS
    return mp.mpf(from_here - above) / mp.mpf(2) ** UNIFORM_BITS


def ideal_mass(standard: Standard, integer: int, scale: float) -> mp.mpf:
    half = mp.mpf(1) / 2
    from_here = beyond(standard, (integer - half) / mp.mpf(scale)) if integer else mp.mpf(1)
    return from_here - beyond(standard, (integer + half) / mp.mpf(scale))


@both
@pytest.mark.parametrize("scale", [1000.0, FINE / math.sqrt(2), LARGEST_SCALE])
@pytest.mark.parametrize("std", [0.0, 1e-3, 1.0, 7.0])
def test_every_integer_has_its_mass(standard: Standard, scale: float, std: float) -> None:
    """Rounded floats miss by up to 1e-7 of it at 2^28 steps; the bound is a few of 2^191 magnitudes."""
    integer = int(std * scale)
    with mp.workdps(120):
        error = abs(mass(decided(standard), integer, scale) - ideal_mass(standard, integer, scale))
        assert error <= mp.mpf(2) ** -190


def test_rounded_floats_miss_the_masses() -> None:
    """What the rule before this one did, and what this file would catch."""
    with mp.workdps(120):
        errors = [
            abs(mass(rounded(NORMAL), integer, FINE) / ideal_mass(NORMAL, integer, FINE) - 1)
            for integer in (*range(4), int(FINE), int(FINE) + 1)
        ]
    assert 1e-8 < max(errors) < 1e-6


@both
def test_the_distance_covers_every_edge_within_reach(standard: Standard) -> None:
    farthest = int(decided(standard)([0], LARGEST_SCALE)[0])
    assert farthest < 2**38
    assert 2 * farthest * 2.0**-UNIFORM_BITS <= DISTANCE
    with mp.workdps(120):
        assert beyond(standard, mp.mpf(farthest) / LARGEST_SCALE) < mp.mpf(2) ** -UNIFORM_BITS


@both
def test_masses_within_are_right_to_the_last_magnitude(standard: Standard) -> None:
    precision = nearest_integers._PRECISION
    with mp.workdps(200):
        for x in (1e-9, 0.01, 0.5, 1.0, 3.0, 7.5, 12.0, 16.3):
            point = int(mp.mpf(x) * mp.mpf(2) ** precision)
            found = mp.mpf(standard.mass_within(point)) / mp.mpf(2) ** precision
            assert abs(found - (1 - beyond(standard, mp.mpf(x)))) < mp.mpf(2) ** -230


@pytest.mark.parametrize("branch", [(0.0, 0.425), (1.6095, 5.0), (5.0, 11.6)], ids=["central", "tail", "far-tail"])
def test_rational_functions_of_the_quantile_are_right_everywhere(
    branch: tuple[float, float],
) -> None:
    """AS 241 in exact arithmetic, at 128 Chebyshev points of each branch: of q, and of ``sqrt(-log(u / 2))``.

    The relative error is analytic around a branch, in an ellipse of rho above 2. So between the points it is at most
    ``1 + 2 / pi ln 128`` times what it is at them, and ``2^-128`` of its size on the ellipse.
    """
    first, last = branch
    magnitude = {0.0: variates._central_magnitude, 1.6095: variates._tail_magnitude, 5.0: variates._far_magnitude}[
        first
    ]
    places = 0.5 * (first + last) + 0.5 * (last - first) * np.cos(np.pi * (np.arange(128) + 0.5) / 128)
    worst = 0.0
    with mp.workdps(80):
        for place in map(mp.mpf, places.tolist()):
            u = 1 - 2 * place if first == 0 else 2 * mp.exp(-(place**2))
            exact = made = magnitude.py_func(u if first == 0 else place)
            for _ in range(3):  # Newton, from an error of 1e-16
                exact += (mp.erfc(exact / mp.sqrt(2)) - u) / (2 * mp.npdf(exact))
            worst = max(worst, float(abs(made / exact - 1)))
    assert worst * (1 + 2 / math.pi * math.log(128)) < 2.0**-50


@both
def test_doubtful_proposals_are_few_and_the_others_are_right(standard: Standard) -> None:
    """Decide every draw of a sample exactly: floats were trusted where they are right, at 20,000 fixed draws."""
    draw = normals if standard is NORMAL else laplaces
    scales = np.full(20_000, FINE)
    made = standard.nearest(KEY, start=0, scales=scales)
    assert np.mean(made == np.rint(draw(KEY, start=0, stop=20_000) * FINE)) > 0.999
    everything = Standard(standard.fill, standard.mass_within, -1.0)
    np.testing.assert_array_equal(everything.nearest(KEY, start=0, scales=scales[:1000]), made[:1000])


@both
def test_any_range_can_be_drawn_on_its_own(standard: Standard) -> None:
    scales = np.linspace(1.0, FINE, 3 * WORDS_PER_TILE)
    whole = standard.nearest(KEY, start=5, scales=scales)
    part = standard.nearest(KEY, start=5 + 20_001, scales=scales[20_001:40_003])
    np.testing.assert_array_equal(part, whole[20_001:40_003])


@both
def test_a_wrong_proposal_is_put_right(standard: Standard) -> None:
    bits = (1 << 190) + 12345
    right = standard._decided(bits, 1000.0, 0)
    assert right > 100
    assert {standard._decided(bits, 1000.0, right + off) for off in (-100, -7, -1, 0, 1, 7, 5000)} == {right}
