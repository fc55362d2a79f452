"""Gridded rows that workers keep in memory, so that a release with many passes reads and grids them once."""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.queries.base import RowSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.partitions import PARTITIONS_PER_WORKER, first_homes, settle_homes

if TYPE_CHECKING:
    from distributed import Future

    from dpca_tasks.sums.partial_sums import Gridded

SHARE = 0.3

_BYTES = np.array([8, 8, 8])  # per record (its bound), per row (its bound), per stored value (4, and 4 for its column)


class Residency:
    """The gridded rows of one release in the workers' memory, and the homes of its partitions."""

    def __init__(self) -> None:
        self.homes: list[str] = []
        self.rows: dict[int, Future[Gridded]] = {}
        self._of: Hashable = None

    def settle(self, source: BlockSource, query: RowSum, memory: Mapping[str, int]) -> bool:
        """Prepare for a sum: assign partitions to the present workers, and drop rows that are no longer usable.

        Parameters
        ----------
        source : BlockSource
        query : RowSum
        memory : mapping of str to int
            The declared memory limit of each worker in bytes, by address; 0 for none.

        Returns
        -------
        bool
            Whether the rows fit and should be kept.
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
        """Tell whether the last `settle` was for the same source and grid."""
        return self._of == (source.content, grid_of(query))

    def clear(self) -> None:
        """Forget all rows; Dask frees them on the workers."""
        self.rows, self.homes, self._of = {}, [], None


def fits(extents: NDArray[np.int64], memory: Mapping[str, int]) -> bool:
    """Tell whether all gridded rows fit in the declared memory of the workers; without a declared limit they do not."""
    return int((extents @ _BYTES).sum()) <= SHARE * len(memory) * min(memory.values())


def grid_of(query: RowSum) -> Hashable:
    """Return a key of the grid of a query: equal keys mean equal gridded rows."""
    plain = query.plain
    if type(plain).grid is RowSum.grid:
        return plain.n_features, plain.clip_norm, plain.bits
    return plain.digest()
