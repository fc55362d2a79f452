"""Packed storage of symmetric statistics, so that each distinct coordinate is summed, noised and sent once.

A symmetric matrix of order d is stored as its upper triangle, row by row: ``(0,0), (0,1), ..., (0,d-1), (1,1), ...``. A
cube, that is a symmetric tensor with three indices, is stored as its entries ``i <= j <= k`` in lexicographic order.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_PANEL = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Kind and dimension of a statistic, from which the number of packed coordinates follows.

    Parameters
    ----------
    kind : {"vector", "symmetric", "cube", "joint", "stack"}
        A vector; a symmetric matrix; a symmetric tensor with three indices; a concatenation of parts of other kinds;
        or a stack of symmetric matrices of equal size, each packed and then concatenated.
    order : int
        The dimension d of each index. For ``joint`` it is the number of all coordinates.
    count : int
        The number of matrices of a ``stack``.
    """

    kind: Literal["vector", "symmetric", "cube", "joint", "stack"]
    order: int
    count: int = 1

    @property
    def size(self) -> int:
        """The number of packed coordinates of the statistic."""
        d = self.order
        triangle = d * (d + 1) // 2
        sizes = {"vector": d, "joint": d, "symmetric": triangle, "cube": triangle * (d + 2) // 3, "stack": triangle}
        return sizes[self.kind] * self.count


def unpack_stack(packed: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """Return full symmetric matrices as an array of shape (count, order, order), given their packed upper triangles."""
    rows, columns = np.triu_indices(order)
    stack = np.empty((packed.size // rows.size, order, order))
    stack[:, rows, columns] = stack[:, columns, rows] = packed.reshape(-1, rows.size)
    return stack


def pack_symmetric(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the packed upper triangle of a symmetric matrix."""
    return np.concatenate([matrix[row, row:] for row in range(len(matrix))])


def unpack_symmetric(packed: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """Return the full symmetric matrix, given its packed upper triangle."""
    matrix = np.empty((order, order))
    start = 0
    for row in range(order):
        stop = start + order - row
        matrix[row, row:] = packed[start:stop]
        start = stop
    for first in range(0, order, _PANEL):  # a panel of rows at a time, so that transposed reads stay in the cache
        last = first + _PANEL
        square = matrix[first:last, first:last]
        square[...] = np.triu(square) + np.triu(square, 1).T
        matrix[last:, first:last] = matrix[first:last, last:].T
    return matrix


def unpack_cube(packed: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """Return a full symmetric tensor of shape (order, order, order), given its packed entries ``i <= j <= k``."""
    cube = np.empty((order, order, order))
    places = np.array(list(combinations_with_replacement(range(order), 3)), np.intp).reshape(-1, 3).T
    for axes in permutations(places):
        cube[axes] = packed
    return cube
