"""The exact sum of one tile of a statistic, from blocks that are prepared once for all tiles of a step.

What a query prepares is secret and a pure function of the rows and of public inputs, so it may be kept in memory, lost,
and made again. It is kept on the workers beside the rows, or in this process where there is no cluster, while there is
room, and until another step is asked for; without room it is made for every tile. The sum is the same bits either way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.queries.tiled_sum import Prepared, Tile, TiledSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.exact_sum import check_covered
from dpca_tasks.sums.partial_sums import Gridded, Partial, without_cause

if TYPE_CHECKING:
    from distributed import Client

    from dpca_tasks.sums.resident_rows import Residency


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


def tile_sum(
    source: BlockSource,
    query: TiledSum,
    tile: Tile,
    *,
    of: bytes,
    client: "Client | None" = None,
    residency: "Residency",
) -> NDArray[np.int64]:
    """Sum the items of a tile over every block of a source, exactly.

    Parameters
    ----------
    source : BlockSource
    query : TiledSum
    tile : Tile
    of : bytes
        A name of the query with its secrets: what was prepared under the same name is used again.
    client : distributed.Client, optional
        The cluster to run on; None sums in this process.
    residency : Residency
        Keeps gridded rows and prepared blocks between sums.

    Returns
    -------
    int64 array of shape (tile.size,)
        In grid steps, bit-identical for any blocks, partitions, workers, order and tiles.

    Raises
    ------
    IncompleteSum, WorkerFailed
    """
    if client is None:
        whole = _sum_here(source, query, tile, of=of, residency=residency)
    else:
        from dpca_tasks.sums.cluster_tiles import sum_tile_on_cluster  # without a cluster, Dask is not needed

        whole = sum_tile_on_cluster(source, query, tile, of=of, client=client, residency=residency)
    return check_covered(source, whole)


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


def _sum_here(source: BlockSource, query: TiledSum, tile: Tile, *, of: bytes, residency: "Residency") -> Partial:
    """Sum in this process, which keeps what is prepared where it fits beside the caller's rows."""
    total, records, stored = np.zeros(tile.size, np.int64), 0, 0
    for blocks in _prepared_here(source, query, of=of, residency=residency):
        total += fold_tile(blocks, tile).total
        records += blocks.records
        stored += blocks.stored
    return Partial(first=0, last=source.n_blocks, records=records, stored=stored, total=total)


def _prepared_here(
    source: BlockSource, query: TiledSum, *, of: bytes, residency: "Residency"
) -> "Iterator[PreparedBlocks]":
    kept = residency.prepared_here(of)
    for at in range(source.n_blocks):
        blocks = kept.get(at) or prepare(source, query, at, at + 1)
        residency.keep_here(at, blocks)
        yield blocks
