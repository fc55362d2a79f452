"""Rows that stay: a release that passes over the same rows many times reads and grids them once.

Each partition's rows on the grid are the result of a pure task, held by Dask on the partition's home, a worker. So
nothing is ever added to them, a lost worker's are made again by Dask, and they vanish with the futures held here: when
the release ends, or when its client goes away, however it went. A sum does not depend on them; rows that do not
fit are read again.

The rule that decides between the two compares the bytes of all rows on the grid with `SHARE` of the workers' declared
memory. It is inside the trust boundary, as partitions and timings are, and cannot move a bit of a result.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.blocks import BlockSource
from dpca_tasks.queries.base import RowSum

if TYPE_CHECKING:
    from distributed import Future

    from dpca_tasks.partials import Gridded

SHARE = 0.3
PARTITIONS_PER_WORKER = 4

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


def first_homes(workers: Sequence[str]) -> list[str]:
    """Give each worker its neighbouring partitions."""
    return [worker for worker in workers for _ in range(PARTITIONS_PER_WORKER)]


def settle_homes(homes: Sequence[str], workers: Sequence[str]) -> list[str]:
    """Move partitions from workers that are gone, or have too many, to those that have the fewest.

    A worker that was restarted has a new address, and gets what another one took over for it.
    """
    most = -(-len(homes) // len(workers))
    loads = dict.fromkeys(workers, 0)
    stays = []
    for home in homes:
        stays.append(loads.get(home, most) < most)
        if stays[-1]:
            loads[home] += 1
    settled = list(homes)
    for at, stay in enumerate(stays):
        if not stay:
            settled[at] = min(loads, key=loads.__getitem__)
            loads[settled[at]] += 1
    return settled


def cut(extents: NDArray[np.int64], partitions: int) -> list[int]:
    """Cut blocks into contiguous partitions of nearly equal numbers of stored values and rows; return their bounds.

    The number of partitions is public. The bounds are not, and stay with the workers and the scheduler.
    """
    weights = extents[:, 1] + extents[:, 2]
    middles = np.cumsum(weights) - weights / 2
    targets = weights.sum() * np.arange(1, partitions) / partitions
    return [0, *np.searchsorted(middles, targets).tolist(), len(extents)]
