"""Entries of any number of parts, pieces and batches come sorted, and every batch holds whole records."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from storage.datasets import entry_sort
from storage.datasets.entry_sort import ENTRY, EntrySort
from storage.formats.batch import BATCH_VALUES


def sorted_by_lexsort(entries: NDArray[np.void], *, by_line: bool) -> NDArray[np.void]:
    keys = (entries["line"], entries["unit"]) if by_line else (entries["unit"],)
    return entries[np.lexsort(keys)]  # stable


def check(folder: Path, added: list[NDArray[np.void]], *, most: int, by_line: bool) -> list[NDArray[np.void]]:
    """Sort entries that come in several calls, check order and whole records, and return the batches."""
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
    """Draw the entries of units of these sizes, in random order; each value tells its place."""
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
def test_groups_larger_than_a_piece_and_a_batch_stay_whole(
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
def test_groups_larger_than_the_real_piece_stay_whole(tmp_path: Path, *, by_line: bool) -> None:
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
