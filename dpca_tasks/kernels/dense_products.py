"""Products of mostly full rows, and of records with many rows.

*Mostly full rows* are densified strip by strip and multiplied by BLAS. The result is exact to the last bit: entries are
integers and every sum of products stays below ``2^53``, so floats hold each sum exactly and BLAS may add in any order.
A strip has at most `CELLS` cells, unless one record is wider, and each result is added to the total at once. So memory
is limited to a strip and a panel of the triangle.

>>> import numpy as np
>>> total = np.zeros(3, np.int64)
>>> add_dense_outer_products(np.array([1, 2, 3]), np.array([0, 1, 1]), np.array([0, 2, 3]), 2, total)
>>> total
array([ 1,  2, 13])

*Records with many rows* have products that are rounded once per record instead of once for each score.

The error of rounded scores grows with the number of rows of a record, which may be ``4^bits``. The error of a rounded
product grows with the number of its entries alone. It takes an array as large as the product, and no BLAS.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.kernels.products import round_scores, score_limits
from dpca_tasks.threads import one_thread

CELLS = 1 << 21
"""Cells of a strip: 16 MiB, at which BLAS is near its peak."""
PANEL = 256
"""Rows of the triangle per panel; more would use more memory, fewer more time."""
FULL = 0.3
"""Density from which BLAS is faster than a loop over stored values."""


def is_dense(density: float | None) -> bool:
    """Return whether to use BLAS instead of the loops over stored values, by the declared density alone.

    The rows never influence the choice. BLAS does ``n d^2`` operations and a loop ``(density d)^2 n / 2``, each of
    which takes 6 to 9 times as long. So the density at which both take the same time does not depend on d. Without a
    declared density the rows count as sparse.
    """
    return density is not None and density >= FULL


def add_dense_outer_products(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add the packed upper triangle of ``X^T X``, as `dpca_tasks.kernels.outer_products.add_outer_products` does.

    The norm of a row is at most ``2^14``, as the grid ensures, so the sums of a strip of ``2^21`` cells stay below
    ``2^49``.
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
    """Add ``X_u^T Y_u`` of every record not too long, as `dpca_tasks.kernels.products.add_moment_products` does."""
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
    """Write rows as dense arrays."""
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
    """Add a rectangle of a symmetric matrix, from a given row and column on, to the packed upper triangle."""
    for at in range(product.shape[0]):
        row = top + at
        start = row * n_features - (row * (row + 1)) // 2
        line = product[at]
        for column in range(max(left, row), left + product.shape[1]):
            total[start + column] += np.int64(line[column - left])


def strip_rows(n_features: int) -> int:
    """Return the number of rows of a strip."""
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
    """Add ``X_u^T X_u V`` of every record of more than ``longest`` rows, rounded to steps of ``4^-bits``.

    Guarantees
    ----------
    The Frobenius norm of the contribution of a record is at most ``most`` steps and at most 1, compared in integers.
    The contribution is the record's product, rounded to nearest. If that is too long, the product is scaled down below
    the limit, provided it is longer itself, and rounded toward zero.
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
        fits = scale == 0.0 or is_short(product, met, scale, direction_bits, limit)  # true except for the last rounding
        for column in met:
            for j in range(width):
                if fits:
                    sums[column, j] += rounded(product[column, j], scale, direction_bits)
                product[column, j] = 0
            is_met[column] = False


@njit(cache=True, nogil=True)
def rounded(entry: np.int64, scale: float, direction_bits: int) -> np.int64:
    """Round an entry of a product to the grid: toward zero if it is scaled, otherwise to nearest."""
    if scale > 0.0:
        return np.int64(np.float64(entry) * scale)
    return (entry + (np.int64(1) << (direction_bits - 1))) >> direction_bits


@njit(cache=True, nogil=True)
def is_short(
    product: NDArray[np.int64], columns: NDArray[np.int64], scale: float, direction_bits: int, most: np.int64
) -> bool:
    """Return whether the norm of a rounded product is at most a number of steps, which is at most ``2^28``."""
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
