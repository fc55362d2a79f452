"""Partitions of the blocks of a source, their partial sums, and the data that workers keep between passes.

Each partition has a worker, its home. A partial sum is the total over some blocks, with the range of blocks that it
covers.

>>> import numpy as np
>>> from dpca_tasks.records.blocks import ArrayBlocks
>>> from dpca_tasks.queries.second_moment import SecondMoment
>>> query = SecondMoment(n_features=2, clip_norm=1.0, relation="add_remove", bits=4)
>>> source = ArrayBlocks(np.eye(2), block_records=1)
>>> merge([fold(source, query, 1, 2), fold(source, query, 0, 1)]).total
array([256,   0, 256])

Workers keep clipped and rounded rows in memory, so a release with many passes reads and converts the rows once. They
also keep the blocks that one step prepared for its tiles, until the next step. The sum of one tile runs over prepared
blocks.

Prepared blocks are secret. They are a pure function of the rows and of public inputs, so they can be lost and computed
again. They are kept on the workers, or in this process without a cluster, while there is room and until another step is
requested. Without room they are computed again for every tile. The sum has the same bits
either way.
"""

import itertools
import sys
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import IncompleteSum, WorkerFailed
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import Prepared, Tile, TiledSum
from dpca_tasks.queries.ratings import RatingsSum
from dpca_tasks.records.blocks import BlockSource, RowBlock

PARTITIONS_PER_WORKER = 4


def first_homes(workers: Sequence[str]) -> list[str]:
    """Return the worker (home) of each partition: `PARTITIONS_PER_WORKER` neighbouring partitions for each worker."""
    return [worker for worker in workers for _ in range(PARTITIONS_PER_WORKER)]


def settle_homes(homes: Sequence[str], workers: Sequence[str]) -> list[str]:
    """Move partitions from workers that are gone, or have too many, to the workers with the fewest.

    A restarted worker has a new address, so it counts as a new worker and gets partitions from the others.
    """
    most = -(-len(homes) // len(workers))
    loads = dict.fromkeys(workers, 0)
    kept = []
    for home in homes:
        kept.append(loads.get(home, most) < most)
        if kept[-1]:
            loads[home] += 1
    settled = list(homes)
    for at, keep in enumerate(kept):
        if not keep:
            settled[at] = min(loads, key=loads.__getitem__)
            loads[settled[at]] += 1
    return settled


def cut(extents: NDArray[np.int64], partitions: int) -> list[int]:
    """Return the bounds of contiguous partitions of blocks with nearly equal numbers of stored values and rows.

    The number of partitions is public. The bounds depend on the rows, so only the workers and the scheduler get them.
    """
    weights = extents[:, 1] + extents[:, 2]
    middles = np.cumsum(weights) - weights / 2
    targets = weights.sum() * np.arange(1, partitions) / partitions
    return [0, *np.searchsorted(middles, targets).tolist(), len(extents)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partial:
    """The total over blocks ``first <= i < last``, with the numbers of records and stored values that it covers.

    The repr hides the data, because schedulers log reprs.
    """

    first: int = field(repr=False)
    last: int = field(repr=False)
    records: int = field(repr=False)
    stored: int = field(repr=False)
    total: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gridded:
    """The clipped and rounded rows of blocks ``first <= i < last``, before sampling and noise."""

    first: int = field(repr=False)
    last: int = field(repr=False)
    stored: int = field(repr=False)
    blocks: tuple[RowBlock, ...] = field(repr=False)

    def __sizeof__(self) -> int:
        """Return the size with all rows; otherwise Dask would move this object between workers as a small one."""
        return sum(
            block.values.nbytes + block.indices.nbytes + block.row_ptr.nbytes + block.record_ptr.nbytes
            for block in self.blocks
        )


def fold(source: BlockSource, query: RowSum, first: int, last: int) -> Partial:
    """Read blocks ``first`` to ``last - 1`` one at a time, and sum the query over them; an empty range gives zero.

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
    """Read blocks ``first .. last - 1`` and convert them to the grid, to be kept in memory.

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
    """Sum the query over rows that are already on its grid, with the same result as `fold`.

    Raises
    ------
    WorkerFailed
        As `fold`.
    """
    total, records = without_cause(lambda: _added(query, map(query.select, rows.blocks)))
    return Partial(first=rows.first, last=rows.last, records=records, stored=rows.stored, total=total)


def merge(partials: Sequence[Partial]) -> Partial:
    """Add neighbouring partial sums into a new partial sum.

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
    """Call a worker's function that reads rows; if it fails, report only the type of the exception."""
    try:
        return work()
    except WorkerFailed:
        raise
    except Exception as error:  # noqa: BLE001 - re-raised without its data
        failure = type(error).__name__
    raise WorkerFailed(f"a block could not be summed ({failure}); check the dataset with `dpca dataset verify`.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedBlocks:
    """Blocks ``first <= i < last``, prepared for the tiles of one step.

    The repr hides the data, because schedulers log reprs.
    """

    first: int = field(repr=False)
    last: int = field(repr=False)
    records: int = field(repr=False)
    stored: int = field(repr=False)
    blocks: tuple[Prepared, ...] = field(repr=False)

    def __sizeof__(self) -> int:
        """Return the size with all arrays; otherwise Dask would move this object between workers as a small one."""
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
    """Prepare blocks that are already on the grid of the query, with the same result as `prepare`.

    Raises
    ------
    WorkerFailed
        As `prepare`.
    """
    blocks = without_cause(lambda: tuple(query.prepare(query.select(block)) for block in rows.blocks))
    records = sum(block.n_records for block in rows.blocks)
    return PreparedBlocks(first=rows.first, last=rows.last, records=records, stored=rows.stored, blocks=blocks)


def fold_tile(prepared: PreparedBlocks, tile: Tile) -> Partial:
    """Sum the items of a tile over prepared blocks.

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

    from dpca_tasks.queries.joint_sum import TiledSum

SHARE = 0.3
OWN_MEMORY = 1 << 30
"""Largest number of bytes of rows, and of prepared blocks, that this process keeps if there is no cluster."""

_BYTES = np.array([8, 8, 8])  # bytes per record, per row, and per stored value with its column


class Residency:
    """The rows of one release that stay in memory between sums, and the worker (home) of each partition."""

    def __init__(self) -> None:
        self.homes: list[str] = []
        self.rows: dict[int, Future[Gridded]] = {}
        self.prepared: dict[int, Future[PreparedBlocks]] = {}
        self._of: Hashable = None
        self._prepared_of: bytes | None = None
        self._here: dict[int, PreparedBlocks] = {}
        self._gridded: Gridded | None = None

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
            Whether the rows fit in the memory of the workers and should be kept there.
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
        """Drop blocks prepared for another step; return whether prepared blocks and rows fit in memory together."""
        if of != self._prepared_of:
            self.prepared, self._prepared_of = {}, of
        return fits(source.extents, memory, extra=query.prepared_bytes)

    def rows_here(self, source: BlockSource, query: RowSum) -> Gridded | None:
        """Return all rows on the grid, which this process keeps; None if they would use more than `OWN_MEMORY`."""
        of = (source.content, grid_of(query))
        if of != self._of:
            self.clear()
            self._of = of
        if self._gridded is None and int((source.extents @ _BYTES).sum()) <= OWN_MEMORY:
            self._gridded = grid(source, query, 0, source.n_blocks)
        return self._gridded

    def prepared_here(self, of: bytes) -> "dict[int, PreparedBlocks]":
        """Return the kept blocks that were prepared under the name ``of``, by number; drop blocks with other names."""
        if of != self._prepared_of:
            self._here, self._prepared_of = {}, of
        return self._here

    def keep_here(self, at: int, blocks: "PreparedBlocks") -> None:
        """Keep prepared blocks in this process while there is room."""
        if at not in self._here and sum(map(sys.getsizeof, (*self._here.values(), blocks))) <= OWN_MEMORY:
            self._here[at] = blocks

    def holds(self, source: BlockSource, query: RowSum) -> bool:
        """Return whether the last `settle` was for the same source and grid."""
        return self._of == (source.content, grid_of(query))

    def clear(self) -> None:
        """Drop all kept rows and prepared blocks; Dask then frees them on the workers."""
        self.rows, self.prepared, self.homes, self._of = {}, {}, [], None
        self._here, self._prepared_of, self._gridded = {}, None, None


def fits(extents: NDArray[np.int64], memory: Mapping[str, int], *, extra: Sequence[int] = (0, 0, 0, 0)) -> bool:
    """Return whether all gridded rows fit in the workers' memory; they do not if a worker declares no memory limit.

    ``extra`` is the number of bytes of other kept data per record, row, stored value and block.
    """
    needed = int((extents @ (_BYTES + np.array(extra[:3]))).sum()) + extra[3] * len(extents)
    return needed <= SHARE * len(memory) * min(memory.values())


def _usable[T](futures: "dict[int, Future[T]]", moved: Container[int]) -> "dict[int, Future[T]]":
    return {
        at: future for at, future in futures.items() if at not in moved and future.status in ("pending", "finished")
    }


def grid_of(query: RowSum) -> Hashable:
    """Return a key of the grid of a query: equal keys mean equal gridded rows."""
    plain = query.plain
    if type(plain).grid is RowSum.grid:
        return plain.n_features, plain.clip_norm, plain.record_bits
    if isinstance(plain, RatingsSum):
        return "ratings", plain.n_features, plain.low, plain.high
    return plain.digest()
