"""First-seen numbers: each individual has the number of the ingest that first contained their id.

Each number is determined once and never changes, and missing tables are handled safely.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpca.backends import atomic_files
from dpca.errors import BadSource, Conflict
from storage.datasets import whole_records
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger import arrivals, journal
from storage.ledger.ledger import Ledger
from tests.crash.processes import forked
from tests.storage.contenders import PROCESSES, contenders

type Take = Callable[..., IngestReport]


@pytest.fixture
def take(tmp_path: Path, catalog: Catalog) -> Take:
    """Return a function that ingests one row per individual, whose value identifies the id."""
    catalog.home.mkdir(mode=0o700)

    def ingest_people(*ids: object, name: str = "x", population: str = "people", **declared: Any) -> IngestReport:
        source = tmp_path / f"rows-{len(ids)}-{ids[0]}.csv"
        rows = "who,a\n" + "".join(f"{who},{value_of(who)}\n" for who in ids)
        # an unchanged file is not rewritten, because an ingest does not resume after a rewrite
        if not source.exists() or source.read_text() != rows:
            source.write_text(rows)
        options = IngestOptions(features=1, unit_column="who", population=population, **declared)
        return ingest(source, name=name, home=catalog.home, engine=catalog.engine, options=options)

    return ingest_people


def value_of(who: object) -> int:
    return 1 + sum(str(who).encode())


def seen(catalog: Catalog, report: IngestReport) -> dict[int | None, list[float]]:
    """Return the values of individuals, grouped by the number of the ingest that saw them first."""
    dataset = catalog.open(catalog.entry(report.snapshot))
    assert dataset.verify() == report.content_digest
    found: dict[int | None, list[float]] = {}
    for block in map(dataset.read, range(dataset.n_blocks)):
        found.setdefault(block.first_seen, []).extend(block.values.tolist())
    return found


def expected(numbered: Mapping[int | None, str]) -> dict[int | None, list[float]]:
    """Return the expected result of `seen` for individuals with ids of one letter."""
    return {number: [float(value_of(who)) for who in ids] for number, ids in numbered.items()}


def folders(catalog: Catalog) -> list[Path]:
    return sorted((catalog.home / "arrivals" / "people").iterdir())


def test_blocks_hold_individuals_of_one_first_seen_number_in_their_order(catalog: Catalog, take: Take) -> None:
    assert seen(catalog, take(*"db")) == expected({1: "bd"})
    assert seen(catalog, take(*"dcab")) == expected({1: "bd", 2: "ac"})
    report = take(*"edcab", block_nnz=1)
    assert seen(catalog, report) == expected({1: "bd", 2: "ac", 3: "e"})
    dataset = catalog.open(catalog.entry(report.snapshot))
    firsts = [dataset.read(number).first_record for number in range(dataset.n_blocks)]
    assert firsts == np.cumsum([0, *dataset.extents[:-1, 0]]).tolist()
    assert [entry.number for entry in catalog.entries()] == [3]
    assert catalog.arrivals_of(report.snapshot) == "ids"
    assert catalog.epoch(report.snapshot) == dataset.manifest.epoch is not None


def test_a_first_ingest_writes_the_files_of_earlier_versions(catalog: Catalog, take: Take) -> None:
    report = take("9", "10", "b", "a", "-1")
    assert report.content_digest == "031de620fbd6db1c2f00c249a722f155523ad32e29e929efa4de7cbebbb311ed"
    assert report.blocks == 1
    again = take("b", "9", "10", "a", "-1")
    assert again.content_digest == report.content_digest


def test_a_source_without_ids_has_a_number_and_no_arrivals(catalog: Catalog, take: Take, tmp_path: Path) -> None:
    take("a")
    (tmp_path / "rows.svm").write_text("0 1:1\n0 1:2\n")
    options = IngestOptions(features=1, population="people")
    report = ingest(tmp_path / "rows.svm", name="y", home=catalog.home, engine=catalog.engine, options=options)
    assert seen(catalog, report) == {None: [1.0, 2.0]}
    assert (catalog.number(report.snapshot), catalog.epoch(report.snapshot)) == (2, None)
    assert catalog.arrivals_of(report.snapshot) == "rows"
    assert len(folders(catalog)) == 1


def test_an_individual_keeps_its_number_through_erasure_and_return(catalog: Catalog, take: Take) -> None:
    take(*"ab")
    take(*"b")
    catalog.remove("x")
    take(*"bc")
    assert seen(catalog, take(*"abc")) == expected({1: "ab", 3: "c"})


def test_all_datasets_of_a_population_share_one_table_and_other_populations_do_not(
    catalog: Catalog, take: Take
) -> None:
    take(*"ab")
    assert seen(catalog, take(*"bc", name="y")) == expected({1: "b", 2: "c"})
    assert seen(catalog, take(*"abcd")) == expected({1: "ab", 2: "c", 3: "d"})
    assert seen(catalog, take(*"abcd", name="z", population="others", allow_shared_rows=True)) == expected({4: "abcd"})


def test_a_failed_ingest_never_leads_to_a_later_first_seen_number(catalog: Catalog, take: Take) -> None:
    take(*"a")
    with pytest.raises(BadSource, match="more than the declared 2 records"):
        take(*"abc", records_at_most=2)
    report = take(*"abcd")
    assert seen(catalog, report) == expected({1: "a", 2: "bc", 3: "d"})
    assert catalog.number(report.snapshot) == 3


def test_the_individual_of_a_bad_row_is_seen_with_an_empty_record(catalog: Catalog, tmp_path: Path, take: Take) -> None:
    take(*"a")
    (tmp_path / "bad.csv").write_text(f"who,a\nb,x\nc,{value_of('c')}\n")
    options = IngestOptions(features=1, unit_column="who", population="people", on_error="quarantine")
    ingest(tmp_path / "bad.csv", name="x", home=catalog.home, engine=catalog.engine, options=options)
    assert seen(catalog, take(*"abc")) == expected({1: "a", 2: "bc"})


def test_first_seen_numbers_do_not_depend_on_clocks(
    catalog: Catalog, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    for year, ids in ((2026, "a"), (1999, "ab"), (2030, "abc")):
        monkeypatch.setattr(journal, "now", lambda year=year: f"{year}-01-01T00:00:00.000000+00:00")
        report = take(*ids)
    assert seen(catalog, report) == expected({1: "a", 2: "b", 3: "c"})


def test_equal_ids_of_different_formats_are_one_individual(catalog: Catalog, take: Take, tmp_path: Path) -> None:
    take("7", "8", "-3", "\u00e9")
    columns = {"who": pa.array([7, -3, 5]), "a": pa.array([1.0, 2.0, 3.0])}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    options = IngestOptions(unit_column="who", population="people")
    report = ingest(tmp_path / "rows.parquet", name="x", home=catalog.home, engine=catalog.engine, options=options)
    assert seen(catalog, report) == {1: [2.0, 1.0], 2: [3.0]}
    np.save(tmp_path / "who.npy", np.array(["7", "\u00e9", "5", "07", " 7", "7.0"]))
    np.save(tmp_path / "rows.npy", np.arange(1.0, 7.0)[:, None])
    options = IngestOptions(units=str(tmp_path / "who.npy"), unit_name="who", population="people")
    report = ingest(tmp_path / "rows.npy", name="y", home=catalog.home, engine=catalog.engine, options=options)
    found = seen(catalog, report)
    assert {number: sorted(values) for number, values in found.items()} == {1: [1, 2, 5, 6], 2: [3], 3: [4]}
    np.save(tmp_path / "who.npy", np.array([8, 7, 6], dtype=np.int32))
    np.save(tmp_path / "rows.npy", np.arange(1.0, 4.0)[:, None])
    report = ingest(tmp_path / "rows.npy", name="y", home=catalog.home, engine=catalog.engine, options=options)
    assert seen(catalog, report) == {1: [2.0, 1.0], 4: [3.0]}


def test_a_segment_may_have_many_files(catalog: Catalog, take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_records, "PART_IDS", 3)
    take(*range(20))
    report = take(*range(30))
    numbers = {number: len(values) for number, values in seen(catalog, report).items()}
    assert numbers == {1: 20, 2: 10}
    assert sorted(len(list(folder.iterdir())) - 1 for folder in folders(catalog)) == [4, 7]


def test_ids_are_stored_as_hashes_under_a_key_of_the_population(catalog: Catalog, take: Take) -> None:
    take("alice")
    take("alice", name="y", population="others", allow_shared_rows=True)
    stored = [path.read_bytes() for path in (catalog.home / "arrivals").rglob("000000")]
    assert len(stored) == 2
    assert len(set(stored)) == 2
    assert all(len(hashes) == 16 for hashes in stored)
    keys = sorted((catalog.home / "keys").glob("arrivals-*"))
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600, 0o600]


def test_the_journal_does_not_reveal_the_number_of_new_individuals(catalog: Catalog, take: Take) -> None:
    """Compare journal entries of an ingest with three new individuals and of one with none: the form is equal."""
    take(*"abc")
    report = take(*"abc")
    with catalog.engine.begin() as connection:
        shown = connection.exec_driver_sql("SELECT name, detail FROM event WHERE name LIKE 'arrivals%'").all()
    assert [name for name, _ in shown] == ["arrivals_begun", "arrivals_recorded", "arrivals_recorded"]
    assert {tuple(json.loads(detail)) for name, detail in shown[1:]} == {("digest", "epoch", "number", "segment")}
    assert catalog.number(report.snapshot) == 2
    assert "first_seen" not in repr(catalog.open(catalog.current("x")))


def damage(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def lose_key(catalog: Catalog) -> None:
    next((catalog.home / "keys").glob("arrivals-*")).unlink()


def change_key(catalog: Catalog) -> None:
    damage(next((catalog.home / "keys").glob("arrivals-*")))


def lose_segment(catalog: Catalog) -> None:
    folders(catalog)[0].rename(catalog.home / "elsewhere")


def lose_part(catalog: Catalog) -> None:
    (folders(catalog)[0] / "000000").unlink()


def change_part(catalog: Catalog) -> None:
    damage(folders(catalog)[0] / "000000")


def change_marker(catalog: Catalog) -> None:
    damage(folders(catalog)[0] / "segment.json")


def add_segment(catalog: Catalog) -> None:
    """Add a segment of the first-seen table that the database does not know, as after a restore from a copy."""
    (folders(catalog)[0].with_name("f" * 32)).mkdir()


@pytest.mark.parametrize(
    "harm", [lose_key, change_key, lose_segment, lose_part, change_part, change_marker, add_segment]
)
def test_a_lost_first_seen_table_makes_arrivals_unknown_once_and_is_replaced(
    catalog: Catalog, take: Take, harm: Callable[[Catalog], None]
) -> None:
    first = take(*"ab")
    assert not first.arrivals_lost
    harm(catalog)
    lost = take(*"abc")
    assert lost.arrivals_lost
    assert seen(catalog, lost) == expected({None: "abc"})
    assert (catalog.number(lost.snapshot), catalog.epoch(lost.snapshot)) == (2, None)
    assert catalog.arrivals_of(lost.snapshot) == "ids"
    anew = take(*"abc")
    assert not anew.arrivals_lost
    assert seen(catalog, anew) == expected({3: "abc"})
    assert catalog.epoch(anew.snapshot) not in (None, catalog.epoch(first.snapshot))


def test_recovered_files_of_a_lost_table_are_ignored(catalog: Catalog, take: Take) -> None:
    first = take(*"ab")
    (gone,) = folders(catalog)
    gone.rename(catalog.home / "elsewhere")
    take(*"ab")
    (catalog.home / "elsewhere").rename(gone)
    report = take(*"ab")
    assert seen(catalog, report) == expected({3: "ab"})
    assert catalog.epoch(report.snapshot) != catalog.epoch(first.snapshot)
    # the older snapshot is immutable, although the table of its numbers was replaced
    assert seen(catalog, first) == expected({1: "ab"})


def test_a_restored_database_ignores_a_newer_first_seen_table(catalog: Catalog, take: Take, tmp_path: Path) -> None:
    take(*"a")
    copy = {path.name: path.read_bytes() for path in tmp_path.glob("dpca.sqlite*")}
    take(*"ab")
    catalog.engine.dispose()
    for path in tmp_path.glob("dpca.sqlite*"):
        path.unlink()
    for name, payload in copy.items():
        (tmp_path / name).write_bytes(payload)
    assert seen(catalog, take(*"abc")) == expected({None: "abc"})


def test_segments_missing_from_an_older_store_count_as_lost(catalog: Catalog, take: Take) -> None:
    take(*"a")
    present = set(folders(catalog))
    take(*"ab")
    (newest,) = set(folders(catalog)) - present
    newest.rename(catalog.home / "newer")
    assert seen(catalog, take(*"abc")) == expected({None: "abc"})


KILLED = [(point, False, False) for point in (*atomic_files.INGEST_POINTS, "folder.renamed")]
KILLED += [(point, True, True) for point in ("arrivals.published", "arrivals.recorded")]


@pytest.mark.parametrize(("point", "known", "resume"), KILLED)
def test_a_repeated_ingest_after_a_kill_gives_no_later_first_seen_number(
    catalog: Catalog, take: Take, point: str, *, known: bool, resume: bool
) -> None:
    before = "ab" if known else ""
    if before:
        take(*before)

    def die() -> None:
        atomic_files.hook = lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == point else None
        take(*"abc", block_nnz=1)

    assert forked(die) == -signal.SIGKILL
    report = take(*"abc", block_nnz=1, resume=True) if resume else take(*"abcd", block_nnz=1)
    found = seen(catalog, report)
    number = catalog.number(report.snapshot)
    assert not report.arrivals_lost
    assert number is not None
    arrived = {value: shown for shown, values in found.items() for value in values}
    assert all(shown is not None and shown <= number for shown in arrived.values())
    again = seen(catalog, take(*"abcde"))
    later = {value: shown for shown, values in again.items() for value in values}
    assert arrived.items() <= later.items()
    if before:
        assert {arrived[value_of(who)] for who in before} == {1}


def test_an_ingest_killed_between_blocks_is_resumed_with_the_same_numbers(catalog: Catalog, take: Take) -> None:
    take(*"bd")

    def die() -> None:
        from storage.datasets.staging import Extent, Staging

        written = Staging.block_written
        count = iter(range(3))

        def stop(self: Staging, extent: Extent) -> None:
            written(self, extent)
            if next(count) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        Staging.block_written = stop  # type: ignore[method-assign]
        take(*"abcd", block_nnz=1)

    assert forked(die) == -signal.SIGKILL
    take(*"e", name="y")
    report = take(*"abcd", block_nnz=1, resume=True)
    assert seen(catalog, report) == expected({1: "bd", 2: "ac"})
    assert report.blocks == 4
    calm = take(*"abcd", block_nnz=1)
    assert calm.content_digest == report.content_digest


def test_blocks_of_a_killed_ingest_are_not_resumed_after_numbers_changed(catalog: Catalog, take: Take) -> None:
    """Resume a killed ingest of the same rows after their first-seen numbers have changed: it must be refused.

    The former single block would now contain individuals with two numbers.
    """

    def die() -> None:
        from storage.datasets import ingest as ingesting

        ingesting.publish = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        take(*"ab")

    take(*"z")
    (gone,) = folders(catalog)
    gone.rename(catalog.home / "elsewhere")
    # the table of first-seen numbers is lost, so all arrivals are unknown and in one block
    assert forked(die) == -signal.SIGKILL
    take(*"a", name="y")
    with pytest.raises(Conflict, match="again without --resume"):
        take(*"ab", resume=True)


def ingest_at_once(number: int, url: str, home: str, ids: str) -> tuple[int | None, dict[int | None, list[float]]]:
    """Ingest the same people and one more, under a separate name, in several processes.

    Return the number of the ingest, and the values by first-seen number.
    """
    from storage.database.engine import connect

    catalog = Catalog(connect(url), Path(home))
    source = Path(home) / f"rows-{number}.csv"
    who = [*ids, f"n{number}"]
    source.write_text("who,a\n" + "".join(f"{each},{value_of(each)}\n" for each in who))
    options = IngestOptions(features=1, unit_column="who", population="people")
    report = ingest(source, name=f"x{number}", home=catalog.home, engine=catalog.engine, options=options)
    return catalog.number(report.snapshot), seen(catalog, report)


def test_concurrent_ingests_agree_on_first_seen_numbers(ledger: Ledger, database_url: str) -> None:
    with contenders() as racers:
        found = racers.race(ingest_at_once, database_url, str(ledger.home), "abc")
    numbers = [number for number, _ in found]
    assert len(set(numbers)) == PROCESSES
    shown: dict[float, set[int | None]] = {}
    for number, by_arrival in found:
        assert number is not None
        for first, values in by_arrival.items():
            assert first is not None
            assert first <= number
            for value in values:
                shown.setdefault(value, set()).add(first)
    assert all(len(firsts) == 1 for firsts in shown.values())
    assert len(shown) == 3 + PROCESSES
    with ledger.transaction() as connection:
        (epoch,) = connection.exec_driver_sql("SELECT id FROM arrival_epoch").scalars()
        assert len(arrivals.segments_of(connection, epoch)) == PROCESSES
    assert [path.name for path in (ledger.home / "keys").glob("arrivals-*")] == [f"arrivals-{epoch}"]
    assert len(list((ledger.home / "arrivals" / "people").iterdir())) == PROCESSES
    assert ledger.verify() > 0
