"""Loops that compute norms of records and round records to an integer grid.

A record is the group of rows of one individual. Rows are in compressed sparse format.

*Before rounding.* Norms of records are computed from the stored floats, and records are normalised or get a constant
column. Loops run in a fixed order inside one record and use only ``+ - * / sqrt``. So the bits of a record's result do
not depend on the block in which the record is stored.

*Rounding to the grid.* Rows are made canonical, duplicates are merged, and records are clipped in integers.

*Subtracting a public mean.* Rows minus a mean m would be dense. Instead, a sparse row x is extended by a constant t,
and ``[x, t]`` represents ``x - t m``. The extended row is scaled and rounded. The bound is checked for the norm of the
represented row ``x - t m``. All numbers are integers, including m, so this check is exact.

*On the grid.* Squared norms of records along public directions are computed in integers, separately for each record.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def record_norm(values: NDArray[np.floating], start: int, stop: int) -> tuple[float, float]:
    """Return a power of two, and the norm of the record ``values[start:stop]`` multiplied by that power.

    The power is 1 unless the squares of the values would overflow or underflow. If a value is not finite, the norm is
    infinite or NaN.
    """
    factor, squares = 1.0, sum_of_squares(values, start, stop, 1.0)
    if not 2.0**-900 < squares < 2.0**900:
        factor = 2.0**600 if squares < 1.0 else 2.0**-600
        squares = sum_of_squares(values, start, stop, factor)
    return factor, np.sqrt(squares)


@njit(cache=True, nogil=True)
def sum_of_squares(values: NDArray[np.floating], start: int, stop: int, factor: float) -> float:
    """Return the sum of squares of the values of a record, each multiplied by ``factor`` before squaring."""
    squares = 0.0
    for at in range(start, stop):
        part = np.float64(values[at]) * factor
        squares += part * part
    return squares


@njit(cache=True, nogil=True)
def normalise_records(
    values: NDArray[np.floating], row_ptr: NDArray[np.int64], record_ptr: NDArray[np.int64], length: float
) -> NDArray[np.float64]:
    """Scale each record to norm ``length``; records that are zero, empty or not finite are not changed."""
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
    """Clip each record to norm ``clip_norm``, and append ``constant / sqrt(m)`` to each of its m rows, at ``column``.

    The values of a record that is not finite become 0; its rows get the constant too.
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
    """Return the largest integer c with ``n_rows c^2 <= square``, exact for ``square <= 2^52``.

    It is the constant that is appended to each of the ``n_rows`` rows of a record.
    """
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
    """Append the constant `shared_constant` to each row of every record on the grid, at ``column``.

    The constants of a record depend only on the number of rows of the record. Their squares sum to at most ``square``.
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
    """Return the histogram bin of each record's norm, where ``edges`` are the upper edges of the bins.

    Norms above the last edge are in the last bin. For records that are zero, empty or not finite the result is -1.
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
    """Return whether every row has strictly increasing column ids from 0 to ``n_features - 1``.

    The loop counts positions where an id is not above the id before it. In canonical rows, such positions occur only at
    the start of a row. It then suffices to check that the first and the last id of each row are in the range.
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
    """Merge entries with the same row and column by adding their values; entries must be sorted by row and column."""
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

    The squared integers of a record sum to at most ``bound``, as the notes of `dpca_tasks.records.blocks` prove. A
    record with a value that is not finite becomes 0.
    """
    half_range = np.sqrt(np.float64(bound))
    gridded = np.empty(values.size, np.int32)
    for at in range(values.size):  # try without clipping first: one loop without branches
        part = np.float64(values[at]) / clip_norm * half_range
        part = part if part < half_range + 1.0 else half_range + 1.0  # NaN becomes a value beyond the bound too
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
        if not is_within(gridded, start, stop, bound):  # impossible by the proof in `blocks`, but checked
            gridded[start:stop] = 0
    return gridded


@njit(cache=True, nogil=True)
def is_within(gridded: NDArray[np.int32], start: int, stop: int, bound: int) -> bool:
    """Return whether the squares of ``gridded[start:stop]`` sum to at most ``bound``.

    Entries have magnitude at most ``sqrt(bound) + 1``, and ``bound`` is at most ``4^28``. The sum is compared after
    every 64 squares, which add at most about ``2^62``, so the sum cannot exceed ``2^63``.
    """
    total = np.int64(0)
    while stop - start > 64:
        for at in range(start, start + 64):
            total += np.int64(gridded[at]) * np.int64(gridded[at])
        if total > bound:
            return False
        start += 64
    for at in range(np.uint64(start), np.uint64(stop)):  # most records are short and need only this loop
        total += np.int64(gridded[at]) * np.int64(gridded[at])
    return bool(total <= bound)


SHIFT_BITS = 16
"""A public mean is rounded to a grid of step ``2^-16`` clip norms."""


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
    """Scale and round each record so that the record minus a public mean has norm at most ``clip_norm``.

    A stored row ``[x, t]`` ends in a constant t and represents ``x - t m`` for the public mean m, given by ``shift`` in
    steps of ``2^-16``. Stored records are already clipped, and the constants of a record have norm ``clip_norm``. The
    first attempt rounds to the nearest point of the grid of step ``2^-bits``. If the represented record is then too
    long, the second attempt scales the record down first, to leave room for the rounding of all entries.

    Guarantees
    ----------
    Every result satisfies `stands_within`, which compares integers after all rounding. Rounding moves the vector of
    values by at most half the square root of the number of values, in steps, and likewise the vector of constants. The
    mean has norm at most 1, so the represented record moves by at most the sum of these two lengths. So the second
    attempt succeeds. On a far too coarse grid the rounding may exceed the bound itself; then all entries become 0.
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
        else:  # impossible by the guarantee in the docstring, but an empty record satisfies the bound
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
    """Return whether a record of rows ``[x, t]``, and the same record minus the public mean, are short enough.

    The first condition is that the norm of the rows ``[x, t]`` is at most ``2^(bits + 1)`` grid steps. The second is
    that the represented rows ``x - t M / 2^16`` have norm at most ``2^bits``, where M is ``shift``. In integers the
    second condition is ``sum |2^16 x - t M|^2 <= 4^(bits + 16)``. For ``bits`` up to 13 and M of norm up to ``2^16``,
    no term of the expanded square exceeds ``2^60`` if the first condition holds.
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
    """Return the squared norm of each record minus the public mean, in squared grid steps, rounded down.

    The given records are results of `grid_shifted_records`: rows ``[x, t]`` that represent ``x - t m`` for the mean m.
    Gridding clips each record to a norm of ``2^bits`` grid steps, so each squared norm is at most ``4^bits``.
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
    """Return three sums over the rows ``[x, t]`` of a record: of ``|x|^2``, of ``t x . shift``, and of ``t^2``."""
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
    """Return the squared norm of each record on the grid, in squared grid steps."""
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
    """Split the squared norm of each record into three integers, and add them to ``total[0]``, ``[1]`` and ``[2]``.

    The first integer is the squared norm along the first direction. The second is the squared norm along all other
    directions, but at most what the first leaves of the squared norm. The third is the rest. Scores along
    directions are exact integer products, rounded to the nearest grid step.
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
