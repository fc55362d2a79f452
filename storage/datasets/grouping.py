"""Grouping of row fragments (such as triplets) into rows, and of each individual's rows into one record, on disk.

The stored values (entries) of all rows are sorted by integer ids with an external sort (`storage.datasets.entry_sort`).
Text ids are first replaced by their rank among all texts. Records are yielded in the order of the ids of individuals,
and the rows of a record in the order of their row ids. Integers are ordered by value; text is ordered by its integer
value if it has one, and otherwise by its bytes. This order does not depend on how the source was sorted. If a source
has no row ids, the rows of one individual keep the order of the source.

Text ids and hashes of ids are kept in DuckDB tables on disk. They yield the rank of each text, and the number of the
ingest in which each individual first appeared. Before ranks are known, a text is represented by an integer code. Each
batch gives new codes to its distinct texts, so that memory never holds a table of all texts. All codes of the same text
lead to the same rank.

Examples
--------
::

    with IdTables(scratch) as tables:
        tables.add_texts("unit", pa.array(["b", "a"]), first_code=0)
        for codes, ranks in tables.ranks("unit"):
            ...                                # codes [1, 0] with ranks [0, 1]

::

    with Grouping(scratch, rejects=rejects, max_rows_per_unit=10) as grouping:
        for batch in reader.batches(rejects):
            grouping.add(batch)
        for batch in grouping.batches():
            ...                                # whole records
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpca.errors import Corrupt, StorageError, Unavailable
from storage.datasets.entry_sort import PART, REJECTED, Entries, EntrySort
from storage.datasets.keyed_hash import keyed_hashes
from storage.formats.batch import BATCH_VALUES, Rejects, RowBatch

_MEMORY = "256MB"

_LOOKALIKES = r"""
with plain as (
    select regexp_replace(id, '^\+?(-?)0*([0-9]+)$', '\1\2') as id from (select distinct id from {role}_texts)
) select coalesce(sum(alike), 0) from (select count(*) as alike from plain group by id having alike > 1)
"""


class IdTables:
    """DuckDB tables of ids on disk, created when the first id is added.

    Parameters
    ----------
    folder : Path
        A private folder for the database file, which the caller removes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: Any = None
        self._tables: set[str] = set()
        self._ids_are_text = False

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the database."""
        if self._opened is not None:
            self._opened.close()

    def add_texts(self, role: str, texts: pa.Array, *, first_code: int) -> None:
        """Add text ids; `role` is "unit" for ids of individuals or "line" for ids of rows.

        Each text is given an integer code, counting up from `first_code`.
        """
        codes = np.arange(first_code, first_code + len(texts))
        self._insert(f"{role}_texts", "code bigint, id varchar", {"code": codes, "id": texts})

    def ranks(self, role: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield arrays of the codes of all texts of a role, and of their ranks from 0, in the order of the ranks."""
        rank, last = -1, None
        for some in self._read(f"select code, id from {role}_texts order by {_order_of('id')}"):
            ids = some.column("id").dictionary_encode()
            changed = np.empty(len(ids), dtype=np.bool_)
            places = ids.indices.to_numpy()
            changed[1:] = places[1:] != places[:-1]
            changed[0] = ids[0].as_py() != last
            ranks = rank + np.cumsum(changed)
            rank, last = int(ranks[-1]), ids[-1].as_py()
            yield some.column("code").to_numpy(), ranks

    def lookalikes(self, role: str) -> int:
        """Count the distinct texts of a role that differ from another text only in a leading + or leading zeros."""
        ((count,),) = self._run(_LOOKALIKES.format(role=role)).fetchall()
        return int(count)

    def texts(self, role: str) -> Iterator[pa.Array]:
        """Yield all distinct texts of a role, in arrays."""
        for some in self._read(f"select distinct id from {role}_texts"):
            yield some.column("id")

    def add_ids(self, units: pa.Array, hashes: NDArray[np.uint64]) -> None:
        """Add the distinct ids of this ingest's individuals, with the two 64-bit words of each id's hash."""
        self._ids_are_text = pa.types.is_string(units.type)
        kind = "varchar" if self._ids_are_text else "bigint"
        columns = {"unit": units, "high": hashes[:, 0], "low": hashes[:, 1]}
        self._insert("ids", f"unit {kind}, high ubigint, low ubigint", columns)

    def add_seen(self, hashes: NDArray[np.uint64], number: int) -> None:
        """Add hashes of the ids that first appeared in an earlier ingest, which has this number."""
        columns = {"high": hashes[:, 0], "low": hashes[:, 1], "number": np.full(len(hashes), number)}
        self._insert("seen", "high ubigint, low ubigint, number bigint", columns)

    def unseen(self, count: int) -> Iterator[NDArray[np.uint64]]:
        """Yield the hashes of this ingest's ids that no earlier ingest saw, sorted, in arrays of at most `count`."""
        self._create("ids", "unit bigint, high ubigint, low ubigint")
        self._create("seen", "high ubigint, low ubigint, number bigint")
        self._run("create or replace table met as from ids left join seen using (high, low)")
        for some in self._read("select high, low from met where number is null order by all", count):
            halves = np.stack([some.column("high").to_numpy(), some.column("low").to_numpy()], axis=1)
            for start in range(0, len(halves), count):
                yield halves[start : start + count]

    def counts_by_number(self, number: int) -> dict[int, int]:
        """Count the individuals of this ingest by the number of the ingest in which each first appeared.

        Individuals that are new get `number`. The counts are in ascending order of the numbers.
        """
        self._run(f"create or replace table numbered as select unit, coalesce(number, {number:d}) as number from met")
        return dict(self._run("select number, count(*) from numbered group by number order by number").fetchall())

    def numbers(self) -> Iterator[NDArray[np.int64]]:
        """Yield for each individual the number of the ingest where its id first appeared, in the order of the ids."""
        order = _order_of("unit") if self._ids_are_text else "unit"
        for some in self._read(f"select number from numbered order by {order}"):
            yield some.column("number").to_numpy()

    def ids_in_order(self, role: str, *, is_text: bool, is_numbered: bool) -> Iterator[pa.Array]:
        """Yield each distinct id of a role, sorted by id or, if `is_numbered`, by (number of its first ingest, id)."""
        order = _order_of("id") if is_text else "id"
        query = f"select id from (select distinct id from {role}_texts) order by {order}"
        if is_numbered:
            query = f"select id from (select unit as id, number from numbered) order by number, {order}"
        for some in self._read(query):
            yield some.column("id")

    def _insert(self, table: str, kinds: str, columns: dict[str, Any]) -> None:
        self._create(table, kinds)
        self._database.register("arriving", pa.table(columns))
        self._run(f"insert into {table} by name from arriving")
        self._database.unregister("arriving")

    def _create(self, table: str, kinds: str) -> None:
        if table not in self._tables:
            self._run(f"create table {table} ({kinds})")
            self._tables.add(table)

    def _read(self, query: str, count: int = BATCH_VALUES) -> Iterator[pa.RecordBatch]:
        # a separate cursor, because a DuckDB connection can have only one open result
        with using_disk(), self._database.cursor() as reader:
            yield from reader.sql(query).to_arrow_reader(count)

    def _run(
        self,
        statement: str,
        # the annotation is quoted, because otherwise the class is reported as leaked at exit
    ) -> "duckdb.DuckDBPyConnection":
        with using_disk():
            done: duckdb.DuckDBPyConnection = self._database.execute(statement)
            return done

    @property
    def _database(self) -> Any:
        if self._opened is None:
            with using_disk():
                self._opened = duckdb.connect(
                    self._folder / "tables.duckdb",
                    config={"memory_limit": _MEMORY, "threads": "2", "temp_directory": str(self._folder / "spill")},
                )
        return self._opened


@contextmanager
def using_disk() -> Iterator[None]:
    """Convert errors of the disk or of DuckDB into one `Unavailable` error.

    Raises
    ------
    Unavailable
        If the disk is full or cannot be used.
    """
    try:
        yield
    except StorageError:
        raise
    except (duckdb.Error, OSError) as error:
        reason = "the disk is full" if "space" in str(error).lower() else "the disk cannot be used"
        raise Unavailable(
            f"rows could not be grouped by individual on disk: {reason}; free disk space in the home folder"
        ) from None


def _order_of(ids: str) -> str:
    return f"try_cast({ids} as bigint) nulls last, {ids}"


_TEXT = "string"
_BEYOND = "exceeds max_rows_per_unit of its individual; the row is dropped"


class Grouping:
    """External sort that groups row fragments (such as triplets) into rows, and each individual's rows into a record.

    Memory is bounded by a constant plus the size of the largest record.

    Parameters
    ----------
    folder : Path
        An empty private folder, which the caller removes.
    rejects : Rejects
        Receives a note for each row that exceeds `max_rows_per_unit`.
    max_rows_per_unit : int or None
        The most rows of one individual that are kept, in the order that the module describes. Further rows are yielded
        too, but marked as surplus.
    part : int
        Number of entries that are sorted in memory at a time.

    Attributes
    ----------
    unknown : int
        Number of added rows that belong to no known record, because the id of the individual is null. If the source has
        ids of rows only, these are the rows whose id is null. Such rows are counted but not yielded.

    Guarantees
    ----------
    If a row is rejected as bad, its whole record is yielded as rejected; `make_canonical` then removes the values of
    the record.
    """

    def __init__(
        self, folder: Path, *, rejects: Rejects, max_rows_per_unit: int | None = None, part: int = PART
    ) -> None:
        self._folder, self._most, self._part, self._rejects = folder, max_rows_per_unit, part, rejects
        self._place = "row"
        self.unknown = 0
        self._next_piece = 0
        self._out, self._units = 0, 0
        self._kinds: tuple[str | None, str | None] | None = None
        self._first_seen: int | None = None  # the ingest in which all ids first appeared, if it is the same for all
        # if ids first appeared in several ingests: each ingest's number, with the rank of the first of its ids
        self._firsts: list[tuple[int, int]] = []
        # for ids of individuals and of rows: how many integer codes were given to text ids so far
        self._codes = {"unit": 0, "line": 0}
        self._tables = IdTables(folder)
        self._sort: EntrySort | None = None
        self._owner_key: bytes | None = None
        # keyed hashes of ids in the order of records, needed if ids are text or are sorted by the ingest in which they
        # first appeared
        self._owner_ids: _Stream | None = None

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the tables of ids."""
        self._tables.__exit__(kind, error, trace)

    @property
    def done(self) -> float:
        """Progress of `batches`: the share of the added entries that were yielded, from 0 to 1."""
        return self._out / max(self._sort.size if self._sort is not None else 0, 1)

    def add(self, batch: RowBatch) -> None:
        """Add rows or fragments (parts) of rows, whose column numbers were checked; rows without values are kept.

        Ids must be integers in all batches, or text in all batches.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        batch = self._with_known_ids(batch)
        if not len(batch.places):
            return
        unit, line = (None if ids is None else str(ids.type) for ids in (batch.unit_ids, batch.row_ids))
        assert self._kinds in (None, (unit, line)), "the ids of a source are all integers or all text"
        self._kinds = unit, line
        if self._sort is None:
            self._place = batch.place
            by_line = unit is not None and line is not None
            self._sort = EntrySort(
                self._folder / "entries", by_line=by_line, most=self._part, provisional=_TEXT in self._kinds
            )
        pieces = np.arange(self._next_piece, self._next_piece + len(batch.places))
        self._next_piece += len(pieces)
        lines = pieces if batch.row_ids is None else self._integers("line", batch.row_ids)
        units = lines if batch.unit_ids is None else self._integers("unit", batch.unit_ids)
        with using_disk():
            self._sort.add(
                units=units,
                lines=lines,
                row_ptr=batch.row_ptr,
                indices=batch.indices,
                values=batch.values,
                places=batch.places,
                rejected=batch.rejected,
            )

    def lookalikes(self) -> int:
        """Count the ids that differ from another id only in a leading + or leading zeros; the count is private.

        Each of these ids remains a separate individual.
        """
        unit, line = self._kinds or (None, None)
        return self._tables.lookalikes("unit" if unit else "line") if (unit or line) == _TEXT else 0

    def hash_ids(self, key: bytes) -> None:
        """Hash the id of each individual with a secret key, for the comparison with hashed ids of earlier ingests.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        for units in self._each_unit():
            self._tables.add_ids(units, keyed_hashes(units, key=key))
            self._units += len(units)

    def add_seen(self, hashes: bytes, number: int) -> None:
        """Add hashes of the ids that first appeared in an earlier ingest, which has this number.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        self._tables.add_seen(np.frombuffer(hashes, dtype="<u8").astype(np.uint64).reshape(-1, 2), number)

    def unseen(self, count: int) -> Iterator[bytes]:
        """Yield the hashes of the ids that no earlier ingest saw, sorted, at most `count` at a time.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        for hashes in self._tables.unseen(count):
            yield hashes.astype("<u8").tobytes()

    def number_ids(self, number: int) -> None:
        """Sort the records by (first-seen number, id); call this method after `unseen` was read to its end.

        The first-seen number is the number of the ingest in which an id first appeared. Ids that `unseen` yielded get
        the number `number`.

        Raises
        ------
        Corrupt
            If the table of ids seen by earlier ingests contains an id twice.
        Unavailable
            If the disk is full or cannot be used.
        """
        counts = self._tables.counts_by_number(number)
        if sum(counts.values()) != self._units:
            raise Corrupt(
                "the table of ids seen by earlier ingests contains an id twice; restore the table from a copy, and "
                "ingest again"
            )
        if len(counts) > 1:
            with using_disk():
                self._sort_by_number(counts)
        else:
            self._first_seen = next(iter(counts), None)

    def name_owners(self, key: bytes) -> None:
        """Make `batches` add a keyed hash to each record, so that an individual can be found later.

        The hash is of the id of the individual or, if the source has ids of rows only, of the id of the row.
        """
        self._owner_key = key

    def batches(self) -> Iterator[RowBatch]:
        """Yield whole records in sorted order; a batch never mixes ids that first appeared in different ingests.

        The `places` of a batch are the lines of the source where each row begins. Rows beyond `max_rows_per_unit` of
        their individual are included, marked as surplus.

        Raises
        ------
        Unavailable
            If the disk is full or cannot be used.
        """
        with using_disk():
            for entries in self._sorted():
                self._out += len(entries)
                for number, some in self._of_one_number(entries):
                    yield self._records(some, number)

    def _owners(self, units: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Return the keyed hashes of the ids of the next records in order, or None if hashes were not requested."""
        if self._owner_key is None or self._kinds is None:
            return None
        is_text = (self._kinds[0] or self._kinds[1]) == _TEXT
        if not (is_text or self._firsts):
            return keyed_hashes(pa.array(units), key=self._owner_key)
        if self._owner_ids is None:
            role = "unit" if self._kinds[0] is not None else "line"
            ids = self._tables.ids_in_order(role, is_text=is_text, is_numbered=bool(self._firsts))
            key = self._owner_key
            self._owner_ids = _Stream((keyed_hashes(some, key=key) for some in ids), width=2)
        return self._owner_ids.take(len(units)).astype(np.uint64)

    def _with_known_ids(self, batch: RowBatch) -> RowBatch:
        """Return the batch without rows whose id is null, and count these rows; they have no values."""
        owners = batch.row_ids if batch.unit_ids is None else batch.unit_ids
        ids = (owners, batch.row_ids)
        if batch.rejected is None or owners is None or not any(each.null_count for each in ids if each is not None):
            return batch
        known = owners.is_valid().to_numpy(zero_copy_only=False)
        self.unknown += int(np.count_nonzero(~known))
        if not known.all():
            counts = np.diff(batch.row_ptr)[known]
            row_ptr = np.zeros(len(counts) + 1, dtype=np.int64)
            np.cumsum(counts, out=row_ptr[1:])
            batch = replace(
                batch,
                row_ptr=row_ptr,
                places=batch.places[known],
                rejected=batch.rejected[known],
                unit_ids=None if batch.unit_ids is None else batch.unit_ids.drop_null(),
                row_ids=None if batch.row_ids is None else batch.row_ids.filter(pa.array(known)),
            )
        if batch.row_ids is None or not batch.row_ids.null_count:
            return batch
        # null row ids get an arbitrary value, because the record is rejected anyway
        nothing = "" if pa.types.is_string(batch.row_ids.type) else 0
        return replace(batch, row_ids=batch.row_ids.fill_null(nothing))

    def _integers(self, role: str, ids: pa.Array) -> NDArray[np.int64]:
        """Return integer ids unchanged; for text ids, return integer codes and store the texts under these codes.

        Equal texts within a batch have the same code.
        """
        if str(ids.type) != _TEXT:
            return np.asarray(ids.to_numpy(zero_copy_only=False), dtype=np.int64)
        texts, first_code = ids.dictionary_encode(), self._codes[role]
        self._tables.add_texts(role, texts.dictionary, first_code=first_code)
        self._codes[role] += len(texts.dictionary)
        return np.asarray(first_code + texts.indices.to_numpy().astype(np.int64))

    def _each_unit(self) -> Iterator[pa.Array]:
        """Yield each distinct id of an individual, in arrays."""
        if self._kinds is not None and self._kinds[0] == _TEXT:
            yield from self._tables.texts("unit")
            return
        with using_disk():
            for entries in self._sorted():
                yield pa.array(entries["unit"][_changes(entries["unit"])])

    def _sorted(self) -> Iterator[Entries]:
        """Yield all entries (stored values) sorted by individual, row and position in the source."""
        if self._sort is None:
            return
        if self._codes["unit"] or self._codes["line"]:
            self._rank_texts(self._sort)
        yield from self._sort.records()

    def _rank_texts(self, sort: EntrySort) -> None:
        """Replace the codes of text ids in all entries by the ranks of the texts."""
        has_units = self._kinds is not None and self._kinds[0] is not None
        ranks = {role: _Stream(self._ranks_by_code(role)) for role, codes in self._codes.items() if codes}

        def replace(entries: Entries) -> None:
            for role, stream in ranks.items():
                codes = entries[role]
                first = stream.taken
                entries[role] = stream.take(int(codes.max(initial=first - 1)) + 1 - first)[codes - first]
            if not has_units:
                entries["unit"] = entries["line"]

        sort.translate(replace)
        self._codes = dict.fromkeys(self._codes, 0)

    def _ranks_by_code(self, role: str) -> Iterator[NDArray[np.int64]]:
        """Yield the rank of the text of each code, in the order of the codes."""
        sort = EntrySort(self._folder / f"{role}-ranks", by_line=False, most=self._part)
        for codes, ranks in self._tables.ranks(role):
            empty = np.zeros(len(codes) + 1, dtype=np.int64)
            sort.add(units=codes, lines=ranks, row_ptr=empty, indices=empty[:0], values=np.empty(0))
        for entries in sort.records():
            yield entries["line"]

    def _sort_by_number(self, counts: dict[int, int]) -> None:
        """Sort entries by (number of the ingest in which the id first appeared, id): replace each id by its rank."""
        starts = [0, *np.cumsum(list(counts.values())).tolist()]
        self._firsts = list(zip(counts, starts[:-1], strict=True))
        next_rank = dict(self._firsts)
        numbers = _Stream(self._tables.numbers())
        by_number = EntrySort(self._folder / "by-number", by_line=False, most=self._part)
        for entries in self._sorted():
            new = _changes(entries["unit"])
            found = numbers.take(int(new.sum()))
            ranks = np.empty(len(found), dtype=np.int64)
            for number in np.unique(found).tolist():
                here = np.flatnonzero(found == number)
                ranks[here] = next_rank[number] + np.arange(len(here))
                next_rank[number] += len(here)
            entries["unit"] = ranks[np.cumsum(new) - 1]
            by_number.add_entries(entries)
        self._sort = by_number

    def _of_one_number(self, entries: Entries) -> Iterator[tuple[int | None, Entries]]:
        """Split sorted entries where the ingest in which ids first appeared changes; yield (ingest number, entries)."""
        if not self._firsts:
            yield self._first_seen, entries
            return
        numbers, ranks = zip(*self._firsts, strict=True)
        cuts = [*np.searchsorted(entries["unit"], ranks).tolist(), len(entries)]
        for number, (start, stop) in zip(numbers, pairwise(cuts), strict=True):
            if start < stop:
                yield number, entries[start:stop]

    def _records(self, entries: Entries, first_seen: int | None) -> RowBatch:
        """Make a batch of rows from sorted entries (stored values), which contain whole records."""
        units = _changes(entries["unit"])
        row_starts = np.flatnonzero(units | _changes(entries["line"]))
        row_ptr = np.append(row_starts, len(entries))
        record_ptr = np.append(np.flatnonzero(units[row_starts]), len(row_starts))
        values, indices, surplus = entries["value"], entries["column"].astype(np.int64), None
        entry_places = entries["place"].astype(np.int64)
        places = entries["place"][row_starts].astype(np.int64)
        rejected = np.logical_or.reduceat(indices == REJECTED, row_starts[record_ptr[:-1]])
        if self._most is not None:
            surplus = np.arange(len(row_starts)) - np.repeat(record_ptr[:-1], np.diff(record_ptr)) >= self._most
            for place in places[surplus].tolist():
                self._rejects.note(place=self._place, number=place, reason=_BEYOND)
        if not (held := indices >= 0).all():
            values, indices, entry_places = values[held], indices[held], entry_places[held]
            row_ptr = np.concatenate(([0], np.cumsum(held)))[row_ptr]
        return RowBatch(
            values=np.ascontiguousarray(values),
            indices=indices,
            row_ptr=row_ptr,
            record_ptr=record_ptr,
            places=places,
            place=self._place,
            surplus=surplus,
            rejected=rejected if rejected.any() else None,
            first_seen=first_seen,
            entry_places=entry_places,
            owners=self._owners(entries["unit"][row_starts[record_ptr[:-1]]]),
        )


class _Stream:
    """A stream of integers, or rows of integers, whose items can be taken in any number at a time."""

    def __init__(self, arrays: Iterator[NDArray[Any]], *, width: int | None = None) -> None:
        self._arrays, self.taken = arrays, 0
        self._rest: NDArray[Any] = np.empty(0, np.int64) if width is None else np.empty((0, width), np.uint64)

    def take(self, count: int) -> NDArray[Any]:
        """Return the next `count` items of the stream."""
        pieces, missing = [self._rest], count - len(self._rest)
        while missing > 0:
            pieces.append(next(self._arrays))
            missing -= len(pieces[-1])
        all_of_them = np.concatenate(pieces)
        self.taken += count
        self._rest = all_of_them[count:]
        return all_of_them[:count]


def _changes(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the sorted ids that differ from the preceding id; the first id is always marked."""
    changed = np.ones(len(ids), dtype=np.bool_)
    changed[1:] = ids[1:] != ids[:-1]
    return changed
