"""Joint sums over items that are summed for some items at a time, from rows that are prepared once for all of them."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.queries.base import StepSecrets
from dpca_tasks.queries.joint_sum import JointSum
from dpca_tasks.records.blocks import RowBlock

TILE = 1 << 22
"""The largest number of coordinates of a tile, 32 MiB, unless one item has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Items ``first <= j < last`` of a statistic, and the number of its coordinates of them."""

    first: int
    last: int
    size: int


class Prepared(Protocol):
    """A block as a query prepared it: secret, a pure function of the block and of the query's public inputs."""

    @property
    def nbytes(self) -> int: ...  # noqa: D102

    def add(self, tile: Tile, total: NDArray[np.int64]) -> None:
        """Add the contributions of the block to the items of a tile to a running total of its coordinates."""


class TiledSum(JointSum):
    """A joint sum whose parts hold equally many coordinates of each item, in the items' order, or belong to none.

    A part of layout ``symmetric`` belongs to no item; the first tile has it.
    """

    __slots__ = ()

    @abstractmethod
    def with_secrets(self, secrets: StepSecrets) -> Self:
        """Return the query with the coins that it needs; only the curator has them."""

    @abstractmethod
    def prepare(self, block: RowBlock) -> Prepared:
        """Return what all tiles need of a block on the grid."""

    @property
    @abstractmethod
    def prepared_bytes(self) -> tuple[int, int, int, int]:
        """The bytes of prepared blocks, at most: per record, row, stored value and block."""

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles, by public facts alone."""
        of_item = sum(part.layout.size for part in self.parts.values() if part.layout.kind != "symmetric")
        step = max(1, TILE // (of_item // self.n_features))
        return tuple(self.tile(first, min(first + step, self.n_features)) for first in range(0, self.n_features, step))

    def tile(self, first: int, last: int) -> Tile:
        """Return the tile of some items."""
        ranges = self._ranges(first, last).values()
        return Tile(first=first, last=last, size=sum(stop - start for start, stop in ranges))

    def ranges(self, tile: Tile) -> dict[str, tuple[int, int]]:
        """Return the first coordinate of each part that a tile has, and the one after its last."""
        return self._ranges(tile.first, tile.last)

    def _ranges(self, first: int, last: int) -> dict[str, tuple[int, int]]:
        found = {}
        for name, part in self.parts.items():
            if part.layout.kind == "symmetric":
                found[name] = (0, part.layout.size if first == 0 else 0)
            else:
                each = part.layout.size // self.n_features
                found[name] = (each * first, each * last)
        return found

    def split_tile(self, tile: Tile, total: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return views of the coordinates of each part that a tile has; a part without any is left out."""
        found, at = {}, 0
        for name, (start, stop) in self.ranges(tile).items():
            if stop > start:
                found[name] = total[at : at + stop - start]
                at += stop - start
        return found

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the whole statistic of a block in grid steps."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the whole statistic of a block to a running total: one tile of all items has all coordinates in order."""
        self.prepare(block).add(self.tile(0, self.n_features), total)
