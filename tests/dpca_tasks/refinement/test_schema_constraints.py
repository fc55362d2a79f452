"""The projection onto the constraints of a schema: exactness, dimension, and what it removes from the noise.

All draws are fixed.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dpca_tasks.refinement.leading_pairs import refine
from dpca_tasks.refinement.noisy_moment import NoisyMoment, Standardised
from dpca_tasks.refinement.refined_release import assess
from dpca_tasks.refinement.schema_constraints import Constraints
from dpca_tasks.threads import one_thread
from tests.dpca_tasks.refinement.rows_in_rounds import GROUPS, N_ROWS, ROWS, SPACE, S, isometric_noise

SHAPES = {
    "two filled": (5, [(0, 2), (2, 5)], [True, True]),
    "with others": (11, [(0, 2), (2, 5), (6, 9)], [True, False, True]),
    "many filled": (12, [(0, 3), (3, 4), (5, 9), (9, 11)], [True] * 4),
    "one filled": (5, [(1, 3)], [True]),
    "none": (4, [], []),
}
each_shape = pytest.mark.parametrize("shape", SHAPES)
with_constant = pytest.mark.parametrize("constant", [False, True])


def constraints(shape):
    n_features, groups, filled = SHAPES[shape]
    return Constraints(n_features=n_features, groups=tuple(groups), filled=tuple(filled))


def excluded(space, order):
    """Return an orthonormal basis of the symmetric matrices that the constraints exclude, as rows of vectors."""
    places = list(itertools.combinations_with_replacement(range(order), 2))

    def unit(i, j):
        found = np.zeros((order, order))
        found[i, j] = found[j, i] = 1.0 if i == j else math.sqrt(0.5)
        return found

    def entry(i, j):
        return np.array([(unit(i, j) * unit(*place)).sum() for place in places]) * unit(i, j).max()

    rows = [entry(i, j) for start, stop in space.groups for i, j in itertools.combinations(range(start, stop), 2)]
    first, *others = [ends for ends, full in zip(space.groups, space.filled, strict=True) if full] or [None]
    for row, other in itertools.product(range(order), others):
        rows.append(sum(entry(row, j) for j in range(*other)) - sum(entry(row, j) for j in range(*first)))
    if not rows:
        return np.zeros((0, len(places))), places
    _, sizes, basis = np.linalg.svd(np.array(rows), full_matrices=False)
    return basis[sizes > 1e-9 * sizes[0]], places


@each_shape
@with_constant
def test_the_projection_is_orthogonal_and_its_dimension_is_exact(shape, constant):
    """Compare with a projection by singular values of all constraints, written one by one."""
    space = constraints(shape)
    order = space.n_features + constant
    basis, places = excluded(space, order)
    assert space.dimension(constant=constant) == len(places) - len(basis)
    matrix = isometric_noise(order, seed=1)
    weights = np.array([1.0 if i == j else math.sqrt(2.0) for i, j in places])
    vector = np.array([matrix[place] for place in places]) * weights
    vector = (vector - basis.T @ (basis @ vector)) / weights
    expected = np.zeros_like(matrix)
    for (i, j), value in zip(places, vector, strict=True):
        expected[i, j] = expected[j, i] = value
    np.testing.assert_allclose(space.project(matrix), expected, rtol=0, atol=1e-9)


def test_moments_of_clipped_rows_satisfy_the_constraints_and_centred_ones_the_null_vectors():
    """No signal is removed: rows are changed by rounding only, relative to the largest entry."""
    extended = np.column_stack([ROWS, np.ones(N_ROWS)])
    for moment in (S, extended.T @ extended):
        np.testing.assert_allclose(SPACE.project(moment), moment, rtol=0, atol=1e-12 * S.max())
    centred = ROWS - ROWS.mean(axis=0)
    moment = centred.T @ centred
    np.testing.assert_allclose(SPACE.project_centred(moment), moment, rtol=0, atol=1e-12 * S.max())
    assert abs(SPACE.project(moment) - moment).max() > 1e-3 * S.max()  # centring fills the zeros


@with_constant
def test_the_noise_that_is_left_has_the_stated_standard_deviation(constant):
    """The squared norm of 200 projected matrices is within 2 %: four standard errors of its mean."""
    order = 24 + constant
    squares = [np.square(SPACE.project(isometric_noise(order, seed=seed))).sum() for seed in range(200)]
    assert np.mean(squares) == pytest.approx(order * (order + 1) * SPACE.ratio(constant=constant) ** 2, rel=0.02)


def moment_of(seed, *, std, constant=None):
    rows = ROWS if constant is None else np.column_stack([ROWS, np.full(N_ROWS, constant)])
    released = rows.T @ rows + std * isometric_noise(rows.shape[1], seed=seed)
    return NoisyMoment(matrix=released, noise_std=std, constant=constant)


def constrained(moment, space=SPACE):
    """Return a moment after the projection, with the standard deviation of the noise that is left."""
    ratio = space.ratio(constant=moment.constant is not None)
    return replace(moment, matrix=space.project(moment.matrix), noise_std=ratio * moment.noise_std, constraints=space)


def scores(*, draws, std, constant=None):
    """Return the estimates of the captured variance, less the truth, and the stated lower bounds, less the truth."""
    truth = S if constant is None else S - N_ROWS * np.outer(ROWS.mean(axis=0), ROWS.mean(axis=0))
    errors = []
    with one_thread():
        for seed in range(draws):
            moment = constrained(moment_of(seed, std=std, constant=constant))
            found = refine(moment, n_components=3, method="none")
            shown = assess(moment, found)
            assert shown.captured is not None
            assert shown.captured_low is not None
            captured = float(np.einsum("ij,jk,ik->", found.components, truth, found.components))
            errors.append((shown.captured - captured, shown.captured_low - captured))
    return np.array(errors).T


@pytest.mark.parametrize("constant", [None, 0.5])
def test_scores_of_a_projected_release_are_unbiased(constant):
    """The mean of 100 errors is within three standard errors, and at most 12 lower bounds are too high.

    A score is for a little more noise than the release has, so it may be lower by the difference.
    """
    errors, low = scores(draws=100, std=60.0, constant=constant)
    error = errors.std() / 10.0
    assert -3 * error - 0.01 * np.trace(S) < errors.mean() < 3 * error
    assert (low > 0).sum() <= 12


def test_probes_with_the_noise_left_instead_of_the_noise_released_are_noticed(monkeypatch):
    """Plant a bug: split the projected matrix by noise of its smaller standard deviation, as if it were released so.

    The two parts then depend on each other.
    """
    monkeypatch.setattr(Standardised, "isotropic_std", 1.0)
    errors, _ = scores(draws=100, std=60.0)
    assert errors.mean() > 4 * errors.std() / 10.0


def test_a_projected_release_captures_more():
    """Compare means of 30 draws: the gain is more than three standard errors."""
    gains = []
    best = np.linalg.eigvalsh(S)[-3:].sum()
    with one_thread():
        for seed in range(30):
            moment = moment_of(seed, std=100.0)
            plain, better = (
                refine(each, n_components=3, method="none").components for each in (moment, constrained(moment))
            )
            gains.append((np.einsum("ij,jk,ik->", better, S, better) - np.einsum("ij,jk,ik->", plain, S, plain)) / best)
    assert np.mean(gains) > 3 * np.std(gains) / math.sqrt(30)


def test_the_edge_is_rarely_exceeded_by_noise_alone():
    """At most 8 of 200 noise matrices have an eigenvalue above the edge of 1 in 100."""
    above = 0
    for seed in range(200):
        moment = constrained(NoisyMoment(matrix=isometric_noise(24, seed=seed), noise_std=1.0))
        above += bool(moment.standard.eigenvalues[0] > moment.standard.edge)
    assert above <= 8


def test_columns_in_another_order_give_the_same_release():
    """Reverse all columns, and the groups with them."""
    moment = constrained(moment_of(0, std=60.0))
    turned = Constraints(
        n_features=24,
        groups=tuple((24 - stop, 24 - start) for start, stop in reversed(GROUPS)),
        filled=tuple(reversed(SPACE.filled)),
    )
    other = constrained(NoisyMoment(matrix=moment_of(0, std=60.0).matrix[::-1, ::-1].copy(), noise_std=60.0), turned)
    with one_thread():
        found, reversed_ = (refine(each, n_components=3) for each in (moment, other))
    assert found.refined_by == reversed_.refined_by
    np.testing.assert_allclose(np.abs(found.components), np.abs(reversed_.components[:, ::-1]), rtol=0, atol=1e-8)
