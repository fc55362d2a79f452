"""Local and smooth sensitivity: no attack exceeds the bounds, and noise calibrations agree with quadrature."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, norm

from dpca_tasks.accounting import smooth_sensitivity
from dpca_tasks.accounting.smooth_sensitivity import (
    TOLERANCE,
    computed_movement,
    gap_movement,
    gaussian_pair_epsilon,
    gaussian_shift,
    hockey_stick,
    is_gaussian_pair_private,
    largest_distance,
    local_sensitivity,
    smooth_bound,
    smooth_gaussian_shift,
    tailed_shift,
    useful_gap,
)
from dpca_tasks.errors import InvalidInput
from tests.mechanism_table import RELATIONS

GRID = [(size, epsilon, delta) for size in (2, 123, 7840) for epsilon in (0.1, 1.0) for delta in (1e-9, 1e-3)]
EDGES = [(5, 50.0, 1e-15), (123, 1e-5, 1e-12), (123, 50.0, 1e-24), (7840, 8.0, 1e-20)]


def hockey_stick_by_quadrature(log_scale, shift, *, epsilon, size):
    """Return the exact delta at epsilon of two Gaussians with different scale and mean.

    The integral is over the first coordinate; the other coordinates enter as a central chi-square variable.
    """
    weight, more = math.exp(-2 * log_scale), math.expm1(-2 * log_scale)
    constant = (2 * (epsilon - size * log_scale) - weight * shift**2) / more
    slope = 2 * weight * shift / more
    tail = chi2(size - 1).sf if log_scale < 0 else chi2(size - 1).cdf

    def rest(x):  # rest(x) is the threshold for the sum of squares of the other coordinates
        return constant + slope * x - x * x

    roots = np.roots([-1.0, slope, constant])
    kinks = sorted(float(root.real) for root in roots if abs(root.imag) < 1e-12)

    def integral(integrand, points):
        edges = [-14.0, *(point for point in points if -14 < point < 14), 14.0]
        pieces = itertools.pairwise(edges)
        return sum(quad(integrand, low, high, limit=400, epsabs=0, epsrel=1e-9)[0] for low, high in pieces)

    likely = integral(lambda x: norm.pdf(x) * tail(rest(x)), kinks)
    scale = math.exp(log_scale)
    other = integral(
        lambda y: norm.pdf(y) * tail(weight * rest(shift + scale * y)), [(kink - shift) / scale for kink in kinks]
    )
    return likely - math.exp(epsilon) * other


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize(("size", "epsilon", "delta"), GRID + EDGES)
def test_the_exact_delta_of_gaussian_noise_is_close_to_the_allowed_delta(size, epsilon, delta):
    """Compute exact deltas at the largest and at smaller scale changes: the largest is delta or little less."""
    shift, smoothness = gaussian_shift(epsilon=epsilon, delta=delta, size=size)
    assert shift**2 <= 2 * epsilon
    worst = 0.0
    for part in (-1.0, -0.5, -0.1, 0.1, 0.5, 1.0):
        b = part * smoothness
        exact = hockey_stick_by_quadrature(b, shift * min(1.0, math.exp(b)), epsilon=epsilon, size=size)
        worst = max(worst, exact)
    assert (0.99 if epsilon < 50 else 0.1) * delta <= worst <= delta


@pytest.mark.parametrize("size", [2, 123, 20_000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_a_change_of_scale_alone_uses_at_most_half_of_the_allowed_loss(size, epsilon):
    _, smoothness = gaussian_shift(epsilon=epsilon, delta=1e-6, size=size)
    assert is_gaussian_pair_private(0.0, 2 * smoothness, epsilon=epsilon, delta=1e-6, size=size)
    assert not is_gaussian_pair_private(0.0, 2.02 * smoothness, epsilon=epsilon, delta=1e-6, size=size)


def test_the_calibration_gives_the_eigengaps_of_the_notes():
    """Compare the eigengaps above which the method is useful, at delta 1e-3, with values from the method's notes."""
    sheet = ((123, 1, 0.1, 5500), (123, 1, 1.0, 600), (1230, 10, 0.1, 23000), (7840, 10, 1.0, 6600))
    for size, k, epsilon, gap in sheet:
        _, smoothness = gaussian_shift(epsilon=epsilon, delta=1e-3, size=size)
        needs = useful_gap(smoothness=smoothness, relation="add_remove", n_components=k, n_features=size // k)
        assert needs == pytest.approx(gap, rel=0.15)


def test_a_shift_beyond_the_proof_and_a_noncentrality_beyond_the_library_are_not_private():
    assert not is_gaussian_pair_private(0.2, 0.02, epsilon=1e-3, delta=0.9, size=1)
    # scipy returns .143 for the noncentral chi-square probability; the true value is .0444
    assert hockey_stick(-3e-7, 0.12, epsilon=0.1, size=5) == 1.0


def test_extreme_epsilons_increase_noise_and_never_weaken_privacy():
    shift, smoothness = gaussian_shift(epsilon=1e6, delta=1e-6, size=123)
    assert shift > 0
    assert smoothness > 0
    for epsilon, delta in ((1e-7, 1e-6), (1.0, 1e-31)):
        with pytest.raises(InvalidInput, match="at least"):
            gaussian_shift(epsilon=epsilon, delta=delta, size=123)


def test_the_papers_noise_exceeds_the_calibrated_noise():
    shift, smoothness = smooth_gaussian_shift(epsilon=0.1, delta=1e-3, size=123)
    really = gaussian_pair_epsilon(shift, smoothness, delta=1e-3, size=123, at_most=0.1)
    assert really < 0.01
    assert is_gaussian_pair_private(shift, smoothness, epsilon=really, delta=1e-3, size=123)
    assert shift < gaussian_shift(epsilon=0.1, delta=1e-3, size=123)[0] / 8


def log_density(shape, points):
    if shape == "cauchy":
        return -np.log1p(points**2).sum(axis=-1)
    size = points.shape[-1]
    return -size * np.log1p((points**2).sum(axis=-1) / size)


@pytest.mark.parametrize("shape", ["spherical_t", "cauchy"])
@pytest.mark.parametrize("size", [2, 30])
def test_pure_noise_has_no_loss_above_epsilon_and_comes_near_it(shape, size):
    """Compute the privacy loss at near and far points, for shifts of norm U in all directions and scale changes.

    The loss must not exceed epsilon, and must come close to it.
    """
    epsilon = 1.0
    shift, smoothness = tailed_shift(epsilon=epsilon, size=size)
    rng = np.random.default_rng(0)
    points = rng.standard_normal((40_000, size)) * 10.0 ** rng.uniform(-2, 3, (40_000, 1))
    # a quarter of the points are where the log-density is steepest
    points[::4] = np.sign(points[::4]) * rng.uniform(0.2, 3.0, (10_000, 1))
    directions = rng.standard_normal(points.shape)
    directions[::2] = np.sign(points[::2])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    worst = 0.0
    for b in (-smoothness, 0.0, smoothness):
        by = shift * min(1.0, math.exp(b))
        moved = (points - by * directions) * math.exp(-b)
        loss = log_density(shape, points) - log_density(shape, moved) + size * b
        worst = max(worst, float(np.abs(loss).max()))
    assert 0.6 * epsilon < worst <= epsilon


def turned(rows, neighbour, k):
    """Return the distance between the leading k directions of two second moments, and the eigengap of the first."""
    (values, one), (_, two) = (np.linalg.eigh(matrix) for matrix in (rows, neighbour))
    angles = np.clip(np.linalg.svd(one[:, -k:].T @ two[:, -k:], compute_uv=False), 0.0, 1.0)
    return math.sqrt(2 * (k - angles.sum())), float(values[-k] - values[-k - 1])


def unit_record(rng, d):
    """Return X^T X of a record X of one or two rows with Frobenius norm 1."""
    rows = rng.standard_normal((int(rng.integers(1, 3)), d))
    rows *= rng.random(d) < 0.7
    return rows.T @ rows / max(float((rows * rows).sum()), 1e-9)


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_neighbor_rotates_the_directions_by_more_than_the_local_sensitivity(relation):
    rng = np.random.default_rng(1)
    nearest = 0.0
    for _ in range(1500):
        d = int(rng.integers(2, 6))
        k = int(rng.integers(1, d))
        values = np.sort(rng.uniform(0, 3, d))
        values[-k:] += rng.choice([0.0, 0.3, 1.0, 2.0, 5.0])
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
        common = basis * values @ basis.T
        one, other = unit_record(rng, d), unit_record(rng, d)
        here, there = (common + one, common + other) if relation == "replace_one" else (common + one, common)
        for left, right in ((here, there), (there, here)):
            found, gap = turned(left, right, k)
            bound = float(local_sensitivity(gap, relation=relation, n_components=k, n_features=d))
            assert found <= bound * (1 + 1e-7) + 1e-7
            nearest = max(nearest, found / bound)
    assert nearest > 0.8


@pytest.mark.parametrize(("relation", "factor"), [("add_remove", 1.0), ("replace_one", 2.0)])
@pytest.mark.parametrize("gap", [2.1, 5.0, 400.0])
def test_the_local_sensitivity_is_attained(relation, factor, gap):
    """Add a record in the plane of the two directions: at the worst angle, the bound is attained."""
    best = 0.0
    for angle in np.linspace(0.0, np.pi, 4001):
        x = np.array([math.cos(angle), math.sin(angle)])
        y = np.array([-x[1], x[0]])
        moment = np.outer(x, x) - (np.outer(y, y) if relation == "replace_one" else 0.0)
        # exact formula for the angle of the leading direction of diag(gap, 0) + moment
        theta = 0.5 * math.atan2(2 * moment[0, 1], gap + moment[0, 0] - moment[1, 1])
        best = max(best, abs(2 * math.sin(theta / 2)))
    bound = float(local_sensitivity(gap, relation=relation, n_components=1, n_features=2))
    assert bound == pytest.approx(2 * math.sin(math.asin(factor / gap) / 4))
    assert 0.999 * bound <= best <= bound * (1 + 1e-9)


def test_the_sensitivity_falls_with_the_gap_and_ends_at_its_cap():
    gaps = np.concatenate([[0.0], np.geomspace(1e-9, 1e6, 5000)])
    for relation in RELATIONS:
        for tolerance in (0.0, TOLERANCE):
            found = local_sensitivity(gaps, relation=relation, n_components=3, n_features=5, tolerance=tolerance)
            assert (np.diff(found) <= 0).all()
            assert found[0] == largest_distance(n_components=3, n_features=5) == 2.0
            assert (found > 0).all()


def exactly(gap, *, smoothness, relation, tolerance):
    """Return the smooth sensitivity by evaluating ``exp(-smoothness * j) * sensitivity`` for every distance j."""
    movement = computed_movement(relation) if tolerance else gap_movement(relation)
    j = np.arange(math.ceil(gap / movement) + 1)
    sensitivities = local_sensitivity(
        np.maximum(gap - j * movement, 0.0), relation=relation, n_components=1, n_features=5, tolerance=tolerance
    )
    return float((np.exp(-smoothness * j) * sensitivities).max())


def steepest(bound, *, movement, upto=40.0):
    """Return the largest change of log(bound) between gaps that differ by at most the effect of one record."""
    rng = np.random.default_rng(2)
    worst = 0.0
    gaps = np.concatenate([rng.uniform(0, upto, 700), np.arange(1, int(upto)) + 1e-4, np.arange(1, int(upto)) - 1e-4])
    for gap in gaps:
        for by in (movement, movement - 1e-9, movement * float(rng.random())):
            worst = max(worst, abs(math.log(bound(gap + by) / bound(gap))))
    return worst


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("smoothness", [0.02, 0.3])
@pytest.mark.parametrize("tolerance", [0.0, TOLERANCE])
def test_the_bound_is_smooth_and_no_smaller_than_the_sensitivity(relation, smoothness, tolerance):
    movement = computed_movement(relation) if tolerance else gap_movement(relation)

    def bound(gap):
        return smooth_bound(
            gap, smoothness=smoothness, relation=relation, n_components=1, n_features=5, tolerance=tolerance
        )

    assert steepest(bound, movement=movement) <= smoothness * (1 + 1e-9)
    for gap in (0.0, 0.5, 1.0, 2.003, 7.7, 300.2, 5000.0):
        all_terms = exactly(gap, smoothness=smoothness, relation=relation, tolerance=tolerance)
        assert bound(gap) == pytest.approx(all_terms, rel=1e-12)


def test_a_bound_without_the_term_before_the_cap_is_detected():
    """Omit the largest term before the cap: log(bound) then changes by more than the smoothness allows.

    Between gaps 3.0001 and 2.0001 the ratio is nearly twice the allowed one.
    """

    def careless(gap):
        j = np.arange(math.ceil(gap) + 1)
        reached = np.maximum(gap - j, 0.0)
        turned = np.minimum(2.0**0.5, 1.0 / np.maximum(reached, 1e-9))
        at = int(np.argmax(turned >= 2.0**0.5))
        return max(float(turned[0]), math.exp(-0.3 * at) * float(turned[at]))

    assert steepest(careless, movement=1.0) > 1.5 * 0.3


def test_a_bound_without_the_cap_is_detected(monkeypatch):
    """Use Gonen and Gilad-Bachrach's bound C / g, which diverges as the gap g closes."""

    def uncapped(gap, **_):
        return 3.0 / np.maximum(gap, 1e-9)

    monkeypatch.setattr(smooth_sensitivity, "local_sensitivity", uncapped)

    def bound(gap):
        return smooth_bound(gap, smoothness=0.05, relation="add_remove", n_components=1, n_features=5, tolerance=0.0)

    assert steepest(bound, movement=1.0) > 1.0


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_bound_is_smooth_between_real_neighbours(relation):
    rng = np.random.default_rng(3)
    smoothness = 0.1
    for _ in range(500):
        d = int(rng.integers(2, 5))
        k = int(rng.integers(1, d))
        values = np.sort(rng.uniform(0, 2, d))
        values[-k:] += float(rng.choice([0.0, 1.0, 2.0, 20.0]))
        common = np.diag(values)
        one, other = unit_record(rng, d), unit_record(rng, d)
        here, there = (common + one, common + other) if relation == "replace_one" else (common + one, common)
        bounds = []
        for matrix in (here, there):
            found = np.linalg.eigvalsh(matrix)
            gap = max(float(found[-k] - found[-k - 1]), 0.0)
            bounds.append(
                smooth_bound(gap, smoothness=smoothness, relation=relation, n_components=k, n_features=d, tolerance=0.0)
            )
        assert abs(math.log(bounds[0] / bounds[1])) <= smoothness * (1 + 1e-9)


@pytest.mark.parametrize("smoothness", [0.3, 0.02, 1e-4])
def test_above_the_useful_gap_the_bound_is_near_the_sensitivity(smoothness):
    facts: Any = {"relation": "add_remove", "n_components": 2, "n_features": 7}
    gap = useful_gap(smoothness=smoothness, **facts)
    for factor, near in ((1.0, True), (3.0, True), (0.5, False)):
        bound = smooth_bound(factor * gap, smoothness=smoothness, **facts)
        local = float(local_sensitivity(factor * gap, tolerance=TOLERANCE, **facts))
        assert (bound <= 2.1 * local) is near


def test_far_gaps_and_tiny_smoothness_need_little_memory():
    bound = smooth_bound(1e9, smoothness=1e-6, relation="add_remove", n_components=1, n_features=3)
    assert bound == pytest.approx(0.5e-9 * (1 + 4 * TOLERANCE * 2), rel=1e-2)
