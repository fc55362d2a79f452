"""The ids of a source in DuckDB tables on disk: the rank of each text, and which ingest saw each individual first.

Text is ranked by its integer value if it has one, else by its bytes. A text has a code for each batch that holds it, so
that no table of all texts is kept in memory; all of its codes have one rank.

Examples
--------
::

    with IdTables(scratch) as tables:
        tables.add_texts("unit", pa.array(["b", "a"]), first_code=0)
        for codes, ranks in tables.ranks("unit"):
            ...                                # 1 and 0, then 0 and 1
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.errors import StorageError, Unavailable
from storage.formats.batch import BATCH_VALUES

_MEMORY = "256MB"

_LOOKALIKES = r"""
with plain as (
    select regexp_replace(id, '^\+?(-?)0*([0-9]+)$', '\1\2') as id from (select distinct id from {role}_texts)
) select coalesce(sum(alike), 0) from (select count(*) as alike from plain group by id having alike > 1)
"""


class IdTables:
    """Tables of ids on disk, made when the first id is added.

    Parameters
    ----------
    folder : Path
        A private folder, the caller's to remove.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: Any = None
        self._tables: set[str] = set()
        self._ids_are_text = False

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the database."""
        if self._opened is not None:
            self._opened.close()

    def add_texts(self, role: str, texts: pa.Array, *, first_code: int) -> None:
        """Add texts of a role, coded from `first_code` on."""
        codes = np.arange(first_code, first_code + len(texts))
        self._insert(f"{role}_texts", "code bigint, id varchar", {"code": codes, "id": texts})

    def ranks(self, role: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the codes of all texts of a role and their ranks from 0, in order of the ranks."""
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
        """Count texts that differ from another only in a sign + or leading zeros."""
        ((count,),) = self._run(_LOOKALIKES.format(role=role)).fetchall()
        return int(count)

    def texts(self, role: str) -> Iterator[pa.Array]:
        """Yield the texts of a role, each once."""
        for some in self._read(f"select distinct id from {role}_texts"):
            yield some.column("id")

    def add_ids(self, units: pa.Array, hashes: NDArray[np.uint64]) -> None:
        """Add individuals, each once, with the two halves of the hash of each."""
        self._ids_are_text = pa.types.is_string(units.type)
        kind = "varchar" if self._ids_are_text else "bigint"
        columns = {"unit": units, "high": hashes[:, 0], "low": hashes[:, 1]}
        self._insert("ids", f"unit {kind}, high ubigint, low ubigint", columns)

    def add_seen(self, hashes: NDArray[np.uint64], number: int) -> None:
        """Add the hashes of individuals that the ingest of this number saw first."""
        columns = {"high": hashes[:, 0], "low": hashes[:, 1], "number": np.full(len(hashes), number)}
        self._insert("seen", "high ubigint, low ubigint, number bigint", columns)

    def unseen(self, count: int) -> Iterator[NDArray[np.uint64]]:
        """Compare individuals with those seen, and yield the hashes of the others in their order."""
        self._create("ids", "unit bigint, high ubigint, low ubigint")
        self._create("seen", "high ubigint, low ubigint, number bigint")
        self._run("create or replace table met as from ids left join seen using (high, low)")
        for some in self._read("select high, low from met where number is null order by all", count):
            halves = np.stack([some.column("high").to_numpy(), some.column("low").to_numpy()], axis=1)
            for start in range(0, len(halves), count):
                yield halves[start : start + count]

    def counts_by_number(self, number: int) -> dict[int, int]:
        """Count the compared individuals that each ingest saw first, by its number; the new ones have `number`."""
        self._run(f"create or replace table numbered as select unit, coalesce(number, {number:d}) as number from met")
        return dict(self._run("select number, count(*) from numbered group by number order by number").fetchall())

    def numbers(self) -> Iterator[NDArray[np.int64]]:
        """Yield the number of each individual that was counted, in order of their ids."""
        order = _order_of("unit") if self._ids_are_text else "unit"
        for some in self._read(f"select number from numbered order by {order}"):
            yield some.column("number").to_numpy()

    def ids_in_order(self, role: str, *, is_text: bool, is_numbered: bool) -> Iterator[pa.Array]:
        """Yield the ids of a role, each once, in order; where they are numbered, by (number, id)."""
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
        with using_disk(), self._database.cursor() as apart:  # a connection holds one open result
            yield from apart.sql(query).to_arrow_reader(count)

    def _run(
        self, statement: str
    ) -> "duckdb.DuckDBPyConnection":  # quoted: a class held by an annotation is reported as leaked at exit
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
    """Turn failures of the disk into one clear error.

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
            f"rows could not be brought together on disk: {reason}; make room in the home folder"
        ) from None


def _order_of(ids: str) -> str:
    return f"try_cast({ids} as bigint) nulls last, {ids}"
