"""What workers keep between passes: gridded rows, and blocks prepared for the tiles of a step.

Blocks that are prepared once for all tiles of a step, and the sum of one tile over them.

What a query prepares is secret and a pure function of the rows and of public inputs, so it may be kept in memory, lost,
and made again. It is kept on the workers beside the rows, or in this process where there is no cluster, while there is
room, and until another step is asked for; without room it is made for every tile. The sum is the same bits either way.

Gridded rows that workers keep in memory, so that a release with many passes reads and grids them once.

Beside them stays what one step prepared of them for its tiles, until the next step.
"""

import sys
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.ratings import RatingsSum
from dpca_tasks.queries.tiled_sum import Prepared, Tile, TiledSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.partial_sums import (
    PARTITIONS_PER_WORKER,
    Gridded,
    Partial,
    first_homes,
    settle_homes,
    without_cause,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedBlocks:
    """Prepared blocks ``first <= i < last``, and what they cover. Its repr is blank, because schedulers log reprs."""

    first: int = field(repr=False)
    last: int = field(repr=False)
    records: int = field(repr=False)
    stored: int = field(repr=False)
    blocks: tuple[Prepared, ...] = field(repr=False)

    def __sizeof__(self) -> int:
        """Count the arrays too, because Dask moves small objects between workers."""
        return sum(block.nbytes for block in self.blocks)


def prepare(source: BlockSource, query: TiledSum, first: int, last: int) -> PreparedBlocks:
    """Read and prepare blocks ``first .. last - 1``, one at a time.

    Raises
    ------
    WorkerFailed
        When a block cannot be read or prepared. The exception omits its cause, which may quote rows.
    """

    def work() -> PreparedBlocks:
        records, stored, blocks = 0, 0, []
        for index in range(first, last):
            block = source.read(index)
            rows = query.grid(block)
            records += rows.n_records
            stored += int(block.row_ptr[-1])
            blocks.append(query.prepare(rows))
        return PreparedBlocks(first=first, last=last, records=records, stored=stored, blocks=tuple(blocks))

    return without_cause(work)


def prepare_gridded(rows: Gridded, query: TiledSum) -> PreparedBlocks:
    """Prepare blocks that are already on the grid of the query; the result equals that of `prepare`.

    Raises
    ------
    WorkerFailed
        As `prepare`.
    """
    blocks = without_cause(lambda: tuple(query.prepare(query.select(block)) for block in rows.blocks))
    records = sum(block.n_records for block in rows.blocks)
    return PreparedBlocks(first=rows.first, last=rows.last, records=records, stored=rows.stored, blocks=blocks)


def fold_tile(prepared: PreparedBlocks, tile: Tile) -> Partial:
    """Add up the items of a tile over prepared blocks.

    Raises
    ------
    WorkerFailed
        As `prepare`.
    """

    def work() -> NDArray[np.int64]:
        total = np.zeros(tile.size, np.int64)
        for block in prepared.blocks:
            block.add(tile, total)
        return total

    total = without_cause(work)
    covered = {"first": prepared.first, "last": prepared.last, "records": prepared.records, "stored": prepared.stored}
    return Partial(**covered, total=total)


if TYPE_CHECKING:
    from distributed import Future

    from dpca_tasks.queries.tiled_sum import TiledSum
    from dpca_tasks.sums.partial_sums import Gridded
    from dpca_tasks.sums.resident_rows import PreparedBlocks

SHARE = 0.3
OWN_MEMORY = 1 << 30
"""The number of bytes that prepared blocks may take in this process, without a cluster."""

_BYTES = np.array([8, 8, 8])  # per record (its bound), per row (its bound), per stored value (4, and 4 for its column)


class Residency:
    """The gridded rows of one release in the workers' memory, and the homes of its partitions."""

    def __init__(self) -> None:
        self.homes: list[str] = []
        self.rows: dict[int, Future[Gridded]] = {}
        self.prepared: dict[int, Future[PreparedBlocks]] = {}
        self._of: Hashable = None
        self._prepared_of: bytes | None = None
        self._here: dict[int, PreparedBlocks] = {}

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
        moved = {at for at, home in enumerate(settled) if home != self.homes[at]}
        self.rows, self.prepared = _usable(self.rows, moved), _usable(self.prepared, moved)
        self.homes = settled
        if not fits(source.extents, memory):
            self.rows = {}
            return False
        return True

    def settle_prepared(self, source: BlockSource, query: "TiledSum", memory: Mapping[str, int], *, of: bytes) -> bool:
        """Drop what was prepared for another step; return whether what is prepared fits beside the rows."""
        if of != self._prepared_of:
            self.prepared, self._prepared_of = {}, of
        return fits(source.extents, memory, beside=query.prepared_bytes)

    def prepared_here(self, of: bytes) -> "dict[int, PreparedBlocks]":
        """Return the blocks that this process prepared under a name, by number; forget those of other names."""
        if of != self._prepared_of:
            self._here, self._prepared_of = {}, of
        return self._here

    def keep_here(self, at: int, blocks: "PreparedBlocks") -> None:
        """Keep prepared blocks in this process while there is room."""
        if at not in self._here and sum(map(sys.getsizeof, (*self._here.values(), blocks))) <= OWN_MEMORY:
            self._here[at] = blocks

    def holds(self, source: BlockSource, query: RowSum) -> bool:
        """Tell whether the last `settle` was for the same source and grid."""
        return self._of == (source.content, grid_of(query))

    def clear(self) -> None:
        """Forget all rows; Dask frees them on the workers."""
        self.rows, self.prepared, self.homes, self._of = {}, {}, [], None
        self._here, self._prepared_of = {}, None


def fits(extents: NDArray[np.int64], memory: Mapping[str, int], *, beside: Sequence[int] = (0, 0, 0, 0)) -> bool:
    """Tell whether all gridded rows fit in the declared memory of the workers; without a declared limit they do not.

    ``beside`` are the bytes of what is kept beside them, per record, row, stored value and block.
    """
    needed = int((extents @ (_BYTES + np.array(beside[:3]))).sum()) + beside[3] * len(extents)
    return needed <= SHARE * len(memory) * min(memory.values())


def _usable[T](futures: "dict[int, Future[T]]", moved: Container[int]) -> "dict[int, Future[T]]":
    return {
        at: future for at, future in futures.items() if at not in moved and future.status in ("pending", "finished")
    }


def grid_of(query: RowSum) -> Hashable:
    """Return a key of the grid of a query: equal keys mean equal gridded rows."""
    plain = query.plain
    if type(plain).grid is RowSum.grid:
        return plain.n_features, plain.clip_norm, plain.bits
    if isinstance(plain, RatingsSum):
        return "ratings", plain.n_features, plain.low, plain.high
    return plain.digest()
