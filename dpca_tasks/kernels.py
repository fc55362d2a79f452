"""The hot loops over private rows, each a pure function on arrays, each exact.

Every loop runs in a fixed order inside one record and uses only ``+ - * / sqrt``, compiled without fast-math,
so a record gives the same bits on any machine, in any block and next to any neighbours.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def rows_are_canonical(indices: NDArray[np.integer], row_ptr: NDArray[np.int64], n_features: int) -> bool:
    """Tell whether every row has strictly increasing column ids inside ``0 .. n_features - 1``."""
    for row in range(row_ptr.size - 1):
        last = np.int64(-1)
        for at in range(row_ptr[row], row_ptr[row + 1]):
            column = np.int64(indices[at])
            if column <= last or column >= n_features:
                return False
            last = column
    return True


@njit(cache=True, nogil=True)
def merge_duplicates(
    values: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Add up neighbours with the same row and column; the entries are sorted by both."""
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
    bits: int,
) -> NDArray[np.int32]:
    """Clip each record to ``clip_norm`` and round it to the grid of step ``2^-bits``; see `blocks`."""
    gridded = np.zeros(values.size, np.int32)
    half_range = np.float64(1 << bits)
    bound = np.int64(1) << (2 * bits)
    for record in range(record_ptr.size - 1):
        start = row_ptr[record_ptr[record]]
        stop = row_ptr[record_ptr[record + 1]]
        largest = 0.0
        finite = True
        for at in range(start, stop):
            size = abs(np.float64(values[at]))
            if not size < np.inf:  # NaN too
                finite = False
            largest = max(largest, size)
        if not finite or largest == 0.0:
            continue
        squares = 0.0
        for at in range(start, stop):
            part = np.float64(values[at]) / largest
            squares += part * part
        root = np.sqrt(squares)
        clipped = largest / clip_norm * root > 1.0
        divisor = root if clipped else 1.0
        unit = largest if clipped else clip_norm
        total = np.int64(0)
        for at in range(start, stop):
            point = np.int64(np.rint(np.float64(values[at]) / unit / divisor * half_range))
            gridded[at] = point
            total += point * point
        if total <= bound:
            continue
        total = np.int64(0)
        shrunk = half_range * (1.0 - 2.0**-24)
        for at in range(start, stop):
            point = np.int64(np.float64(values[at]) / unit / divisor * shrunk)  # toward zero
            gridded[at] = point
            total += point * point
        if total > bound:  # impossible by the analysis in `blocks`; the bound holds even so
            gridded[start:stop] = 0
    return gridded


@njit(cache=True, nogil=True)
def add_outer_products(
    values: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add the upper triangle of every row's outer product to ``total``, packed row by row."""
    for row in range(row_ptr.size - 1):
        stop = row_ptr[row + 1]
        for left in range(row_ptr[row], stop):
            i = np.int64(indices[left])
            base = i * n_features - (i * (i + 1)) // 2
            value = np.int64(values[left])
            for right in range(left, stop):
                total[base + indices[right]] += value * np.int64(values[right])


@njit(cache=True, nogil=True)
def add_moment_products(
    values: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    directions: NDArray[np.int64],
    direction_bits: int,
    bits: int,
    total: NDArray[np.int64],
) -> None:
    """Add ``X_u^T Y_u`` of every record, ``Y_u = X_u V`` rounded to the grid and clipped to norm 1."""
    width = directions.shape[1]
    bound = np.int64(1) << (2 * bits)
    half_step = np.int64(1) << (direction_bits - 1)
    scores = np.empty((0, width), np.int64)
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        if last - first > scores.shape[0]:
            scores = np.empty((2 * (last - first), width), np.int64)
        squares = np.int64(0)
        fine_squares = 0.0
        for row in range(first, last):
            exact = scores[row - first]
            exact[:] = 0
            for at in range(row_ptr[row], row_ptr[row + 1]):
                value = np.int64(values[at])
                direction = directions[indices[at]]
                for column in range(width):
                    exact[column] += value * direction[column]
            for column in range(width):
                fine = np.float64(exact[column])
                fine_squares += fine * fine
                rounded = (exact[column] + half_step) >> direction_bits
                squares += rounded * rounded
        shrink = 0.0
        if squares > bound:
            shrink = np.float64(1 << bits) * (1.0 - 2.0**-24) / np.sqrt(fine_squares)
            squares = np.int64(0)
        for row in range(first, last):
            score = scores[row - first]
            for column in range(width):
                if shrink > 0.0:
                    score[column] = np.int64(np.float64(score[column]) * shrink)  # toward zero
                    squares += score[column] * score[column]
                else:
                    score[column] = (score[column] + half_step) >> direction_bits
        if squares > bound:  # impossible by the analysis in `blocks`; the bound holds even so
            continue
        for row in range(first, last):
            score = scores[row - first]
            for at in range(row_ptr[row], row_ptr[row + 1]):
                value = np.int64(values[at])
                base = np.int64(indices[at]) * width
                for column in range(width):
                    total[base + column] += value * score[column]


@njit(cache=True, nogil=True)
def normalise_records(
    values: NDArray[np.floating], row_ptr: NDArray[np.int64], record_ptr: NDArray[np.int64], length: float
) -> NDArray[np.float64]:
    """Scale each record to norm ``length``; empty and non-finite ones stay as they are."""
    scaled = values.astype(np.float64)
    for record in range(record_ptr.size - 1):
        start, stop = row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]
        largest, root = _record_norm(scaled, start, stop)
        if not 0.0 < largest < np.inf:
            continue
        for at in range(start, stop):
            scaled[at] = scaled[at] / largest / root * length
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

    A non-finite record becomes the empty one; its rows get the constant too.
    """
    n_rows = row_ptr.size - 1
    longer = np.zeros(values.size + n_rows, np.float64)
    columns = np.empty(longer.size, np.int32)
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        largest, root = _record_norm(values, row_ptr[first], row_ptr[last])
        finite = largest < np.inf
        clipped = finite and largest / clip_norm * root > 1.0
        for row in range(first, last):
            for at in range(row_ptr[row], row_ptr[row + 1]):
                columns[at + row] = indices[at]
                if clipped:
                    longer[at + row] = np.float64(values[at]) / largest / root * clip_norm
                elif finite:
                    longer[at + row] = np.float64(values[at])
            end = row_ptr[row + 1] + row
            columns[end] = column
            longer[end] = constant / np.sqrt(np.float64(last - first))
    return longer, columns, row_ptr + np.arange(row_ptr.size)


@njit(cache=True, nogil=True)
def norm_bins(
    values: NDArray[np.floating],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    edges: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return the first edge that is at least each record's norm (past the last: the last); -1 for no norm.

    Empty and non-finite records have none.
    """
    bins = np.full(record_ptr.size - 1, -1, np.int64)
    for record in range(record_ptr.size - 1):
        largest, root = _record_norm(values, row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]])
        if 0.0 < largest < np.inf:
            at = np.searchsorted(edges, largest * root)
            bins[record] = at if at < edges.size else edges.size - 1
    return bins


@njit(cache=True, nogil=True)
def _record_norm(values: NDArray[np.floating], start: int, stop: int) -> tuple[float, float]:
    """Return the largest magnitude and the norm over it; infinity when a value is not finite."""
    largest = 0.0
    for at in range(start, stop):
        size = abs(np.float64(values[at]))
        if not size < np.inf:  # NaN too
            return np.inf, 1.0
        largest = max(largest, size)
    squares = 0.0
    if largest > 0.0:
        for at in range(start, stop):
            part = np.float64(values[at]) / largest
            squares += part * part
    return largest, np.sqrt(squares)
