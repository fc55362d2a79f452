"""Catalog of datasets, exports, and chained nights.

The catalog determines the current snapshot of a name, and when a snapshot may be removed. Exports can be read by other
programs and by dpca without loss. Rows of several nights form one source: each row once, at the age of its night, for
any partition.
"""

import pickle
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import sqlalchemy as sa
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from dpca.backends.local import LocalPlace
from dpca.errors import Conflict, Corrupt, Invalid, NotFound, Refused, Unavailable
from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.catalog import Catalog, Entry
from storage.datasets.export import WRITERS, export_rows
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset, NightRows
from storage.ledger import journal


@pytest.fixture
def catalog_of_catalog(tmp_path: Path) -> Iterator[Catalog]:
    engine = connect(f"sqlite:///{tmp_path / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
    yield Catalog(engine, tmp_path)
    engine.dispose()


def add(catalog: Catalog, home: Path, name: str, *, population: str | None = None) -> IngestReport:
    """Ingest rows as a dataset, by default into the population of the same name."""
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


def test_the_newest_snapshot_of_a_name_is_current(catalog_of_catalog: Catalog, tmp_path: Path) -> None:
    replaced = add(catalog_of_catalog, tmp_path, "b")
    second = add(catalog_of_catalog, tmp_path, "b")
    first = add(catalog_of_catalog, tmp_path, "a", population="people")
    assert [(entry.name, entry.snapshot) for entry in catalog_of_catalog.entries()] == [
        ("a", first.snapshot),
        ("b", second.snapshot),
    ]
    assert catalog_of_catalog.current("a").population == "people"
    older = catalog_of_catalog.entry(replaced.snapshot)
    assert catalog_of_catalog.address(older) == str(tmp_path / "datasets/b" / replaced.snapshot)
    assert catalog_of_catalog.open(older).content == replaced.content_digest
    assert catalog_of_catalog.open(catalog_of_catalog.current("b")).manifest.snapshot == second.snapshot
    assert catalog_of_catalog.verify("b") == second.content_digest


def test_the_newest_snapshot_is_the_last_ingested_regardless_of_the_clock(
    catalog_of_catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for year in (2026, 2024, 2025, 1969):
        monkeypatch.setattr(journal, "now", lambda year=year: f"{year}-01-01T00:00:00.000000+00:00")
        report = add(catalog_of_catalog, tmp_path, "a")
        assert catalog_of_catalog.current("a").snapshot == report.snapshot
        assert catalog_of_catalog.current("a").created_at.startswith(str(year))


def test_changes_of_snapshots_are_recorded_in_the_journal(catalog_of_catalog: Catalog, tmp_path: Path) -> None:
    add(catalog_of_catalog, tmp_path, "a")
    catalog_of_catalog.remove("a")
    with transaction(catalog_of_catalog.engine) as connection:
        names = connection.scalars(sa.select(tables.event.c.name).order_by(tables.event.c.seq)).all()
        assert journal.verify(connection) == 2
    assert names == ["snapshot_registered", "snapshot_removed"]


def test_remove_takes_all_snapshots_but_the_population_keeps_the_name(
    catalog_of_catalog: Catalog, tmp_path: Path
) -> None:
    reports = [add(catalog_of_catalog, tmp_path, "a", population="people") for _ in range(2)]
    add(catalog_of_catalog, tmp_path, "b")
    assert set(catalog_of_catalog.remove("a")) == {report.snapshot for report in reports}
    assert [entry.name for entry in catalog_of_catalog.entries()] == ["b"]
    assert not (tmp_path / "datasets/a").exists()
    for act in (catalog_of_catalog.current, catalog_of_catalog.verify, catalog_of_catalog.remove):
        with pytest.raises(NotFound, match="dataset 'a' does not exist"):
            act("a")
    with pytest.raises(NotFound, match="no longer in the catalog"):
        catalog_of_catalog.entry(reports[0].snapshot)
    with pytest.raises(Conflict, match="belongs to population 'people'"):
        add(catalog_of_catalog, tmp_path, "a")


def test_files_that_a_failed_removal_left_are_removed_by_the_next(
    catalog_of_catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = add(catalog_of_catalog, tmp_path, "a")

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(LocalPlace, "remove", fail)
        with pytest.raises(Unavailable):
            catalog_of_catalog.remove("a")
    assert (tmp_path / "datasets/a" / report.snapshot).exists()
    assert catalog_of_catalog.remove("a") == [report.snapshot]
    assert not (tmp_path / "datasets/a").exists()
    with pytest.raises(NotFound):
        catalog_of_catalog.remove("a")
    with transaction(catalog_of_catalog.engine) as connection:
        names = connection.scalars(sa.select(tables.event.c.name).order_by(tables.event.c.seq)).all()
    assert names == ["snapshot_registered", "snapshot_removed"]


def test_remove_refuses_while_a_release_names_a_snapshot(catalog_of_catalog: Catalog, tmp_path: Path) -> None:
    older = add(catalog_of_catalog, tmp_path, "a")
    add(catalog_of_catalog, tmp_path, "a")
    release_from(catalog_of_catalog, older.snapshot)
    with pytest.raises(Refused, match="a release was made"):
        catalog_of_catalog.remove("a")
    assert catalog_of_catalog.verify("a") == older.content_digest
    assert older.snapshot in catalog_of_catalog.remove("a", force=True)


def test_files_of_another_ledger_or_snapshot_are_refused(catalog_of_catalog: Catalog, tmp_path: Path) -> None:
    first, second = add(catalog_of_catalog, tmp_path, "a"), add(catalog_of_catalog, tmp_path, "a")
    folder = tmp_path / "datasets/a"
    (folder / second.snapshot).rename(tmp_path / "aside")
    (folder / first.snapshot).rename(folder / second.snapshot)
    with pytest.raises(Refused, match="another ledger"):
        catalog_of_catalog.open(catalog_of_catalog.current("a"))


def test_verify_compares_the_files_with_the_catalog(catalog_of_catalog: Catalog, tmp_path: Path) -> None:
    add(catalog_of_catalog, tmp_path, "a")
    with transaction(catalog_of_catalog.engine) as connection:
        connection.execute(sa.update(tables.snapshot).values(content_digest="0" * 64))
    with pytest.raises(Corrupt, match="differ from the registered snapshot"):
        catalog_of_catalog.verify("a")


def test_lost_files_are_reported_as_not_found(catalog_of_catalog: Catalog, tmp_path: Path) -> None:
    report = add(catalog_of_catalog, tmp_path, "a")
    (tmp_path / "datasets/a" / report.snapshot).rename(tmp_path / "aside")
    with pytest.raises(NotFound, match="there is no snapshot"):
        catalog_of_catalog.open(catalog_of_catalog.current("a"))
    assert catalog_of_catalog.remove("a") == [report.snapshot]


def test_names_that_differ_only_by_case_are_refused(catalog_of_catalog: Catalog, tmp_path: Path) -> None:
    add(catalog_of_catalog, tmp_path, "Visits", population="people")
    with pytest.raises(Conflict, match="dataset 'visits' differs from 'Visits' only by case"):
        add(catalog_of_catalog, tmp_path, "visits", population="people")
    with pytest.raises(Conflict, match="population 'People' differs from 'people' only by case"):
        add(catalog_of_catalog, tmp_path, "others", population="People")
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["Visits"], "nothing is half-written"
    add(catalog_of_catalog, tmp_path, "Visits", population="people")
    catalog_of_catalog.remove("Visits")
    add(catalog_of_catalog, tmp_path, "visits", population="people")
    assert [entry.name for entry in catalog_of_catalog.entries()] == ["visits"]


@pytest.fixture
def rows() -> NDArray[np.float64]:
    dense = np.random.default_rng(2).standard_normal((200, 9))
    return dense * (np.random.default_rng(3).random((200, 9)) < 0.2)


def open_rows(catalog: Catalog, rows: NDArray[np.generic], **declared: Any) -> Dataset:
    np.save(catalog.home.with_name("x.npy"), rows)
    ingest(
        catalog.home.with_name("x.npy"),
        name="x",
        home=catalog.home,
        engine=catalog.engine,
        options=IngestOptions(block_nnz=50, **declared),
    )
    return catalog.open(catalog.current("x"))


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "bool"])
def test_other_programs_read_an_export_as_the_same_matrix(
    tmp_path: Path, catalog: Catalog, rows: NDArray[np.float64], dtype: str
) -> None:
    values = (rows * 50).astype(dtype)
    dataset = open_rows(catalog, values)
    for format in WRITERS:  # noqa: A001
        export_rows(dataset, tmp_path / f"out.{format}", format=format)
        assert stat.S_IMODE((tmp_path / f"out.{format}").stat().st_mode) == 0o600
    found = {
        "npz": sp.load_npz(tmp_path / "out.npz"),
        "h5ad": anndata.read_h5ad(tmp_path / "out.h5ad").X,
        "svmlight": load_svmlight_file(str(tmp_path / "out.svmlight"), n_features=9, zero_based=False)[0],
    }
    table = pq.read_table(tmp_path / "out.parquet")
    entries = (table["value"].to_numpy(), (table["row"].to_numpy(), table["column"].to_numpy()))
    found["parquet"] = sp.coo_array(entries, shape=rows.shape)
    for format, matrix in found.items():  # noqa: A001
        np.testing.assert_array_equal(matrix.toarray(), values, err_msg=format)
        assert format == "svmlight" or matrix.dtype == np.dtype(dtype)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize("format", WRITERS)
def test_an_ingested_export_is_the_same_dataset(
    tmp_path: Path,
    catalog: Catalog,
    rows: NDArray[np.float64],
    format: str,  # noqa: A002
) -> None:
    dataset = open_rows(catalog, rows)
    export_rows(dataset, tmp_path / f"out.{format}", format=format)
    back = ingest(
        tmp_path / f"out.{format}",
        name="y",
        home=catalog.home,
        engine=catalog.engine,
        options=IngestOptions(population="x", features=9, format=format),
    )
    assert back.content_digest == dataset.content


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_exports_contain_records_and_names(tmp_path: Path, catalog: Catalog, rows: NDArray[np.float64]) -> None:
    np.save(tmp_path / "units.npy", np.arange(200) // 3)
    (tmp_path / "names").write_text("\n".join("abcdefghi"))
    declared = {"units": tmp_path / "units.npy", "feature_names": tmp_path / "names"}
    dataset = open_rows(catalog, rows, **declared)
    export_rows(dataset, tmp_path / "x.h5ad", format="h5ad")
    data = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert data.obs["record"].tolist() == (np.arange(200) // 3).tolist()
    assert data.var_names.tolist() == list("abcdefghi")
    export_rows(dataset, tmp_path / "x.parquet", format="parquet")
    back = ingest(
        tmp_path / "x.parquet",
        name="y",
        home=catalog.home,
        engine=catalog.engine,
        options=IngestOptions(population="x", features=9, unit_column="record"),
    )
    assert back.content_digest == dataset.content


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_an_export_overwrites_no_file(tmp_path: Path, catalog: Catalog, rows: NDArray[np.float64]) -> None:
    dataset = open_rows(catalog, rows)
    (tmp_path / "there").write_text("mine")
    with pytest.raises(Conflict, match="never overwrites a file"):
        export_rows(dataset, tmp_path / "there", format="npz")
    with pytest.raises(Invalid, match="is not one of"):
        export_rows(dataset, tmp_path / "x", format="xlsx")
    with pytest.raises(Unavailable, match="cannot be written"):
        export_rows(dataset, tmp_path / "no/folder", format="npz")
    assert (tmp_path / "there").read_text() == "mine"


NIGHTS = [np.random.default_rng(night).integers(-3, 4, size=(40 + night, 3)) for night in range(3)]


@pytest.fixture
def nights(tmp_path: Path, catalog: Catalog) -> list[Entry]:
    """Ingest the rows of three nights without ids, with different block sizes each night."""
    catalog.home.mkdir(mode=0o700)
    for night, rows in enumerate(NIGHTS):
        np.save(tmp_path / "rows.npy", rows)
        options = IngestOptions(block_nnz=20 * (night + 1))
        ingest(tmp_path / "rows.npy", name="x", home=catalog.home, engine=catalog.engine, options=options)
    with catalog.engine.begin() as connection:
        found = connection.exec_driver_sql("SELECT id FROM snapshot ORDER BY number").scalars().all()
    return [catalog.entry(snapshot) for snapshot in found]


def chained(catalog: Catalog, bound: list[Entry]) -> NightRows:
    return NightRows.of([(catalog.open(entry), entry.number) for entry in bound])


def released(source: NightRows, arrivals: tuple[int, ...]) -> np.ndarray:
    """Return the exact sum of a stream's tick over a source."""
    moment = SecondMoment(n_features=3, clip_norm=6.0, relation="add_remove", bits=8)
    weights = choose_weights("sqrt", ticks=7)
    tick = StreamedMoment.of_moment(moment, weights=weights, horizon=7, tick=len(arrivals), arrivals=arrivals)
    total = np.zeros(tick.layout.size, np.int64)
    for number in range(source.n_blocks):
        tick.add(tick.grid(source.read(number)), total)
    return total


def test_every_row_is_read_once_with_the_number_of_its_night(catalog: Catalog, nights: list[Entry]) -> None:
    source = chained(catalog, nights)
    blocks = [source.read(number) for number in range(source.n_blocks)]
    assert [entry.number for entry in nights] == [1, 2, 3]
    assert source.n_records == sum(map(len, NIGHTS))
    assert [block.first_record for block in blocks] == np.cumsum([0, *source.extents[:-1, 0]]).tolist()
    for number, rows in enumerate(NIGHTS, start=1):
        found = [block for block in blocks if block.first_seen == number]
        assert sum(len(block.row_ptr) - 1 for block in found) == len(rows)
        assert sum(block.values.sum() for block in found) == rows.sum()
    with pytest.raises(IndexError, match="does not exist"):
        source.read(source.n_blocks)


def test_sums_over_chained_nights_equal_sums_weighted_by_age(catalog: Catalog, nights: list[Entry]) -> None:
    """Compare the sum over three chained nights with sums over each night alone, weighted by age.

    The nights are cut into different blocks.
    """
    weights = choose_weights("sqrt", ticks=7)
    separate = [released(chained(catalog, [entry]), (entry.number or 0,)) // weights.weight(0) for entry in nights]
    expected = sum(weights.weight(2 - age) * moment for age, moment in enumerate(separate))
    assert np.array_equal(released(chained(catalog, nights), (1, 2, 3)), expected)


def test_a_snapshot_bound_to_several_ticks_is_read_once(catalog: Catalog, nights: list[Entry]) -> None:
    """Chain each snapshot twice, as if bound to several ticks: its rows must be read once.

    An empty night adds no rows.
    """
    first, second, _ = nights
    source = chained(catalog, [first, first, second, second])
    assert source.n_records == len(NIGHTS[0]) + len(NIGHTS[1])
    assert source.content == chained(catalog, [first, second]).content


def test_the_content_digest_depends_on_nights_and_numbers(catalog: Catalog, nights: list[Entry]) -> None:
    first, second, third = nights
    contents = {chained(catalog, bound).content for bound in ([first], [first, second], [first, third], nights)}
    renumbered = NightRows.of([(catalog.open(first), 9)])
    assert len(contents | {renumbered.content, first.content_digest}) == 6


def test_snapshots_without_a_number_count_as_the_earliest(catalog: Catalog, nights: list[Entry]) -> None:
    first, second, _ = nights
    source = NightRows.of([(catalog.open(first), None), (catalog.open(second), 2)])
    assert source.read(0).first_seen is None
    with pytest.raises(Conflict, match="never decrease"):
        NightRows.of([(catalog.open(second), 2), (catalog.open(first), None)])


def test_nights_with_different_columns_and_an_empty_chain_are_refused(
    catalog: Catalog, nights: list[Entry], tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", np.ones((2, 4)))
    report = ingest(tmp_path / "rows.npy", name="y", home=catalog.home, engine=catalog.engine)
    with pytest.raises(Invalid, match="same columns"):
        chained(catalog, [*nights, catalog.entry(report.snapshot)])
    with pytest.raises(Invalid, match="at least one"):
        NightRows.of([])


def test_a_pickled_chain_contains_addresses_and_numbers_alone(catalog: Catalog, nights: list[Entry]) -> None:
    source = chained(catalog, nights)
    pickled = pickle.dumps(source)
    assert pickle.loads(pickled) == source
    for secret in (source.content, nights[0].content_digest):
        assert secret.encode() not in pickled
        assert secret not in repr(source)


def test_removed_snapshots_are_checked_in_a_fixed_number_of_statements(tmp_path: Path, catalog: Catalog) -> None:
    """Empty a dataset many times: looking for its snapshots must not take a statement for each.

    A dataset that was emptied every night for a year must not cost a statement per night.
    """
    for _ in range(12):
        add(catalog, tmp_path, "ab")
        catalog.remove("ab")
    statements: list[str] = []
    sa.event.listen(catalog.engine, "before_cursor_execute", lambda *requested: statements.append(requested[2]))
    with pytest.raises(NotFound):
        catalog.current("ab")
    assert len(statements) < 12
