"""The catalog: which snapshot a name stands for, and when one may go."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.errors import Conflict, Corrupt, NotFound, Refused
from storage.ledger import journal


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    engine = connect(f"sqlite:///{tmp_path / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
    yield Catalog(engine, tmp_path)
    engine.dispose()


def add(catalog: Catalog, home: Path, name: str, *, population: str | None = None) -> IngestReport:
    """Ingest rows of the name's own people."""
    (home / "rows.svm").write_text(f"1 1:1 2:2\n1 2:{ord(name[-1])}\n")
    return ingest(
        home / "rows.svm",
        name=name,
        home=home,
        engine=catalog.engine,
        options=IngestOptions(population=population, features=3),
    )


def release_from(catalog: Catalog, snapshot: str) -> None:
    with transaction(catalog.engine) as connection:
        connection.execute(
            tables.budget.insert().values(
                population="p",
                epsilon=1.0,
                delta=1e-6,
                relation="add_remove",
                filter="gdp",
                unit="record",
                created_at="2026-01-01",
            )
        )
        connection.execute(
            tables.release.insert().values(
                id="r",
                population="p",
                snapshot_id=snapshot,
                run_key="k",
                fingerprint="f",
                request="{}",
                event="{}",
                epsilon=1.0,
                delta=1e-6,
                charge=b"",
                accounting="1",
                state="reserved",
                created_at="2026-01-01",
                updated_at="2026-01-01",
            )
        )


def test_the_newest_snapshot_of_a_name_is_current(catalog: Catalog, tmp_path: Path) -> None:
    replaced = add(catalog, tmp_path, "b")
    second = add(catalog, tmp_path, "b")
    first = add(catalog, tmp_path, "a", population="people")
    assert [(entry.name, entry.snapshot) for entry in catalog.entries()] == [
        ("a", first.snapshot),
        ("b", second.snapshot),
    ]
    assert catalog.current("a").population == "people"
    older = catalog.entry(replaced.snapshot)
    assert catalog.address(older) == str(tmp_path / "datasets/b" / replaced.snapshot)
    assert catalog.open(older).content == replaced.content_digest
    assert catalog.open(catalog.current("b")).manifest.snapshot == second.snapshot
    assert catalog.verify("b") == second.content_digest


def test_the_newest_snapshot_is_the_last_ingested_whatever_the_clock_says(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for year in (2026, 2024, 2025, 1969):
        monkeypatch.setattr(journal, "now", lambda year=year: f"{year}-01-01T00:00:00.000000+00:00")
        report = add(catalog, tmp_path, "a")
        assert catalog.current("a").snapshot == report.snapshot
        assert catalog.current("a").created_at.startswith(str(year))


def test_what_happens_to_snapshots_stands_in_the_journal(catalog: Catalog, tmp_path: Path) -> None:
    add(catalog, tmp_path, "a")
    catalog.remove("a")
    with transaction(catalog.engine) as connection:
        names = connection.scalars(sa.select(tables.event.c.name).order_by(tables.event.c.seq)).all()
        assert journal.verify(connection) == 2
    assert names == ["snapshot_registered", "snapshot_removed"]


def test_remove_takes_all_snapshots_but_the_population_keeps_the_name(catalog: Catalog, tmp_path: Path) -> None:
    reports = [add(catalog, tmp_path, "a", population="people") for _ in range(2)]
    add(catalog, tmp_path, "b")
    assert set(catalog.remove("a")) == {report.snapshot for report in reports}
    assert [entry.name for entry in catalog.entries()] == ["b"]
    assert not (tmp_path / "datasets/a").exists()
    for act in (catalog.current, catalog.verify, catalog.remove):
        with pytest.raises(NotFound, match="no dataset is named 'a'"):
            act("a")
    with pytest.raises(NotFound, match="not in the catalog any more"):
        catalog.entry(reports[0].snapshot)
    with pytest.raises(Conflict, match="belongs to population 'people'"):
        add(catalog, tmp_path, "a")


def test_remove_refuses_while_a_release_names_a_snapshot(catalog: Catalog, tmp_path: Path) -> None:
    older = add(catalog, tmp_path, "a")
    add(catalog, tmp_path, "a")
    release_from(catalog, older.snapshot)
    with pytest.raises(Refused, match="a release was made"):
        catalog.remove("a")
    assert catalog.verify("a") == older.content_digest
    assert older.snapshot in catalog.remove("a", force=True)


def test_files_of_another_ledger_or_snapshot_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    first, second = add(catalog, tmp_path, "a"), add(catalog, tmp_path, "a")
    folder = tmp_path / "datasets/a"
    (folder / second.snapshot).rename(tmp_path / "aside")
    (folder / first.snapshot).rename(folder / second.snapshot)
    with pytest.raises(Refused, match="another ledger"):
        catalog.open(catalog.current("a"))


def test_verify_compares_the_files_with_the_catalog(catalog: Catalog, tmp_path: Path) -> None:
    add(catalog, tmp_path, "a")
    with transaction(catalog.engine) as connection:
        connection.execute(sa.update(tables.snapshot).values(content_digest="0" * 64))
    with pytest.raises(Corrupt, match="not those registered"):
        catalog.verify("a")


def test_files_that_were_lost_are_not_found(catalog: Catalog, tmp_path: Path) -> None:
    report = add(catalog, tmp_path, "a")
    (tmp_path / "datasets/a" / report.snapshot).rename(tmp_path / "aside")
    with pytest.raises(NotFound, match="there is no snapshot"):
        catalog.open(catalog.current("a"))
    assert catalog.remove("a") == [report.snapshot]


def test_names_that_differ_only_by_case_are_refused_while_the_other_is_there(catalog: Catalog, tmp_path: Path) -> None:
    add(catalog, tmp_path, "Visits", population="people")
    with pytest.raises(Conflict, match="dataset 'visits' differs from 'Visits' only by case"):
        add(catalog, tmp_path, "visits", population="people")
    with pytest.raises(Conflict, match="population 'People' differs from 'people' only by case"):
        add(catalog, tmp_path, "others", population="People")
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["Visits"], "nothing is half-written"
    add(catalog, tmp_path, "Visits", population="people")
    catalog.remove("Visits")
    add(catalog, tmp_path, "visits", population="people")
    assert [entry.name for entry in catalog.entries()] == ["visits"]
