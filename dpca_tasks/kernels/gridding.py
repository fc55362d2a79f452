"""Loops that compute norms of records and convert records to the integer grid.

*Before the grid.* Norms of records are computed as stored, and records are normalised or extended. Loops run in a fixed
order inside one record and use only ``+ - * / sqrt``, so the bits are the same in any block.

*Onto the grid.* Rows are made canonical, duplicates are merged, and records are clipped in integers.

*With a public mean.* A record minus a public mean is clipped again and converted without being formed: rows stay
sparse. A record x of one row that ends in a constant 1 represents ``x - m``, the image of ``[x, 1]`` under the linear
map ``(x, t) -> x - t m``. So a record is scaled and rounded as stored, with its constants, and the check applies to the
norm of the represented record ``x - m``. All numbers are integers, m too, so that check is exact.

*On the grid.* Squares of records along public directions are computed in integers, separately for each record.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def record_norm(values: NDArray[np.floating], start: int, stop: int) -> tuple[float, float]:
    """Return a power of two and the norm of the record times that power.

    If a value is not finite, the norm is infinite or NaN. The power is 1 unless the squares would overflow or vanish.
    """
    factor, squares = 1.0, sum_of_squares(values, start, stop, 1.0)
    if not 2.0**-900 < squares < 2.0**900:
        factor = 2.0**600 if squares < 1.0 else 2.0**-600
        squares = sum_of_squares(values, start, stop, factor)
    return factor, np.sqrt(squares)


@njit(cache=True, nogil=True)
def sum_of_squares(values: NDArray[np.floating], start: int, stop: int, factor: float) -> float:
    """Return the sum of squares of a record times a factor."""
    squares = 0.0
    for at in range(start, stop):
        part = np.float64(values[at]) * factor
        squares += part * part
    return squares


@njit(cache=True, nogil=True)
def normalise_records(
    values: NDArray[np.floating], row_ptr: NDArray[np.int64], record_ptr: NDArray[np.int64], length: float
) -> NDArray[np.float64]:
    """Scale each record to norm ``length``; empty and non-finite records are not changed."""
    scaled = values.astype(np.float64)
    for record in range(record_ptr.size - 1):
        start, stop = row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]
        factor, root = record_norm(scaled, start, stop)
        if not 0.0 < root < np.inf:
            continue
        for at in range(start, stop):
            scaled[at] = scaled[at] * factor / root * length
    return scaled


@njit(cache=True, nogil=True)
def extend_records(
    values: NDArray[np.floating],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    clip_norm: float,
    constant: float,
    column: int,
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int64]]:
    """Clip each record to ``clip_norm`` and append ``constant / sqrt(m)`` to each of its m rows, at ``column``.

    A non-finite record becomes the empty record; its rows get the constant too.
    """
    n_rows = row_ptr.size - 1
    longer = np.zeros(values.size + n_rows, np.float64)
    columns = np.empty(longer.size, np.int32)
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        factor, root = record_norm(values, row_ptr[first], row_ptr[last])
        finite = root < np.inf
        clipped = finite and root > clip_norm * factor
        for row in range(first, last):
            for at in range(row_ptr[row], row_ptr[row + 1]):
                columns[at + row] = indices[at]
                if clipped:
                    longer[at + row] = np.float64(values[at]) * factor / root * clip_norm
                elif finite:
                    longer[at + row] = np.float64(values[at])
            end = row_ptr[row + 1] + row
            columns[end] = column
            longer[end] = constant / np.sqrt(np.float64(last - first))
    return longer, columns, row_ptr + np.arange(row_ptr.size)


@njit(cache=True, nogil=True)
def shared_constant(square: int, n_rows: int) -> np.int32:
    """Return ``floor(sqrt(square / m))``, the largest constant that m rows can share; exact for ``square <= 2^52``."""
    return np.int32(np.floor(np.sqrt(np.float64(square // max(n_rows, 1)))))


@njit(cache=True, nogil=True)
def append_constants(
    values: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    square: int,
    column: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Append `shared_constant` to each of the m rows of a record on the grid, at ``column``.

    The constants of a record depend on its number of rows alone, and their squares sum to at most ``square``.
    """
    longer = np.empty(values.size + row_ptr.size - 1, np.int32)
    columns = np.empty(longer.size, np.int32)
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        constant = shared_constant(square, last - first)
        for row in range(first, last):
            start, stop = row_ptr[row], row_ptr[row + 1]
            longer[start + row : stop + row] = values[start:stop]
            columns[start + row : stop + row] = indices[start:stop]
            longer[stop + row] = constant
            columns[stop + row] = column
    return longer, columns, row_ptr + np.arange(row_ptr.size)


@njit(cache=True, nogil=True)
def norm_bins(
    values: NDArray[np.floating],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    edges: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return the index of the first edge that is at least each record's norm, or of the last edge for larger norms.

    For empty and non-finite records the index is -1.
    """
    bins = np.full(record_ptr.size - 1, -1, np.int64)
    for record in range(record_ptr.size - 1):
        factor, root = record_norm(values, row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]])
        if 0.0 < root < np.inf:
            at = np.searchsorted(edges, root / factor)
            bins[record] = at if at < edges.size else edges.size - 1
    return bins


@njit(cache=True, nogil=True)
def rows_are_canonical(indices: NDArray[np.integer], row_ptr: NDArray[np.int64], n_features: int) -> bool:
    """Return whether every row has strictly increasing column ids inside ``0 .. n_features - 1``.

    This is the case when ids fail to increase only where a row begins, and the first and last id of each row are
    inside.
    """
    falls = 0
    for at in range(1, indices.size):
        falls += indices[at] <= indices[at - 1]
    for row in range(row_ptr.size - 1):
        first, stop = row_ptr[row], row_ptr[row + 1]
        if first < stop:
            if indices[first] < 0 or indices[stop - 1] >= n_features:
                return False
            falls -= first > 0 and indices[first] <= indices[first - 1]
    return bool(falls == 0)


@njit(cache=True, nogil=True)
def merge_duplicates(
    values: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Add up consecutive entries with the same row and column; entries must be sorted by both."""
    merged, row_ids, column_ids = np.empty_like(values), np.empty_like(rows), np.empty_like(columns)
    count = 0
    for at in range(values.size):
        if count and row_ids[count - 1] == rows[at] and column_ids[count - 1] == columns[at]:
            merged[count - 1] += values[at]
        else:
            merged[count], row_ids[count], column_ids[count] = values[at], rows[at], columns[at]
            count += 1
    return merged[:count], row_ids[:count], column_ids[:count]


@njit(cache=True, nogil=True)
def grid_records(
    values: NDArray[np.floating],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    clip_norm: float,
    bound: int,
) -> NDArray[np.int32]:
    """Clip each record to ``clip_norm`` and round it to the grid on which ``clip_norm`` is ``sqrt(bound)`` steps.

    The squares of a record sum to at most ``bound``; see `blocks`.
    """
    half_range = np.sqrt(np.float64(bound))
    gridded = np.empty(values.size, np.int32)
    for at in range(values.size):  # all values unscaled, in one loop without a branch
        part = np.float64(values[at]) / clip_norm * half_range
        part = part if part < half_range + 1.0 else half_range + 1.0  # for NaN too: this entry alone exceeds the bound
        part = part if part > -half_range - 1.0 else -half_range - 1.0
        gridded[at] = np.int32(np.rint(part))
    for record in range(record_ptr.size - 1):
        start, stop = row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]
        if is_within(gridded, start, stop, bound):
            continue
        factor, root = record_norm(values, start, stop)
        if not root < np.inf:
            gridded[start:stop] = 0
            continue
        unit = clip_norm * factor
        if root > unit:
            unit = root
            for at in range(start, stop):
                gridded[at] = np.int32(np.rint(np.float64(values[at]) * factor * (half_range / unit)))
            if is_within(gridded, start, stop, bound):
                continue
        shrunk = half_range * (1.0 - 2.0**-24) / unit
        for at in range(start, stop):
            gridded[at] = np.int32(np.float64(values[at]) * factor * shrunk)  # toward zero
        if not is_within(gridded, start, stop, bound):  # impossible by the analysis in `blocks`, but checked
            gridded[start:stop] = 0
    return gridded


@njit(cache=True, nogil=True)
def is_within(gridded: NDArray[np.int32], start: int, stop: int, bound: int) -> bool:
    """Return whether the squares of entries of magnitude at most ``sqrt(bound) + 1`` sum to at most ``bound``.

    The sum is compared often enough that it cannot exceed ``2^63``: with bounds up to ``4^28``, 64 squares are near
    ``2^62``.
    """
    total = np.int64(0)
    while stop - start > 64:
        for at in range(start, start + 64):
            total += np.int64(gridded[at]) * np.int64(gridded[at])
        if total > bound:
            return False
        start += 64
    for at in range(np.uint64(start), np.uint64(stop)):  # a separate loop, since most records are short
        total += np.int64(gridded[at]) * np.int64(gridded[at])
    return bool(total <= bound)


SHIFT_BITS = 16
"""The mean is on a grid of step ``2^-16`` clip norms."""


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
    """Scale and round each extended record so that the record it represents has norm at most ``clip_norm``.

    Rows end in their constants, of norm ``clip_norm`` for a whole record, and are clipped. The first attempt rounds to
    the nearest point of the grid of step ``2^-bits``. If the record is then too long, the second attempt starts from a
    size that leaves room for the rounding of all its entries.

    Guarantees
    ----------
    Every record passes `stands_within`, which compares integers after all rounding. Rounding moves the values by at
    most half the square root of their number, in steps, and the constants likewise. It moves the represented record by
    at most the sum of both, as the mean has norm at most 1. So the second attempt passes. On a grid that is far too
    coarse there may be no room; then the result is the empty record.
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
        else:  # impossible by the analysis above; the bound holds even then
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
    """Return whether a record's norm is at most ``2^(bits + 1)`` and the norm it represents at most ``2^bits``.

    With rows ``(x, t)`` and the mean ``M 2^-16``, the second condition is ``sum |2^16 x - t M|^2 <= 4^(bits + 16)``.
    For ``bits`` up to 13 and M of norm up to ``2^16``, no term of the expanded square exceeds ``2^60`` once the first
    condition holds.
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
    """Return the squared norm of the record that each extended record represents, in whole steps, rounded down.

    Extended records are results of `grid_shifted_records`, so each squared norm is at most ``4^bits``.
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
    """Return the sum of squares of a record, of its products with the mean, and of its squared constants."""
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


@njit(cache=True, nogil=True)
def record_squares(
    values: NDArray[np.int32], row_ptr: NDArray[np.int64], record_ptr: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the squared norm of each record."""
    found = np.zeros(record_ptr.size - 1, np.int64)
    for record in range(found.size):
        for at in range(row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]):
            point = np.int64(values[at])
            found[record] += point * point
    return found


@njit(cache=True, nogil=True)
def add_energies(
    values: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    directions: NDArray[np.int64],
    direction_bits: int,
    squares: NDArray[np.int64],
    total: NDArray[np.int64],
) -> None:
    """Split the squared norm of each record into three whole parts, and add each part to its total.

    Scores are exact integer products, rounded to the nearest step. The first part is the square along the first
    direction, at most the whole. The second part is the square along the other directions, at most what is left. The
    third part is the rest.
    """
    half = np.int64(1) << (direction_bits - 1)
    width = directions.shape[1]
    for record in range(record_ptr.size - 1):
        first = others = np.int64(0)
        for row in range(record_ptr[record], record_ptr[record + 1]):
            for column in range(width):
                product = np.int64(0)
                for at in range(row_ptr[row], row_ptr[row + 1]):
                    product += np.int64(values[at]) * directions[indices[at], column]
                score = (product + half) >> direction_bits
                if column == 0:
                    first += score * score
                else:
                    others += score * score
        first = min(first, squares[record])
        others = min(others, squares[record] - first)
        total[0] += first
        total[1] += others
        total[2] += squares[record] - first - others
