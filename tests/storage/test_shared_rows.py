"""Rows that another population already has, and ids that look alike."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.errors import Conflict
from dpca.home import store
from storage.database import tables
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger.ledger import Ledger
from tests.storage.releasing import open_budget, reserve

ROWS = "1 1:1 2:2\n1 2:1\n"


def add(ledger: Ledger, name: str, population: str | None = None, *, text: str = ROWS, insist: bool = False) -> str:
    path = ledger.home / "source.svm"
    path.write_text(text)
    report = ingest(
        path,
        name=name,
        home=ledger.home,
        engine=ledger.engine,
        place=store(),
        options=IngestOptions(population=population, features=3, allow_shared_rows=insist),
    )
    return report.snapshot


def datasets(ledger: Ledger) -> set[str]:
    return {path.name for path in (ledger.home / "datasets").glob("*/*") if not path.name.startswith(".")}


@pytest.mark.parametrize("population", [None, "others"], ids=["by its name", "stated"])
def test_rows_of_another_population_require_an_explicit_option(ledger: Ledger, population: str | None) -> None:
    first = add(ledger, "visits", "people")
    with pytest.raises(Conflict, match=r"'visits' of population 'people'.*--allow-shared-rows") as refused:
        add(ledger, "copy", population)
    assert Catalog(ledger.engine, ledger.home).current("visits").content_digest[:8] not in str(refused.value)
    assert datasets(ledger) == {first}
    second = add(ledger, "copy", population, insist=True)
    assert datasets(ledger) == {first, second}
    assert ledger.verify() > 0


def test_the_journal_does_not_reveal_whether_allowed_rows_are_shared(ledger: Ledger) -> None:
    """Allow rows that another population has, and rows that it has not: the journal must state the same for both.

    The hash of the entry is exported, so a difference could be found by guessing.
    """
    add(ledger, "visits", "people")
    add(ledger, "shared", "others", insist=True)
    add(ledger, "unlike", "others", text="1 1:7\n", insist=True)
    with ledger.transaction() as connection:
        event = tables.event.c
        query = sa.select(event.detail).where(event.name == "snapshot_registered").order_by(event.seq)
        details = [json.loads(detail) for detail in connection.scalars(query)]
    assert [detail.get("shared_rows") for detail in details] == [None, "allowed", "allowed"]
    assert details[1].keys() == details[2].keys()


def test_the_same_population_may_ingest_rows_again_under_other_names(sqlite_ledger: Ledger) -> None:
    add(sqlite_ledger, "visits", "people")
    add(sqlite_ledger, "visits", "people")
    add(sqlite_ledger, "copy", "people")
    add(sqlite_ledger, "others", text=ROWS + "1 3:1\n")


def test_known_rows_are_recognized_in_any_form(sqlite_ledger: Ledger) -> None:
    """Ingest known rows in other blocks, as another text, or equal to an old snapshot: they must be recognized."""
    add(sqlite_ledger, "visits", "people")
    add(sqlite_ledger, "visits", "people", text="1 1:7\n")
    with pytest.raises(Conflict, match="allow-shared-rows"):
        add(sqlite_ledger, "copy", text="0 1:1.0 2:2e0\n3 2:1.000\n")


@pytest.mark.parametrize("state", ["reserved", "abandoned", None])
def test_a_removed_snapshot_is_compared_if_its_population_was_charged(sqlite_ledger: Ledger, state: str | None) -> None:
    snapshot = add(sqlite_ledger, "visits", "people")
    if state is not None:
        open_budget(sqlite_ledger)
        grant = reserve(sqlite_ledger, snapshot_id=snapshot)
        if state == "abandoned":
            sqlite_ledger.abandon(grant.release_id)
    Catalog(sqlite_ledger.engine, sqlite_ledger.home).remove("visits", force=True)
    if state == "reserved":
        with pytest.raises(Conflict, match="allow-shared-rows"):
            add(sqlite_ledger, "copy")
    else:
        add(sqlite_ledger, "copy")


PLACES = [*range(40), *range(40)]  # equal rows too
RNG = np.random.default_rng(7)
ORDER = RNG.permutation(len(PLACES))


def give(
    ledger: Ledger,
    folder: Path,
    population: str,
    *,
    ids: bool = False,
    most: int | None = None,
    order: Any = slice(None),
    changed: bool = False,
    block: int | None = None,
) -> str:
    """Ingest 80 rows for a population, with or without their ids."""
    rows = np.zeros((len(PLACES), 8))
    rows[np.arange(len(PLACES)), np.array(PLACES) % 8] = 1.0 + np.array(PLACES)
    rows[-1, 0] += float(changed)
    owners = np.arange(len(PLACES)) // 5
    np.save(folder / "rows.npy", rows[order])
    np.save(folder / "owners.npy", owners[order])
    report = ingest(
        folder / "rows.npy",
        name=population,
        home=ledger.home,
        engine=ledger.engine,
        place=store(),
        options=IngestOptions(
            units=str(folder / "owners.npy") if ids else None, max_rows_per_unit=most, block_nnz=block
        ),
    )
    return report.content_digest


KINDS: dict[str, dict[str, Any]] = {
    "without ids": {},
    "with ids": {"ids": True},
    "with ids and a bound": {"ids": True, "most": 2},
    "with ids and a bound, in another order": {"ids": True, "most": 2, "order": ORDER},
    "in another order and other blocks": {"order": ORDER, "block": 16},
}


@pytest.mark.parametrize(("first", "then"), [*pairwise([*KINDS, *KINDS][: len(KINDS) + 1])], ids=str)
def test_adding_or_removing_ids_does_not_hide_known_rows(
    sqlite_ledger: Ledger, tmp_path: Path, first: str, then: str
) -> None:
    give(sqlite_ledger, tmp_path, "people", **KINDS[first])
    give(sqlite_ledger, tmp_path, "near", **KINDS[then], changed=True)  # with one row changed, they count as other rows
    with pytest.raises(Conflict, match=r"dataset 'people' of population 'people'.*--allow-shared-rows"):
        give(sqlite_ledger, tmp_path, "copy", **KINDS[then])


@pytest.mark.parametrize("ids", [True, False])
def test_snapshots_of_a_dataset_keep_its_unit(sqlite_ledger: Ledger, tmp_path: Path, *, ids: bool) -> None:
    give(sqlite_ledger, tmp_path, "people", ids=ids)
    with pytest.raises(
        Conflict, match=r"snapshots of dataset 'people' have one .* as the unit of privacy, and the new"
    ):
        give(sqlite_ledger, tmp_path, "people", ids=not ids)
    assert len(datasets(sqlite_ledger)) == 1
    give(sqlite_ledger, tmp_path, "people", ids=ids, most=2 if ids else None)
    Catalog(sqlite_ledger.engine, sqlite_ledger.home).remove("people")
    give(sqlite_ledger, tmp_path, "people", ids=not ids)
    assert sqlite_ledger.verify() > 0


def owned(ledger: Ledger, ids: list[str] | list[int], tmp_path: Path) -> IngestReport:
    np.save(tmp_path / "owners.npy", np.array(ids))
    (tmp_path / "rows.svm").write_text("".join(f"1 1:{row + 1}\n" for row in range(len(ids))))
    return ingest(
        tmp_path / "rows.svm",
        name="d",
        home=ledger.home,
        engine=ledger.engine,
        place=store(),
        options=IngestOptions(features=2, units=str(tmp_path / "owners.npy")),
    )


@pytest.mark.parametrize(
    ("ids", "alike"),
    [
        (["7", "07", "8", "+8", "9"], 4),
        (["7", "7", "8", "8"], 0),
        (["1", "+1", "01", "001"], 4),
        (["0", "00", "-1", "1"], 2),
        (["anna", "Anna", "bob"], 0),
        (["1.5", "1.50", "15", "150", "a07", "a7"], 0),
        ([7, 8, 7, 70], 0),
    ],
    ids=str,
)
def test_similar_ids_are_counted_and_kept_separate(
    sqlite_ledger: Ledger, tmp_path: Path, ids: list[str] | list[int], alike: int
) -> None:
    report = owned(sqlite_ledger, ids, tmp_path)
    assert report.lookalikes == alike
    assert report.records == len(set(ids))
    assert "lookalikes" not in repr(report)
