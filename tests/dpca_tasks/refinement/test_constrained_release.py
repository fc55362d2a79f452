"""Rounds combined under the constraints of a schema: exact least squares, more captured variance, valid bounds.

All draws are fixed.
"""

import math

import numpy as np
import pytest

from dpca_tasks.refinement.constrained_release import constrained
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.rounds import Answer, Estimate, Round, combined, components
from dpca_tasks.refinement.rounds_assessment import assessed, estimated
from dpca_tasks.refinement.schema_constraints import Constraints
from dpca_tasks.threads import one_thread
from tests.dpca_tasks.refinement.rows_in_rounds import ROWS, SPACE, around_mean, held, in_rounds, isometric_noise

SHORT = ROWS / 2.0
COUNT, MU, DRAWS = 4, 0.15, 12
each_centre = pytest.mark.parametrize("centred", [False, True])


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def random_map(width, *, order, seed):
    rng = np.random.default_rng((2, seed))
    directions = np.linalg.qr(rng.standard_normal((order, order)))[0][:, :width]
    return PublicMap.on_grid(directions, rng.uniform(0.05, 0.9, width))


@pytest.mark.parametrize("widths", [(0,), (3,), (0, 3), (0, 2, 5), (2, 3, 4)])
def test_the_estimate_is_the_least_squares_estimate_among_the_allowed_moments(widths):
    """Compare with a least-squares solution over a basis of the allowed moments."""
    space = Constraints(n_features=8, groups=((0, 2), (2, 5), (5, 7)), filled=(True, True, False))
    units = np.eye(64).reshape(64, 8, 8)
    allowed = np.array([space.project(unit + unit.T).ravel() for unit in units])
    basis = np.linalg.svd(allowed)[2][: space.dimension()]
    rounds = tuple(
        Round(
            map=random_map(width, order=8, seed=number),
            matrix=isometric_noise(8, seed=(3, number)),
            noise_std=1.0 / (number + 1),
        )
        for number, width in enumerate(widths)
    )
    maps = [np.kron(each.map.forward(np.eye(8)), each.map.forward(np.eye(8))) @ basis.T for each in rounds]
    left = np.vstack([one / each.noise_std for one, each in zip(maps, rounds, strict=True)])
    right = np.concatenate([each.matrix.ravel() / each.noise_std for each in rounds])
    expected = (basis.T @ np.linalg.lstsq(left, right, rcond=None)[0]).reshape(8, 8)
    estimate = Estimate(matrix=combined(rounds, np.zeros((8, 8))), noise_std=1.0, rounds=rounds, n_records=1e3)
    first = Answer(released=rounds[0].matrix, noise_std=1.0, map=rounds[0].map)
    found = constrained(estimate, first, space)
    np.testing.assert_allclose(found.matrix, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(found.matrix, found.matrix.T)
    assert found.noise_std == space.ratio()


@each_centre
@pytest.mark.parametrize("n_rounds", [2, 3])
def test_constraints_capture_more_in_rounds_too(n_rounds, centred):
    """Compare means of 12 draws: the gain is more than three standard errors."""
    exact, gains = around_mean(SHORT) if centred else SHORT.T @ SHORT, []
    best = float(np.linalg.eigvalsh(exact)[-COUNT:].sum())
    for seed in range(DRAWS):
        estimate, answers = in_rounds(SHORT, mu=MU, n_components=COUNT, n_rounds=n_rounds, centred=centred, seed=seed)
        better = estimated(answers, centred=centred, constraints=SPACE)
        plain, found = (components(each, n_components=COUNT).components for each in (estimate, better))
        gains.append((held(exact, found) - held(exact, plain)) / best)
    assert np.mean(gains) > 3 * np.std(gains) / math.sqrt(DRAWS)


def test_centred_estimates_keep_variance_within_a_group():
    """The zeros hold around the origin alone: a centred estimate without them is nearer to the truth."""
    exact = around_mean(SHORT)
    _, answers = in_rounds(SHORT, mu=2.0, n_components=COUNT, centred=True)
    found = estimated(answers, centred=True, constraints=SPACE).matrix
    assert np.linalg.norm(found - exact) < 0.5 * np.linalg.norm(SPACE.project(found) - exact)


@each_centre
def test_lower_bounds_hold_with_constraints(centred):
    """At most two of 24 lower bounds on the captured variance are too high; each is above half of it."""
    exact, above = around_mean(SHORT) if centred else SHORT.T @ SHORT, 0
    for seed in range(24):
        _, answers = in_rounds(SHORT, mu=0.3, n_components=COUNT, centred=centred, seed=seed)
        estimate = estimated(answers, centred=centred, constraints=SPACE)
        found = components(estimate, n_components=COUNT)
        shown = assessed(answers, found, centred=centred, constraints=SPACE)
        above += shown.captured_low > held(exact, found.components)
        assert shown.captured_low > 0.5 * held(exact, found.components) * min(each.kept for each in estimate.rounds)
    assert above <= 2
