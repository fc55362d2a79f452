"""Loops over rows on the grid that multiply with public directions, each exact."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.kernels.prefetch import prefetch

STRIP = 1 << 12
"""Scores at a time, so that those of a strip of rows stay in the second cache."""
FAR = 1 << 17
"""Entries from which V and a product with it are far: 1.5 MB together."""
AHEAD_OF_ROW = 16
"""Stored values whose rows of such a matrix are fetched before they are met."""
LINE = 64
"""Bytes that are fetched at once."""


@njit(cache=True, nogil=True)
def add_moment_products(
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
    """Add ``X_u^T Y_u`` of every record of at most ``longest`` rows, ``Y_u = X_u V`` rounded and clipped to norm 1.

    It is clipped further where ``||X_u|| ||Y_u||`` would be above ``most`` steps of ``4^-bits``.

    One pass: records are taken in strips whose scores stay in the second cache. Scores are floats that hold
    integers below ``2^53``, so any order and any instruction gives the same.
    """
    width = directions.shape[1]
    strip = STRIP // width + 1
    exact = np.empty((strip, width))
    rounded = np.empty((strip, width), np.int64)
    first = 0
    while first < record_ptr.size - 1:
        last = end_of_strip(record_ptr, first, strip)
        start, stop = record_ptr[first], record_ptr[last]
        if stop - start > exact.shape[0]:
            exact = np.empty((stop - start, width))
            rounded = np.empty((stop - start, width), np.int64)
        bounds = row_ptr[start : stop + 1]
        score_rows(values, indices, bounds, directions, exact)
        limits = score_limits(values, row_ptr, record_ptr[first : last + 1], bits, most)
        round_scores(exact, record_ptr[first : last + 1] - start, limits, direction_bits, bits, longest, rounded)
        scatter_scores(values, indices, bounds, rounded, total)
        first = last


@njit(cache=True, nogil=True)
def end_of_strip(record_ptr: NDArray[np.int64], first: int, rows: int) -> int:
    """Return where the strip of records from ``first`` ends: as many as have so many rows, and at least one."""
    last = first + 1
    while last < record_ptr.size - 1 and record_ptr[last + 1] - record_ptr[first] <= rows:
        last += 1
    return last


@njit(cache=True, nogil=True)
def add_unrounded_products(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    directions: NDArray[np.integer],
    total: NDArray[np.int64],
) -> None:
    """Add ``X^T (X V)`` without rounding in between: exact wherever the sum itself fits 63 bits.

    Everything is int64. Scores and partial sums that overflow do no harm, since integers wrap around.
    """
    width = directions.shape[1]
    strip = STRIP // width + 1
    scores = np.empty((strip, width), np.int64)
    for first in range(0, row_ptr.size - 1, strip):
        bounds = row_ptr[first : first + strip + 1]
        score_rows(values, indices, bounds, directions, scores)
        scatter_scores(values, indices, bounds, scores, total)


@njit(cache=True, nogil=True)
def score_rows(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    directions: NDArray[np.integer],
    scores: NDArray[np.float64] | NDArray[np.int64],
) -> None:
    """Write ``X V``, two stored values at a time; exact in floats while no part of a row's sum reaches ``2^53``."""
    width = directions.shape[1]
    flat = directions.reshape(directions.size)
    line, ahead = LINE // flat.itemsize, AHEAD_OF_ROW if flat.size >= FAR else row_ptr[-1]
    kind = scores.dtype.type
    for row in range(row_ptr.size - 1):
        for at in range(row_ptr[row] + ahead, min(row_ptr[row + 1] + ahead, row_ptr[-1])):
            for column in range(0, width, line):
                prefetch(flat, np.uint64(indices[at] * width + column))  # type: ignore[call-arg]  # less its context
        score = scores[row]
        at, stop = row_ptr[row], row_ptr[row + 1]
        if (stop - at) % 2:
            value, direction = kind(values[at]), directions[np.uint64(indices[at])]
            for column in range(width):
                score[column] = value * kind(direction[column])
            at += 1
        else:
            score[:] = 0
        while at < stop:
            value, direction = kind(values[at]), directions[np.uint64(indices[at])]
            next_value, next_direction = kind(values[at + 1]), directions[np.uint64(indices[at + 1])]
            for column in range(width):
                score[column] += value * kind(direction[column]) + next_value * kind(next_direction[column])
            at += 2


@njit(cache=True, nogil=True)
def score_limits(
    values: NDArray[np.int32], row_ptr: NDArray[np.int64], record_ptr: NDArray[np.int64], bits: int, most: int
) -> NDArray[np.int64]:
    """Return the largest squared norm of each record's scores, in squared steps of ``2^-bits``.

    That is 1, or less where the norm of the scores times that of the record would be above ``most`` steps of
    ``4^-bits``, at most ``2^28``.
    """
    one = np.int64(1) << (2 * bits)
    limits = np.full(record_ptr.size - 1, one)
    if most >= one:
        return limits
    for record in range(limits.size):
        squares = np.int64(0)
        for at in range(row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]):
            squares += np.int64(values[at]) * np.int64(values[at])
        if squares > 0:
            limits[record] = min(one, most * most // squares)
    return limits


@njit(cache=True, nogil=True)
def round_scores(
    exact: NDArray[np.float64],
    record_ptr: NDArray[np.int64],
    limits: NDArray[np.int64],
    direction_bits: int,
    bits: int,
    longest: int,
    rounded: NDArray[np.int64],
) -> None:
    """Round every record's scores to the grid, and clip those of squared norm above its limit; each record by itself.

    Those of a record of more than ``longest`` rows become 0.
    """
    width = exact.shape[1]
    half_step = np.int64(1) << (direction_bits - 1)
    row_squares = np.empty(record_ptr[-1], np.int64)
    for row in range(row_squares.size):
        fine, nearest, squares = exact[row], rounded[row], np.int64(0)
        for column in range(width):
            point = (np.int64(fine[column]) + half_step) >> direction_bits
            nearest[column] = point
            squares += point * point
        row_squares[row] = squares
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        if last - first > longest:
            rounded[first:last] = 0
            continue
        bound, squares = limits[record], np.int64(0)
        for row in range(first, last):
            squares += row_squares[row]
        if squares <= bound:
            continue
        fine_squares = 0.0
        for row in range(first, last):
            for column in range(width):
                fine_squares += exact[row, column] * exact[row, column]
        shrink = np.sqrt(np.float64(bound)) * (1.0 - 2.0**-24) / np.sqrt(fine_squares)
        squares = np.int64(0)
        for row in range(first, last):
            for column in range(width):
                point = np.int64(exact[row, column] * shrink)  # toward zero
                rounded[row, column] = point
                squares += point * point
        if squares > bound:  # impossible by the analysis in `blocks`; the bound holds even so
            rounded[first:last] = 0


@njit(cache=True, nogil=True)
def scatter_scores(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    scores: NDArray[np.int64],
    total: NDArray[np.int64],
) -> None:
    """Add ``X^T Y``, two stored values at a time."""
    width = scores.shape[1]
    rows = total.reshape((total.size // width, width))
    line, ahead = LINE // total.itemsize, AHEAD_OF_ROW if total.size >= FAR else row_ptr[-1]
    for row in range(row_ptr.size - 1):
        for at in range(row_ptr[row] + ahead, min(row_ptr[row + 1] + ahead, row_ptr[-1])):
            for column in range(0, width, line):
                prefetch(total, np.uint64(indices[at] * width + column))  # type: ignore[call-arg]  # less its context
        score = scores[row]
        at, stop = row_ptr[row], row_ptr[row + 1]
        if (stop - at) % 2:
            value, target = np.int64(values[at]), rows[np.uint64(indices[at])]
            for column in range(width):
                target[column] += value * score[column]
            at += 1
        while at < stop:
            value, target = np.int64(values[at]), rows[np.uint64(indices[at])]
            next_value, next_target = np.int64(values[at + 1]), rows[np.uint64(indices[at + 1])]
            for column in range(width):
                target[column] += value * score[column]
                next_target[column] += next_value * score[column]
            at += 2


@njit(cache=True, nogil=True)
def add_exact_products(
    values: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    directions: NDArray[np.int64],
    limb_bits: int,
    total: NDArray[np.int64],
) -> None:
    """Add ``x^T (x V)`` of every row, unrounded, as limbs: ``total`` has shape (limbs, d, p), the lowest limb first.

    Each limb of ``x V`` but the highest lies in ``-2^(limb_bits - 1) .. 2^(limb_bits - 1) - 1``.
    """
    limbs, _, width = total.shape
    half = np.int64(1) << (limb_bits - 1)
    mask = (np.int64(1) << limb_bits) - 1
    scores = np.empty(width, np.int64)
    parts = np.empty((limbs, width), np.int64)
    for row in range(row_ptr.size - 1):
        scores[:] = 0
        for at in range(row_ptr[row], row_ptr[row + 1]):
            value = np.int64(values[at])
            direction = directions[indices[at]]
            for column in range(width):
                scores[column] += value * direction[column]
        for limb in range(limbs - 1):
            for column in range(width):
                low = ((scores[column] + half) & mask) - half
                parts[limb, column] = low
                scores[column] = (scores[column] - low) >> limb_bits
        parts[limbs - 1] = scores
        for at in range(row_ptr[row], row_ptr[row + 1]):
            value = np.int64(values[at])
            for limb in range(limbs):
                part, target = parts[limb], total[limb, indices[at]]
                for column in range(width):
                    target[column] += value * part[column]
