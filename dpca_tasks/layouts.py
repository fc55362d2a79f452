"""Packing of the coordinates of a statistic, so that equal coordinates are summed, noised and sent once.

A symmetric matrix of order d is stored as its upper triangle, row by row: ``(0,0), (0,1), ..., (0,d-1), (1,1), ...``. A
symmetric tensor of order 3, a cube, is stored as its entries ``i <= j <= k`` in lexicographic order of these indices.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_PANEL = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Kind of a statistic, its order d and its number of packed coordinates.

    A ``joint`` statistic concatenates parts of other kinds; its order is the number of all coordinates. A ``stack`` is
    ``count`` symmetric matrices of one order, packed separately and concatenated.
    """

    kind: Literal["vector", "symmetric", "cube", "joint", "stack"]
    order: int
    count: int = 1

    @property
    def size(self) -> int:
        """The number of packed coordinates."""
        d = self.order
        triangle = d * (d + 1) // 2
        sizes = {"vector": d, "joint": d, "symmetric": triangle, "cube": triangle * (d + 2) // 3, "stack": triangle}
        return sizes[self.kind] * self.count


def unpack_stack(packed: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """Return the full symmetric matrices of a packed stack, of shape (count, order, order)."""
    rows, columns = np.triu_indices(order)
    stack = np.empty((packed.size // rows.size, order, order))
    stack[:, rows, columns] = stack[:, columns, rows] = packed.reshape(-1, rows.size)
    return stack


def pack_symmetric(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the packed upper triangle of a symmetric matrix."""
    return np.concatenate([matrix[row, row:] for row in range(len(matrix))])


def unpack_symmetric(packed: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """Return the full symmetric matrix of a packed upper triangle."""
    matrix = np.empty((order, order))
    start = 0
    for row in range(order):
        stop = start + order - row
        matrix[row, row:] = packed[start:stop]
        start = stop
    for first in range(0, order, _PANEL):  # by panels, so that transposed reads stay in the cache
        last = first + _PANEL
        square = matrix[first:last, first:last]
        square[...] = np.triu(square) + np.triu(square, 1).T
        matrix[last:, first:last] = matrix[first:last, last:].T
    return matrix


def unpack_cube(packed: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """Return the full symmetric tensor of a packed cube, of shape (order, order, order)."""
    cube = np.empty((order, order, order))
    places = np.array(list(combinations_with_replacement(range(order), 3)), np.intp).reshape(-1, 3).T
    for axes in permutations(places):
        cube[axes] = packed
    return cube
