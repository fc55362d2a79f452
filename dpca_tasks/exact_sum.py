"""Sum a query over all blocks, in this process or on a Dask cluster, with the same bits either way.

One task folds a fixed, contiguous list of blocks into one fresh partial; partials merge in a tree.
Contributions are integers, so the order does not matter. Every partial carries the blocks and records that it
covers, and a merge refuses an overlap or a gap: a lost worker or a repeated task cannot lose a row or count
it twice.
"""

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.blocks import BlockSource
from dpca_tasks.errors import IncompleteSum, WorkerFailed
from dpca_tasks.queries.base import RowSum

if TYPE_CHECKING:
    from distributed import Client

FAN_IN = 4
PARTITIONS_PER_WORKER = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partial:
    """The total over blocks ``first <= i < last``. Its repr is blank: schedulers log reprs."""

    first: int = field(repr=False)
    last: int = field(repr=False)
    records: int = field(repr=False)
    total: NDArray[np.int64] = field(repr=False)


def fold(source: BlockSource, query: RowSum, first: int, last: int) -> Partial:
    """Add up the query over blocks ``first .. last - 1``; an empty range gives zero.

    Raises
    ------
    WorkerFailed
        When a block cannot be read or mapped. The cause is cut off: it may quote rows, and errors travel.
    """
    total = np.zeros(query.layout.size, np.int64)
    records = 0
    try:
        for index in range(first, last):
            block = query.grid(source.read(index))
            total += query.map(block)
            records += block.n_records
    except Exception as error:  # noqa: BLE001 - re-raised without its data
        failure = type(error).__name__
    else:
        return Partial(first=first, last=last, records=records, total=total)
    raise WorkerFailed(f"a block could not be summed ({failure}); check the dataset with `dpca dataset verify`.")


def merge(partials: Sequence[Partial]) -> Partial:
    """Add neighbouring partials into a fresh one.

    Raises
    ------
    IncompleteSum
        When two partials overlap or leave a gap.
    """
    ordered = sorted(partials, key=lambda partial: (partial.first, partial.last))
    total = ordered[0].total.copy()
    for left, right in itertools.pairwise(ordered):
        if left.last != right.first:
            raise IncompleteSum("two partial sums overlap or leave a gap; run the release again.")
        total += right.total
    return Partial(
        first=ordered[0].first,
        last=ordered[-1].last,
        records=sum(partial.records for partial in ordered),
        total=total,
    )


def exact_sum(
    source: BlockSource,
    query: RowSum,
    *,
    client: "Client | None" = None,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.int64]:
    """Sum a query over every block of a source, exactly.

    Parameters
    ----------
    source : BlockSource
    query : RowSum
    client : distributed.Client, optional
        The cluster to run on; this process when left out.
    progress : callable, optional
        Told the partitions done and in all on a cluster; both are public numbers.

    Returns
    -------
    int64 array of shape (query.layout.size,)
        The packed total in grid steps. Bit-identical for any blocks, partitions, workers and order.

    Raises
    ------
    IncompleteSum, WorkerFailed
    """
    if client is None:
        whole = fold(source, query, 0, source.n_blocks)
    else:
        whole = _sum_on_cluster(source, query, client, progress)
    if (whole.first, whole.last, whole.records) != (0, source.n_blocks, source.n_records):
        raise IncompleteSum("the sum does not cover every record exactly once; check the dataset, then run again.")
    return whole.total


def _sum_on_cluster(
    source: BlockSource, query: RowSum, client: "Client", progress: Callable[[int, int], None] | None
) -> Partial:
    workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    bounds = np.linspace(0, source.n_blocks, PARTITIONS_PER_WORKER * workers + 1).astype(int).tolist()
    run = uuid.uuid4().hex
    shared = client.submit(_share, source, query, key=f"query-{run}")  # a task, so a lost worker's copy is remade
    level = [
        client.submit(_fold_shared, shared, first, last, key=f"fold-{run}-{at}", retries=2)
        for at, (first, last) in enumerate(itertools.pairwise(bounds))
    ]
    if progress is not None:
        done, count = itertools.count(1), len(level)
        for future in level:
            future.add_done_callback(lambda _: progress(next(done), count))
    depth = 0
    while len(level) > 1:
        depth += 1
        level = [
            client.submit(merge, level[at : at + FAN_IN], key=f"merge-{run}-{depth}-{at}")
            for at in range(0, len(level), FAN_IN)
        ]
    whole: Partial = level[0].result()
    return whole


def _share(source: BlockSource, query: RowSum) -> tuple[BlockSource, RowSum]:
    return source, query


def _fold_shared(shared: tuple[BlockSource, RowSum], first: int, last: int) -> Partial:
    return fold(*shared, first, last)
