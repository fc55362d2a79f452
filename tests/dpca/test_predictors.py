"""Shrunk inverses against closed forms, and their bias corrections against numerical divergences."""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpca.predictors import ShrunkInverse, quality_of

type Matrix = NDArray[np.float64]

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
