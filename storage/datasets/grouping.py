"""Bring the pieces of a row, and the rows of one individual, together on disk.

DuckDB sorts what does not fit into memory. Rows then come in the order of their ids and records in that of
their units, integers by value and text by its integer value if it has one, else by its bytes: an order that
does not depend on how the source was sorted. Rows of one individual in a source that does not number them
keep the order of the source.

Examples
--------
::

    with Grouping(scratch, max_rows_per_unit=10) as grouping:
        for batch in reader.batches(rejects):
            grouping.add(batch)
        for batch in grouping.batches():
            ...                                # whole records
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.datasets.keyed_hash import keyed_hashes
from storage.errors import BadSource, Corrupt, Unavailable
from storage.formats.batch import BATCH_VALUES, RowBatch

_MEMORY = "256MB"
_NO_COLUMN = -1  # of an entry that only tells that its row exists

_LOOKALIKES = r"""
with trimmed as (
    select regexp_replace(id, '^[\s\p{{Z}}]+|[\s\p{{Z}}]+$', '', 'g') as id
    from (select distinct {id} as id from pieces)
), plain as (
    select regexp_replace(id, '^\+?(-?)0*([0-9]+?)(\.0*)?$', '\1\2') as id from trimmed
) select coalesce(sum(alike), 0) from (select count(*) as alike from plain group by id having alike > 1)
"""


class Grouping:
    """A sort of pieces of rows into whole records on disk; memory is bounded by a constant and the widest record.

    Parameters
    ----------
    folder : Path
        An empty private folder, the caller's to remove.
    max_rows_per_unit : int or None
        Rows that one individual keeps: the first, in the order above.
    """

    def __init__(self, folder: Path, *, max_rows_per_unit: int | None = None) -> None:
        self._most = max_rows_per_unit
        self._next_piece = 0
        self._entries, self._out, self._units = 0, 0, 0
        self._kinds: tuple[str | None, str | None] | None = None
        self._first_seen: int | None = None  # of all individuals, if they need no ranks
        self._firsts: list[tuple[int, int]] = []  # first-seen numbers with the rank of the first id of each
        self._database = duckdb.connect(
            folder / "pieces.duckdb",
            config={"memory_limit": _MEMORY, "threads": "2", "temp_directory": str(folder / "spill")},
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the database."""
        self._database.close()

    @property
    def done(self) -> float:
        """Share of the added entries that were yielded, from 0 to 1."""
        return self._out / max(self._entries, 1)

    def add(self, batch: RowBatch) -> None:
        """Add rows whose columns are in range; an empty row is kept as an entry of no column.

        Raises
        ------
        BadSource
            If ids are integers in one batch and text in another.
        Unavailable
            If the disk is full or cannot be used.
        """
        if not len(batch.places):
            return
        counts = np.diff(batch.row_ptr)
        pieces = self._next_piece + np.arange(len(counts))
        self._next_piece += len(counts)
        entries = np.maximum(counts, 1)
        self._entries += int(entries.sum())
        owners = np.repeat(np.arange(len(counts)), entries)
        columns: NDArray[np.int64] = np.full(len(owners), _NO_COLUMN)
        values = np.zeros(len(owners))
        filled = np.repeat(counts > 0, entries)
        columns[filled], values[filled] = batch.indices, batch.values
        table = {"piece": pa.array(pieces[owners]), "col": pa.array(columns), "val": pa.array(values)}
        for name, ids in (("unit", batch.unit_ids), ("line", batch.row_ids)):
            if ids is not None:
                table[name] = ids.take(pa.array(owners))
        kinds = tuple(None if ids is None else str(ids.type) for ids in (batch.unit_ids, batch.row_ids))
        if self._kinds not in (None, kinds):
            raise BadSource("ids are integers in one file and text in another; make them the same")
        new, self._kinds = self._kinds is None, (kinds[0], kinds[1])
        self._insert("pieces", table, new=new)

    def lookalikes(self) -> int:
        """Count ids that differ from another only in blanks, a sign +, leading zeros or a trailing .0; private.

        Each stays an individual of its own.
        """
        unit, line = self._kinds or (None, None)
        if (unit or line) != "string":
            return 0
        ((count,),) = self._run(_LOOKALIKES.format(id="unit" if unit else "line")).fetchall()
        return int(count)

    def hash_ids(self, key: bytes) -> None:
        """Hash the id of each individual with a key, to be compared with ids that earlier ingests saw.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        self._run("create temp table seen (high ubigint, low ubigint, number bigint)")
        self._run(f"create temp table ids (unit {self._text_or_integer()}, high ubigint, low ubigint)")
        if self._kinds is None:
            return
        self._run("create temp table units as select distinct unit from pieces")
        ((self._units,),) = self._run("select count(*) from units").fetchall()
        for start in range(0, self._units, BATCH_VALUES):
            here = f"select unit from units where rowid >= {start} and rowid < {start + BATCH_VALUES}"
            units = pa.Table.from_batches(self._read(here, BATCH_VALUES)).column("unit").combine_chunks()
            hashes = keyed_hashes(units, key=key)
            self._insert("ids", {"unit": units, "high": hashes[:, 0], "low": hashes[:, 1]})

    def add_seen(self, hashes: bytes, number: int) -> None:
        """Add hashes of ids that the ingest of this number saw first.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        halves = np.frombuffer(hashes, dtype="<u8").astype(np.uint64).reshape(-1, 2)
        self._insert("seen", {"high": halves[:, 0], "low": halves[:, 1], "number": np.full(len(halves), number)})

    def unseen(self, count: int) -> Iterator[bytes]:
        """Yield the hashes of the ids that no earlier ingest saw, in their order, at most `count` at a time.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        self._run("create or replace temp table met as from ids left join seen using (high, low)")
        for some in self._read("select high, low from met where number is null order by all", count):
            halves = np.stack([some.column("high").to_numpy(), some.column("low").to_numpy()], axis=1)
            for start in range(0, len(halves), count):
                yield halves[start : start + count].astype("<u8").tobytes()

    def number_ids(self, number: int) -> None:
        """Let the batches come by (first seen, id), once `unseen` was read; ids that it gave have `number`.

        Raises
        ------
        Corrupt
            If an id was seen twice.
        Unavailable
            If the disk is full or cannot be used.
        """
        numbered = f"select unit, coalesce(number, {number:d}) as first_seen from met"
        told = self._run(f"select count(*), min(first_seen), max(first_seen) from ({numbered})").fetchall()
        ((count, first, last),) = told
        if count != self._units:
            raise Corrupt("the table of first-seen ids holds one twice; restore it from a copy, and ingest again")
        if first == last and self._text_or_integer() == "bigint":  # ids sort as fast as ranks
            self._first_seen = first
            return
        order = ", ".join(("first_seen", *self._order_of("unit", self._text_or_integer())))
        self._run(
            f"create temp table ranked as select *, row_number() over (order by {order}) as rank from ({numbered})"
        )
        firsts = "select first_seen, min(rank) from ranked group by first_seen order by first_seen"
        self._firsts = [(int(each), int(rank)) for each, rank in self._run(firsts).fetchall()]

    def batches(self) -> Iterator[RowBatch]:
        """Yield whole records, of one first-seen number a batch; `places` counts the rows that come out from 0.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        if self._kinds is None:
            return
        carried, first_row = None, 0
        for arriving in self._sorted():
            self._out += arriving.num_rows
            table = pa.Table.from_batches([arriving])
            table = table if carried is None else pa.concat_tables([carried, table])
            cut = _last_record(table)
            if cut:
                for number, some in self._of_one_number(table[:cut]):
                    batch = self._records(some, first_row, number)
                    first_row += len(batch.places)
                    yield batch
            carried = table[cut:]
        if carried is not None:
            ((number, some),) = self._of_one_number(carried)
            yield self._records(some, first_row, number)

    def _sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield all entries, sorted by unit, row and place in the source."""
        assert self._kinds is not None
        unit, line = self._kinds
        row = "line" if line is not None else "piece"
        last = (*([] if line is None else self._order_of("line", line)), "piece")
        if self._firsts:  # a rank sorts faster than text
            ranked = f"select rank as unit, {row} as line, col, val from pieces join ranked using (unit)"
            yield from self._read(f"{ranked} order by {', '.join(('rank', *last))}", BATCH_VALUES)
            return
        first = [] if unit is None else self._order_of("unit", unit)
        chosen = f"{'unit' if unit is not None else row} as unit, {row} as line, col, val"
        yield from self._read(f"select {chosen} from pieces order by {', '.join((*first, *last))}", BATCH_VALUES)

    @staticmethod
    def _order_of(ids: str, kind: str) -> tuple[str, ...]:
        """Return the terms that order ids: integers by value, and text by its integer value if it has one."""
        return (f"try_cast({ids} as bigint) nulls last", ids) if kind == "string" else (ids,)

    def _text_or_integer(self) -> str:
        """Return the type of the ids of individuals."""
        return "bigint" if self._kinds is None or self._kinds[0] != "string" else "string"

    def _of_one_number(self, table: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
        """Cut whole records where the number of the ingest that first saw them changes; yield each with its number."""
        if not self._firsts:
            yield self._first_seen, table
            return
        numbers, ranks = zip(*self._firsts, strict=True)
        cuts = [*np.searchsorted(table.column("unit").to_numpy(), ranks).tolist(), table.num_rows]
        for number, (start, stop) in zip(numbers, pairwise(cuts), strict=True):
            if start < stop:
                yield number, table[start:stop]

    def _read(self, query: str, count: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._database.sql(query).to_arrow_reader(count)
        except (duckdb.Error, OSError) as error:
            raise _no_room(error) from None

    def _insert(self, table: str, columns: dict[str, Any], *, new: bool = False) -> None:
        self._database.register("arriving", pa.table(columns))
        self._run(f"create table {table} as from arriving" if new else f"insert into {table} by name from arriving")
        self._database.unregister("arriving")

    def _run(
        self, statement: str
    ) -> "duckdb.DuckDBPyConnection":  # quoted: a class held by an annotation is reported as leaked at exit
        try:
            return self._database.execute(statement)
        except (duckdb.Error, OSError) as error:
            raise _no_room(error) from None

    def _records(self, table: pa.Table, first_row: int, first_seen: int | None) -> RowBatch:
        """Make a batch of sorted entries that hold whole records."""
        units, lines = _changes(table.column("unit")), _changes(table.column("line"))
        row_starts = np.flatnonzero(units | lines)
        row_ptr = np.append(row_starts, table.num_rows)
        record_ptr = np.append(np.flatnonzero(units[row_starts]), len(row_starts))
        values, indices = table.column("val").to_numpy(), table.column("col").to_numpy()
        if self._most is not None:
            rank = np.arange(len(row_starts)) - np.repeat(record_ptr[:-1], np.diff(record_ptr))
            kept = rank < self._most
            entries = np.repeat(kept, np.diff(row_ptr))
            values, indices = values[entries], indices[entries]
            row_ptr = np.concatenate(([0], np.cumsum(np.diff(row_ptr)[kept])))
            record_ptr = np.concatenate(([0], np.cumsum(np.minimum(np.diff(record_ptr), self._most))))
        if not (held := indices != _NO_COLUMN).all():
            values, indices = values[held], indices[held]
            row_ptr = np.concatenate(([0], np.cumsum(held)))[row_ptr]
        n_rows = len(row_ptr) - 1
        return RowBatch(
            values=values.copy(),
            indices=indices.copy(),
            row_ptr=row_ptr,
            record_ptr=record_ptr,
            places=np.arange(first_row, first_row + n_rows),
            place="grouped row",
            first_seen=first_seen,
        )


def _changes(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Mark sorted ids that differ from the one before; the first is always marked."""
    ids: Any = column.combine_chunks().dictionary_encode().indices.to_numpy()
    changed = np.ones(len(ids), dtype=np.bool_)
    changed[1:] = ids[1:] != ids[:-1]
    return changed


def _last_record(table: pa.Table) -> int:
    """Return the position of the last record's first entry."""
    return int(np.flatnonzero(_changes(table.column("unit")))[-1])


def _no_room(error: Exception) -> Unavailable:
    reason = "the disk is full" if "space" in str(error).lower() else "the disk cannot be used"
    return Unavailable(f"rows could not be brought together on disk: {reason}; make room in the home folder")
