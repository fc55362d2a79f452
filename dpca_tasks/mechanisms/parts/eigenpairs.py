"""Eigenpairs of a released matrix, with the signs of their vectors fixed."""

from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, lapack

from dpca_tasks.mechanisms.base import LARGE
from dpca_tasks.threads import one_thread, two_threads

type Matrix = NDArray[np.float64]

RESIDUAL = 1e-12
"""Largest ``|A v - value v|`` and ``|V^T V - I|``, over the largest eigenvalue and over 1, of pairs that are taken."""

_BLOCK = 64  # columns that LAPACK works on at a time


def leading_eigenpairs(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the ``count`` algebraically largest eigenvalues, descending, and signed eigenvectors as rows.

    The order determines the number of LAPACK threads, so that the same matrix gives the same bits on one machine.
    """
    order = matrix.shape[0]
    with _threads(order):
        values, vectors = eigh(matrix, subset_by_index=(order - count, order - 1), driver="evr")
        if values.size < count:  # with repeated eigenvalues this driver may return too few
            values, vectors = eigh(matrix, driver="evd")
    return values[: -count - 1 : -1].copy(), signed(vectors.T[: -count - 1 : -1])


def spectrum_and_leading(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return all eigenvalues, descending, and the signed eigenvectors of the ``count`` largest as rows.

    The matrix is made tridiagonal once, which takes most of the time, for both; `leading_eigenpairs` and `eigh` for the
    values would do it twice. Where the pairs miss `RESIDUAL`, all pairs are computed. Threads as there.

    Notes
    -----
    Block Lanczos is no faster where noise fills the spectrum evenly: of 2,000 columns of noise alone it needs 1,000
    directions for 10 pairs to a residual of 2e-12, and more than 1,200 for 64, at .6 and .9 s of one processor, where
    this took .5 s.
    """
    found = _by_tridiagonal(matrix, count)
    if found is None:
        with _threads(len(matrix)):
            found = eigh(matrix, driver="evd")
    values, vectors = found
    return values[::-1].copy(), signed(vectors.T[: -count - 1 : -1])


def signed(rows: Matrix) -> Matrix:
    """Flip each row so that its entry of largest magnitude is positive."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    return np.ascontiguousarray(rows * np.where(largest < 0, -1.0, 1.0))


def _threads(order: int) -> AbstractContextManager[None]:
    return one_thread() if order < LARGE else two_threads()


def _by_tridiagonal(matrix: Matrix, count: int) -> tuple[Matrix, Matrix] | None:
    """Return all eigenvalues and the last ``count`` eigenvectors, ascending; None where they are not certain.

    The reduction alone is faster in two threads. Eigenvectors are found from the values that are known by then, as of a
    matrix that falls into no parts; one that does fails the test.
    """
    order = len(matrix)
    largest = max(float(matrix.max()), -float(matrix.min()))
    if order < 3 or not largest > 0.0:
        return None
    scale = 2.0 ** -np.frexp(largest)[1]  # a power of two: nothing is rounded
    turned = (matrix * scale).T  # the same, in the order of LAPACK
    with _threads(order):
        reflectors, diagonal, beside, factors, _ = lapack.dsytrd(
            turned, lower=1, lwork=_BLOCK * order, overwrite_a=True
        )
    with one_thread():
        values, failed = lapack.dsterf(diagonal, beside)
        if failed:
            return None
        whole, ends = np.ones(order, np.int32), np.full(order, order, np.int32)
        inner, missing = lapack.dstein(diagonal, beside, values[-count:], whole, ends)
        if missing:
            return None
        image = diagonal[:, None] * inner
        image[:-1] += beside[:, None] * inner[1:]
        image[1:] += beside[:, None] * inner[:-1]
        missed = np.abs(image - inner * values[-count:]).max() / np.abs(values).max()
        skewed = np.abs(inner.T @ inner - np.eye(count)).max()
        if not max(missed, skewed) <= RESIDUAL:
            return None
        vectors = np.asfortranarray(inner)
        vectors[1:], _, _ = lapack.dormqr("L", "N", reflectors[1:, :-1], factors, vectors[1:], lwork=_BLOCK * count)
    return values / scale, vectors
