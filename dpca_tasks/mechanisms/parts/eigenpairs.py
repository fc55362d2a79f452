"""Leading eigenpairs of a released matrix, with the signs of their vectors fixed."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dpca_tasks.mechanisms.base import LARGE
from dpca_tasks.threads import one_thread, two_threads


def leading_eigenpairs(matrix: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ``count`` algebraically largest eigenvalues, descending, and signed eigenvectors as rows.

    The order determines the number of LAPACK threads, so that the same matrix gives the same bits on one machine.
    """
    order = matrix.shape[0]
    with one_thread() if order < LARGE else two_threads():
        values, vectors = eigh(matrix, subset_by_index=(order - count, order - 1), driver="evr")
        if values.size < count:  # with repeated eigenvalues this driver may return too few
            values, vectors = eigh(matrix, driver="evd")
    return values[: -count - 1 : -1].copy(), signed(vectors.T[: -count - 1 : -1])


def signed(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Flip each row so that its entry of largest magnitude is positive."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    return np.ascontiguousarray(rows * np.where(largest < 0, -1.0, 1.0))
