"""The relative std of each packed coordinate of isometric symmetric noise.

A packed coordinate represents all entries of the tensor that are equal to it by symmetry. Noise with the same std in
every direction of the space of symmetric tensors (Frobenius norm) has std ``1 / sqrt(m)`` at a coordinate that
represents m entries. The functions accept any range of coordinates.

>>> symmetric_weights(2, start=0, stop=3).round(3).tolist()
[1.0, 0.707, 1.0]
"""

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray


def symmetric_weights(order: int, *, start: int, stop: int) -> NDArray[np.float64]:
    """Return the weights of coordinates ``(i, j), i <= j``: 1 on the diagonal, ``sqrt(1/2)`` off it."""
    return _triangle(order, start, stop, diagonal=1.0, beside=math.sqrt(1 / 2))


def cube_weights(order: int, *, start: int, stop: int) -> NDArray[np.float64]:
    """Return the weights of coordinates ``(i, j, k), i <= j <= k``, packed in lexicographic order.

    The weight is 1 if all three indices are equal, ``sqrt(1/3)`` if two are, and ``sqrt(1/6)`` if none are.
    """

    def slice_start(i: int) -> int:
        return _cube_size(order) - _cube_size(order - i)

    weights = np.empty(stop - start)
    i = bisect_right(range(order), start, key=slice_start) - 1
    while (base := slice_start(i)) < stop:
        rest = order - i
        low, high = max(start - base, 0), min(stop - base, rest * (rest + 1) // 2)
        part = weights[base + low - start : base + high - start]
        part[:] = _triangle(rest, low, high, diagonal=math.sqrt(1 / 3), beside=math.sqrt(1 / 6))
        part[: max(rest - low, 0)] = math.sqrt(1 / 3)  # (i, i, k)
        if low == 0:
            part[0] = 1.0  # (i, i, i)
        i += 1
    return weights


def _cube_size(order: int) -> int:
    return order * (order + 1) * (order + 2) // 6


def _triangle(order: int, start: int, stop: int, *, diagonal: float, beside: float) -> NDArray[np.float64]:
    def row_start(row: int) -> int:
        return row * order - row * (row - 1) // 2

    weights = np.full(stop - start, beside)
    first = bisect_right(range(order), start, key=row_start) - 1
    last = bisect_right(range(order), stop - 1, key=row_start)
    rows = np.arange(first, last)
    places = rows * order - rows * (rows - 1) // 2 - start
    weights[places[places >= 0]] = diagonal
    return weights
