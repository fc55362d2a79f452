"""Discrete Gaussians, narrow and wide, exact rounding to integers, and directions of the exponential mechanism.

Draws must follow the discrete Gaussian. Keys are fixed; over all keys, tests of narrow draws fail once in 10,000, and
tests of wide draws once in 1,000. Every integer must have exactly its ideal probability, even if floats propose another
integer. Directions are compared with their density, integrated independently, and planted mistakes must be detected.

For histograms, ``n`` draws in ``m`` bins have a total variation of ``sqrt(m / n) / 2`` from the truth on average, and
one draw changes it by at most ``1 / n``. By McDiarmid, they exceed ``sqrt(m / n) / 2 + sqrt(log(1e6) / 2 n)`` with
probability below 1e-6. Keys are fixed.
"""

import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp
from numpy.typing import NDArray
from scipy import stats

from dpca_tasks.accounting.calibration import largest_range
from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise import bingham, discrete_gaussian, keystream
from dpca_tasks.noise.bingham import (
    STEPS_PER_UNIT,
    GibbsChain,
    Peeling,
    complement,
    draw_direction,
    envelope_width,
    log_acceptance,
    proposals_at_once,
)
from dpca_tasks.noise.discrete_gaussian import (
    DISTANCE,
    FINE,
    LAPLACE,
    LARGEST,
    NORMAL,
    TILE,
    UNIFORM_BITS,
    WIDEST,
    Standard,
    discrete_gaussians,
    drawable,
    wide_discrete_gaussians,
)
from dpca_tasks.noise.distributions import LARGEST_SCALE
from dpca_tasks.noise.keystream import WORDS_PER_TILE, Further, Words, laplaces, normals, subkey, uniforms_of

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
def test_wide_draws_pass_a_chi_square_test_of_normality(squared_scale):
    """Compare 60,000 wide draws with the normal distribution, by a chi-square test over fifty bins of equal mass.

    The discrete distribution differs from the normal one by far less than this test can detect.
    """
    drawn = draws(60_000, squared_scale)
    edges = stats.norm.ppf(np.linspace(0, 1, 51)[1:-1], scale=np.sqrt(squared_scale))
    cells = np.searchsorted(np.ceil(edges - 0.5) + 0.5, drawn)
    bounds = np.concatenate([[0.0], stats.norm.cdf(np.ceil(edges - 0.5) + 0.5, scale=np.sqrt(squared_scale)), [1.0]])
    expected = np.diff(bounds) * drawn.size
    statistic = ((np.bincount(cells, minlength=50) - expected) ** 2 / expected).sum()
    assert stats.chi2.sf(statistic, 49) > FALSE_ALARM
    assert np.var(drawn) / squared_scale == pytest.approx(1.0, abs=4 * np.sqrt(2 / drawn.size))


def test_any_range_can_be_drawn_separately():
    whole = draws(3 * TILE + 5, 50)
    np.testing.assert_array_equal(draws(TILE + 7, 50, start=TILE - 3), whole[TILE - 3 : 2 * TILE + 4])
    assert draws(0, 50).size == 0
    other = discrete_gaussians(subkey(bytes(32), label="other", info=b""), start=0, stop=100, squared_scale=50)
    assert (other != whole[:100]).any()


def test_draws_of_the_first_two_tiles_are_the_recorded_ones():
    made = draws(200, 1000, start=4000)
    digest = "82da1d062930f011d05c1ae019efc4b5734ccce43e1c7c441fae57fee940f2c5"
    assert hashlib.sha256(made.astype("<i8").tobytes()).hexdigest() == digest


def test_more_random_words_are_read_until_they_suffice(monkeypatch):
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
    """Compare the masses of ``c y + z``, a coarse draw y plus a fine draw z, with those of a single draw.

    The masses are exact, for small scales.
    """
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
@pytest.mark.parametrize("requested", [LARGEST + 8, 1 << 40, None])
def test_draws_beyond_one_draw_have_the_variance_and_reach_every_integer(requested, part, parts):
    widest = WIDEST[parts] - WIDEST[parts] % (parts * 2**20)
    squared_scale = drawable(requested or widest, parts=parts)
    drawn = wide_discrete_gaussians(WIDE_KEY, size=100_000, squared_scale=squared_scale, part=part, parts=parts)
    std = np.sqrt(squared_scale / part)
    edges = stats.norm.ppf(np.linspace(0, 1, 101)[1:-1], scale=std)
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=100)
    assert stats.chisquare(counts).pvalue > WIDE_FALSE_ALARM / 30
    assert stats.chisquare(np.bincount(drawn % 16, minlength=16)).pvalue > WIDE_FALSE_ALARM / 30


def test_scales_within_the_arithmetic_of_one_draw_use_one_draw():
    alone = discrete_gaussians(WIDE_KEY, start=0, stop=100, squared_scale=50)
    np.testing.assert_array_equal(wide_discrete_gaussians(WIDE_KEY, size=100, squared_scale=50), alone)
    for part, parts in ((2, 2), (3, 6), (6, 6)):
        drawn = wide_discrete_gaussians(WIDE_KEY, size=100, squared_scale=50 * part, part=part, parts=parts)
        np.testing.assert_array_equal(drawn, alone)


@given(st.integers(1, WIDEST[6] - 2**22), st.sampled_from([2, 6]))
@example(LARGEST - 1, 6)
@example(WIDEST[2], 2)
def test_a_drawable_scale_is_at_least_the_requested_and_hardly_more(squared_scale, parts):
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


NEAREST_INTEGERS_KEY = subkey(bytes(32), label="test", info=b"nearest integers")
NEAREST_INTEGERS_FINE = 2.0**28
WORD = 2**64

type Rule = Callable[[list[int], float], NDArray[np.float64]]
both = pytest.mark.parametrize("standard", [NORMAL, LAPLACE], ids=["normal", "laplace"])


def words_of(bits: list[int]) -> tuple[Words, Further]:
    """Return one random word for each magnitude of 191 bits, with sign +, and a function for its other two words."""
    high, middle, low = (np.array([(h >> shift) % WORD for h in bits], np.uint64) for shift in (128, 64, 0))
    return high << np.uint64(1), lambda places: (middle[places], low[places])


def decided(standard: Standard) -> Rule:
    """Return the rounding rule in use, which decides doubtful cases exactly."""
    return lambda bits, scale: standard.of_words(*words_of(bits), np.full(len(bits), scale))


def rounded(standard: Standard) -> Rule:
    """Return a rounding rule that only rounds floats, without exact decisions."""

    def rule(bits: list[int], scale: float) -> NDArray[np.float64]:
        made, _ = uniforms_of(*words_of(bits))
        standard.fill(made, made.view(np.int64))
        return np.rint(made * scale)

    return rule


def beyond(standard: Standard, edge: mp.mpf) -> mp.mpf:
    """Return ``P(|Z| > edge)`` for the standard normal or Laplace variate Z."""
    return mp.erfc(edge / mp.sqrt(2)) if standard is NORMAL else mp.exp(-edge)


def count_above(rule: Rule, integer: int, scale: float) -> int:
    """Return how many of the 2^191 magnitudes are rounded to more than an integer.

    The rule is monotone, so bisection finds the number.
    """
    low, high = 0, 1 << UNIFORM_BITS
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rule([middle], scale)[0] > integer else (low, middle)
    return low


def mass_of_nearest_integers(rule: Rule, integer: int, scale: float) -> mp.mpf:
    above = count_above(rule, integer, scale)
    from_here = count_above(rule, integer - 1, scale) if integer else 1 << UNIFORM_BITS
    return mp.mpf(from_here - above) / mp.mpf(2) ** UNIFORM_BITS


def ideal_mass(standard: Standard, integer: int, scale: float) -> mp.mpf:
    half = mp.mpf(1) / 2
    from_here = beyond(standard, (integer - half) / mp.mpf(scale)) if integer else mp.mpf(1)
    return from_here - beyond(standard, (integer + half) / mp.mpf(scale))


@both
@pytest.mark.parametrize("scale", [1000.0, NEAREST_INTEGERS_FINE / math.sqrt(2), LARGEST_SCALE])
@pytest.mark.parametrize("std", [0.0, 1e-3, 1.0, 7.0])
def test_every_integer_has_its_mass(standard: Standard, scale: float, std: float) -> None:
    """Compare the probability of each integer with its ideal value, up to a few of 2^191 magnitudes.

    With rounding of floats alone, probabilities deviate by up to a factor of 1 + 1e-7 at 2^28 steps.
    """
    integer = int(std * scale)
    with mp.workdps(120):
        error = abs(mass_of_nearest_integers(decided(standard), integer, scale) - ideal_mass(standard, integer, scale))
        assert error <= mp.mpf(2) ** -190


def test_rounded_floats_miss_the_masses() -> None:
    """Round floats without exact decisions, as an earlier version did: the error of the masses is detected."""
    with mp.workdps(120):
        errors = [
            abs(
                mass_of_nearest_integers(rounded(NORMAL), integer, NEAREST_INTEGERS_FINE)
                / ideal_mass(NORMAL, integer, NEAREST_INTEGERS_FINE)
                - 1
            )
            for integer in (*range(4), int(NEAREST_INTEGERS_FINE), int(NEAREST_INTEGERS_FINE) + 1)
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
    precision = discrete_gaussian._PRECISION
    with mp.workdps(200):
        for x in (1e-9, 0.01, 0.5, 1.0, 3.0, 7.5, 12.0, 16.3):
            point = int(mp.mpf(x) * mp.mpf(2) ** precision)
            found = mp.mpf(standard.mass_within(point)) / mp.mpf(2) ** precision
            assert abs(found - (1 - beyond(standard, mp.mpf(x)))) < mp.mpf(2) ** -230


@pytest.mark.parametrize("branch", [(0.0, 0.425), (1.6095, 5.0), (5.0, 11.6)], ids=["central", "tail", "far-tail"])
def test_rational_functions_of_the_quantile_are_right_everywhere(
    branch: tuple[float, float],
) -> None:
    """Evaluate AS 241, the normal quantile, in exact arithmetic at 128 Chebyshev points of each branch.

    The argument of the central branch is q, and ``sqrt(-log(u / 2))`` in the tails. Around a branch, the relative error
    is analytic in an ellipse of rho above 2. So between the points it is at most ``1 + 2 / pi ln 128`` times its value
    at the points, plus ``2^-128`` of its size on the ellipse.
    """
    first, last = branch
    magnitude = {0.0: keystream._central_magnitude, 1.6095: keystream._tail_magnitude, 5.0: keystream._far_magnitude}[
        first
    ]
    places = 0.5 * (first + last) + 0.5 * (last - first) * np.cos(np.pi * (np.arange(128) + 0.5) / 128)
    worst = 0.0
    with mp.workdps(80):
        for place in map(mp.mpf, places.tolist()):
            u = 1 - 2 * place if first == 0 else 2 * mp.exp(-(place**2))
            exact = made = magnitude.py_func(u if first == 0 else place)
            for _ in range(3):  # three Newton steps from a value whose error is 1e-16
                exact += (mp.erfc(exact / mp.sqrt(2)) - u) / (2 * mp.npdf(exact))
            worst = max(worst, float(abs(made / exact - 1)))
    assert worst * (1 + 2 / math.pi * math.log(128)) < 2.0**-50


@both
def test_doubtful_proposals_are_few_and_the_others_are_right(standard: Standard) -> None:
    """Decide 20,000 fixed draws exactly: floats were accepted only where they round correctly."""
    draw = normals if standard is NORMAL else laplaces
    scales = np.full(20_000, NEAREST_INTEGERS_FINE)
    made = standard.nearest(NEAREST_INTEGERS_KEY, start=0, scales=scales)
    assert np.mean(made == np.rint(draw(NEAREST_INTEGERS_KEY, start=0, stop=20_000) * NEAREST_INTEGERS_FINE)) > 0.999
    everything = Standard(standard.fill, standard.mass_within, -1.0)
    np.testing.assert_array_equal(everything.nearest(NEAREST_INTEGERS_KEY, start=0, scales=scales[:1000]), made[:1000])


@both
def test_any_range_can_be_drawn_without_the_others(standard: Standard) -> None:
    scales = np.linspace(1.0, NEAREST_INTEGERS_FINE, 3 * WORDS_PER_TILE)
    whole = standard.nearest(NEAREST_INTEGERS_KEY, start=5, scales=scales)
    part = standard.nearest(NEAREST_INTEGERS_KEY, start=5 + 20_001, scales=scales[20_001:40_003])
    np.testing.assert_array_equal(part, whole[20_001:40_003])


@both
def test_a_wrong_proposal_is_put_right(standard: Standard) -> None:
    bits = (1 << 190) + 12345
    right = standard._decided(bits, 1000.0, 0)
    assert right > 100
    assert {standard._decided(bits, 1000.0, right + off) for off in (-100, -7, -1, 0, 1, 7, 5000)} == {right}


DRAWS = 5000
BOUND_2, BOUND_3 = (math.sqrt(bins / DRAWS) / 2 + math.sqrt(math.log(1e6) / (2 * DRAWS)) for bins in (24, 48))
EIGENVALUES_2 = np.array([1.0, 5.0])
EIGENVALUES_3 = np.array([0.0, 1.0, 2.0])


def key(number):
    return subkey(bytes(32), label="noise", info=number.to_bytes(8, "little"))


def rotation(order):
    return np.linalg.qr(np.random.default_rng(order).standard_normal((order, order)))[0]


def matrix_of(eigenvalues):
    axes = rotation(eigenvalues.size)
    return axes @ np.diag(eigenvalues) @ axes.T


def drawn(eigenvalues, *, scale=1.0, draws=DRAWS):
    """Return drawn directions in the coordinates of the matrix's eigenvectors."""
    matrix = matrix_of(eigenvalues)
    made = np.array([draw_direction(key(number), matrix, scale=scale) for number in range(draws)])
    return made @ rotation(eigenvalues.size)


def distance_on_the_circle(draws, eigenvalues):
    """Return the total variation between the frequencies of 24 arcs and the integrals of the density over them."""
    angles = np.arctan2(draws[:, 1], draws[:, 0])
    counts = np.histogram(angles, bins=24, range=(-np.pi, np.pi))[0]
    fine = (np.arange(2400) + 0.5) / 2400 * 2 * np.pi - np.pi
    density = np.exp(eigenvalues[0] * np.cos(fine) ** 2 + eigenvalues[1] * np.sin(fine) ** 2)
    weights = density.reshape(24, 100).sum(axis=1)
    return np.abs(counts / len(draws) - weights / weights.sum()).sum() / 2


def distance_on_the_sphere(draws, eigenvalues):
    """Return the total variation between frequencies and integrals of 48 cells in height and longitude."""
    longitude = np.arctan2(draws[:, 1], draws[:, 0])
    counts = np.histogram2d(draws[:, 2], longitude, bins=(6, 8), range=((-1, 1), (-np.pi, np.pi)))[0]
    height, around = (np.arange(600) + 0.5) / 300 - 1, (np.arange(800) + 0.5) / 400 * np.pi - np.pi
    flat = 1 - height[:, None] ** 2
    squares = (flat * np.cos(around) ** 2, flat * np.sin(around) ** 2, height[:, None] ** 2)
    density = np.exp(sum(value * square for value, square in zip(eigenvalues, squares, strict=True)))
    weights = density.reshape(6, 100, 8, 100).sum(axis=(1, 3))
    return np.abs(counts / len(draws) - weights / weights.sum()).sum() / 2


def distances(draws=DRAWS):
    """Return the distances of draws on circle and sphere from the density, each divided by its bound."""
    circle = distance_on_the_circle(drawn(EIGENVALUES_2, draws=draws), EIGENVALUES_2)
    sphere = distance_on_the_sphere(drawn(EIGENVALUES_3, draws=draws), EIGENVALUES_3)
    return circle / BOUND_2, sphere / BOUND_3


def test_draws_have_their_density():
    """Compare draws on circle and sphere with their density.

    The bounds on total variation are 0.0718 on the circle and 0.0862 on the sphere.
    """
    assert max(distances()) <= 1.0


def inverted(u, *, width, order):
    """Return the log acceptance probability of a proposal with a planted mistake, which two libraries make.

    The power of the envelope is in the denominator.
    """
    return log_acceptance(u, width=width, order=order) - order * np.log1p(2.0 * u / width)


def without_the_power(u, *, width, order):
    return -u


def with_another_width(u, *, width, order):
    return log_acceptance(u, width=0.2 * width, order=order)


@pytest.mark.parametrize(
    "planted",
    [inverted, *(pytest.param(bug, marks=pytest.mark.audit_only) for bug in (without_the_power, with_another_width))],
    ids=lambda bug: bug.__name__,
)
def test_a_wrong_acceptance_ratio_is_detected(monkeypatch, planted):
    monkeypatch.setattr(bingham, "log_acceptance", planted)
    assert min(distances(2000)) > 1.5


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_scale_that_is_wrong_by_a_factor_of_two_is_detected(factor):
    circle = distance_on_the_circle(drawn(EIGENVALUES_2, scale=factor, draws=2000), EIGENVALUES_2)
    assert circle / BOUND_2 > 1.5


@pytest.mark.audit_only
def test_any_width_of_the_envelope_gives_the_same_law(monkeypatch):
    """Change the width of the envelope, which may affect only how many proposals are accepted."""
    monkeypatch.setattr(bingham, "envelope_width", lambda excess: 0.6 * envelope_width(excess))
    assert max(distances()) <= 1.0


def test_both_signs_are_equally_likely():
    """Draw 1000 directions near one axis: both signs must have equal probability.

    Fewer than 420 of one sign would have probability below 1e-6.
    """
    ahead = np.count_nonzero(drawn(np.array([0.0, 0.0, 60.0]), draws=1000)[:, 2] > 0)
    assert 420 <= ahead <= 580


def test_a_peeled_direction_has_its_conditional_law():
    """Test the second drawn direction, in the plane orthogonal to the first, by Kolmogorov and Smirnov at 1e-6.

    Twice its angle to the leading axis must follow the von Mises distribution.
    """
    matrix = matrix_of(EIGENVALUES_3)
    law = Peeling(n_components=2, epsilon=2.0, delta=0.0)
    quantiles = []
    for number in range(800):
        first, second = law.draw(key(number), matrix, scale=0.5) / STEPS_PER_UNIT
        plane = complement(first[None, :])
        values, axes = np.linalg.eigh(plane.T @ matrix @ plane)
        place = axes.T @ plane.T @ second
        doubled = 2 * np.arctan2(place[0], place[1])
        quantiles.append(stats.vonmises.cdf(np.arctan2(np.sin(doubled), np.cos(doubled)), (values[1] - values[0])))
    assert stats.kstest(quantiles, stats.uniform.cdf).pvalue > 1e-6


def test_a_chain_tends_to_its_law():
    """Run a Gibbs chain for k = 2 directions in three dimensions, and compare the direction orthogonal to both.

    That direction has the distribution of a draw for -S, with the second moment S. Means of 60 draws have a std below
    0.045.
    """
    law = GibbsChain(n_components=2, epsilon=1.0, delta=0.0)
    matrix, across = matrix_of(EIGENVALUES_3), []
    for number in range(60):
        left, right = law.draw(key(number), matrix, scale=0.25) / STEPS_PER_UNIT
        across.append(np.cross(left, right) @ rotation(3))
    squares = np.mean(np.square(across), axis=0)
    exact = np.mean(np.square(drawn(-EIGENVALUES_3, scale=0.25, draws=1000)), axis=0)
    np.testing.assert_allclose(squares, exact, atol=0.2)


@pytest.mark.parametrize("law", [Peeling, GibbsChain])
@pytest.mark.parametrize("components", [1, 2, 4])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e12])
def test_directions_are_orthonormal_on_their_grid_for_any_matrix(law, components, size):
    drawn_rows = law(n_components=components, epsilon=1.0, delta=0.0).draw(
        key(0), size * matrix_of(np.arange(5.0)), scale=1.0
    )
    assert (drawn_rows.shape, drawn_rows.dtype) == ((components, 5), np.int64)
    np.testing.assert_allclose(drawn_rows @ drawn_rows.T / STEPS_PER_UNIT**2, np.eye(components), atol=1e-6)


def test_a_steep_law_finds_the_leading_directions_in_order():
    rows = Peeling(n_components=2, epsilon=2.0, delta=0.0).draw(key(1), np.diag([1.0, 9.0, 4.0]), scale=1e-6)
    np.testing.assert_allclose(np.abs(rows / STEPS_PER_UNIT), [[0, 1, 0], [0, 0, 1]], atol=5e-3)


@given(
    st.lists(st.floats(0.0, 1e15), min_size=1, max_size=40).map(lambda rest: np.array([0.0, *rest])),
)
def test_the_width_solves_its_equation(excess):
    width = envelope_width(excess)
    assert 1.0 <= width <= excess.size
    assert np.sum(1.0 / (width + 2.0 * excess)) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("order", [2, 10, 123, 500])
def test_a_batch_without_an_accepted_proposal_is_rare(order):
    """Estimate the acceptance for the worst known spectra, in which one direction leads by far.

    A whole batch without acceptance must have probability below 2e-6. The mean acceptance is known to within 5 %.
    """
    excess = np.r_[0.0, np.full(order - 1, 1e3 * order)]
    width = envelope_width(excess)
    points = np.random.default_rng(0).standard_normal((4000, order)) / np.sqrt(1.0 + 2.0 * excess / width)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    chances = np.exp(log_acceptance(points**2 @ excess, width=width, order=order))
    assert chances.max() <= 1.0 + 1e-12
    assert (1.0 - chances.mean()) ** proposals_at_once(order) < 2e-6


def density(matrix, points):
    weights = np.exp(np.einsum("ij,jk,ik->i", points, matrix, points))
    return weights / weights.mean()


def evenly_on(order):
    """Return points of equal area on the circle or the sphere."""
    if order == 2:
        angles = np.arange(20_000) / 20_000 * 2 * np.pi
        return np.column_stack([np.cos(angles), np.sin(angles)])
    height = (np.arange(40_000) + 0.5) / 20_000 - 1
    around = np.pi * (1 + math.sqrt(5)) * np.arange(40_000)
    flat = np.sqrt(1 - height**2)
    return np.column_stack([flat * np.cos(around), flat * np.sin(around), height])


def neighbouring_scores(order, *, replaced):
    """Yield second moments of pairs of neighbors, with unit rows, including the worst cases."""
    rng = np.random.default_rng(order)
    axes = np.eye(order)
    for common in (np.zeros((order, order)), 3 * np.outer(axes[0], axes[0]), matrix_of(rng.uniform(0, 20, order))):
        for mine, other in ((axes[0], axes[1]), (axes[1], axes[0]), *rng.standard_normal((10, 2, order))):
            mine, other = mine / np.linalg.norm(mine), other / np.linalg.norm(other)
            there = common + np.outer(other, other) if replaced else common
            yield common + np.outer(mine, mine), there


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 0.05), (3.0, 1e-3)])
def test_densities_of_neighbours_keep_the_guarantee(order, replaced, epsilon, delta):
    """Compute loss and delta from the densities of neighbors: both must be within the guarantee.

    Densities are normalized on at least 20,000 points, with an error below 1e-4.
    """
    law = Peeling(n_components=1, epsilon=epsilon, delta=delta)
    scale = law.noise_multiplier * (2.0 if replaced else 1.0)
    points, worst_loss, worst_delta = evenly_on(order), 0.0, 0.0
    for here, there in neighbouring_scores(order, replaced=replaced):
        for one, two in ((here, there), (there, here)):
            left, right = density(one / scale, points), density(two / scale, points)
            worst_loss = max(worst_loss, float(np.log(left / right).max()))
            worst_delta = max(worst_delta, float(np.maximum(left - math.exp(epsilon) * right, 0.0).mean()))
    assert worst_loss <= 1.0 / law.noise_multiplier + 1e-3
    if delta:
        assert epsilon / 2 < worst_loss
        assert worst_delta <= delta
    else:
        assert epsilon / 2 < worst_loss <= epsilon + 1e-3


def test_the_densities_would_show_a_scale_that_is_too_small():
    """Charge a replaced record as an added one: the densities must show a privacy loss above epsilon."""
    law, points = Peeling(n_components=1, epsilon=1.0, delta=0.0), evenly_on(2)
    losses = [
        np.log(density(here / law.noise_multiplier, points) / density(there / law.noise_multiplier, points)).max()
        for here, there in neighbouring_scores(2, replaced=True)
    ]
    assert max(losses) > 1.2


def test_the_scale_is_rounded_up():
    for epsilon, delta in ((0.3, 0.0), (1.0, 1e-3), (0.1, 1e-6)):
        law = Peeling(n_components=3, epsilon=epsilon, delta=delta)
        assert 1.0 / law.noise_multiplier <= largest_range(epsilon=epsilon, delta=delta, draws=3)
        assert GibbsChain(n_components=3, epsilon=epsilon, delta=delta).noise_multiplier < law.noise_multiplier
