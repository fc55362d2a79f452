"""Draws from discrete Gaussians, narrow and wide, are exact.

Draws follow the discrete Gaussian. The key is fixed; over all keys such a test fails by chance once in 10,000.

Wide draws follow one discrete Gaussian. The key is fixed; over all keys a test fails by chance once in 1,000.
"""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.discrete_gaussian import (
    FINE,
    LARGEST,
    TILE,
    WIDEST,
    discrete_gaussians,
    drawable,
    wide_discrete_gaussians,
)
from dpca_tasks.noise.keystream import subkey

KEY = subkey(bytes(32), label="noise", info=b"discrete")
FALSE_ALARM = 1e-4


def draws(count, squared_scale, *, start=0):
    return discrete_gaussians(KEY, start=start, stop=start + count, squared_scale=squared_scale)


@pytest.mark.parametrize("squared_scale", [1, 2, 9, 16, 100, 1000])
def test_frequencies_are_those_of_the_distribution(squared_scale):
    drawn = draws(40_000, squared_scale)
    points = np.arange(-12 * squared_scale, 12 * squared_scale + 1)
    mass = np.exp(-(points**2) / (2 * squared_scale))
    mass /= mass.sum()
    reach = int(np.abs(points[mass * drawn.size >= 10]).max())
    inner = np.abs(points) <= reach
    expected = np.append(mass[inner], mass[~inner].sum()) * drawn.size
    counts = np.array([np.count_nonzero(drawn == point) for point in points[inner]] + [(np.abs(drawn) > reach).sum()])
    kept = expected >= 1
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert stats.chi2.sf(statistic, kept.sum() - 1) > FALSE_ALARM


@pytest.mark.parametrize("squared_scale", [40_000, LARGEST])
def test_wide_draws_are_normal_to_the_eye_of_a_chi_square(squared_scale):
    """Fifty bins of equal mass; the discrete one differs from the normal by far less than this shows."""
    drawn = draws(60_000, squared_scale)
    edges = stats.norm.ppf(np.linspace(0, 1, 51)[1:-1], scale=np.sqrt(squared_scale))
    cells = np.searchsorted(np.ceil(edges - 0.5) + 0.5, drawn)
    bounds = np.concatenate([[0.0], stats.norm.cdf(np.ceil(edges - 0.5) + 0.5, scale=np.sqrt(squared_scale)), [1.0]])
    expected = np.diff(bounds) * drawn.size
    statistic = ((np.bincount(cells, minlength=50) - expected) ** 2 / expected).sum()
    assert stats.chi2.sf(statistic, 49) > FALSE_ALARM
    assert np.var(drawn) / squared_scale == pytest.approx(1.0, abs=4 * np.sqrt(2 / drawn.size))


def test_any_range_can_be_drawn_by_itself():
    whole = draws(3 * TILE + 5, 50)
    np.testing.assert_array_equal(draws(TILE + 7, 50, start=TILE - 3), whole[TILE - 3 : 2 * TILE + 4])
    assert draws(0, 50).size == 0
    other = discrete_gaussians(subkey(bytes(32), label="other", info=b""), start=0, stop=100, squared_scale=50)
    assert (other != whole[:100]).any()


def test_few_words_are_read_on_until_they_suffice(monkeypatch):
    whole = draws(TILE, 77)
    monkeypatch.setattr("dpca_tasks.noise.discrete_gaussian._WORDS", 2000)
    np.testing.assert_array_equal(draws(TILE, 77), whole)


@pytest.mark.parametrize("squared_scale", [0, -1, LARGEST + 1])
def test_a_scale_that_does_not_fit_is_refused(squared_scale):
    with pytest.raises(InvalidInput, match="squared_scale"):
        draws(1, squared_scale)


WIDE_KEY = subkey(bytes(32), label="noise", info=b"wide")
WIDE_FALSE_ALARM = 1e-3


def mass(squared_scale, points):
    one = np.exp(-(points**2) / (2 * squared_scale))
    return one / one.sum()


PARTS = [(1, 2), (2, 2), (1, 6), (3, 6), (6, 6)]


@pytest.mark.parametrize(("part", "parts"), PARTS)
@pytest.mark.parametrize(("coarse", "grain"), [(192, 4), (402, 8)])
def test_a_coarse_and_a_fine_draw_are_the_discrete_gaussian_of_their_sum(coarse, grain, part, parts):
    """The exact masses of ``c y + z`` for small scales, against those of one draw."""
    u, v = coarse // part, FINE[parts] * grain**2 // part
    reach = 12 * int(np.sqrt(grain**2 * u + v))
    points = np.arange(-reach, reach + 1)
    spread = np.zeros(points.size)
    multiples = np.arange(-(reach // grain), reach // grain + 1)
    spread[reach + grain * multiples] = mass(u, multiples)
    both = np.convolve(spread, mass(v, points), mode="same")
    inner = np.abs(points) < reach / 2
    np.testing.assert_allclose(both[inner], mass(grain**2 * u + v, points)[inner], rtol=1e-11)


@pytest.mark.parametrize(("part", "parts"), PARTS)
@pytest.mark.parametrize("asked", [LARGEST + 8, 1 << 40, None])
def test_draws_beyond_one_draw_have_the_variance_and_reach_every_integer(asked, part, parts):
    widest = WIDEST[parts] - WIDEST[parts] % (parts * 2**20)
    squared_scale = drawable(asked or widest, parts=parts)
    drawn = wide_discrete_gaussians(WIDE_KEY, size=100_000, squared_scale=squared_scale, part=part, parts=parts)
    std = np.sqrt(squared_scale / part)
    edges = stats.norm.ppf(np.linspace(0, 1, 101)[1:-1], scale=std)
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=100)
    assert stats.chisquare(counts).pvalue > WIDE_FALSE_ALARM / 30
    assert stats.chisquare(np.bincount(drawn % 16, minlength=16)).pvalue > WIDE_FALSE_ALARM / 30


def test_up_to_the_arithmetic_of_one_draw_it_is_one_draw():
    alone = discrete_gaussians(WIDE_KEY, start=0, stop=100, squared_scale=50)
    np.testing.assert_array_equal(wide_discrete_gaussians(WIDE_KEY, size=100, squared_scale=50), alone)
    for part, parts in ((2, 2), (3, 6), (6, 6)):
        drawn = wide_discrete_gaussians(WIDE_KEY, size=100, squared_scale=50 * part, part=part, parts=parts)
        np.testing.assert_array_equal(drawn, alone)


@given(st.integers(1, WIDEST[6] - 2**22), st.sampled_from([2, 6]))
@example(LARGEST - 1, 6)
@example(WIDEST[2], 2)
def test_a_drawable_scale_is_no_less_and_hardly_more(squared_scale, parts):
    found = drawable(squared_scale, parts=parts)
    assert squared_scale <= found <= squared_scale * (1 + 2**-20) + 5
    assert drawable(found, parts=parts) == found
    assert found % parts == 0
    assert found <= WIDEST[parts]


@pytest.mark.parametrize("squared_scale", [0, WIDEST[2] + 1])
def test_a_scale_beyond_every_draw_is_refused(squared_scale):
    with pytest.raises(InvalidInput, match="coarser grid"):
        drawable(squared_scale)
    with pytest.raises(InvalidInput, match="is not drawable; use"):
        wide_discrete_gaussians(WIDE_KEY, size=1, squared_scale=LARGEST + 1)
