"""Matrix products for nearly dense rows, and for records with many rows.

*Nearly dense rows* are converted to dense arrays, one strip of rows at a time, and multiplied by BLAS. The result is
exact: entries are integers and every sum of products stays below ``2^53``. So float64 represents each sum exactly, and
BLAS may add in any order. A strip has at most `CELLS` cells, unless a single record has more. The products of a strip
are added to the total before the next strip is read. So memory is limited to a strip and a panel of the result.

>>> import numpy as np
>>> total = np.zeros(3, np.int64)
>>> add_dense_outer_products(np.array([1, 2, 3]), np.array([0, 1, 1]), np.array([0, 2, 3]), 2, total)
>>> total
array([ 1,  2, 13])

*Records with many rows.* The contribution of a record with rows X is ``X^T (X V)`` for public directions V. For short
records the scores ``X V`` are rounded, so the error grows with the number of rows, which may be ``4^bits``. For long
records the whole product is rounded instead, so the error depends only on the size of the product. The exact product
is formed without BLAS, in an array of that size.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.kernels.products import round_scores, score_limits
from dpca_tasks.threads import one_thread

CELLS = 1 << 21
"""Largest number of cells in a strip of rows: 16 MiB, large enough for BLAS to be near its peak speed."""
PANEL = 256
"""Number of rows of the triangle in a panel; more rows need more memory, fewer rows need more time."""
FULL = 0.3
"""Share of stored values among all cells from which BLAS is faster than a loop over stored values."""


def is_dense(density: float | None) -> bool:
    """Return whether to multiply rows by BLAS instead of loops over stored values, by the declared density alone.

    The private rows never influence the choice. For n rows of d features, BLAS does ``n d^2`` operations. A loop over
    stored values does ``(density d)^2 n / 2`` operations, each of which takes 6 to 9 times as long. So the density at
    which both take the same time does not depend on d. Without a declared density, loops are used.
    """
    return density is not None and density >= FULL


def add_dense_outer_products(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add the packed upper triangle of ``X^T X`` for rows X on the integer grid to ``total``.

    The sums are the same as those of `dpca_tasks.kernels.outer_products.add_outer_products`. The norm of a row on the
    grid is at most ``2^14``, so the sums over a strip of ``2^21`` cells stay below ``2^49``.
    """
    n_rows = row_ptr.size - 1
    strip = np.empty((min(n_rows, strip_rows(n_features)), n_features))
    panel = np.empty(min(PANEL, n_features) * n_features)
    with one_thread():
        for first in range(0, n_rows, max(1, len(strip))):
            cells = strip[: min(len(strip), n_rows - first)]
            densify(values, indices, row_ptr[first : first + len(cells) + 1], cells)
            for left in range(0, n_features, PANEL):
                columns = cells[:, left : left + PANEL]
                for right in (left, left + PANEL):
                    others = columns if right == left else cells[:, right:]
                    product = panel[: columns.shape[1] * others.shape[1]].reshape(columns.shape[1], -1)
                    np.matmul(columns.T, others, out=product)
                    add_panel(product, left, right, n_features, total)


def add_dense_moment_products(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    directions: NDArray[np.integer],
    direction_bits: int,
    bits: int,
    longest: int,
    most: int,
    total: NDArray[np.int64],
) -> None:
    """Add ``X_u^T Y_u`` to ``total`` for every record u of at most ``longest`` rows ``X_u``.

    ``Y_u`` are the scores ``X_u V`` with the directions V, rounded and clipped. The sums are the same as those of
    `dpca_tasks.kernels.products.add_moment_products`.
    """
    n_features, width = directions.shape
    at_once = strip_rows(n_features)
    public = directions.astype(np.float64)
    first = 0
    with one_thread():
        while first < record_ptr.size - 1:
            end = record_ptr[first] + at_once
            last = max(first + 1, int(np.searchsorted(record_ptr, end, side="right")) - 1)
            start, stop = record_ptr[first], record_ptr[last]
            cells = np.empty((stop - start, n_features))
            densify(values, indices, row_ptr[start : stop + 1], cells)
            rounded = np.empty((stop - start, width), np.int64)
            limits = score_limits(values, row_ptr, record_ptr[first : last + 1], bits, most)
            bounds = record_ptr[first : last + 1] - start
            round_scores(cells @ public, bounds, limits, direction_bits, bits, longest, rounded)
            total += (cells.T @ rounded.astype(np.float64)).astype(np.int64).ravel()
            first = last


@njit(cache=True, nogil=True)
def densify(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    cells: NDArray[np.float64],
) -> None:
    """Write rows in compressed sparse format into a dense array."""
    for row in range(row_ptr.size - 1):
        cell = cells[row]
        cell[:] = 0.0
        for at in range(row_ptr[row], row_ptr[row + 1]):
            cell[np.uint64(indices[at])] = values[at]


@njit(cache=True, nogil=True)
def add_panel(
    product: NDArray[np.float64],
    top: int,
    left: int,
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add a rectangular block of a symmetric matrix to the packed upper triangle ``total``.

    The block begins at row ``top`` and column ``left`` of the matrix. Entries below the diagonal are skipped.
    """
    for at in range(product.shape[0]):
        row = top + at
        start = row * n_features - (row * (row + 1)) // 2
        line = product[at]
        for column in range(max(left, row), left + product.shape[1]):
            total[start + column] += np.int64(line[column - left])


def strip_rows(n_features: int) -> int:
    """Return the number of rows, each of ``n_features`` cells, in a strip of at most `CELLS` cells."""
    return max(1, CELLS // n_features)


@njit(cache=True, nogil=True)
def add_long_products(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    directions: NDArray[np.integer],
    direction_bits: int,
    bits: int,
    longest: int,
    most: int,
    total: NDArray[np.int64],
) -> None:
    """Add ``X_u^T X_u V`` of every record u of more than ``longest`` rows ``X_u``, rounded to steps of ``4^-bits``.

    V are the ``directions``, in steps of ``2^-direction_bits``.

    Guarantees
    ----------
    The Frobenius norm of the contribution of a record is at most ``most`` steps and at most 1, compared in integers.
    The contribution is the exact product, rounded to nearest, if that is within the limit. Otherwise the product is
    rounded toward zero. If the exact product itself exceeds the limit, it is first scaled to just below the limit.
    """
    width = directions.shape[1]
    limit = min(np.int64(most), np.int64(1) << (2 * bits))
    product = np.zeros((0, width), np.int64)
    is_met = np.zeros(0, np.bool_)
    columns = np.zeros(0, np.int64)
    scores = np.empty(width, np.int64)
    sums = total.reshape((directions.shape[0], width))
    step = 0.5**direction_bits
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        if last - first <= longest:
            continue
        if product.shape[0] == 0:
            product = np.zeros(directions.shape, np.int64)
            is_met = np.zeros(directions.shape[0], np.bool_)
            columns = np.empty(directions.shape[0], np.int64)
        count = 0
        for row in range(first, last):
            scores[:] = 0
            for at in range(row_ptr[row], row_ptr[row + 1]):
                value, direction = np.int64(values[at]), directions[indices[at]]
                for j in range(width):
                    scores[j] += value * np.int64(direction[j])
            for at in range(row_ptr[row], row_ptr[row + 1]):
                value, column = np.int64(values[at]), np.int64(indices[at])
                if not is_met[column]:
                    is_met[column] = True
                    columns[count] = column
                    count += 1
                for j in range(width):
                    product[column, j] += value * scores[j]
        met = columns[:count]
        scale = 0.0
        if not is_short(product, met, scale, direction_bits, limit):
            squares = 0.0
            for column in met:
                for j in range(width):
                    squares += np.float64(product[column, j]) * np.float64(product[column, j])
            scale = min(step, np.float64(limit) * (1.0 - 2.0**-24) / np.sqrt(squares))
        fits = scale == 0.0 or is_short(product, met, scale, direction_bits, limit)  # otherwise the record adds nothing
        for column in met:
            for j in range(width):
                if fits:
                    sums[column, j] += rounded(product[column, j], scale, direction_bits)
                product[column, j] = 0
            is_met[column] = False


@njit(cache=True, nogil=True)
def rounded(entry: np.int64, scale: float, direction_bits: int) -> np.int64:
    """Convert an entry of an exact product to grid steps.

    If ``scale`` is positive, the entry is multiplied by it and rounded toward zero. Otherwise the entry is divided by
    ``2^direction_bits`` and rounded to nearest.
    """
    if scale > 0.0:
        return np.int64(np.float64(entry) * scale)
    return (entry + (np.int64(1) << (direction_bits - 1))) >> direction_bits


@njit(cache=True, nogil=True)
def is_short(
    product: NDArray[np.int64], columns: NDArray[np.int64], scale: float, direction_bits: int, most: np.int64
) -> bool:
    """Return whether the Frobenius norm of a product, rounded by `rounded`, is at most ``most`` grid steps.

    Only the rows of the product with the indices ``columns`` are nonzero. ``most`` is at most ``2^28``.
    """
    left = most * most
    for column in columns:
        for j in range(product.shape[1]):
            point = rounded(product[column, j], scale, direction_bits)
            if abs(point) > most:
                return False
            left -= point * point
            if left < 0:
                return False
    return True
