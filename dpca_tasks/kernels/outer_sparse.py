"""Outer products of rows with few entries: loops over stored values, compiled, to the last bit.

Entries are integers and so are their products, which any order adds up to the same. None of the loops starts a thread.

>>> import numpy as np
>>> total = np.zeros(3, np.int64)
>>> add_outer_products(np.array([1, 2, 3], np.int32), np.array([0, 1, 1]), np.array([0, 2, 3]), 2, total)
>>> total
array([ 1,  2, 13])
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

WIDE = 1_200
"""Columns from which a triangle is far from the processor: 6 MB."""
STRIP_SUMS = 1 << 17
"""Sums in a strip of such a triangle, at most, unless one row has more: 1 MB."""
SORTED = 1 << 20
"""Stored values that are put in order at a time, and up to one row more: 16 MB."""


@njit(cache=True, nogil=True)
def add_outer_products(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add the upper triangle of every row's outer product to ``total``, packed row by row.

    Where the triangle is near, rows are taken as they come; where it is wide, by strips of it.
    """
    if n_features < WIDE:
        add_by_rows(values, indices, row_ptr, n_features, total)
    else:
        add_by_strips(values, indices, row_ptr, n_features, total)


@njit(cache=True, nogil=True)
def add_by_rows(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add each row's outer product, four rows of the triangle at a time: a stored value is loaded once for four."""
    row_values = np.empty(n_features, total.dtype)
    columns = np.empty(n_features, np.uint64)  # unsigned indices are not tested for counting from the end
    starts = np.empty(n_features, np.uint64)  # where the triangle's row begins, less its first column
    for row in range(row_ptr.size - 1):
        first = row_ptr[row]
        size = row_ptr[row + 1] - first
        for at in range(size):
            column = np.int64(indices[first + at])
            row_values[at] = values[first + at]
            columns[at] = column
            starts[at] = start_of(column, n_features)
        left = 0
        while left + 4 <= size:
            v0, v1, v2, v3 = row_values[left], row_values[left + 1], row_values[left + 2], row_values[left + 3]
            s0, s1, s2, s3 = starts[left], starts[left + 1], starts[left + 2], starts[left + 3]
            c0, c1, c2 = columns[left], columns[left + 1], columns[left + 2]
            total[s0 + c0] += v0 * v0
            total[s0 + c1] += v0 * v1
            total[s0 + c2] += v0 * v2
            total[s1 + c1] += v1 * v1
            total[s1 + c2] += v1 * v2
            total[s2 + c2] += v2 * v2
            for right in range(left + 3, size):
                column, value = columns[right], row_values[right]
                total[s0 + column] += v0 * value
                total[s1 + column] += v1 * value
                total[s2 + column] += v2 * value
                total[s3 + column] += v3 * value
            left += 4
        while left < size:
            start, value = starts[left], row_values[left]
            for right in range(left, size):
                total[start + columns[right]] += value * row_values[right]
            left += 1


@njit(cache=True, nogil=True)
def add_by_strips(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add a strip of the triangle at a time, so that what is added to stays near.

    Stored values of as many rows as have `SORTED` are put in order of the strip of their column, and within it of their
    row; each then meets the rest of its row.

    Notes
    -----
    In one run at d = 2,000 with 20 values a row, an addition took 13 ns by rows and 5.5 ns by strips where memory was
    slow; where it is fast, 4 ns either way. A strip that is one row needs but a transpose; it has one short loop a
    stored value, from a row that is far, and took longer than both.
    """
    starts, strip_of = np.empty(n_features, np.uint64), np.empty(n_features, np.int64)
    strip, room = 0, STRIP_SUMS
    for column in range(n_features):
        if room < n_features - column:
            strip, room = strip + 1, STRIP_SUMS
        room -= n_features - column
        starts[column], strip_of[column] = start_of(column, n_features), strip
    order, ends = np.empty(SORTED + n_features, np.int64), np.empty(SORTED + n_features, np.int64)
    first = 0
    while first < row_ptr.size - 1:
        last = first + 1
        while last < row_ptr.size - 1 and row_ptr[last] - row_ptr[first] < SORTED:
            last += 1
        places = np.zeros(strip + 2, np.int64)  # of the next entry of each strip
        for at in range(row_ptr[first], row_ptr[last]):
            places[strip_of[indices[at]] + 1] += 1
        for following in range(1, places.size):
            places[following] += places[following - 1]
        for row in range(first, last):
            for at in range(row_ptr[row], row_ptr[row + 1]):
                place = places[strip_of[indices[at]]]
                places[strip_of[indices[at]]] += 1
                order[place], ends[place] = at, row_ptr[row + 1]
        for entry in range(places[-1]):
            left = np.uint64(order[entry])
            start, value = starts[indices[left]], total.dtype.type(values[left])
            for right in range(left, np.uint64(ends[entry])):
                total[start + np.uint64(indices[right])] += value * total.dtype.type(values[right])
        first = last


@njit(cache=True, nogil=True)
def start_of(column: int | np.int64, n_features: int) -> int | np.int64:
    """Return where a row of the packed triangle begins, less its first column."""
    return column * n_features - (column * (column + 1)) // 2
