"""Products of records of many rows, rounded once for a record instead of once for each of its scores.

The error of rounded scores grows with the rows of a record, and a record may have ``4^bits`` of them. That of a rounded
product grows with its entries alone. It costs an array as large as the product, and no BLAS.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


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
    The Frobenius norm of what a record adds is at most ``most`` steps and at most 1, compared in integers. It is that
    record's product, rounded to nearest; where that is longer, scaled down to less, if it is longer itself, and rounded
    toward zero.
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
        fits = scale == 0.0 or is_short(product, met, scale, direction_bits, limit)  # always, but for the last rounding
        for column in met:
            for j in range(width):
                if fits:
                    sums[column, j] += rounded(product[column, j], scale, direction_bits)
                product[column, j] = 0
            is_met[column] = False


@njit(cache=True, nogil=True)
def rounded(entry: np.int64, scale: float, direction_bits: int) -> np.int64:
    """Round an entry of a product to the grid: scaled and toward zero, or without a scale to nearest."""
    if scale > 0.0:
        return np.int64(np.float64(entry) * scale)
    return (entry + (np.int64(1) << (direction_bits - 1))) >> direction_bits


@njit(cache=True, nogil=True)
def is_short(
    product: NDArray[np.int64], columns: NDArray[np.int64], scale: float, direction_bits: int, most: np.int64
) -> bool:
    """Tell whether the norm of a rounded product is at most a number of steps, which is at most ``2^28``."""
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
