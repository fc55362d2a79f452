"""Blocks that are prepared once for all tiles of a step, and the sum of one tile over them.

What a query prepares is secret and a pure function of the rows and of public inputs, so it may be kept in memory, lost,
and made again. It is kept on the workers beside the rows, or in this process where there is no cluster, while there is
room, and until another step is asked for; without room it is made for every tile. The sum is the same bits either way.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.queries.tiled_sum import Prepared, Tile, TiledSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.partial_sums import Gridded, Partial, without_cause


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
