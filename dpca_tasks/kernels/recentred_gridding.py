"""Records less a public mean, clipped again and put on the grid, without ever being formed: rows stay sparse.

A record x of one row that ends in a constant 1 stands for ``x - m``: it is what ``[x, 1]`` becomes under the linear map
``(x, t) -> x - t m``. So a record is scaled and rounded as it is stored, with its constants, and what is checked is the
norm of what it stands for. With integers everywhere, m too, that check is exact.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

SHIFT_BITS = 16
"""The mean lies on a grid of step ``2^-16`` clip norms."""


@njit(cache=True, nogil=True)
def grid_shifted_records(
    values: NDArray[np.float64],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    shift: NDArray[np.int64],
    clip_norm: float,
    bits: int,
) -> NDArray[np.int32]:
    """Scale each extended record so that what it stands for has norm at most ``clip_norm``, and round it.

    Rows end in their constants, of norm ``clip_norm`` for a whole record, and are clipped. The first try rounds to the
    nearest point of the grid of step ``2^-bits``; a record that is then too long is tried again from a size that leaves
    room for the rounding of all its entries.

    Guarantees
    ----------
    See `stands_within`, which every record passes: it is a comparison of integers, whatever was rounded before it.
    Rounding moves the values by at most half the square root of their number, in steps, the constants likewise, and
    what they stand for by at most both together, as the mean is at most 1. So the second try passes; where room is
    lacking, on a grid that is far too coarse, it is the empty record.
    """
    gridded = np.zeros(values.size, np.int32)
    half_range = np.float64(1 << bits)
    unit = np.float64(1 << SHIFT_BITS)
    squared_shift = np.int64(0)
    for entry in shift:
        squared_shift += entry * entry
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        squares = products = constants = 0.0
        for row in range(first, last):
            end = row_ptr[row + 1] - 1
            product = 0.0
            for at in range(row_ptr[row], end):
                part = values[at] / clip_norm
                squares += part * part
                product += part * np.float64(shift[indices[at]])
            constant = values[end] / clip_norm
            products += product * constant
            constants += constant * constant
        square = squares - 2.0 * products / unit + constants * np.float64(squared_shift) / (unit * unit)
        weight = half_range if square <= 1.0 else half_range / np.sqrt(square)
        n_rows, stored = np.float64(last - first), np.float64(row_ptr[last] - row_ptr[first])
        room = (np.sqrt(stored - n_rows) + np.sqrt(n_rows)) / (2.0 * half_range) + 2.0**-20
        for _ in range(2):
            for at in range(row_ptr[first], row_ptr[last]):
                gridded[at] = np.int64(np.rint(values[at] / clip_norm * weight))
            if stands_within(gridded, indices, row_ptr, first, last, shift, squared_shift, bits):
                break
            weight *= max(1.0 - room, 0.0)
        else:  # impossible by the analysis above; the bound holds even so
            gridded[row_ptr[first] : row_ptr[last]] = 0
    return gridded


@njit(cache=True, nogil=True)
def stands_within(
    gridded: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    first: int,
    last: int,
    shift: NDArray[np.int64],
    squared_shift: np.int64,
    bits: int,
) -> bool:
    """Tell whether a record's norm is at most ``2^(bits + 1)``, and that of what it stands for at most ``2^bits``.

    With rows ``(x, t)`` and the mean ``M 2^-16``, the second is ``sum |2^16 x - t M|^2 <= 4^(bits + 16)``. For ``bits``
    up to 13 and M up to ``2^16`` long, no term of the expanded square passes ``2^60`` once the first is found to hold.
    """
    squares, products, constants = _sums(gridded, indices, row_ptr, first, last, shift)
    if squares + constants > np.int64(4) << (2 * bits):
        return False
    distance = (squares << (2 * SHIFT_BITS)) - (products << (SHIFT_BITS + 1)) + constants * squared_shift
    return bool(distance <= np.int64(1) << (2 * (bits + SHIFT_BITS)))


@njit(cache=True, nogil=True)
def shifted_squares(
    gridded: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    shift: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the squared norm of what each record stands for, in whole steps, rounded down.

    Records are those of `grid_shifted_records`, so each is at most ``4^bits``.
    """
    squared_shift = np.int64(0)
    for entry in shift:
        squared_shift += entry * entry
    found = np.zeros(record_ptr.size - 1, np.int64)
    for record in range(found.size):
        first, last = record_ptr[record], record_ptr[record + 1]
        squares, products, constants = _sums(gridded, indices, row_ptr, first, last, shift)
        distance = (squares << (2 * SHIFT_BITS)) - (products << (SHIFT_BITS + 1)) + constants * squared_shift
        found[record] = distance >> (2 * SHIFT_BITS)
    return found


@njit(cache=True, nogil=True)
def _sums(
    gridded: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    first: int,
    last: int,
    shift: NDArray[np.int64],
) -> tuple[np.int64, np.int64, np.int64]:
    """Return what a record's distance follows from: its squares, products with the mean, and squared constants."""
    squares = products = constants = np.int64(0)
    for row in range(first, last):
        end = row_ptr[row + 1] - 1
        product = np.int64(0)
        for at in range(row_ptr[row], end):
            point = np.int64(gridded[at])
            squares += point * point
            product += point * shift[indices[at]]
        constant = np.int64(gridded[end])
        products += product * constant
        constants += constant * constant
    return squares, products, constants
