"""Pieces of rows come together in the order that DuckDB gives all of them at once, whatever fits into memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from storage.datasets.entry_sort import NO_COLUMN
from storage.datasets.grouping import Grouping
from storage.datasets.keyed_hash import KEY_BYTES, keyed_hashes
from storage.formats.batch import RowBatch, without_surplus
from storage.formats.rejects import Rejects

type Row = tuple[object, object, list[tuple[int, float]]]

TEXTS = (
    "7",
    "007",
    " 7",
    "+7",
    "-7",
    "1.5",
    "1e3",
    "9223372036854775808",
    "b",
    "B",
    "ä",
    "a\0b",
    "10",
    "9",
    "7 ",
    "x" * 40,
)
HUGE = (-(2**63), 2**63 - 1, 0, -1, 1, 2**53 + 1, 2**53)
KINDS = [("integer", None), ("text", None), (None, "integer"), (None, "text"), ("integer", "integer"), ("text", "text")]


def ids(kind: str | None, count: int, rng: np.random.Generator) -> pa.Array | None:
    """Draw ids of a kind, with spellings and values at the edge."""
    if kind is None:
        return None
    drawn = rng.integers(12, size=count)
    if kind == "text":
        return pa.array([TEXTS[each] if rng.random() < 0.5 else f"{each * 37}" for each in drawn.tolist()], pa.string())
    return pa.array([HUGE[each % len(HUGE)] if rng.random() < 0.3 else each for each in drawn.tolist()], pa.int64())


def batches(kinds: tuple[str | None, str | None], seed: int) -> list[RowBatch]:
    """Draw batches of rows, some of them empty, with columns that fall and repeat."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(rng.integers(1, 7)):
        n_rows = int(rng.integers(0, 40))
        row_ptr = np.concatenate(([0], np.cumsum(rng.integers(0, 4, n_rows))))
        found.append(
            RowBatch(
                values=rng.standard_normal(row_ptr[-1]),
                indices=rng.integers(5, size=row_ptr[-1]),
                row_ptr=row_ptr,
                record_ptr=np.arange(n_rows + 1),
                places=np.arange(n_rows),
                place="row",
                unit_ids=ids(kinds[0], n_rows, rng),
                row_ids=ids(kinds[1], n_rows, rng),
            )
        )
    return found


def rows_of(grouped: Iterator[RowBatch]) -> list[tuple[int | None, list[list[tuple[int, float]]]]]:
    """List the records, each with its first-seen number and the entries of its rows."""
    records = []
    for batch in grouped:
        entries = list(zip(batch.indices.tolist(), batch.values.tolist(), strict=True))
        rows = [entries[start:stop] for start, stop in zip(batch.row_ptr[:-1], batch.row_ptr[1:], strict=True)]
        records += [
            (batch.first_seen, rows[start:stop])
            for start, stop in zip(batch.record_ptr[:-1], batch.record_ptr[1:], strict=True)
        ]
    return records


def expected(
    added: list[RowBatch], *, most: int | None = None, number_of: Callable[[Any], int | None] = lambda unit: None
) -> list[tuple[int | None, list[list[tuple[int, float]]]]]:
    """Let DuckDB sort all entries at once."""
    table: dict[str, list[Any]] = {name: [] for name in ("number", "unit", "line", "piece", "place", "col", "val")}
    piece = 0
    for batch in added:
        for row in range(len(batch.places)):
            start, stop = batch.row_ptr[row : row + 2].tolist()
            unit, line = (None if each is None else each[row].as_py() for each in (batch.unit_ids, batch.row_ids))
            columns, values = batch.indices[start:stop].tolist(), batch.values[start:stop].tolist()
            for column, value in zip(columns or [NO_COLUMN], values or [0.0], strict=True):
                table["number"].append(number_of(unit))
                table["unit"].append(line if unit is None else unit)
                table["line"].append(piece if line is None else line)
                table["piece"].append(piece)
                table["place"].append(len(table["val"]))
                table["col"].append(column)
                table["val"].append(value)
            piece += 1
    arriving = pa.table(table)
    terms = [
        f"try_cast({name} as bigint) nulls last, {name}" if pa.types.is_string(arriving[name].type) else name
        for name in ("unit", "line")
    ]
    with duckdb.connect() as database:
        order = ", ".join(("number", *terms, "piece", "place"))
        found = database.execute(f"select unit, line, col, val from arriving order by {order}").fetchall()
    records: list[tuple[int | None, list[list[tuple[int, float]]]]] = []
    unit = line = None
    for this_unit, this_line, column, value in found:
        if not records or this_unit != unit:
            records.append((number_of(this_unit), []))
        if this_unit != unit or this_line != line or not records[-1][1]:
            records[-1][1].append([])
        unit, line = this_unit, this_line
        if column != NO_COLUMN:
            records[-1][1][-1].append((column, value))
    return [(number, rows[:most]) for number, rows in records]


@pytest.mark.parametrize("part", [1, 16, 1 << 10], ids=["rows alone", "many parts", "in memory"])
@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "-".join(map(str, kinds)))
def test_records_come_in_the_order_of_all_entries_at_once(
    kinds: tuple[str | None, str | None], part: int, tmp_path: Path
) -> None:
    for seed in range(2):
        added = batches(kinds, seed)
        with Grouping(tmp_path / f"{seed}", rejects=Rejects(), part=part) as grouping:
            (tmp_path / f"{seed}").mkdir()
            for batch in added:
                grouping.add(batch)
            assert rows_of(grouping.batches()) == expected(added)
            assert grouping.done == 1 or not any(len(batch.places) for batch in added)


@pytest.mark.parametrize("part", [16, 1 << 10], ids=["many parts", "in memory"])
@pytest.mark.parametrize("kinds", [kinds for kinds in KINDS if kinds[0]], ids=lambda kinds: "-".join(map(str, kinds)))
def test_individuals_seen_earlier_come_first(kinds: tuple[str | None, str | None], part: int, tmp_path: Path) -> None:
    added = batches(kinds, 1)
    key = bytes(range(KEY_BYTES))
    units = pa.concat_arrays([batch.unit_ids for batch in added]).unique()
    numbers = {unit.as_py(): (place * 7) % 5 for place, unit in enumerate(units)}  # the ingest at hand is number 4
    with Grouping(tmp_path, rejects=Rejects(), max_rows_per_unit=2, part=part) as grouping:
        for batch in added:
            grouping.add(batch)
        grouping.hash_ids(key)
        for number in range(4):
            of_number = pa.array([unit for unit in numbers if numbers[unit] == number], units.type)
            grouping.add_seen(keyed_hashes(of_number, key=key).astype("<u8").tobytes(), number)
        new = pa.array([unit for unit in numbers if numbers[unit] == 4], units.type)
        hashes = sorted(map(tuple, keyed_hashes(new, key=key).tolist()))
        assert b"".join(grouping.unseen(3)) == np.array(hashes, "<u8").tobytes()
        grouping.number_ids(4)
        assert rows_of(map(without_surplus, grouping.batches())) == expected(
            added, most=2, number_of=numbers.__getitem__
        )
