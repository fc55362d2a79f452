"""Leading eigenpairs of released matrices, in memory or as operators, with the signs of their vectors fixed.

Operators are solved by block Lanczos with full orthogonalisation and thick restarts. Everything is post-processing of
one released matrix ``M = S + E``: directions and the stopping rule may depend on earlier products. A noisy M is
indefinite; the algebraically largest eigenvalues are computed.

*Number of products.* The eigenvalues of E fill ``-R .. R``, where R is the noise edge. Eigenvalues of S above R are
found in fewer than ten passes. If there are none, the leading eigenvalues are close together: near the edge the j-th
lies ``(j / 0.6 d)^(2/3) R`` below R. So a polynomial of degree t separates the k-th eigenvalue from the first one
beyond the block's columns by ``exp(t sqrt(8 gap))``, and t grows like the cube root of d over the width. `most_passes`
is this bound with a margin, measured on the semicircle distribution for d up to 20,000. The iteration stops as soon as
no leading Ritz value changes.

If an eigenvalue is 1e5 times the edge or more, eigenvalues near the edge are accurate only to about 1e-3, because V is
rounded to a grid.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, blas, cholesky, eigh, lapack, qr, solve, solve_triangular

from dpca_tasks.mechanisms.base import LARGE
from dpca_tasks.queries.operator_product import DIRECTION_BITS
from dpca_tasks.threads import one_thread, two_threads

type Matrix = NDArray[np.float64]
type Products = NDArray[np.float64 | np.float32]

RESIDUAL = 1e-12
"""Largest accepted ``|A v - value v|``, relative to the largest eigenvalue, and largest accepted ``|V^T V - I|``."""

_BLOCK = 64  # columns that LAPACK processes at a time
_SINGLE = 2.0**-20  # residual of single-precision pairs, relative to the norm: less than ten roundings
_PRODUCTS = 2  # number of products with which a norm is estimated


def leading_eigenpairs(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the ``count`` algebraically largest eigenvalues, descending, and signed eigenvectors as rows.

    The order of the matrix determines the number of LAPACK threads, so the same matrix gives the same bits on one
    machine.
    """
    order = matrix.shape[0]
    with _threads(order):
        values, vectors = eigh(matrix, subset_by_index=(order - count, order - 1), driver="evr")
        if values.size < count:  # with repeated eigenvalues this driver may return too few
            values, vectors = eigh(matrix, driver="evd")
    return values[: -count - 1 : -1].copy(), signed(vectors.T[: -count - 1 : -1])


def spectrum_and_leading(matrix: Matrix, count: int, *, within: float = 0.0) -> tuple[Matrix, Matrix]:
    """Return all eigenvalues, descending, and the signed eigenvectors of the ``count`` largest as rows.

    The matrix is reduced to tridiagonal form once for both results, which takes most of the time. Calling
    `leading_eigenpairs` and `eigh` for the values would reduce it twice. If the pairs miss `RESIDUAL`, all pairs are
    computed. The number of threads is chosen as in `leading_eigenpairs`.

    Parameters
    ----------
    matrix : float64 array of shape (d, d)
        Symmetric.
    count : int
        The number of eigenvectors, from 1 to d.
    within : float, units of the matrix
        The largest acceptable error of an eigenvalue, and norm of ``A v - value v``, such as a small part of the
        matrix's noise. If rounding to single precision is below this bound, a large matrix is reduced in single
        precision. Its leading pairs are then recomputed as Ritz pairs in double precision and checked against this
        bound. The single-precision values that they replace are checked too. The remaining values keep the error of
        single precision.

    Notes
    -----
    Block Lanczos is no faster if noise fills the spectrum evenly. On 2,000 columns of noise alone it needs 1,000
    directions for 10 pairs to a residual of 2e-12, and more than 1,200 for 64. That takes .6 and .9 s of one processor.
    A reduction takes .35 s of one processor in double precision, and .2 s in single precision.
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
    """Compute the pairs of `_by_tridiagonal` in single precision; return None if errors may exceed ``within``."""
    if not _SINGLE * _near_norm(matrix) <= within:
        return None
    found = _by_tridiagonal(matrix, count, np.float32)
    if found is None:
        return None
    values, vectors = found
    with one_thread():
        basis = np.linalg.qr(vectors)[0]
    with two_threads():  # same library as for the vectors: idle threads of two libraries would compete for processors
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
    """Return a close lower bound on the spectral norm, from the row with the largest diagonal entry."""
    column = matrix[int(np.abs(matrix.diagonal()).argmax())]
    with one_thread():
        for _ in range(_PRODUCTS):
            norm = float(np.linalg.norm(column))
            if not norm > 0.0:
                return 0.0
            column = matrix @ (column / norm)
        return float(np.linalg.norm(column))


def _by_tridiagonal(matrix: Matrix, count: int, precision: type[np.floating[Any]]) -> tuple[Matrix, Matrix] | None:
    """Return all eigenvalues and the last ``count`` eigenvectors, ascending; None if they miss the residual test.

    Only the reduction is faster in two threads. The eigenvectors are computed from the eigenvalues as if the
    tridiagonal matrix did not split into blocks; a matrix that does split fails the residual test.
    """
    order, letter = len(matrix), "s" if precision is np.float32 else "d"
    largest = max(float(matrix.max()), -float(matrix.min()))
    if order < 3 or not largest > 0.0:
        return None
    scale = 2.0 ** -np.frexp(largest)[1]  # a power of two: only the conversion to this precision rounds
    turned = np.empty_like(matrix, precision)
    np.multiply(matrix, scale, out=turned, casting="same_kind")
    tridiagonal, all_values, vectors_of, turn = (
        getattr(lapack, letter + name) for name in ("sytrd", "sterf", "stein", "ormqr")
    )
    with _threads(order):
        reflectors, diagonal, off_diagonal, factors, _ = tridiagonal(
            turned.T, lower=1, lwork=_BLOCK * order, overwrite_a=True
        )
    with one_thread():
        values, failed = all_values(diagonal, off_diagonal)
        if failed:
            return None
        whole, ends = np.ones(order, np.int32), np.full(order, order, np.int32)
        inner, missing = vectors_of(diagonal, off_diagonal, values[-count:], whole, ends)
        if missing:
            return None
        image = diagonal[:, None] * inner
        image[:-1] += off_diagonal[:, None] * inner[1:]
        image[1:] += off_diagonal[:, None] * inner[:-1]
        missed = np.abs(image - inner * values[-count:]).max() / np.abs(values).max()
        skewed = np.abs(inner.T @ inner - np.eye(count)).max()
        if not max(missed, skewed) <= RESIDUAL * np.finfo(precision).eps / np.finfo(np.float64).eps:
            return None
        vectors = _turned_back(inner, reflectors, factors, turn)
    return values.astype(np.float64) / scale, vectors.astype(np.float64, copy=False)


def _turned_back(inner: Products, reflectors: Products, factors: Products, turn: Callable[..., Any]) -> Products:
    """Transform eigenvectors of the tridiagonal matrix to eigenvectors of the original matrix.

    The reflectors begin one row below the diagonal. They are passed as a view of memory that starts at their second
    number, since a copy would take longer than the product. A row of zeros ends both the reflectors and the vectors.
    """
    order, count = inner.shape
    reflectors[0, 1:] = 0.0
    below = reflectors.T.reshape(-1)[1 : 1 + order * (order - 1)].reshape(order - 1, order).T
    moved = np.zeros_like(inner, order="F")
    moved[:-1] = inner[1:]
    moved, _, _ = turn("L", "N", below, factors, moved, lwork=_BLOCK * (count + _BLOCK + 1), overwrite_c=True)
    return np.concatenate([inner[:1], moved[:-1]])


BASIS_BLOCKS = 8
"""The number of blocks at which the basis is compressed; it bounds the memory."""
KEPT_BLOCKS = 3
"""The number of blocks of Ritz vectors after compression."""
SETTLED = 1e-4
"""The relative change of a Ritz value in one pass below which it has converged; its error is below ten times that."""

_CANCELLED = 1e-5


def block_width(order: int, count: int) -> int:
    """Return the number of columns of a product for ``count`` eigenpairs: eight more, at most ``order``."""
    return min(order, count + 8)


def most_passes(order: int, count: int) -> int:
    """Return the largest number of products, which is public."""
    return math.ceil(5.0 * math.cbrt(order / block_width(order, count))) + 4


def leading_eigenpairs_of(
    product: Callable[[NDArray[np.int64]], Matrix], start: Matrix, count: int
) -> tuple[Matrix, Matrix]:
    """Return the algebraically largest eigenvalues of M, descending, and signed eigenvectors as rows.

    Parameters
    ----------
    product : callable
        Returns ``M V`` for V in steps of ``2^-15``.
    start : float64 array of shape (order, p)
        Public orthonormal columns; p is `block_width`.
    count : int
        The number k of eigenpairs that must converge, at most p.

    Returns
    -------
    values : float64 array of shape (p,)
        Ritz values, never above the eigenvalues. The first k have a relative error below 1e-3 if the passes suffice;
        the others are as accurate as those passes make them.
    rows : float64 array of shape (p, order)

    Notes
    -----
    The basis holds the directions rounded to their grid, exactly as they are multiplied. So Ritz values have no
    first-order error in the rounding. The basis is orthonormal only up to the rounding, which the Gram matrix of the
    small problem corrects. LAPACK runs on one thread, so the same products give the same bits.

    References
    ----------
    Golub and Underwood (1977), The block Lanczos method; Wu and Simon (2000), Thick-restart Lanczos.
    """
    order, width = start.shape
    basis = np.empty((order, min(order, BASIS_BLOCKS * width)), order="F")
    small, gram, held = np.empty((0, 0)), np.empty((0, 0)), 0
    block, values = start, np.full(count, np.inf)
    for _ in range(most_passes(order, count)):
        gridded = np.rint(block * 2.0**DIRECTION_BITS)
        image = product(gridded.astype(np.int64))
        with one_thread():
            block = gridded * 2.0**-DIRECTION_BITS
            basis[:, held : held + block.shape[1]] = block
            held += block.shape[1]
            spanned = basis[:, :held]
            inner = spanned.T @ image
            small, gram = _bordered(small, inner), _bordered(gram, spanned.T @ block)
            before, values = values, eigh(small, gram, eigvals_only=True, subset_by_index=_last(held, count))[::-1]
            if held == order or (np.abs(values - before) <= SETTLED * np.abs(values)).all():
                break
            block = _continued(spanned, gram, image, inner)[:, : order - held]
            if held + block.shape[1] > basis.shape[1] and basis.shape[1] < order:
                kept = min(KEPT_BLOCKS * width, held)
                basis[:, :kept], ritz = _ritz(spanned, small, gram, kept)
                held = kept
                small, gram = np.diag(ritz), basis[:, :held].T @ basis[:, :held]
    with one_thread():
        vectors, values = _ritz(basis[:, :held], small, gram, count)
        if width > count:  # in a separate call, so that the first k have the same bits however many follow
            others, lower = _ritz(basis[:, :held], small, gram, width)
            vectors, values = np.hstack([vectors, others[:, count:]]), np.r_[values, lower[count:]]
    return values, signed(vectors.T)


def _continued(spanned: Matrix, gram: Matrix, image: Matrix, inner: Matrix) -> Matrix:
    """Return nearly orthonormal columns for the part of an image outside the basis.

    Cholesky is used by default; the Gram matrix corrects its small loss of orthogonality. If the part is small, QR is
    applied twice instead.
    """
    fresh = image - spanned @ solve(gram, inner, assume_a="pos")
    try:
        triangle = cholesky(fresh.T @ fresh)
    except LinAlgError:
        triangle = np.zeros((1, 1))
    if np.diag(triangle).min() > _CANCELLED * np.linalg.norm(image, axis=0).max():
        return np.asarray(solve_triangular(triangle, fresh.T, trans="T").T)
    once, _ = qr(fresh, mode="economic")
    twice, _ = qr(once - spanned @ solve(gram, spanned.T @ once, assume_a="pos"), mode="economic")
    return np.asarray(twice)


def _ritz(spanned: Matrix, small: Matrix, gram: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the leading Ritz vectors as orthonormal columns, and the Ritz values, descending."""
    values, mixtures = eigh(small, gram, subset_by_index=_last(len(small), count))
    return spanned @ mixtures[:, ::-1], values[::-1]


def _last(size: int, count: int) -> tuple[int, int]:
    return size - count, size - 1


def _bordered(corner: Matrix, border: Matrix) -> Matrix:
    """Extend a symmetric matrix by its last columns."""
    old = len(corner)
    square = (border[old:] + border[old:].T) / 2
    return np.block([[corner, border[:old]], [border[:old].T, square]])
