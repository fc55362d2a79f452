"""Moments of documents and of points, computed in compiled loops.

*Documents* have counts of words, and contribute pairs and triples of words. Everything about one document is computed
from that document alone, in integers or with ``+ - * /`` of floats in a fixed order. The code is compiled without
fast-math, mathematical library or fused operations, so the bits are equal in any block.

*Points* have scores along public directions, and contribute third moments of bounded scores.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

FEWEST_WORDS = 3
MOST_WORDS = 1 << 40
"""Largest number of words of a document; a longer document is treated as an error and adds nothing."""
_SHRINK = 1.0 - 2.0**-30


@njit(cache=True, nogil=True)
def count_words(
    values: NDArray[np.floating], indices: NDArray[np.integer], row_ptr: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Return the positive counts of each document, cut to ``most`` words; those of an invalid document are empty.

    A document is invalid if a count is negative, fractional or not finite, or if it has fewer than 3 words or more than
    `MOST_WORDS`. Let a document have l words in the order of their ids, with l more than ``most``. Then word i, counted
    from 1, is kept if ``floor(i most / l)`` increases at i. This keeps ``most`` words, spread evenly.
    """
    counts, words = np.empty(values.size, np.int32), np.empty(values.size, np.int32)
    starts = np.zeros(row_ptr.size, np.int64)
    kept = 0
    for row in range(row_ptr.size - 1):
        length = np.int64(0)
        for at in range(row_ptr[row], row_ptr[row + 1]):
            value = np.float64(values[at])
            if not (0.0 <= value <= MOST_WORDS and value == np.floor(value)):
                length = np.int64(0)
                break
            length += np.int64(value)
            if length > MOST_WORDS:
                length = np.int64(0)
                break
        if length >= FEWEST_WORDS:
            before = np.int64(0)
            for at in range(row_ptr[row], row_ptr[row + 1]):
                count = np.int64(values[at])
                if length > most:
                    after = before + count
                    count = after * most // length - before * most // length
                    before = after
                if count > 0:
                    counts[kept] = count
                    words[kept] = indices[at]
                    kept += 1
        starts[row + 1] = kept
    return counts[:kept], words[:kept], starts


@njit(cache=True, nogil=True)
def add_word_pairs(
    counts: NDArray[np.int32],
    words: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    order: int,
    steps: int,
    total: NDArray[np.int64],
) -> None:
    """Add ``(c c^T - diag c) / (l (l - 1))`` of each document in steps, rounded toward zero, to a packed triangle."""
    for row in range(row_ptr.size - 1):
        first, stop = row_ptr[row], row_ptr[row + 1]
        length = np.int64(0)
        for at in range(first, stop):
            length += counts[at]
        if length < FEWEST_WORDS:
            continue
        pairs = length * (length - 1)
        one = steps // pairs
        for at in range(first, stop):
            count, word = np.int64(counts[at]), np.int64(words[at])
            base = word * order - word * (word + 1) // 2
            if count > 1:
                total[base + word] += count * (count - 1) * steps // pairs
            for other in range(at + 1, stop):
                product = count * counts[other]
                total[base + words[other]] += one if product == 1 else product * steps // pairs


@njit(cache=True, nogil=True)
def add_word_cores(
    counts: NDArray[np.int32],
    words: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    directions: NDArray[np.float64],
    steps: float,
    bound: int,
    total: NDArray[np.int64],
) -> None:
    """Add each document's core in steps, rounded to a tensor whose squares sum to at most ``bound``, to a packed cube.

    With the rows ``u_a`` of the directions, ``y = sum_a c_a u_a`` and ``S = sum_a c_a u_a u_a^T``, the core is
    ``(y y y - 3 Sym(S y) + 2 sum_a c_a u_a u_a u_a) / (l (l - 1) (l - 2))``.
    """
    width = directions.shape[1]
    scores, pairs, cubes = np.empty(width), np.empty(width * (width + 1) // 2), np.empty(total.size)
    product = np.empty(pairs.size)
    exact, gridded = np.empty(total.size), np.empty(total.size, np.int64)
    for row in range(row_ptr.size - 1):
        length = _add_powers(counts, words, row_ptr[row], row_ptr[row + 1], directions, scores, pairs, cubes, product)
        if length < FEWEST_WORDS:
            continue
        scale = steps / np.float64(length * (length - 1) * (length - 2))
        at, norm = 0, np.int64(0)
        for p in range(width):
            for q in range(p, width):
                both, square = scores[p] * scores[q], pairs[q * (q + 1) // 2 + p]
                for r in range(q, width):
                    of_r = r * (r + 1) // 2
                    cube = cubes[of_r * (r + 2) // 3 + q * (q + 1) // 2 + p]
                    other = square * scores[r] + pairs[of_r + p] * scores[q] + pairs[of_r + q] * scores[p]
                    exact[at] = (both * scores[r] - other + 2.0 * cube) * scale
                    gridded[at] = np.int64(np.rint(exact[at]))
                    norm += _times(p, q, r) * gridded[at] * gridded[at]
                    at += 1
        if norm > bound:
            _shrink(exact, width, bound, gridded)
        for at in range(total.size):
            total[at] += gridded[at]


@njit(cache=True, nogil=True)
def _add_powers(
    counts: NDArray[np.int32],
    words: NDArray[np.int32],
    first: int,
    stop: int,
    directions: NDArray[np.float64],
    scores: NDArray[np.float64],
    pairs: NDArray[np.float64],
    cubes: NDArray[np.float64],
    product: NDArray[np.float64],
) -> int:
    """Sum ``c_a u_a``, ``c_a u_a u_a`` and ``c_a u_a u_a u_a`` over a document's words, and return the word count.

    Entries ``p <= q <= r`` are sorted by r, then by q, then by p. The pairs up to (r, r) come first in this order, so a
    word adds its pairs times ``u_r`` to consecutive entries in memory.
    """
    length = np.int64(0)
    scores[:] = 0.0
    pairs[:] = 0.0
    cubes[:] = 0.0
    for at in range(first, stop):
        length += counts[at]
        count, unit = np.float64(counts[at]), directions[words[at]]
        size = 0
        for r in range(scores.size):
            part = count * unit[r]
            scores[r] += part
            for p in range(r + 1):
                product[size + p] = part * unit[p]
            size += r + 1
        for pair in range(size):
            pairs[pair] += product[pair]
        size, start = 0, 0
        for r in range(scores.size):
            size += r + 1
            value, cube, of_pairs = unit[r], cubes[start : start + size], product[:size]
            for pair in range(size):
                cube[pair] += of_pairs[pair] * value
            start += size
    return int(length)


@njit(cache=True, nogil=True)
def _times(p: int, q: int, r: int) -> int:
    """Return how many entries of a symmetric cube are equal by symmetry to entry ``p <= q <= r``."""
    return 6 if p < q < r else 1 if p == r else 3


@njit(cache=True, nogil=True)
def _shrink(exact: NDArray[np.float64], width: int, bound: int, gridded: NDArray[np.int64]) -> None:
    """Round a tensor toward zero, after scaling it down to the bound if it is longer, and compare again in integers."""
    squares, at = 0.0, 0
    for p in range(width):
        for q in range(p, width):
            for r in range(q, width):
                squares += _times(p, q, r) * exact[at] * exact[at]
                at += 1
    factor = _SHRINK * (np.sqrt(bound / squares) if squares > bound else 1.0)
    norm, at = np.int64(0), 0
    for p in range(width):
        for q in range(p, width):
            for r in range(q, width):
                gridded[at] = np.int64(exact[at] * factor)
                norm += _times(p, q, r) * gridded[at] * gridded[at]
                at += 1
    if norm > bound:  # impossible by the analysis in `dpca_tasks.queries.words`; the bound holds even then
        gridded[:] = 0


@njit(cache=True, nogil=True)
def first_row_scores(
    values: NDArray[np.floating],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    directions: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return ``x^T U`` of each record's first row x, summed in the order of columns; 0 for a record without rows."""
    scores = np.zeros((record_ptr.size - 1, directions.shape[1]))
    for record in range(record_ptr.size - 1):
        row = record_ptr[record]
        if row < record_ptr[record + 1]:
            own = scores[record]
            for at in range(row_ptr[row], row_ptr[row + 1]):
                value, unit = np.float64(values[at]), directions[indices[at]]
                for column in range(own.size):
                    own[column] += value * unit[column]
    return scores


@njit(cache=True, nogil=True)
def add_point_cores(scores: NDArray[np.int32], width: int, variance: int, shift: int, total: NDArray[np.int64]) -> None:
    """Add ``y y y - variance Sym3(y)`` of each point, in steps of ``2^shift``, rounded toward zero, to a packed cube.

    Scores are integers of magnitude at most ``2^18``, and ``variance`` is at most ``2^36``: no number reaches ``2^58``.
    """
    for first in range(0, scores.size, width):
        at = 0
        for p in range(width):
            y_p = np.int64(scores[first + p])
            for q in range(p, width):
                y_q = np.int64(scores[first + q])
                both = y_p * y_q
                if p == q:
                    both -= variance
                for r in range(q, width):
                    value = both * scores[first + r]
                    if q == r:
                        value -= variance * y_p
                        if p == q:
                            value -= variance * y_p
                    total[at] += value >> shift if value >= 0 else -(-value >> shift)
                    at += 1
