"""Ask the processor for memory before it is needed: the one instruction that Numba has no word for.

>>> import numpy as np
>>> from numba import njit
>>> @njit
... def touch(array):
...     prefetch(array, np.uint64(0))
>>> touch(np.zeros(3))
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.extending import intrinsic

_WRITE, _KEEP_NEAR, _DATA = 1, 3, 1


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Fetch one element of a flat array into the nearest cache, to be written soon; from compiled code alone."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        instruction = builder.module.declare_intrinsic(
            "llvm.prefetch", (byte,), ir.FunctionType(ir.VoidType(), (byte, flag, flag, flag))
        )
        place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(instruction, [place, *(ir.Constant(flag, value) for value in (_WRITE, _KEEP_NEAR, _DATA))])
        return context.get_dummy_value()

    return types.void(array, index), emit
