"""Exact sums of outer products of sparse rows, with one algorithm for few and one for many entries per row.

Entries are integers, so the sum of their products does not depend on the order of addition. All loops run in the
calling thread.

*Few entries*: loops over stored values.

>>> import numpy as np
>>> total = np.zeros(3, np.int64)
>>> add_outer_products(np.array([1, 2, 3], np.int32), np.array([0, 1, 1]), np.array([0, 2, 3]), 2, total)
>>> total
array([ 1,  2, 13])

*Many entries*: blocks of sixteen rows and sixteen columns. Rows are packed as 16-bit integers, and products are added
to 32-bit sums. These sums take half the memory of the 64-bit result, so more of them fit the cache of a processor. They
are added to the result before they can overflow. Rows with large entries would make this too frequent, so they are left
to the other algorithm.

Memory layout: a 32-bit word contains the entries of two rows in one column. Sixteen rows form eight such pairs. A line
contains the words of sixteen adjacent columns for each of these eight pairs. The AVX2 instruction ``pmaddwd``
multiplies pairs of 16-bit integers and adds the two products. Numba does not offer this instruction, so the loop is
written in LLVM. Without AVX2, or if the user chose Numba's target processor, the same products are computed in 32 bits.

>>> total = np.zeros(3, np.int64)
>>> add_packed_outer_products(np.array([1, 2, 3], np.int32), np.array([0, 1, 1]), np.array([0, 2, 3]), 2, total)
>>> total
array([ 1,  2, 13])

Benchmark: a release by `analyze_gauss` from 150,000 rows, each with 300 stored values in 1,000 features, and a declared
density of 0.29. Without packing it took 1.51 times as much processor time (median of three pairs: 1.51, 1.39, 1.55).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]  # it has no types
from numba import njit, types
from numba.core import config
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpca_tasks.kernels.products import LINE

LANES = 16
PAIRS = 8
_CHOSEN = config.CPU_NAME or config.CPU_FEATURES  # type: ignore[attr-defined]  # numba sets them on import
MULTIPLIES_PAIRS = not _CHOSEN and bool(binding.get_host_cpu_features().get("avx2"))
"""True if Numba compiles for the processor of this machine, and this processor has AVX2."""
_HALF = 8  # number of 32-bit lanes of one instruction
_SHORT, _WORD = ir.IntType(16), ir.IntType(32)
_SHORTS, _WORDS = ir.VectorType(_SHORT, 2 * LANES), ir.VectorType(_WORD, LANES)


@intrinsic
def add_lanes(
    typing_context: Any, sums: Any, left: Any, right: Any, packed: Any, line: Any, of: Any, next_of: Any
) -> Any:
    """Multiply sixteen packed columns (a line) by two packed columns, and add the products to two ranges of ``sums``.

    Only compiled Numba code can call this intrinsic.

    Parameters
    ----------
    sums : int32 array
    left, right : uint64
        The indices in ``sums`` at which the sixteen sums of the first and of the second column begin.
    packed : int32 array
        Lines of ``PAIRS * LANES`` words; a word contains the 16-bit entries of two rows in one column.
    line : uint64
        The index in ``packed`` at which the line begins.
    of, next_of : tuple of int32
        The words of the first and of the second column, one for each pair of rows.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(array: int, at: Any) -> Any:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.bitcast(builder.gep(data, [at]), _WORDS.as_pointer())

        targets = [place(0, arguments[1]), place(0, arguments[2])]
        totals = [builder.load(target, align=4) for target in targets]
        for pair in range(PAIRS):
            at = builder.add(arguments[4], ir.Constant(arguments[4].type, pair * LANES))
            words = builder.load(place(3, at), align=4)
            for side, column in enumerate(arguments[5:]):
                word = _spread(builder, builder.extract_value(column, pair))
                totals[side] = builder.add(totals[side], _products(builder, words, word))
        for total, target in zip(totals, targets, strict=True):
            builder.store(total, target, align=4)
        return context.get_dummy_value()

    return types.void(sums, left, right, packed, line, of, next_of), emit


def _spread(builder: Any, word: Any) -> Any:
    nothing = ir.Constant(_WORDS, ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(nothing, word, ir.Constant(_WORD, 0)), nothing, _lanes([0] * LANES)
    )


def _products(builder: Any, words: Any, others: Any) -> Any:
    """Emit code that, for each lane, multiplies two pairs of 16-bit integers and adds both products in 32 bits."""
    shorts = [builder.bitcast(vector, _SHORTS) for vector in (words, others)]
    if MULTIPLIES_PAIRS:
        half, short_half = ir.VectorType(_WORD, _HALF), ir.VectorType(_SHORT, 2 * _HALF)
        multiply = builder.module.declare_intrinsic(
            "llvm.x86.avx2.pmadd.wd", (), ir.FunctionType(half, (short_half, short_half))
        )
        low, high = (
            builder.call(multiply, [_select(builder, vector, range(first, first + 2 * _HALF)) for vector in shorts])
            for first in (0, 2 * _HALF)
        )
        return builder.shuffle_vector(low, high, _lanes(range(LANES)))
    even, odd = (
        builder.mul(*(builder.sext(_select(builder, vector, range(first, 2 * LANES, 2)), _WORDS) for vector in shorts))
        for first in (0, 1)
    )
    return builder.add(even, odd)


def _select(builder: Any, vector: Any, lanes: Any) -> Any:
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _lanes(lanes))


def _lanes(lanes: Any) -> Any:
    return ir.Constant(ir.VectorType(_WORD, len(lanes)), [ir.Constant(_WORD, lane) for lane in lanes])


WIDE = 1_200
"""From this number of columns on, the packed upper triangle of X^T X (6 MB) exceeds the fast caches of a processor."""
STRIP_SUMS = 1 << 17
"""A wide triangle is computed in strips of rows. A strip has at most this many entries (1 MB), or a single row."""
SORTED = 1 << 20
"""About this many stored values (16 MB) are sorted at a time; the last row of a part may exceed the number."""


@njit(cache=True, nogil=True)
def add_outer_products(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add the outer product ``x x^T`` of every row x to ``total``, a packed upper triangle.

    With few features, rows are processed one after another. With many features, one strip of the triangle is updated at
    a time.
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
    """Add the outer product of each row to the packed triangle ``total``.

    Four rows of the triangle are updated at a time, so that each stored value is loaded once for all four.
    """
    row_values = np.empty(n_features, total.dtype)
    columns = np.empty(n_features, np.uint64)  # unsigned, so that Numba does not check for negative indices
    starts = np.empty(n_features, np.uint64)  # index of each row of the triangle, minus its first column
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
    """Add the outer products of rows to the packed triangle ``total``, one strip of the triangle at a time.

    A strip is a range of rows of the triangle whose sums stay in the cache. Data rows are processed in groups of about
    `SORTED` stored values. The values of a group are sorted by the strip to which their column belongs, and within a
    strip by data row. Each value is then multiplied by itself and by all later values of the same data row.

    Notes
    -----
    Measured with 2,000 features and 20 values per row: on slow memory, an addition took 13 ns in `add_by_rows` and
    5.5 ns with strips. On fast memory it took 4 ns in both. Strips of a single row were slower than both: the sort is
    then a transpose, but each stored value needs a separate short loop over a distant data row.
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
        places = np.zeros(strip + 2, np.int64)  # the position of the next entry of each strip
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
    """Return s such that entry ``(column, j)`` of the packed triangle has index ``s + j``."""
    return column * n_features - (column * (column + 1)) // 2


ROWS = 2 * PAIRS
"""Number of rows that are packed and multiplied together."""
FILLED = 0.15
"""Share of stored values among all cells from which packing is faster than the loop over stored values."""
NARROWEST, WIDEST = 256, 4_000
"""Range of the number of columns for packing: fewer give too few lines, more need too much memory for the sums."""
ROOM = 2**31 - 1
"""Largest value of a 32-bit sum."""
LARGE = 1 << 12
"""Largest entry of a row that is packed, so that 32-bit sums have room for the products of at least 112 rows."""


def is_packed(density: float | None, n_features: int) -> bool:
    """Return whether to multiply rows as packed 16-bit integers; private rows never influence this choice."""
    fits = NARROWEST <= n_features <= WIDEST
    return MULTIPLIES_PAIRS and fits and density is not None and density >= FILLED


def add_packed_outer_products(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
    add_others: Callable[..., None] = add_outer_products,
) -> None:
    """Add the outer products of rows to ``total`` by packed 16-bit arithmetic.

    The sums are the same as those of `add_outer_products`.

    Rows with an entry above `LARGE` are left to ``add_others``, a function that adds the same sums without packing. If
    most rows have such an entry, ``add_others`` processes all rows: copying most rows would take longer than packing
    the rest saves.
    """
    largest = largest_entries(values, row_ptr)
    others = np.flatnonzero(largest > LARGE)
    if 2 * others.size > largest.size:
        add_others(values, indices, row_ptr, n_features, total)
        return
    add_lines(values, indices, row_ptr, largest, n_features, total)
    if others.size:
        add_others(*rows_at(values, indices, row_ptr, others), n_features, total)


@njit(cache=True, nogil=True)
def largest_entries(values: NDArray[np.int32], row_ptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest absolute value in each row, or 0 for an empty row."""
    largest = np.zeros(row_ptr.size - 1, np.int64)
    for row in range(largest.size):
        for at in range(row_ptr[row], row_ptr[row + 1]):
            largest[row] = max(largest[row], np.int64(abs(values[at])))
    return largest


@njit(cache=True, nogil=True)
def rows_at(
    values: NDArray[np.int32], indices: NDArray[np.integer], row_ptr: NDArray[np.int64], chosen: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.integer], NDArray[np.int64]]:
    """Return the chosen rows as copies, in the same compressed sparse format."""
    ends = np.zeros(chosen.size + 1, np.int64)
    for at, row in enumerate(chosen):
        ends[at + 1] = ends[at] + row_ptr[row + 1] - row_ptr[row]
    some, where = np.empty(ends[-1], values.dtype), np.empty(ends[-1], indices.dtype)
    for at, row in enumerate(chosen):
        some[ends[at] : ends[at + 1]] = values[row_ptr[row] : row_ptr[row + 1]]
        where[ends[at] : ends[at + 1]] = indices[row_ptr[row] : row_ptr[row + 1]]
    return some, where, ends


@njit(cache=True, nogil=True)
def add_lines(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    largest: NDArray[np.int64],
    n_features: int,
    total: NDArray[np.int64],
) -> None:
    """Add the outer products of all rows without an entry above `LARGE` to ``total``, by packed 16-bit arithmetic.

    Products are added to 32-bit sums. By Cauchy-Schwarz no sum exceeds the largest sum on the diagonal, and a row adds
    at most the square of its largest entry to a sum on the diagonal. So the 32-bit sums can be added to ``total`` and
    reset before any of them exceeds `ROOM`.
    """
    starts = starts_of(n_features)
    sums = aligned_zeros(int(starts[-1]) + starts.size)
    packed = aligned_zeros(starts.size * PAIRS)
    halves = packed.view(np.int16)
    columns = np.zeros(starts.size, np.bool_)
    held = np.int64(0)
    for first in range(0, row_ptr.size - 1, ROWS):
        more = np.int64(0)
        for row in range(first, min(first + ROWS, row_ptr.size - 1)):
            if largest[row] > LARGE:
                continue
            in_line = np.uint64((row - first) // 2 * 2 * LANES + (row - first) % 2)
            for at in range(row_ptr[row], row_ptr[row + 1]):
                column = np.uint64(indices[at])  # unsigned, so that Numba does not check for negative indices
                lane = column & np.uint64(LANES - 1)
                halves[(column - lane) * np.uint64(2 * PAIRS) + np.uint64(2) * lane + in_line] = values[at]
                columns[column] = True
            more += largest[row] * largest[row]
        if held + more > ROOM:
            held = largest_sum(sums, starts, n_features)
        if held + more > ROOM:
            add_sums(sums, starts, n_features, total)
            held = np.int64(0)
        multiply(packed, columns, starts, sums)
        held += more
    add_sums(sums, starts, n_features, total)


@njit(cache=True, nogil=True)
def starts_of(n_features: int) -> NDArray[np.uint64]:
    """Return, for each column i, an offset s such that the 32-bit sum of columns i and j has index ``s + j``.

    Sums of column i are stored for all j from the first column of i's line of sixteen columns on.
    """
    size = -(-n_features // LANES) * LANES
    starts = np.empty(size, np.uint64)
    place = 0
    for column in range(size):
        first = column // LANES * LANES
        starts[column] = place - first
        place += size - first
    return starts


@njit(cache=True, nogil=True)
def aligned_zeros(size: int) -> NDArray[np.int32]:
    """Return an array of zeros whose memory starts at a cache line boundary."""
    room = np.zeros(size + LINE // 4, np.int32)
    first = -(room.ctypes.data // 4) % (LINE // 4)
    return room[first : first + size]


@njit(cache=True, nogil=True, inline="always")
def words_of(packed: NDArray[np.int32], column: int | np.int64) -> tuple[np.int32, ...]:
    """Return the eight packed words of a column, each with the 16-bit entries of two rows."""
    words = packed[column // LANES * LANES * PAIRS + column % LANES :: LANES]
    return words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]


@njit(cache=True, nogil=True)
def multiply(
    packed: NDArray[np.int32], columns: NDArray[np.bool_], starts: NDArray[np.uint64], sums: NDArray[np.int32]
) -> None:
    """Add the outer products of packed rows to the 32-bit sums, two columns at a time, and clear the packed rows."""
    met = np.empty(columns.size // LANES, np.uint64)  # the first column of each line (sixteen columns) with entries
    size = 0
    for line in range(met.size):
        met[size] = line * LANES
        if columns[line * LANES : (line + 1) * LANES].any():
            size += 1
    for at in range(size):
        for column in range(met[at], met[at] + LANES, 2):
            if columns[column] or columns[column + 1]:
                left, right = starts[column], starts[column + 1]
                words, next_words = words_of(packed, column), words_of(packed, column + 1)
                for line in met[at:size]:
                    where = line * np.uint64(PAIRS)
                    add_lanes(sums, left + line, right + line, packed, where, words, next_words)  # type: ignore[call-arg]  # without its typing_context
    for first in met[:size]:
        packed[first * PAIRS : (first + LANES) * PAIRS] = 0
        columns[first : first + LANES] = False


@njit(cache=True, nogil=True)
def largest_sum(sums: NDArray[np.int32], starts: NDArray[np.uint64], n_features: int) -> np.int64:
    """Return the largest of the 32-bit sums on the diagonal, which are the sums of squares of columns."""
    largest = np.int64(0)
    for column in range(n_features):
        largest = max(largest, np.int64(sums[np.int64(starts[column]) + column]))
    return largest


@njit(cache=True, nogil=True)
def add_sums(sums: NDArray[np.int32], starts: NDArray[np.uint64], n_features: int, total: NDArray[np.int64]) -> None:
    """Add the 32-bit sums to ``total``, the packed triangle, and set the sums to 0."""
    at = 0
    for column in range(n_features):
        start, size = np.int64(starts[column]), n_features - column
        total[at : at + size] += sums[start + column : start + n_features]
        at += size
    sums[:] = 0
