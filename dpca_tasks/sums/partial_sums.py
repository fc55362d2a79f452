"""Partitions of the blocks of a source, and the sums over them.

Partitions of the blocks of a source, and the worker of each partition, its home.

Partial sums: the total over some blocks, and the range of blocks that it covers.

>>> import numpy as np
>>> from dpca_tasks.records.sources import ArrayBlocks
>>> from dpca_tasks.queries.second_moment import SecondMoment
>>> query = SecondMoment(n_features=2, clip_norm=1.0, relation="add_remove", bits=4)
>>> source = ArrayBlocks(np.eye(2), block_records=1)
>>> merge([fold(source, query, 1, 2), fold(source, query, 0, 1)]).total
array([256,   0, 256])
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import IncompleteSum, WorkerFailed
from dpca_tasks.queries.base import RowSum
from dpca_tasks.records.blocks import BlockSource, RowBlock

PARTITIONS_PER_WORKER = 4


def first_homes(workers: Sequence[str]) -> list[str]:
    """Assign neighbouring partitions to each worker."""
    return [worker for worker in workers for _ in range(PARTITIONS_PER_WORKER)]


def settle_homes(homes: Sequence[str], workers: Sequence[str]) -> list[str]:
    """Move partitions from workers that are gone, or have too many, to those that have the fewest.

    A restarted worker has a new address, and gets back partitions that another worker took over.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partial:
    """The total over blocks ``first <= i < last``, and the numbers of records and stored values that it covers.

    Its repr is blank, because schedulers log reprs.
    """

    first: int = field(repr=False)
    last: int = field(repr=False)
    records: int = field(repr=False)
    stored: int = field(repr=False)
    total: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gridded:
    """Blocks ``first <= i < last`` on the grid of a query, before sampling and noise."""

    first: int = field(repr=False)
    last: int = field(repr=False)
    stored: int = field(repr=False)
    blocks: tuple[RowBlock, ...] = field(repr=False)

    def __sizeof__(self) -> int:
        """Count the rows too, because Dask moves small objects between workers."""
        return sum(
            block.values.nbytes + block.indices.nbytes + block.row_ptr.nbytes + block.record_ptr.nbytes
            for block in self.blocks
        )


def fold(source: BlockSource, query: RowSum, first: int, last: int) -> Partial:
    """Read and add up blocks ``first .. last - 1``, one at a time; an empty range gives zero.

    Raises
    ------
    WorkerFailed
        When a block cannot be read or mapped. The exception omits its cause, which may quote rows.
    """
    stored = 0

    def blocks() -> Iterable[RowBlock]:
        nonlocal stored
        for index in range(first, last):
            block = source.read(index)
            stored += int(block.row_ptr[-1])
            yield query.grid(block)

    total, records = without_cause(lambda: _added(query, blocks()))
    return Partial(first=first, last=last, records=records, stored=stored, total=total)


def grid(source: BlockSource, query: RowSum, first: int, last: int) -> Gridded:
    """Read blocks ``first .. last - 1`` and put them on the grid, to be kept in memory.

    Raises
    ------
    WorkerFailed
        As `fold`.
    """

    def work() -> Gridded:
        stored, blocks = 0, []
        for index in range(first, last):
            block = source.read(index)
            stored += int(block.row_ptr[-1])
            blocks.append(query.plain.grid(block))
        return Gridded(first=first, last=last, stored=stored, blocks=tuple(blocks))

    return without_cause(work)


def fold_gridded(rows: Gridded, query: RowSum) -> Partial:
    """Add up blocks that are already on the grid of the query; the result equals that of `fold`.

    Raises
    ------
    WorkerFailed
        As `fold`.
    """
    total, records = without_cause(lambda: _added(query, map(query.select, rows.blocks)))
    return Partial(first=rows.first, last=rows.last, records=records, stored=rows.stored, total=total)


def merge(partials: Sequence[Partial]) -> Partial:
    """Add neighbouring partial sums into a new one.

    Raises
    ------
    IncompleteSum
        When two partials overlap or leave a gap.
    """
    ordered = sorted(partials, key=lambda partial: (partial.first, partial.last))
    if any(left.last != right.first for left, right in itertools.pairwise(ordered)):
        raise IncompleteSum("two partial sums overlap or leave a gap; run the release again.")
    first, *others = [partial for partial in ordered if partial.first < partial.last] or ordered[:1]
    total = first.total + others[0].total if others else first.total.copy()
    for other in others[1:]:
        total += other.total
    return Partial(
        first=ordered[0].first,
        last=ordered[-1].last,
        records=sum(partial.records for partial in ordered),
        stored=sum(partial.stored for partial in ordered),
        total=total,
    )


def _added(query: RowSum, blocks: Iterable[RowBlock]) -> tuple[NDArray[np.int64], int]:
    total, records = np.zeros(query.layout.size, np.int64), 0
    for block in blocks:
        query.add(block, total)
        records += block.n_records
    return total, records


def without_cause[T](work: Callable[[], T]) -> T:
    """Run a worker's function on rows; on failure, report only the type of the exception."""
    try:
        return work()
    except WorkerFailed:
        raise
    except Exception as error:  # noqa: BLE001 - re-raised without its data
        failure = type(error).__name__
    raise WorkerFailed(f"a block could not be summed ({failure}); check the dataset with `dpca dataset verify`.")
