"""Second and third moments of documents and third moments of points, in compiled loops for tensor decomposition.

*Documents* are counts of words, and contribute frequencies of pairs and triples of words. The contribution of a
document is computed from that document alone, in integers or with ``+ - * /`` of floats in a fixed order. The loops are
compiled without fast-math and fused operations, and call no mathematical library. So the bits of a contribution do not
depend on the block in which the document is stored.

*Points* are scores along public directions, and contribute third moments of bounded scores.
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
    """Return the positive word counts of each document, reduced to at most ``most`` words in total.

    An invalid document gets no counts. A document is invalid if a count is negative, fractional or not finite, or if
    the document has fewer than 3 or more than `MOST_WORDS` words. If a document has l > ``most`` words, they are listed
    in the order of word ids. Word i of the list, counted from 1, is retained if ``floor(i most / l)`` exceeds
    ``floor((i - 1) most / l)``. This retains ``most`` words, spread evenly over the list.
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
    """Add the frequencies of word pairs in each document, ``(c c^T - diag c) / (l (l - 1))``, to a packed triangle.

    Here c are the word counts of a document and l is their sum. Entries are multiplied by ``steps`` and rounded toward
    zero.
    """
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
    """Add each document's core to a packed symmetric tensor (cube).

    The core is the third moment of the words of a document, projected onto public directions. Let ``u_a`` be row a of
    the directions, ``c_a`` the count of word a, and l the sum of counts. With ``y = sum_a c_a u_a`` and
    ``S = sum_a c_a u_a u_a^T``, the core is
    ``(y y y - 3 Sym(S y) + 2 sum_a c_a u_a u_a u_a) / (l (l - 1) (l - 2))``. The core is multiplied by ``steps`` and
    rounded to integers whose squares, over all entries of the full tensor, sum to at most ``bound``.
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
    """Write the sums of ``c_a u_a``, ``c_a u_a u_a`` and ``c_a u_a u_a u_a`` over the words a of a document.

    ``c_a`` is the count of word a, and ``u_a`` is row a of the directions. The sums are written to ``scores``,
    ``pairs`` and ``cubes``, and the number of words of the document is returned. Entries ``p <= q <= r`` of a cube are
    sorted by r, then by q, then by p. So the entries with last index r are consecutive in memory, and a word adds to
    them the pairs up to (r, r) times entry r of ``u_a``.
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
    """Return the number of entries of a symmetric cube that equal entry ``(p, q, r)`` by symmetry, for p <= q <= r."""
    return 6 if p < q < r else 1 if p == r else 3


@njit(cache=True, nogil=True)
def _shrink(exact: NDArray[np.float64], width: int, bound: int, gridded: NDArray[np.int64]) -> None:
    """Round a packed tensor toward zero, after scaling it down if the sum of its squares exceeds ``bound``.

    The sum of the squared integers is compared with ``bound`` again; if it is exceeded, all entries become 0.
    """
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
    if norm > bound:  # impossible by the proof in `dpca_tasks.queries.words`; zeros satisfy the bound
        gridded[:] = 0


@njit(cache=True, nogil=True)
def first_row_scores(
    values: NDArray[np.floating],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    directions: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the scores ``x^T U`` of each record's first row x along directions U; 0 for a record without rows.

    Terms are added in the order of the columns of x.
    """
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
    """Add the third moment of each point, corrected for spherical noise of known variance, to a packed cube.

    The contribution of a point with scores y is ``y y y - variance Sym3(y)``, divided by ``2^shift`` and rounded toward
    zero. Scores are integers of magnitude at most ``2^18``, and ``variance`` is at most ``2^36``, so no number reaches
    ``2^58``.
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
