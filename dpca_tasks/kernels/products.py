"""Exact products of sparse integer rows with public directions.

The scores of rows X along directions V are ``X V``; the sums are ``X^T Y`` for rounded scores Y. If V and the sums are
small, the columns of V are processed in panels of as many columns as the registers of a processor hold. While a row is
read, its scores with a panel stay in registers. The same holds while rounded scores are added to the sums. Numba does
not offer vectors of fixed length, so these two loops are written in LLVM: `_score_row` and `_scatter_row`. All numbers
are floats with integer values below ``2^53``, so every order of addition and every instruction gives the same result.

Benchmark: a release by `noisy_power` with 16 components from 800,000 rows, each with 40 stored values in 5,000
features. Without panels it took 1.28 times as much processor time (median of three pairs: 1.34, 1.28, 1.22).
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

STRIP = 1 << 12
"""Number of scores that are computed at a time, so that the scores of a strip of rows stay in the L2 cache."""
FAR = 1 << 17
"""Number of entries of V from which V and the sums exceed the fast caches of a processor: 1.5 MB together."""
LINE = 64
"""Number of bytes in a cache line."""


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
    """Add ``X_u^T Y_u`` to ``total`` for every record u of at most ``longest`` rows ``X_u``.

    ``Y_u`` are the scores ``X_u V`` with the directions V, rounded to steps of ``2^-bits`` and clipped to norm 1. They
    are clipped further if ``||X_u|| ||Y_u||`` would exceed ``most`` steps of ``4^-bits``.

    Records are processed in strips whose scores stay in the L2 cache. Scores are floats with integer values below
    ``2^53``, so every order of addition and every instruction gives the same result.
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
    """Return the index after the last record of a strip that starts at record ``first``.

    The strip contains as many records as have at most ``rows`` rows together, and at least one record.
    """
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
    """Add ``X^T (X V)`` of rows X and directions V to ``total``, without intermediate rounding.

    The result is exact if the final sums fit into int64. Scores and partial sums may overflow without harm, since
    int64 arithmetic is modulo ``2^64``.
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
    """Write the scores ``X V`` of sparse rows X with directions V to ``scores``, two stored values at a time.

    In float64 the scores are exact if no partial sum of a score reaches ``2^53``.
    """
    width = directions.shape[1]
    kind = scores.dtype.type
    for row in range(row_ptr.size - 1):
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
    """Return, for each record, the limit to which the squared norm of its scores is clipped.

    Limits are in squared steps of ``2^-bits``. The limit is 1 in data units, or less if the norm of the scores times
    the norm of the record could otherwise exceed ``most`` steps of ``4^-bits``. ``most`` is at most ``2^28``.
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
    """Round the scores of each record to the grid, and clip them if their squared norm exceeds the record's limit.

    The result for a record depends on no other record. The scores of a record of more than ``longest`` rows become 0.
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
        if squares > bound:  # impossible by the proof in `blocks`; zeros satisfy the bound
            rounded[first:last] = 0


@njit(cache=True, nogil=True)
def scatter_scores(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    scores: NDArray[np.int64],
    total: NDArray[np.int64],
) -> None:
    """Add ``X^T Y`` to ``total`` for sparse rows X and their scores Y, two stored values at a time."""
    width = scores.shape[1]
    rows = total.reshape((total.size // width, width))
    for row in range(row_ptr.size - 1):
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
    """Add ``x^T (x V)`` of every row x to ``total``, without rounding, as integers split into limbs.

    ``total`` has shape (number of limbs, d, p) for directions V of shape (d, p), with the lowest limb first. Each limb
    of ``x V`` except the highest is from ``-2^(limb_bits - 1)`` to ``2^(limb_bits - 1) - 1``.
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


LANES = 4
"""Number of float64 columns in one vector register: 32 bytes."""
MOST_VECTORS = 7
"""Largest number of vectors in a panel, so that a panel and its factors fit into half of a processor's registers."""
EXACT_BITS = 52
_DOUBLE, _WORD, _LONG = ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_DOUBLES, _WORDS, _LONGS = (ir.VectorType(kind, LANES) for kind in (_DOUBLE, _WORD, _LONG))

type Vectors = tuple[int, ...]
"""A tuple with one zero for each vector of a panel, so that the number of vectors is known at compile time."""


def is_near(n_values: int, directions: NDArray[np.integer]) -> bool:
    """Return whether the directions are small enough to be multiplied in panels.

    They must fit the fast caches, and have at most as many rows as the block of data has stored values.
    """
    return directions.size < FAR and directions.shape[0] <= n_values


def add_near_moment_products(
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
    """Add the same sums as `dpca_tasks.kernels.products.add_moment_products`, in panels of columns of the directions.

    By Cauchy-Schwarz, every entry of a record's product ``X_u^T Y_u`` is at most ``4^bits``, and so is every partial
    sum of such an entry. So the products of up to ``2^(52 - 2 bits)`` records are added in float64, where sums stay
    below ``2^52``, before they are added to ``total``.
    """
    n_features, width = directions.shape
    n_vectors = -(-width // LANES)
    n_panels = -(-n_vectors // MOST_VECTORS)
    vectors = (0,) * -(-n_vectors // n_panels)
    across = LANES * len(vectors)
    padded = np.zeros((n_features, n_panels * across), np.int32)
    padded[:, :width] = directions
    panels = np.ascontiguousarray(padded.reshape(n_features, n_panels, across).swapaxes(0, 1))
    at_once = 1 << (EXACT_BITS - 2 * bits)
    for first in range(0, record_ptr.size - 1, at_once):
        sums = np.zeros(panels.shape)
        bounds = record_ptr[first : first + at_once + 1]
        _add_panels(values, indices, row_ptr, bounds, panels, direction_bits, bits, longest, most, sums, vectors)
        added = sums.swapaxes(0, 1).reshape(n_features, -1)[:, :width]
        total += added.astype(np.int64).reshape(-1)


@njit(cache=True, nogil=True)
def _add_panels(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    panels: NDArray[np.int32],
    direction_bits: int,
    bits: int,
    longest: int,
    most: int,
    sums: NDArray[np.float64],
    vectors: Vectors,
) -> None:
    """Add the products of records with all panels of directions to ``sums``.

    Records are processed in strips whose scores stay in the L2 cache.
    """
    across = LANES * len(vectors)
    width = panels.shape[0] * across
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
        for panel in range(panels.shape[0]):
            directions, scores = panels[panel], exact[:, panel * across : (panel + 1) * across]
            for row in range(start, stop):
                _score_row(values, indices, row_ptr[row], row_ptr[row + 1], directions, scores[row - start], vectors)  # type: ignore[call-arg]
        limits = score_limits(values, row_ptr, record_ptr[first : last + 1], bits, most)
        round_scores(exact, record_ptr[first : last + 1] - start, limits, direction_bits, bits, longest, rounded)
        for panel in range(panels.shape[0]):
            target, points = sums[panel], rounded[:, panel * across : (panel + 1) * across]
            for row in range(start, stop):
                _scatter_row(values, indices, row_ptr[row], row_ptr[row + 1], points[row - start], target, vectors)  # type: ignore[call-arg]
        first = last


@intrinsic
def _score_row(
    typing_context: Any, values: Any, indices: Any, start: Any, stop: Any, panel: Any, scores: Any, vectors: Any
) -> Any:
    """Write the scores of a row with a panel of directions to ``scores``; an intrinsic for compiled Numba code."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flat = [_data(context, builder, signature, arguments, at) for at in range(6)]
        nothing = ir.Constant(_DOUBLES, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, nothing) for _ in range(vectors.count)]  # type: ignore[no-untyped-call]
        for each in sums:
            builder.store(nothing, each)
        with cgutils.for_range_slice(builder, arguments[2], arguments[3], _LONG(1), _LONG) as (at, _):
            value, feature = _stored(context, builder, signature, flat, at)
            for number, each in enumerate(sums):
                directions = builder.load(_vector(builder, flat[4], feature, number, vectors.count, _WORDS), align=4)
                product = builder.fmul(value, builder.sitofp(directions, _DOUBLES), flags=("contract",))
                builder.store(builder.fadd(builder.load(each), product, flags=("contract",)), each)
        for number, each in enumerate(sums):
            place = _vector(builder, flat[5], _LONG(0), number, vectors.count, _DOUBLES)
            builder.store(builder.load(each), place, align=8)
        return context.get_dummy_value()

    return types.void(values, indices, start, stop, panel, scores, vectors), emit


@intrinsic
def _scatter_row(
    typing_context: Any, values: Any, indices: Any, start: Any, stop: Any, points: Any, sums: Any, vectors: Any
) -> Any:
    """Add a row's values times its rounded scores to a panel of sums; an intrinsic for compiled Numba code."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flat = [_data(context, builder, signature, arguments, at) for at in range(6)]
        scores = []
        for number in range(vectors.count):
            place = _vector(builder, flat[4], _LONG(0), number, vectors.count, _LONGS)
            scores.append(builder.sitofp(builder.load(place, align=8), _DOUBLES))
        with cgutils.for_range_slice(builder, arguments[2], arguments[3], _LONG(1), _LONG) as (at, _):
            value, feature = _stored(context, builder, signature, flat, at)
            for number, score in enumerate(scores):
                place = _vector(builder, flat[5], feature, number, vectors.count, _DOUBLES)
                product = builder.fmul(value, score, flags=("contract",))
                total = builder.fadd(builder.load(place, align=8), product, flags=("contract",))
                builder.store(total, place, align=8)
        return context.get_dummy_value()

    return types.void(values, indices, start, stop, points, sums, vectors), emit


def _data(context: Any, builder: Any, signature: Any, arguments: Any, at: int) -> Any:
    """Return the data pointer of argument ``at``, or None if that argument is not an array."""
    kind = signature.args[at]
    return context.make_array(kind)(context, builder, arguments[at]).data if isinstance(kind, types.Array) else None


def _stored(context: Any, builder: Any, signature: Any, flat: Any, at: Any) -> tuple[Any, Any]:
    """Return the stored value at an index, copied to every lane of a vector, and the feature of that value."""
    value = builder.sitofp(builder.load(builder.gep(flat[0], [at])), _DOUBLE)
    nothing = ir.Constant(_DOUBLES, ir.Undefined)
    lanes = builder.shuffle_vector(
        builder.insert_element(nothing, value, _WORD(0)), nothing, ir.Constant(_WORDS, [0] * LANES)
    )
    feature = builder.load(builder.gep(flat[1], [at]))
    return lanes, context.cast(builder, feature, signature.args[1].dtype, types.uint64)


def _vector(builder: Any, data: Any, row: Any, number: int, count: int, kind: Any) -> Any:
    """Return the address of vector ``number`` within row ``row`` of a panel with ``count`` vectors per row."""
    at = builder.add(builder.mul(row, _LONG(LANES * count)), _LONG(LANES * number))
    return builder.bitcast(builder.gep(data, [at]), kind.as_pointer())
