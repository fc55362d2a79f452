"""The products of `dpca_tasks.kernels.products` where directions and sums are near, several columns at once.

Columns are taken in panels as wide as the registers of a processor hold sums: while a row is read, its scores with a
panel stay there, and so do its rounded scores while they are added to the sums. Numba has no words for vectors of a
stated length, hence the two loops below. Everything is a float that holds an integer below ``2^53``, so any order and
any instruction gives the same.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpca_tasks.kernels.products import FAR, STRIP, end_of_strip, round_scores, score_limits

LANES = 4
"""Columns of one vector: 32 bytes."""
MOST_VECTORS = 7
"""Vectors of a panel: with what they are multiplied with, half of the registers of any processor hold them."""
EXACT_BITS = 52
_DOUBLE, _WORD, _LONG = ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_DOUBLES, _WORDS, _LONGS = (ir.VectorType(kind, LANES) for kind in (_DOUBLE, _WORD, _LONG))

type Vectors = tuple[int, ...]
"""As many zeros as a panel has vectors: its length is known where loops are compiled."""


def is_near(n_values: int, directions: NDArray[np.integer]) -> bool:
    """Tell whether panels of directions stay in a near cache, and are small beside a block; sums are the same."""
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
    """Add what `dpca_tasks.kernels.products.add_moment_products` adds.

    An entry of a record's product is at most ``4^bits``, and so is every sum of some of its terms, by Cauchy and
    Schwarz; so many records are added up in floats as keep below ``2^52``.
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
    """Take records in strips whose scores with all panels stay in the second cache."""
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
    """Write a row's scores with a panel; from compiled code alone."""

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
    """Add a row's values times its rounded scores to a panel of sums; from compiled code alone."""

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
    """Return where the data of an argument begin; None of one that is no array."""
    kind = signature.args[at]
    return context.make_array(kind)(context, builder, arguments[at]).data if isinstance(kind, types.Array) else None


def _stored(context: Any, builder: Any, signature: Any, flat: Any, at: Any) -> tuple[Any, Any]:
    """Return a stored value in every lane, and its feature."""
    value = builder.sitofp(builder.load(builder.gep(flat[0], [at])), _DOUBLE)
    nothing = ir.Constant(_DOUBLES, ir.Undefined)
    lanes = builder.shuffle_vector(
        builder.insert_element(nothing, value, _WORD(0)), nothing, ir.Constant(_WORDS, [0] * LANES)
    )
    feature = builder.load(builder.gep(flat[1], [at]))
    return lanes, context.cast(builder, feature, signature.args[1].dtype, types.uint64)


def _vector(builder: Any, data: Any, row: Any, number: int, count: int, kind: Any) -> Any:
    """Return the place of a vector of a row of a panel."""
    at = builder.add(builder.mul(row, _LONG(LANES * count)), _LONG(LANES * number))
    return builder.bitcast(builder.gep(data, [at]), kind.as_pointer())
