"""Rows that stay: a release that passes over the same rows many times reads and grids them once."""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.queries.base import RowSum
from dpca_tasks.records.blocks import BlockSource

if TYPE_CHECKING:
    from distributed import Future

    from dpca_tasks.sums.partial_sums import Gridded
from dpca_tasks.sums.partitions import PARTITIONS_PER_WORKER, first_homes, settle_homes

SHARE = 0.3

_BYTES = np.array([8, 8, 8])  # of a record (its bound), of a row (its bound), of a stored value (4 and its column's 4)


class Residency:
    """The rows of one release on their grid, in the workers' memory, and the homes of its partitions."""

    def __init__(self) -> None:
        self.homes: list[str] = []
        self.rows: dict[int, Future[Gridded]] = {}
        self._of: Hashable = None

    def settle(self, source: BlockSource, query: RowSum, memory: Mapping[str, int]) -> bool:
        """Prepare for a sum: settle partitions on the workers there are, drop rows that are of no more use.

        Parameters
        ----------
        source : BlockSource
        query : RowSum
        memory : mapping of str to int
            Each worker's address, and its declared limit in bytes; 0 for none.

        Returns
        -------
        bool
            Whether rows are to be kept.
        """
        of = (source.content, grid_of(query))
        if of != self._of or len(self.homes) < PARTITIONS_PER_WORKER * len(memory):
            self.clear()
            self.homes, self._of = first_homes([*memory]), of
        settled = settle_homes(self.homes, [*memory])
        self.rows = {
            at: future
            for at, future in self.rows.items()
            if settled[at] == self.homes[at] and future.status in ("pending", "finished")
        }
        self.homes = settled
        if not fits(source.extents, memory):
            self.rows = {}
            return False
        return True

    def holds(self, source: BlockSource, query: RowSum) -> bool:
        """Tell whether rows of a source are kept, or were about to be, on the grid of a query."""
        return self._of == (source.content, grid_of(query))

    def clear(self) -> None:
        """Forget all rows; Dask frees them on the workers."""
        self.rows, self.homes, self._of = {}, [], None


def fits(extents: NDArray[np.int64], memory: Mapping[str, int]) -> bool:
    """Tell whether all rows on a grid may stay on workers that declare so much memory; without a limit they may not."""
    return int((extents @ _BYTES).sum()) <= SHARE * len(memory) * min(memory.values())


def grid_of(query: RowSum) -> Hashable:
    """Name the grid of a query: equal names, equal rows on it."""
    plain = query.plain
    if type(plain).grid is RowSum.grid:
        return plain.n_features, plain.clip_norm, plain.bits
    return plain.digest()
