"""Leading eigenpairs of a released operator: block Lanczos with full orthogonalisation and thick restarts.

Everything is post-processing of one released matrix ``M = S + E``: directions and the stopping rule may depend on
earlier products. A noisy M is indefinite; the algebraically largest eigenvalues are computed.

Number of products. The eigenvalues of E fill ``-R .. R``, where R is the noise edge; eigenvalues of S above it are
found in fewer than ten passes. If there are none, the leading eigenvalues are close together: near the edge the j-th
lies ``(j / 0.6 d)^(2/3) R`` below it, so a polynomial of degree t separates the k-th from the one after the last column
by ``exp(t sqrt(8 gap))``, and t grows like the cube root of d over the width. `most_passes` is that bound with a margin
(measured on the semicircle distribution for d up to 20,000); the iteration stops as soon as no leading Ritz value
changes. If an eigenvalue is 1e5 times the edge or more, those near the edge are accurate only to about 1e-3, because of
the grid of V.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigh, qr, solve, solve_triangular

from dpca_tasks.mechanisms.parts.eigenpairs import signed
from dpca_tasks.queries.operator_product import DIRECTION_BITS
from dpca_tasks.threads import one_thread

BASIS_BLOCKS = 8
"""The number of blocks at which the basis is compressed; it bounds the memory."""
KEPT_BLOCKS = 3
"""The number of blocks of Ritz vectors after compression."""
SETTLED = 1e-4
"""The relative change of a Ritz value in one pass below which it has converged; its error is below ten times that."""

_CANCELLED = 1e-5

type Matrix = NDArray[np.float64]


def block_width(order: int, count: int) -> int:
    """Return the number of columns of a product for ``count`` eigenpairs: eight more."""
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
        The number k of eigenpairs that have to converge, at most p.

    Returns
    -------
    values : float64 array of shape (p,)
        Ritz values: never above the eigenvalues; the first k with relative error below 1e-3 where the passes suffice,
        the others as near as those passes bring them.
    rows : float64 array of shape (p, order)

    Notes
    -----
    The basis holds the directions rounded to their grid, as they are multiplied. So Ritz values have no first-order
    error in the rounding, and the basis is orthonormal only up to it, which the Gram matrix of the small problem
    corrects. LAPACK runs on one thread, so that the same products give the same bits.

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
        if width > count:  # apart, so that the first k are the same to the bit however many follow
            others, lower = _ritz(basis[:, :held], small, gram, width)
            vectors, values = np.hstack([vectors, others[:, count:]]), np.r_[values, lower[count:]]
    return values, signed(vectors.T)


def _continued(spanned: Matrix, gram: Matrix, image: Matrix, inner: Matrix) -> Matrix:
    """Return nearly orthonormal columns for the part of an image outside the basis.

    Cholesky is used, whose small loss of orthogonality the Gram matrix corrects; QR, twice, if the part is small.
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
    """Return the leading Ritz vectors as orthonormal columns, and their values, descending."""
    values, mixtures = eigh(small, gram, subset_by_index=_last(len(small), count))
    return spanned @ mixtures[:, ::-1], values[::-1]


def _last(size: int, count: int) -> tuple[int, int]:
    return size - count, size - 1


def _bordered(corner: Matrix, border: Matrix) -> Matrix:
    """Extend a symmetric matrix by its last columns."""
    old = len(corner)
    square = (border[old:] + border[old:].T) / 2
    return np.block([[corner, border[:old]], [border[:old].T, square]])
