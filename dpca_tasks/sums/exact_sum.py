"""The exact sum of a query over all blocks, in this process or on a Dask cluster, with the same bits either way.

One task computes the partial sum over a contiguous range of blocks. Partial sums are merged in a tree. Contributions
are integers, so the order does not matter. Every partial sum lists the blocks, records and stored values that it
covers, and a merge refuses an overlap or a gap. So a lost worker or a repeated task can neither lose a row nor count it
twice.

>>> import numpy as np
>>> from dpca_tasks.records.blocks import ArrayBlocks
>>> from dpca_tasks.queries.second_moment import SecondMoment
>>> query = SecondMoment(n_features=2, clip_norm=1.0, relation="add_remove", bits=4)
>>> exact_sum(ArrayBlocks(np.eye(2)), query)
array([256,   0, 256])
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import IncompleteSum
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import Tile, TiledSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.partial_sums import Partial, PreparedBlocks, fold, fold_gridded, fold_tile, prepare

if TYPE_CHECKING:
    from distributed import Client

    from dpca_tasks.sums.partial_sums import Residency


def exact_sum(
    source: BlockSource,
    query: RowSum,
    *,
    client: "Client | None" = None,
    progress: Callable[[int, int], None] | None = None,
    residency: "Residency | None" = None,
) -> NDArray[np.int64]:
    """Sum a query over every block of a source, exactly.

    Parameters
    ----------
    source : BlockSource
    query : RowSum
    client : distributed.Client, optional
        The cluster to run on; None sums in this process.
    progress : callable, optional
        Called on a cluster with the numbers of finished partitions and of all partitions; both are public.
    residency : Residency, optional
        Keeps clipped and rounded rows in memory between sums, on the workers or in this process. With None, every sum
        reads the rows again.

    Returns
    -------
    int64 array of shape (query.layout.size,)
        The packed total in grid steps, bit-identical for any blocks, partitions, workers and order.

    Raises
    ------
    IncompleteSum, WorkerFailed
    """
    if client is None:
        rows = None if residency is None else residency.rows_here(source, query)
        whole = fold(source, query, 0, source.n_blocks) if rows is None else fold_gridded(rows, query)
    else:
        from dpca_tasks.sums.cluster_sum import sum_on_cluster  # imported here: without a cluster, Dask is not needed

        whole = sum_on_cluster(source, query, client=client, progress=progress, residency=residency)
    return check_covered(source, whole)


def tile_sum(
    source: BlockSource,
    query: TiledSum,
    tile: Tile,
    *,
    of: bytes,
    client: "Client | None" = None,
    residency: "Residency",
) -> NDArray[np.int64]:
    """Sum the items of a tile (a range of items of a statistic) over every block of a source, exactly.

    Parameters
    ----------
    source : BlockSource
    query : TiledSum
    tile : Tile
    of : bytes
        A name of the query with its secrets; blocks prepared under the same name are reused.
    client : distributed.Client, optional
        The cluster to run on; None sums in this process.
    residency : Residency
        Keeps gridded rows and prepared blocks between sums.

    Returns
    -------
    int64 array of shape (tile.size,)
        The total in grid steps, bit-identical for any blocks, partitions, workers, order and tiles.

    Raises
    ------
    IncompleteSum, WorkerFailed
    """
    if client is None:
        whole = _sum_here(source, query, tile, of=of, residency=residency)
    else:
        from dpca_tasks.sums.cluster_sum import sum_tile_on_cluster  # without a cluster, Dask is not needed

        whole = sum_tile_on_cluster(source, query, tile, of=of, client=client, residency=residency)
    return check_covered(source, whole)


def check_covered(source: BlockSource, whole: Partial) -> NDArray[np.int64]:
    """Check that a partial sum covers the whole source, and return its total.

    Raises
    ------
    IncompleteSum
        When the partial sum does not cover every record exactly once.
    """
    covered = (whole.first, whole.last, whole.records, whole.stored)
    if covered != (0, source.n_blocks, source.n_records, int(source.extents[:, 2].sum())):
        raise IncompleteSum("the sum does not cover every record exactly once; check the dataset, then run again.")
    return whole.total


def _sum_here(source: BlockSource, query: TiledSum, tile: Tile, *, of: bytes, residency: "Residency") -> Partial:
    """Sum the items of a tile in this process, and keep prepared blocks in memory while there is room."""
    total, records, stored = np.zeros(tile.size, np.int64), 0, 0
    for blocks in _prepared_here(source, query, of=of, residency=residency):
        total += fold_tile(blocks, tile).total
        records += blocks.records
        stored += blocks.stored
    return Partial(first=0, last=source.n_blocks, records=records, stored=stored, total=total)


def _prepared_here(
    source: BlockSource, query: TiledSum, *, of: bytes, residency: "Residency"
) -> Iterator[PreparedBlocks]:
    kept = residency.prepared_here(of)
    for at in range(source.n_blocks):
        blocks = kept.get(at) or prepare(source, query, at, at + 1)
        residency.keep_here(at, blocks)
        yield blocks
