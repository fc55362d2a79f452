"""Grouping, sorting and hashing of ids.

Pieces of rows must be merged in the order that DuckDB gives all rows at once, for any memory size. Sorted entries of
any number of parts, pieces and batches must be in order, and every batch must contain whole records. If ids fill
several batches, each text must have one rank, without gaps. The keyed hash of ids must be the published one,
independent of an array's memory layout.
"""

import doctest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from storage.datasets import entry_sort, keyed_hash
from storage.datasets.entry_sort import ENTRY, NO_COLUMN, EntrySort
from storage.datasets.grouping import Grouping, IdTables
from storage.datasets.keyed_hash import KEY_BYTES, keyed_hashes
from storage.formats.batch import BATCH_VALUES, Rejects, RowBatch, without_surplus

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
    """Return random ids of a kind, with edge-case spellings and values."""
    if kind is None:
        return None
    drawn = rng.integers(12, size=count)
    if kind == "text":
        return pa.array([TEXTS[each] if rng.random() < 0.5 else f"{each * 37}" for each in drawn.tolist()], pa.string())
    return pa.array([HUGE[each % len(HUGE)] if rng.random() < 0.3 else each for each in drawn.tolist()], pa.int64())


def batches(kinds: tuple[str | None, str | None], seed: int) -> list[RowBatch]:
    """Return random batches of rows, some of them empty, with decreasing and repeated columns."""
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
    """Return the records, each with its first-seen number and the entries of its rows."""
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
    """Return the expected records, from all entries sorted by DuckDB in one step."""
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
def test_merged_records_are_in_the_order_of_a_single_sort(
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
    # first-seen numbers from 0 to 4; 4 is the number of the current ingest
    numbers = {unit.as_py(): (place * 7) % 5 for place, unit in enumerate(units)}
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


def sorted_by_lexsort(entries: NDArray[np.void], *, by_line: bool) -> NDArray[np.void]:
    keys = (entries["line"], entries["unit"]) if by_line else (entries["unit"],)
    return entries[np.lexsort(keys)]  # stable


def check(folder: Path, added: list[NDArray[np.void]], *, most: int, by_line: bool) -> list[NDArray[np.void]]:
    """Add entries in several calls and sort them; check order and whole records, and return the batches."""
    sort = EntrySort(folder, by_line=by_line, most=most)
    for some in added:
        sort.add_entries(some)
    batches = list(sort.records())
    whole = np.concatenate([np.empty(0, ENTRY), *added])
    expected = sorted_by_lexsort(whole, by_line=by_line)
    found = np.concatenate([np.empty(0, ENTRY), *batches])
    for name in ("unit", "line", "value"):
        np.testing.assert_array_equal(found[name], expected[name])
    units = [set(batch["unit"].tolist()) for batch in batches]
    assert sum(map(len, units)) == len(set(whole["unit"].tolist())), "no record is in two batches"
    return batches


def drawn(sizes: list[int], rng: np.random.Generator) -> NDArray[np.void]:
    """Return random entries of records of these sizes, in random order."""
    entries = np.zeros(sum(sizes), ENTRY)
    entries["unit"] = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    entries["line"] = rng.integers(-2, 3, len(entries))
    return entries


@settings(max_examples=80)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 9, 17]), min_size=1, max_size=8),
    most=st.integers(1, 9),
    batch=st.integers(1, 12),
    by_line=st.booleans(),
    seed=st.integers(0, 99),
)
def test_records_larger_than_a_piece_and_a_batch_are_not_split(
    tmp_path_factory: pytest.TempPathFactory, *, sizes: list[int], most: int, batch: int, by_line: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    entries = drawn(sizes, rng)
    entries["value"] = np.arange(len(entries))
    added = np.array_split(entries, rng.integers(1, 6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_sort, "_LEAST_PIECE", 2)
        patch.setattr(entry_sort, "BATCH_VALUES", batch)
        check(tmp_path_factory.mktemp("sort"), added, most=most, by_line=by_line)


@pytest.mark.parametrize("by_line", [True, False])
def test_records_larger_than_the_default_piece_are_not_split(tmp_path: Path, *, by_line: bool) -> None:
    rng = np.random.default_rng(1)
    entries = drawn([1, 5_000, 1_024, 1_025, 3, 2_500, 1], rng)
    entries["value"] = np.arange(len(entries))
    check(tmp_path, np.array_split(entries, 9), most=2_000, by_line=by_line)


def test_a_record_longer_than_a_batch_is_one_batch(tmp_path: Path) -> None:
    long = BATCH_VALUES + 10
    entries = np.zeros(long + 2, ENTRY)
    entries["unit"][[0, -1]] = 7, 1
    batches = check(tmp_path, [entries], most=1 << 20, by_line=True)
    assert [len(batch) for batch in batches] == [long, 2]


BATCH = 2048
"""Texts per batch in this test, the minimum of DuckDB; an ingest reads many more."""


@pytest.mark.parametrize("copies", [1, 3])
def test_every_text_has_one_rank_however_many_batches_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    """Rank texts in several batches: each distinct text must have one rank.

    Some texts are numbers, which come first in the order of their values.
    """
    read = vars(IdTables)["_read"]
    monkeypatch.setattr(IdTables, "_read", lambda tables, query: read(tables, query, BATCH))
    distinct = 4 * BATCH // copies + 1_000
    numbers = [str(number) for number in range(distinct // 2)]
    words = [f"w{number:07d}" for number in range(distinct - len(numbers))]
    rank_of = np.repeat(np.arange(distinct), copies)
    order = np.random.default_rng(3).permutation(len(rank_of))
    texts = pa.array(numbers + words).take(pa.array(rank_of[order]))
    found = np.full(len(texts), -1)
    batches = 0
    with IdTables(tmp_path) as tables:
        tables.add_texts("unit", texts.slice(0, 1_000), first_code=0)
        tables.add_texts("unit", texts.slice(1_000), first_code=1_000)
        for codes, ranks in tables.ranks("unit"):
            assert (np.diff(ranks) >= 0).all()
            found[codes] = ranks
            batches += 1
    assert batches > 3
    np.testing.assert_array_equal(found, rank_of[order])


KEY = bytes(range(16))
SECOND = np.random.default_rng(7).bytes(16)
OPENSSL = {
    "": "a3817f04ba25a8e66df67214c7550293",
    "x": "26f4794189a9b59d5b2510f6936caf80",
    "x" * 7: "e20bdebe9af8a4df1ba2110f6526a300",
    "x" * 8: "17ecee367b9c17829878d47505d06711",
    "x" * 15: "37259b16aceaa45038fbcb8472b01f6c",
    "x" * 16: "a71a96f473c4d7ccc4f747bf7f54247f",
    "a" * 300: "1007a2d3dd88a7971ac0f5391d346560",
}
"""Computed by ``openssl mac -macopt hexkey:000102...0f -macopt size:16 SIPHASH``."""


def hexadecimal(ids: pa.Array, *, key: bytes = KEY) -> list[str]:
    return [row.astype("<u8").tobytes().hex() for row in keyed_hashes(ids, key=key)]


def test_the_hash_is_siphash() -> None:
    assert hexadecimal(pa.array(list(OPENSSL))) == list(OPENSSL.values())
    assert doctest.testmod(keyed_hash).failed == 0


def test_an_integer_hashes_as_its_decimal_text_and_no_other_spelling_does() -> None:
    numbers = [7, -3, 0, 2**63 - 1, -(2**63)]
    assert hexadecimal(pa.array(numbers)) == hexadecimal(pa.array(list(map(str, numbers))))
    assert len({*hexadecimal(pa.array(["7", "07", "+7", " 7", "7 ", "7.0", "7\x00"]))}) == 7


def test_slices_large_strings_and_chunks_have_equal_hashes() -> None:
    texts = ["", "b", "\u00e9t\u00e9", "d" * 40]
    expected = hexadecimal(pa.array(texts))
    assert hexadecimal(pa.array(texts, pa.large_string())) == expected
    assert hexadecimal(pa.array(["x", *texts, "y"])[1:-1]) == expected
    assert hexadecimal(pa.array([5, 6, 7])[1:2]) == hexadecimal(pa.array(["6"]))
    assert hexadecimal(pa.array([], pa.string())) == []


def test_another_key_gives_other_hashes() -> None:
    ids = pa.array(range(1000))
    assert not {*hexadecimal(ids)} & {*hexadecimal(ids, key=SECOND)}
    assert len({*hexadecimal(ids)}) == 1000
