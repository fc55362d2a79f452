"""Formulas for a released moment, against many draws of its noise and against closed forms.

Shrunk inverses are compared with closed forms, and their bias corrections with numerical divergences.
"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpca.errors import Invalid
from dpca.moments import Moment, TooNoisy, nearest_psd, resolvent
from dpca.predictors import ShrunkInverse, quality_of

type Matrix = NDArray[np.float64]

DRAWS = 600
WITHIN = 5.0 / math.sqrt(2.0 * DRAWS)
"""Relative tolerance of an empirical standard deviation: five of its standard errors. With at most 500 compared numbers
in this file, a false alarm has a probability below 3e-4."""
CONSTANT = 0.5


def noise_of(order: int, rng: np.random.Generator, root: Matrix | None = None) -> Matrix:
    """Draw symmetric noise of variance 1 off its diagonal and 2 on it, mapped by a root of its weights."""
    square = rng.standard_normal((order, order))
    noise = (square + square.T) / math.sqrt(2.0)
    return noise if root is None else root @ noise @ root.T


def extended_rows(n_features: int = 6, n_rows: int = 5000) -> Matrix:
    """Return correlated rows with a mean, which end in the constant."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((n_rows, n_features)) @ rng.standard_normal((n_features, n_features)) / n_features
    return np.column_stack([rows + rng.standard_normal(n_features), np.full(n_rows, CONSTANT)])


def weights_of(order: int) -> Matrix:
    """Return a root of weights that are not the identity."""
    root = np.eye(order) + 0.3 * np.random.default_rng(2).standard_normal((order, order))
    root[:, -1] += 0.5
    return root


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["second_moment", "mean", "covariance", "correlation", "partial_correlation"])
def test_standard_errors_are_the_spread_over_draws(name: str, *, weighted: bool) -> None:
    rows, rng, std = extended_rows(), np.random.default_rng(3), 2.0
    exact, order = rows.T @ rows, rows.shape[1]
    root = weights_of(order) if weighted else None
    more = {} if root is None else {"weights": root @ root.T}

    def estimate(released: Matrix) -> Any:
        return getattr(Moment(released=released, noise_std=std, constant=CONSTANT, **more), name)()

    drawn = np.array([estimate(exact + std * noise_of(order, rng, root)).values for _ in range(DRAWS)])
    stated = estimate(exact).errors
    fixed = stated == 0.0
    assert np.array_equal(
        fixed, np.eye(order - 1, dtype=bool) if name.endswith("correlation") else np.zeros_like(fixed)
    )
    ratios = drawn.std(axis=0)[~fixed] / stated[~fixed]
    second_order = 0.1 if name == "partial_correlation" else 0.01
    assert np.abs(ratios - 1.0).max() < WITHIN + second_order
    if name != "partial_correlation":
        assert np.abs(drawn.mean(axis=0) - estimate(exact).values)[~fixed].max() < 0.3 * stated.max()


def test_exact_moments_give_the_statistics_of_rows() -> None:
    rows = extended_rows()
    moment = Moment(released=rows.T @ rows, noise_std=1e-9, constant=CONSTANT)
    plain = rows[:, :-1]
    assert np.allclose(moment.mean().values, plain.mean(axis=0))
    assert np.allclose(moment.covariance().values, np.cov(plain.T, bias=True))
    assert np.allclose(moment.correlation().values, np.corrcoef(plain.T))
    precision = np.linalg.inv(np.cov(plain.T))
    partial = -precision / np.sqrt(np.outer(np.diag(precision), np.diag(precision)))
    np.fill_diagonal(partial, 1.0)
    assert np.allclose(moment.partial_correlation(l2=0.0).values, partial, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_intervals_of_ridge_cover_the_coefficients_without_noise(*, weighted: bool) -> None:
    rng, n_features, draws, std = np.random.default_rng(5), 40, 60, 30.0
    rows = rng.standard_normal((4000, n_features)) * np.linspace(0.1, 1.0, n_features)
    rows[:, -1] = rows[:, :5] @ np.ones(5) + 0.3 * rng.standard_normal(len(rows)) + 0.2
    rows = np.column_stack([rows, np.full(len(rows), CONSTANT)])
    exact, order = rows.T @ rows, n_features + 1
    root = np.eye(order) + 0.12 * (1.0 + rng.standard_normal((order, order))) if weighted else np.eye(order)
    target, features = np.array([n_features - 1]), np.arange(n_features - 1)
    covered, bias = [], []
    for _ in range(draws):
        released = exact + std * noise_of(order, rng, root)
        found = Moment(released=released, noise_std=std, constant=CONSTANT, weights=root @ root.T).ridge(
            target, features
        )
        true = Moment(released=exact, noise_std=1e-9, constant=CONSTANT).ridge(target, features, l2=found.l2)
        covered.append(np.abs(found.coefficients - true.coefficients) <= 1.96 * found.errors)
        bias.append((found.coefficients - true.coefficients) / found.errors)
    # 2,340 coefficients, correlated within a draw; .93 to .98 is ten of their standard errors wide
    assert 0.93 < np.mean(covered) < 0.98
    assert abs(np.mean(bias)) < 0.1


def test_a_ridge_without_noise_is_the_ridge_of_the_rows() -> None:
    rows = extended_rows()
    moment = Moment(released=rows.T @ rows, noise_std=1e-9, constant=CONSTANT)
    found = moment.ridge(np.array([2]), np.array([0, 1, 4]), l2=7.0)
    x, y = rows[:, [0, 1, 4]], rows[:, 2]
    centred, target = x - x.mean(axis=0), y - y.mean()
    wanted = np.linalg.solve(centred.T @ centred + 7.0 * np.eye(3), centred.T @ target)
    assert np.allclose(found.coefficients[0], wanted)
    assert np.allclose(found.intercepts[0], y.mean() - x.mean(axis=0) @ wanted)
    assert found.weights is not None
    assert found.offsets is not None
    penalty = np.eye(3) + np.outer(x.mean(axis=0), x.mean(axis=0)) / CONSTANT**2
    direction = np.linalg.solve(centred.T @ centred + 7.0 * penalty, centred.T @ target)
    slope, fitted = found.quality[0].slope, x @ direction
    assert np.allclose(found.weights[0], slope * direction)
    assert slope == pytest.approx(np.cov(fitted, y)[0, 1] / fitted.var(ddof=1))
    assert (x @ found.weights[0] + found.offsets[0]).mean() == pytest.approx(y.mean())
    assert found.quality[0].r_squared == pytest.approx(np.corrcoef(fitted, y)[0, 1] ** 2)


@pytest.mark.parametrize("weighted", [False, True])
def test_predictors_are_calibrated_on_average_over_the_noise(*, weighted: bool) -> None:
    rng, n_features, std, draws = np.random.default_rng(8), 60, 200.0, 100
    rows = 0.3 + rng.standard_normal((4000, n_features))
    rows[:, -1] = rows[:, 0] * 0.5 + rows[:, -1]
    rows = np.column_stack([rows, np.ones(len(rows))])
    exact, target, features = rows.T @ rows, np.array([n_features - 1]), np.arange(n_features - 1)
    root = np.eye(len(exact)) + 0.03 * rng.standard_normal(exact.shape) if weighted else np.eye(len(exact))
    errors = []
    for _ in range(draws):
        released = exact + std * noise_of(len(exact), rng, root)
        found = Moment(released=released, noise_std=std, constant=1.0, weights=root @ root.T).ridge(target, features)
        assert found.weights is not None
        assert found.offsets is not None
        fitted, wanted = rows[:, features] @ found.weights[0], rows[:, target[0]]
        true_slope = np.cov(fitted, wanted)[0, 1] / fitted.var(ddof=1)  # 1 for a calibrated predictor
        share = np.corrcoef(fitted, wanted)[0, 1] ** 2
        centre = (fitted + found.offsets[0]).mean() - wanted.mean()
        errors.append((found.quality[0].r_squared - share, 1.0 / true_slope - 1.0, centre))
    spread = np.std(errors, axis=0) / math.sqrt(draws)
    assert (np.abs(np.mean(errors, axis=0)) < 4.0 * spread + [0.005, 0.02, 0.0]).all()  # of second order in the noise


@pytest.mark.parametrize("weighted", [False, True])
def test_predictors_without_a_mean_are_calibrated_beyond_the_leading_direction(*, weighted: bool) -> None:
    rng, n_features, std, draws = np.random.default_rng(8), 60, 200.0, 100
    rows = 2.0 + rng.standard_normal((4000, n_features))
    rows[:, -1] = rows[:, 0] * 0.5 + rows[:, -1] - 1.5
    exact, target, features = rows.T @ rows, np.array([n_features - 1]), np.arange(n_features - 1)
    root = np.eye(len(exact)) + 0.03 * rng.standard_normal(exact.shape) if weighted else np.eye(len(exact))
    slopes, squares = [], []
    for _ in range(draws):
        released = exact + std * noise_of(len(exact), rng, root)
        found = Moment(released=released, noise_std=std, weights=root @ root.T).ridge(target, features)
        assert found.weights is not None
        fitted, wanted = rows[:, features] @ found.weights[0], rows[:, target[0]]
        slopes.append(np.cov(fitted, wanted)[0, 1] / fitted.var(ddof=1) - 1.0)
        squares.append(found.quality[0].r_squared - 1.0 + np.square(fitted - wanted).mean() / wanted.var())
    assert abs(np.mean(slopes)) < 4.0 * np.std(slopes) / math.sqrt(draws) + 0.03  # of second order in the noise
    assert abs(np.mean(squares)) < 0.02


def test_predictors_have_less_error_than_coefficients() -> None:
    rng, n_features, std = np.random.default_rng(12), 60, 100.0
    rows = rng.standard_normal((4000, n_features)) * np.geomspace(1.0, 0.1, n_features)
    wanted = rows[:, :10] @ np.ones(10) + rng.standard_normal(len(rows))
    rows = np.column_stack([rows, wanted, np.ones(len(rows))])
    exact, target, features = rows.T @ rows, np.array([n_features]), np.arange(n_features)
    errors = []
    for _ in range(20):
        moment = Moment(released=exact + std * noise_of(len(exact), rng), noise_std=std, constant=1.0)
        found = moment.ridge(target, features)
        assert found.weights is not None
        assert found.offsets is not None
        predicted = rows[:, features] @ np.array([found.weights[0], found.coefficients[0]]).T
        missed = predicted + np.array([found.offsets[0], found.intercepts[0]]) - wanted[:, None]
        errors.append(np.square(missed).mean(axis=0))
    shrunk, nearly_unbiased = np.mean(errors, axis=0)
    assert shrunk < nearly_unbiased


def test_a_discriminant_separates_classes_as_closed_form_lda() -> None:
    rng = np.random.default_rng(4)
    label = (rng.random(6000) < 0.3).astype(float)
    x = rng.standard_normal((6000, 3)) + np.outer(label, [1.0, -0.5, 0.2])
    rows = np.column_stack([x, label, 1.0 - label])
    found = Moment(released=rows.T @ rows, noise_std=1e-9).discriminant(np.array([3, 4]), np.arange(3), l2=0.0)
    means = [x[label == 1].mean(axis=0), x[label == 0].mean(axis=0)]
    within = sum((x[label == k] - m).T @ (x[label == k] - m) for k, m in ((1, means[0]), (0, means[1]))) / len(x)
    assert np.allclose(found.coefficients, [np.linalg.solve(within, m) for m in means])
    shares = np.array([label.mean(), 1 - label.mean()])
    assert np.allclose(found.intercepts, np.log(shares) - [m @ np.linalg.solve(within, m) / 2 for m in means])


@pytest.mark.parametrize("seed", range(5))
def test_a_resolvent_is_positive_definite_and_solves_its_equation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = weights_of(12) @ weights_of(12).T + np.eye(12)
    matrix = 5.0 * noise_of(12, rng)
    inverse, shift = resolvent(matrix, weights, noise_std=0.7)
    assert np.linalg.eigvalsh(inverse)[0] > 0.0
    assert np.allclose(inverse @ (matrix + shift * weights), np.eye(12))
    assert shift == pytest.approx(0.49 * np.trace(weights @ inverse))


def test_components_are_eigenvectors_whose_denoised_values_hold_on_average() -> None:
    rng, order = np.random.default_rng(6), 100
    direction = rng.standard_normal(order) / 10.0
    direction /= np.linalg.norm(direction)
    exact = 60.0 * np.outer(direction, direction)
    found = [Moment(released=exact + noise_of(order, rng), noise_std=1.0).components(3) for _ in range(40)]
    assert all(each.denoised[0] > 0.0 for each in found)
    assert np.mean([each.denoised[0] for each in found]) == pytest.approx(60.0, abs=5 * math.sqrt(2 / 40) + 0.5)
    assert np.mean([each.denoised[1] == 0.0 for each in found]) > 0.4


def test_a_nearest_psd_matrix_is_psd_and_keeps_a_psd_matrix() -> None:
    matrix = noise_of(8, np.random.default_rng(7))
    found = nearest_psd(matrix)
    values = np.linalg.eigvalsh(matrix)
    assert np.linalg.eigvalsh(found)[0] > -1e-12
    assert np.linalg.norm(found - matrix) == pytest.approx(np.linalg.norm(values[values < 0]))
    assert nearest_psd(found + 1e-9 * np.eye(8)) is not found
    unit = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    assert np.allclose(np.diag(nearest_psd(unit)), 1.0)


def test_sampled_rows_have_the_released_mean_and_covariance() -> None:
    rows = extended_rows()
    moment = Moment(released=rows.T @ rows, noise_std=1e-9, constant=CONSTANT)
    drawn = moment.sample(200_000, seed=1)
    assert np.allclose(drawn.mean(axis=0), moment.mean().values, atol=0.01)
    assert np.allclose(np.cov(drawn.T), moment.covariance().values, atol=0.02)


def test_a_release_refuses_what_it_cannot_support() -> None:
    plain = Moment(released=np.eye(4), noise_std=0.1)
    for refused in (plain.mean, plain.covariance, plain.correlation, plain.partial_correlation):
        with pytest.raises(Invalid, match="no mean; release the moment with center=private"):
            refused()
    with pytest.raises(TooNoisy, match="too small for the noise") as found:
        Moment(released=noise_of(30, np.random.default_rng(9)), noise_std=1.0).ridge(
            np.array([0]), np.arange(1, 30), l2=0.01
        )
    assert found.value.factor > 10
    with pytest.raises(TooNoisy, match="hides the variance of every column"):
        Moment(released=np.diag([1.0, 1.0, 1.0, 1e4]), noise_std=10.0, constant=0.5).correlation()
    with pytest.raises(TooNoisy, match="hides the number of rows"):
        Moment(released=np.eye(4), noise_std=10.0, constant=0.5).mean()
    with pytest.raises(Invalid, match="request 1 to 4"):
        plain.components(5)
    with pytest.raises(Invalid, match="must be finite and not negative"):
        plain.ridge(np.array([0]), np.array([1]), l2=-1.0)
    with pytest.raises(Invalid, match="must be positive"):
        Moment(released=np.eye(2), noise_std=0.0)


ORDER, STD, STEP = 5, 0.7, 1e-5


def symmetric_basis() -> list[Matrix]:
    """Return an orthonormal basis of the symmetric matrices."""
    basis = []
    for row, column in itertools.combinations_with_replacement(range(ORDER), 2):
        unit = np.zeros((ORDER, ORDER))
        unit[row, column] = unit[column, row] = 1.0 if row == column else math.sqrt(0.5)
        basis.append(unit)
    return basis


@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_biases_are_divergences(shared: float) -> None:
    rng = np.random.default_rng(3)
    square = rng.standard_normal((ORDER, ORDER))
    matrix = square @ square.T * 3.0 + np.diag([0.0, 0.0, 4.0, 9.0, 16.0])
    side, own, other = rng.standard_normal((3, ORDER))
    own = shared * own

    def solution(moved: Matrix) -> Matrix:
        inverse = ShrunkInverse(matrix + moved, np.eye(ORDER), noise_std=STD, penalty=2.0)
        return inverse.solve(side + moved @ own, own).vector

    exact = ShrunkInverse(matrix, np.eye(ORDER), noise_std=STD, penalty=2.0).solve(side, own)
    square_bias = bias = 0.0
    for unit in symmetric_basis():
        ahead, behind = solution(STEP * unit), solution(-STEP * unit)
        square_bias += float(ahead @ unit @ ahead - behind @ unit @ behind) / (2 * STEP)
        bias += float((ahead - behind) @ unit @ other) / (2 * STEP)
    assert exact.square_bias() == pytest.approx(2.0 * STD**2 * square_bias, rel=1e-4)
    # of E q, the part outside of the matrix has no product with `other`, so `inner` is their product within it
    assert exact.bias(other, inner=float(own @ other)) == pytest.approx(2.0 * STD**2 * bias, rel=1e-4)


def test_eigenvalues_are_shrunk_in_the_units_of_the_noise() -> None:
    weights = np.diag([1.0, 4.0])
    found = ShrunkInverse(np.diag([100.0, 0.1]), weights, noise_std=2.0, penalty=10.0)
    edge = 4.0 * math.sqrt(2.0)
    assert np.allclose(found.gains, [0.1, 1.0 / (math.sqrt(100.0**2 - edge**2) + 10.0)])
    assert np.allclose(np.abs(found.basis), [[0.0, 1.0], [0.5, 0.0]])
    assert np.allclose(ShrunkInverse(np.zeros((2, 2)), np.eye(2), noise_std=2.0, penalty=0.0).gains, 2.0 / edge)


def test_the_leading_direction_is_left_out_on_request() -> None:
    found = ShrunkInverse(np.diag([3.0, 90.0, 1.0]), np.eye(3), noise_std=0.1, penalty=1.0, leads=True)
    assert found.lead == pytest.approx(90.0)
    assert np.allclose(np.abs(found.leading), [0.0, 1.0, 0.0])
    assert found.solve(np.ones(3), np.zeros(3)).vector[1] == pytest.approx(0.0)


def test_a_quality_is_cut_off_where_noise_exceeds_the_estimates() -> None:
    certain = quality_of(product=3.0, product_error=1e-9, square=4.0, square_error=1e-9, spread=9.0)
    assert certain.r_squared == pytest.approx(0.25)
    assert certain.slope == pytest.approx(0.75)
    assert not certain.is_hidden
    hidden = quality_of(product=-5.0, product_error=2.0, square=-1.0, square_error=3.0, spread=9.0)
    assert hidden.is_hidden
    assert 0.0 < hidden.slope < math.sqrt(9.0 / 1.5)
    uncertain = quality_of(product=3.0, product_error=1.0, square=4.0, square_error=1.0, spread=1.0)
    assert uncertain.r_squared == 1.0
    assert uncertain.slope < 0.5  # a correlation of 1 that noise may have made counts less
