"""Preconditioned conjugate gradients for symmetric linear equations whose unknown is a matrix.

>>> scaled = conjugate_gradients(lambda found: 2.0 * found, np.eye(2), start=np.zeros((2, 2)), steps=3, enough=1e-20)
>>> scaled.tolist()
[[0.5, 0.0], [0.0, 0.5]]
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

type Matrix = NDArray[np.float64]
type Operator = Callable[[Matrix], Matrix]


def conjugate_gradients(
    image: Operator,
    wanted: Matrix,
    *,
    start: Matrix,
    steps: int,
    enough: float,
    conditioned: Operator = lambda residual: residual,
) -> Matrix:
    """Solve ``image(X) = wanted`` for the matrix X by preconditioned conjugate gradients.

    Parameters
    ----------
    image : callable
        A linear operator, symmetric and positive semi-definite in the Frobenius inner product.
    wanted, start : float64 arrays of one shape
        The right side, and the matrix X with which the iteration starts.
    steps : int
        The largest number of steps.
    enough : float
        The iteration stops when the sum of the squared entries of the residual is at most this number.
    conditioned : callable
        The preconditioner: an approximate inverse of ``image``, by default the identity.
    """
    found, residual = start, wanted - image(start)
    direction, size = np.zeros_like(wanted), 1.0
    for _ in range(steps):
        if float(np.square(residual).sum()) <= enough:
            break
        turned = conditioned(residual)
        before, size = size, float((residual * turned).sum())
        direction = turned + (size / before) * direction
        product = image(direction)
        length = size / float((direction * product).sum())
        found, residual = found + length * direction, residual - length * product
    return found
