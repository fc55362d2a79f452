"""Eigenpairs of a released matrix, with the signs of their vectors fixed."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, eigh, lapack

from dpca_tasks.mechanisms.base import LARGE
from dpca_tasks.threads import one_thread, two_threads

type Matrix = NDArray[np.float64]
type Products = NDArray[np.float64 | np.float32]

RESIDUAL = 1e-12
"""Largest ``|A v - value v|`` and ``|V^T V - I|``, over the largest eigenvalue and over 1, of pairs that are taken."""

_BLOCK = 64  # columns that LAPACK works on at a time
_SINGLE = 2.0**-20  # of the norm: the residual of pairs that single precision leaves, less than ten times its rounding
_PRODUCTS = 2  # with which a norm is estimated


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


def spectrum_and_leading(matrix: Matrix, count: int, *, within: float = 0.0) -> tuple[Matrix, Matrix]:
    """Return all eigenvalues, descending, and the signed eigenvectors of the ``count`` largest as rows.

    The matrix is made tridiagonal once, which takes most of the time, for both; `leading_eigenpairs` and `eigh` for the
    values would do it twice. Where the pairs miss `RESIDUAL`, all pairs are computed. Threads as there.

    Parameters
    ----------
    matrix : float64 array of shape (d, d)
        Symmetric.
    count : int
        How many eigenvectors, from 1 to d.
    within : float, units of the matrix
        The largest error of an eigenvalue, and norm of ``A v - value v``, that does no harm, such as a small part of
        the matrix's noise. A large matrix whose rounding to single precision is less is reduced in single precision;
        the leading pairs are then its Ritz pairs in double precision, which are held to this bound. So are the values
        of single precision that these replace; the others are as inexact as those were.

    Notes
    -----
    Block Lanczos is no faster where noise fills the spectrum evenly: of 2,000 columns of noise alone it needs 1,000
    directions for 10 pairs to a residual of 2e-12, and more than 1,200 for 64, at .6 and .9 s of one processor, where
    a reduction in double precision takes .35 s of one, and one in single precision .2 s.
    """
    found = _by_single_precision(matrix, count, within=within) if len(matrix) >= LARGE else None
    if found is None:
        found = _by_tridiagonal(matrix, count, np.float64)
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


def _by_single_precision(matrix: Matrix, count: int, *, within: float) -> tuple[Matrix, Matrix] | None:
    """Return what `_by_tridiagonal` does, with errors up to ``within``; None where they are, or may be, larger."""
    if not _SINGLE * _near_norm(matrix) <= within:
        return None
    found = _by_tridiagonal(matrix, count, np.float32)
    if found is None:
        return None
    values, vectors = found
    with one_thread():
        basis = np.linalg.qr(vectors)[0]
    with two_threads():  # of the library that made the vectors: idle threads of two would wait on the same processors
        image = blas.dgemm(1.0, matrix.T, basis)
    with one_thread():
        inner = basis.T @ image
        leading, mixture = np.linalg.eigh((inner + inner.T) / 2.0)
        vectors = basis @ mixture
        missed = np.linalg.norm(image @ mixture - vectors * leading, axis=0).max()
    moved = np.abs(values[-count:] - leading).max()
    if not max(missed, moved) <= within:
        return None
    return np.concatenate([np.minimum(values[:-count], leading[0]), leading]), vectors


def _near_norm(matrix: Matrix) -> float:
    """Return a lower bound on the spectral norm, and not far below it, from the row with the largest diagonal entry."""
    column = matrix[int(np.abs(matrix.diagonal()).argmax())]
    with one_thread():
        for _ in range(_PRODUCTS):
            norm = float(np.linalg.norm(column))
            if not norm > 0.0:
                return 0.0
            column = matrix @ (column / norm)
        return float(np.linalg.norm(column))


def _by_tridiagonal(matrix: Matrix, count: int, precision: type[np.floating[Any]]) -> tuple[Matrix, Matrix] | None:
    """Return all eigenvalues and the last ``count`` eigenvectors, ascending; None where they are not certain.

    The reduction alone is faster in two threads. Eigenvectors are found from the values that are known by then, as of a
    matrix that falls into no parts; one that does fails the test.
    """
    order, letter = len(matrix), "s" if precision is np.float32 else "d"
    largest = max(float(matrix.max()), -float(matrix.min()))
    if order < 3 or not largest > 0.0:
        return None
    scale = 2.0 ** -np.frexp(largest)[1]  # a power of two: nothing is rounded, but to this precision
    turned = np.empty_like(matrix, precision)
    np.multiply(matrix, scale, out=turned, casting="same_kind")
    tridiagonal, all_values, vectors_of, turn = (
        getattr(lapack, letter + name) for name in ("sytrd", "sterf", "stein", "ormqr")
    )
    with _threads(order):
        reflectors, diagonal, beside, factors, _ = tridiagonal(
            turned.T, lower=1, lwork=_BLOCK * order, overwrite_a=True
        )
    with one_thread():
        values, failed = all_values(diagonal, beside)
        if failed:
            return None
        whole, ends = np.ones(order, np.int32), np.full(order, order, np.int32)
        inner, missing = vectors_of(diagonal, beside, values[-count:], whole, ends)
        if missing:
            return None
        image = diagonal[:, None] * inner
        image[:-1] += beside[:, None] * inner[1:]
        image[1:] += beside[:, None] * inner[:-1]
        missed = np.abs(image - inner * values[-count:]).max() / np.abs(values).max()
        skewed = np.abs(inner.T @ inner - np.eye(count)).max()
        if not max(missed, skewed) <= RESIDUAL * np.finfo(precision).eps / np.finfo(np.float64).eps:
            return None
        vectors = _turned_back(inner, reflectors, factors, turn)
    return values.astype(np.float64) / scale, vectors.astype(np.float64, copy=False)


def _turned_back(inner: Products, reflectors: Products, factors: Products, turn: Callable[..., Any]) -> Products:
    """Return vectors of the tridiagonal matrix as those of the matrix that was reduced to it.

    The reflectors begin a row below the diagonal. They are given as they lie in memory, from their second number on,
    since a copy of them takes longer than the product; a row of zeros ends them, and the vectors.
    """
    order, count = inner.shape
    reflectors[0, 1:] = 0.0
    below = reflectors.T.reshape(-1)[1 : 1 + order * (order - 1)].reshape(order - 1, order).T
    moved = np.zeros_like(inner, order="F")
    moved[:-1] = inner[1:]
    moved, _, _ = turn("L", "N", below, factors, moved, lwork=_BLOCK * (count + _BLOCK + 1), overwrite_c=True)
    return np.concatenate([inner[:1], moved[:-1]])
