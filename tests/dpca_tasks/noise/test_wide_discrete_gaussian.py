"""Wide draws follow one discrete Gaussian. The key is fixed; over all keys a test fails by chance once in 1,000."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.discrete_gaussian import LARGEST, discrete_gaussians
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.noise.wide_discrete_gaussian import FINE, WIDEST, drawable, wide_discrete_gaussians

KEY = subkey(bytes(32), label="noise", info=b"wide")
FALSE_ALARM = 1e-3


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
    drawn = wide_discrete_gaussians(KEY, size=100_000, squared_scale=squared_scale, part=part, parts=parts)
    std = np.sqrt(squared_scale / part)
    edges = stats.norm.ppf(np.linspace(0, 1, 101)[1:-1], scale=std)
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=100)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM / 30
    assert stats.chisquare(np.bincount(drawn % 16, minlength=16)).pvalue > FALSE_ALARM / 30


def test_up_to_the_arithmetic_of_one_draw_it_is_one_draw():
    alone = discrete_gaussians(KEY, start=0, stop=100, squared_scale=50)
    np.testing.assert_array_equal(wide_discrete_gaussians(KEY, size=100, squared_scale=50), alone)
    for part, parts in ((2, 2), (3, 6), (6, 6)):
        drawn = wide_discrete_gaussians(KEY, size=100, squared_scale=50 * part, part=part, parts=parts)
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
        wide_discrete_gaussians(KEY, size=1, squared_scale=LARGEST + 1)
