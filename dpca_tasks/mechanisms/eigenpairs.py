"""Leading eigenpairs of released noisy matrices, which are in memory or known only through products.

All eigenvectors have the sign that makes their largest entry positive. A matrix that is known only through products is
solved by block Lanczos with full orthogonalisation and thick restarts. All computations are post-processing of one
released matrix ``M = S + E``, the exact matrix S plus noise E. So the multiplied directions and the stopping rule may
depend on earlier products. M may have negative eigenvalues; the algebraically largest ones are computed.

*Number of products.* The eigenvalues of E fill the interval from -R to R, where R is the noise edge. Eigenvalues of S
above R are found in fewer than ten products (passes). If there are none, the leading eigenvalues of M are close
together: the j-th is about ``(j / 0.6 d)^(2/3) R`` below R, for order d. Block Lanczos with
p columns must separate the k-th eigenvalue from the (p + 1)-th. Let ``gap`` be the relative distance of these two. A
polynomial of degree t separates them by the factor ``exp(t sqrt(8 gap))``. So the required t grows like the cube root
of ``d / p``. `most_passes` is this number with a margin, which was measured on the semicircle
distribution for d up to 20,000. The iteration stops as soon as no leading Ritz value changes.

If an eigenvalue is at least 1e5 times the noise edge, eigenvalues near the edge are accurate only to about 1e-3. The
reason is that the multiplied directions are rounded to a grid.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, blas, cholesky, eigh, eigh_tridiagonal, lapack, qr, solve, solve_triangular

from dpca_tasks.mechanisms.base import LARGE
from dpca_tasks.queries.operator_product import DIRECTION_BITS
from dpca_tasks.threads import one_thread, two_threads

type Matrix = NDArray[np.float64]
type Products = NDArray[np.float64 | np.float32]

RESIDUAL = 1e-12
"""Largest accepted ``|A v - value v|``, relative to the largest eigenvalue, and largest accepted ``|V^T V - I|``."""

_BLOCK = 64  # the number of columns that LAPACK processes at a time
_SINGLE = 2.0**-20  # expected residual of eigenpairs in single precision, relative to the matrix's norm
_INVARIANT = 1e-10  # relative length of a Krylov vector outside an invariant subspace, below which it is rounding
_PRODUCTS = 2  # the number of matrix-vector products with which the spectral norm is estimated


def leading_eigenpairs(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the ``count`` algebraically largest eigenvalues of a symmetric matrix, and their eigenvectors as rows.

    Eigenvalues are descending, and eigenvectors have fixed signs (`signed`). The number of LAPACK threads depends only
    on the order of the matrix, so the same matrix gives the same bits on one machine.
    """
    order = matrix.shape[0]
    with _threads(order):
        values, vectors = eigh(matrix, subset_by_index=(order - count, order - 1), driver="evr")
        if values.size < count:  # for repeated eigenvalues, LAPACK's driver "evr" may return too few of them
            values, vectors = eigh(matrix, driver="evd")
    return values[: -count - 1 : -1].copy(), signed(vectors.T[: -count - 1 : -1])


def spectrum_and_leading(matrix: Matrix, count: int, *, within: float = 0.0) -> tuple[Matrix, Matrix]:
    """Return all eigenvalues of a symmetric matrix, and the eigenvectors of the ``count`` largest as signed rows.

    Eigenvalues are descending. The reduction of the matrix to tridiagonal form takes most of the time. This function
    reduces the matrix once for both results; separate calls for eigenvalues and eigenvectors would reduce it twice. If
    the residual of a pair exceeds `RESIDUAL`, all eigenpairs are computed by a slower method. The number of threads is
    chosen as in `leading_eigenpairs`.

    Parameters
    ----------
    matrix : float64 array of shape (d, d)
        The symmetric matrix A.
    count : int
        The number of eigenvectors, from 1 to d.
    within : float, units of the matrix
        The largest acceptable error of an eigenvalue, and of a residual norm ``|A v - value v|``. A small part of the
        std of the matrix's noise is suitable. If the error of single precision is below this bound, a large matrix is
        reduced in single precision. The leading pairs are then recomputed as Ritz pairs in double precision, and their
        residuals are checked against the bound. The differences between old and new leading eigenvalues are checked
        too. The other eigenvalues have the error of single precision.

    Notes
    -----
    Block Lanczos is not faster for a spectrum full of noise. For a noise matrix of order 2,000, it needs a basis of
    1,000 directions for 10 pairs with a residual of 2e-12, and of more than 1,200 directions for 64 pairs. That takes
    .6 s and .9 s of one processor. The reduction to tridiagonal form takes .35 s of one processor in double precision,
    and .2 s in single precision.
    """
    found = _by_single_precision(matrix, count, within=within) if len(matrix) >= LARGE else None
    if found is None:
        found = _by_tridiagonal(matrix, count, np.float64)
    if found is None:
        with _threads(len(matrix)):
            found = eigh(matrix, driver="evd")
    values, vectors = found
    return values[::-1].copy(), signed(vectors.T[: -count - 1 : -1])


def gauss_rule(product: Callable[[Matrix], Matrix], vector: Matrix, *, steps: int) -> tuple[Matrix, Matrix]:
    """Return nodes x and weights w, for which ``sum w f(x)`` approximates ``vector^T f(M) vector``.

    Parameters
    ----------
    product : callable
        The product of a symmetric matrix M of shape (d, d) with a vector.
    vector : float64 array of shape (d,)
    steps : int
        The largest number of nodes, which is the number of products with the matrix.

    Returns
    -------
    nodes, weights : float64 arrays of one shape
        The weights add up to ``|vector|^2``. Both are empty if the vector is 0.

    Notes
    -----
    The rule is exact for polynomials f of degree ``2 steps - 1``. Source: Golub and Meurant (1994), Matrices, moments
    and quadrature.

    Examples
    --------
    >>> diagonal = np.array([3.0, 1.0, -2.0])
    >>> nodes, weights = gauss_rule(lambda v: diagonal * v, np.array([1.0, 1.0, 0.0]), steps=5)
    >>> nodes.round(6).tolist(), weights.round(6).tolist()
    ([1.0, 3.0], [1.0, 1.0])
    """
    size = float(np.linalg.norm(vector))
    if size == 0.0:
        return np.zeros(0), np.zeros(0)
    basis, diagonal, beside = np.empty((min(steps, len(vector)), len(vector))), [], []
    basis[0] = vector / size
    for step in range(len(basis)):
        image, spanned = product(basis[step]), basis[: step + 1]
        diagonal.append(float(basis[step] @ image))
        before = float(np.linalg.norm(image))
        for _ in range(2):
            image -= (spanned @ image) @ spanned
        length = float(np.linalg.norm(image))
        if step + 1 == len(basis) or length <= _INVARIANT * before:
            break
        beside.append(length)
        basis[step + 1] = image / length
    nodes, vectors = eigh_tridiagonal(diagonal, beside)
    return nodes, size * size * vectors[0] ** 2


def signed(rows: Matrix) -> Matrix:
    """Return rows in which the entry of largest magnitude is positive, by changing the signs of whole rows."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    return np.ascontiguousarray(rows * np.where(largest < 0, -1.0, 1.0))


def _threads(order: int) -> AbstractContextManager[None]:
    return one_thread() if order < LARGE else two_threads()


def _by_single_precision(matrix: Matrix, count: int, *, within: float) -> tuple[Matrix, Matrix] | None:
    """Compute the result of `_by_tridiagonal` in single precision; return None if an error may exceed ``within``."""
    if not _SINGLE * _near_norm(matrix) <= within:
        return None
    found = _by_tridiagonal(matrix, count, np.float32)
    if found is None:
        return None
    values, vectors = found
    with one_thread():
        basis = np.linalg.qr(vectors)[0]
    with two_threads():  # uses SciPy's BLAS, because threads of NumPy's BLAS would compete for the same processors
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
    """Return a close lower bound on a symmetric matrix's spectral norm, by power iteration.

    The iteration starts with the row of the largest diagonal entry.
    """
    column = matrix[int(np.abs(matrix.diagonal()).argmax())]
    with one_thread():
        for _ in range(_PRODUCTS):
            norm = float(np.linalg.norm(column))
            if not norm > 0.0:
                return 0.0
            column = matrix @ (column / norm)
        return float(np.linalg.norm(column))


def _by_tridiagonal(matrix: Matrix, count: int, precision: type[np.floating[Any]]) -> tuple[Matrix, Matrix] | None:
    """Return all eigenvalues and the last ``count`` eigenvectors of a symmetric matrix, ascending.

    The matrix is reduced to tridiagonal form in two threads; the other computations are not faster in two threads. The
    eigenvectors are computed as if the tridiagonal matrix did not split into independent blocks. The result is None if
    residuals or orthogonality miss the tolerance, as for a tridiagonal matrix that splits.
    """
    order, letter = len(matrix), "s" if precision is np.float32 else "d"
    largest = max(float(matrix.max()), -float(matrix.min()))
    if order < 3 or not largest > 0.0:
        return None
    scale = 2.0 ** -np.frexp(largest)[1]  # a power of two, so that scaling does not round
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

    The Householder reflectors of the reduction begin one row below the diagonal. LAPACK gets them as a view of the
    matrix's memory that starts at the second number, because a copy would take longer than the product. For this view,
    a row of zeros is appended to the reflectors and to the vectors.
    """
    order, count = inner.shape
    reflectors[0, 1:] = 0.0
    below = reflectors.T.reshape(-1)[1 : 1 + order * (order - 1)].reshape(order - 1, order).T
    moved = np.zeros_like(inner, order="F")
    moved[:-1] = inner[1:]
    moved, _, _ = turn("L", "N", below, factors, moved, lwork=_BLOCK * (count + _BLOCK + 1), overwrite_c=True)
    return np.concatenate([inner[:1], moved[:-1]])


BASIS_BLOCKS = 8
"""When the Lanczos basis has this many blocks, it is compressed (restarted), which bounds the memory."""
KEPT_BLOCKS = 3
"""The number of blocks of Ritz vectors that remain after compression of the basis."""
SETTLED = 1e-4
"""A Ritz value has converged if its relative change in a pass is at most `SETTLED`.

Its relative error is then below ten times `SETTLED`.
"""

_CANCELLED = 1e-5


def block_width(order: int, count: int) -> int:
    """Return the number of columns of a Lanczos block for ``count`` eigenpairs: ``count + 8``, at most ``order``."""
    return min(order, count + 8)


def most_passes(order: int, count: int) -> int:
    """Return the largest number of products that block Lanczos may use for ``count`` eigenpairs, from public facts."""
    return math.ceil(5.0 * math.cbrt(order / block_width(order, count))) + 4


def leading_eigenpairs_of(
    product: Callable[[NDArray[np.int64]], Matrix], start: Matrix, count: int
) -> tuple[Matrix, Matrix]:
    """Return the algebraically largest eigenvalues, and eigenvectors, of a matrix M that is known through products.

    Parameters
    ----------
    product : callable
        Returns ``M V`` for directions V, given as integers in steps of ``2^-15``.
    start : float64 array of shape (order, p)
        Public orthonormal columns at which block Lanczos starts; p is `block_width`.
    count : int
        The number k of eigenpairs that must converge, at most p.

    Returns
    -------
    values : float64 array of shape (p,)
        Ritz values, descending, never above the exact eigenvalues. The first k have a relative error below 1e-3 if
        `most_passes` products suffice. The others may be inaccurate, because the iteration does not wait for their
        convergence.
    rows : float64 array of shape (p, order)
        The Ritz vectors with fixed signs.

    Notes
    -----
    The basis contains the directions as rounded to their grid, exactly as they are multiplied. So the rounding causes
    no first-order error in the Ritz values. The basis is orthonormal only up to this rounding. The Ritz problem is
    solved with the Gram matrix of the basis, which corrects for the rounding. LAPACK runs on one thread, so the same
    products give the same bits.

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
        if width > count:  # computed separately, so that the first k eigenpairs have the same bits for any width
            others, lower = _ritz(basis[:, :held], small, gram, width)
            vectors, values = np.hstack([vectors, others[:, count:]]), np.r_[values, lower[count:]]
    return values, signed(vectors.T)


def _continued(spanned: Matrix, gram: Matrix, image: Matrix, inner: Matrix) -> Matrix:
    """Return nearly orthonormal columns that span the part of ``image`` orthogonal to the basis ``spanned``.

    ``gram`` is the Gram matrix of the basis, and ``inner`` holds the products of basis and image. By default the
    columns are orthonormalised by Cholesky decomposition, whose small loss of orthogonality the Gram matrix later
    corrects. If the orthogonal part is very small, QR decomposition is applied twice instead.
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
    """Return the ``count`` leading Ritz vectors as orthonormal columns, and their Ritz values, descending.

    ``small`` is the matrix in the basis ``spanned``, and ``gram`` the Gram matrix of the basis.
    """
    values, mixtures = eigh(small, gram, subset_by_index=_last(len(small), count))
    return spanned @ mixtures[:, ::-1], values[::-1]


def _last(size: int, count: int) -> tuple[int, int]:
    return size - count, size - 1


def _bordered(corner: Matrix, border: Matrix) -> Matrix:
    """Return the symmetric matrix with leading block ``corner`` and last columns ``border``."""
    old = len(corner)
    square = (border[old:] + border[old:].T) / 2
    return np.block([[corner, border[:old]], [border[:old].T, square]])
