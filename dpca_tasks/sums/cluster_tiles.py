"""The tasks of a tile's sum on a Dask cluster: rows and prepared blocks stay on the workers, tiles come and go."""

import itertools
from typing import Any

from distributed import Client

from dpca_tasks.queries.tiled_sum import Tile, TiledSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.cluster_sum import Graph, Packed, await_workers, collect, grid_packed, resubmitted
from dpca_tasks.sums.partial_sums import Gridded, Partial
from dpca_tasks.sums.partitions import cut
from dpca_tasks.sums.resident_rows import Residency
from dpca_tasks.sums.tile_sum import PreparedBlocks, fold_tile, prepare, prepare_gridded
from dpca_tasks.threads import one_thread


def sum_tile_on_cluster(
    source: BlockSource, query: TiledSum, tile: Tile, *, of: bytes, client: Client, residency: Residency
) -> Partial:
    """Fold a tile of every partition on the cluster and merge; see `dpca_tasks.sums.tile_sum.tile_sum`.

    Raises
    ------
    IncompleteSum
    WorkerFailed
        When a block cannot be summed, or no worker takes work for `dpca_tasks.sums.cluster_sum.PATIENCE` seconds.
    """
    return resubmitted(lambda: _sum_tile(source, query, tile, of=of, client=client, residency=residency))


def _sum_tile(
    source: BlockSource, query: TiledSum, tile: Tile, *, of: bytes, client: Client, residency: Residency
) -> Partial:
    memory = await_workers(client)
    keeps_rows = residency.settle(source, query, memory)
    keeps_prepared = residency.settle_prepared(source, query, memory, of=of)
    graph = Graph(residency.homes)
    bounds = list(itertools.pairwise(cut(source.extents, len(graph.homes))))
    missing = [at for at in range(len(bounds)) if at not in residency.prepared]
    sources: list[Any] = []
    queries: list[Any] = []
    if missing:  # the query holds all factors: it is sent once a step
        sources, queries = graph.ship("source", source), graph.ship("query", query)
    rows: dict[int, str] = {}
    prepared: dict[int, Any] = dict(residency.prepared)
    for at in missing:
        if keeps_rows:
            if at not in residency.rows:
                rows[at] = graph.add("rows", at, grid_packed, sources[at], queries[at], *bounds[at])
            held = residency.rows.get(at, rows.get(at))
            prepared[at] = graph.add("prepared", at, _prepare_gridded, held, queries[at])
        else:
            prepared[at] = graph.add("prepared", at, _prepare, sources[at], queries[at], *bounds[at])
    folds = [graph.add("fold", at, _fold_tile, prepared[at], tile) for at in range(len(bounds))]
    made = {at: prepared[at] for at in missing} if keeps_prepared else {}
    return collect(
        client, graph, folds, size=tile.size, workers=[*memory], residency=residency, rows=rows, prepared=made
    )


def _prepare(source: Packed, query: Packed, first: int, last: int) -> PreparedBlocks:
    with one_thread():
        return prepare(source.open(), query.open(), first, last)


def _prepare_gridded(rows: Gridded, query: Packed) -> PreparedBlocks:
    with one_thread():
        return prepare_gridded(rows, query.open())


def _fold_tile(prepared: PreparedBlocks, tile: Tile) -> Partial:
    with one_thread():
        return fold_tile(prepared, tile)
