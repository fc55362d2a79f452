"""Draws of directions against their density, integrated by other means; and the classic mistakes, which must show.

Histograms: ``n`` draws in ``m`` bins lie within total variation ``sqrt(m / n) / 2`` of the truth on average, and a draw
moves that by at most ``1 / n``, so by McDiarmid they pass ``sqrt(m / n) / 2 + sqrt(log(1e6) / 2 n)`` with
probability below 1e-6. Keys are fixed.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpca_tasks.accounting.bounded_range import largest_range
from dpca_tasks.noise import bingham
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
from dpca_tasks.noise.keystream import subkey

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
    """Draws in the coordinates of the eigenvectors."""
    matrix = matrix_of(eigenvalues)
    made = np.array([draw_direction(key(number), matrix, scale=scale) for number in range(draws)])
    return made @ rotation(eigenvalues.size)


def distance_on_the_circle(draws, eigenvalues):
    """Total variation between 24 arcs' frequencies and their integrals."""
    angles = np.arctan2(draws[:, 1], draws[:, 0])
    counts = np.histogram(angles, bins=24, range=(-np.pi, np.pi))[0]
    fine = (np.arange(2400) + 0.5) / 2400 * 2 * np.pi - np.pi
    density = np.exp(eigenvalues[0] * np.cos(fine) ** 2 + eigenvalues[1] * np.sin(fine) ** 2)
    weights = density.reshape(24, 100).sum(axis=1)
    return np.abs(counts / len(draws) - weights / weights.sum()).sum() / 2


def distance_on_the_sphere(draws, eigenvalues):
    """Total variation between 48 cells' frequencies and their integrals; cells in height and longitude."""
    longitude = np.arctan2(draws[:, 1], draws[:, 0])
    counts = np.histogram2d(draws[:, 2], longitude, bins=(6, 8), range=((-1, 1), (-np.pi, np.pi)))[0]
    height, around = (np.arange(600) + 0.5) / 300 - 1, (np.arange(800) + 0.5) / 400 * np.pi - np.pi
    flat = 1 - height[:, None] ** 2
    squares = (flat * np.cos(around) ** 2, flat * np.sin(around) ** 2, height[:, None] ** 2)
    density = np.exp(sum(value * square for value, square in zip(eigenvalues, squares, strict=True)))
    weights = density.reshape(6, 100, 8, 100).sum(axis=(1, 3))
    return np.abs(counts / len(draws) - weights / weights.sum()).sum() / 2


def distances(draws=DRAWS):
    """The two distances as parts of their bounds."""
    circle = distance_on_the_circle(drawn(EIGENVALUES_2, draws=draws), EIGENVALUES_2)
    sphere = distance_on_the_sphere(drawn(EIGENVALUES_3, draws=draws), EIGENVALUES_3)
    return circle / BOUND_2, sphere / BOUND_3


def test_draws_have_their_density():
    """Bounds on total variation: 0.0718 on the circle, 0.0862 on the sphere."""
    assert max(distances()) <= 1.0


def inverted(u, *, width, order):
    """The power of the envelope in the denominator, as two libraries have it."""
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
def test_a_wrong_accept_ratio_is_seen(monkeypatch, planted):
    monkeypatch.setattr(bingham, "log_acceptance", planted)
    assert min(distances(2000)) > 1.5


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_scale_off_by_two_is_seen(factor):
    circle = distance_on_the_circle(drawn(EIGENVALUES_2, scale=factor, draws=2000), EIGENVALUES_2)
    assert circle / BOUND_2 > 1.5


@pytest.mark.audit_only
def test_any_width_of_the_envelope_gives_the_same_law(monkeypatch):
    """The width decides how many proposals are accepted, and nothing else."""
    monkeypatch.setattr(bingham, "envelope_width", lambda excess: 0.6 * envelope_width(excess))
    assert max(distances()) <= 1.0


def test_both_signs_are_alike():
    """1000 draws near one axis: fewer than 420 on either side would have probability below 1e-6."""
    ahead = np.count_nonzero(drawn(np.array([0.0, 0.0, 60.0]), draws=1000)[:, 2] > 0)
    assert 420 <= ahead <= 580


def test_a_peeled_direction_has_its_conditional_law():
    """In the plane across the first direction twice the angle to the leading axis is von Mises; KS, miss 1e-6."""
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
    """Across k = 2 directions of three lies one, drawn by the score of -S; means of 60 have a std below 0.045."""
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
    """The worst spectra known: one direction leads by far. Mean acceptance is known to within 5 % here."""
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
    """Points of equal area on the circle or the sphere."""
    if order == 2:
        angles = np.arange(20_000) / 20_000 * 2 * np.pi
        return np.column_stack([np.cos(angles), np.sin(angles)])
    height = (np.arange(40_000) + 0.5) / 20_000 - 1
    around = np.pi * (1 + math.sqrt(5)) * np.arange(40_000)
    flat = np.sqrt(1 - height**2)
    return np.column_stack([flat * np.cos(around), flat * np.sin(around), height])


def neighbouring_scores(order, *, replaced):
    """Sums of outer products of unit rows, and the outer products by which neighbours differ: worst cases too."""
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
    """Normalised on 20,000 points or more, which leave an error below 1e-4."""
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
    """The same search finds a loss above epsilon when a replaced record is taken for an added one."""
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
