"""Sixteen columns of sixteen rows in one step: products of 16-bit integers, which Numba has no words for.

Rows are packed so that a word holds a column of two rows, and a line has, for each of eight such pairs, the words of
sixteen neighbouring columns. Processors multiply pairs of 16-bit integers and add the two products at once; with one
that does not, or an instruction set that was chosen by hand, the same is done in 32 bits.
"""

from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.core import config
from numba.extending import intrinsic

LANES = 16
PAIRS = 8
_CHOSEN = config.CPU_NAME or config.CPU_FEATURES  # type: ignore[attr-defined]  # they are set when it is imported
MULTIPLIES_PAIRS = not _CHOSEN and bool(binding.get_host_cpu_features().get("avx2"))
"""Whether code is made for this very processor, and it multiplies pairs of integers at once."""
_HALF = 8  # lanes of one instruction
_SHORT, _WORD = ir.IntType(16), ir.IntType(32)
_SHORTS, _WORDS = ir.VectorType(_SHORT, 2 * LANES), ir.VectorType(_WORD, LANES)


@intrinsic
def add_lanes(
    typing_context: Any, sums: Any, left: Any, right: Any, packed: Any, line: Any, of: Any, next_of: Any
) -> Any:
    """Add a line's products with two columns to ``sums[left:]`` and ``sums[right:]``; from compiled code alone.

    Parameters
    ----------
    sums : int32 array
    left, right : uint64
        Where the sixteen sums of either column begin.
    packed : int32 array
        Lines of ``PAIRS * LANES`` words.
    line : uint64
        Where the line begins.
    of, next_of : tuple of int32
        The words of either column, one a pair of rows.
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
    """Multiply the two 16-bit integers of each word with those of another, and add the two products."""
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
