"""Ingest: one snapshot, whole and registered, or none and one clear line."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sqlalchemy as sa

from storage.backends.local import LocalPlace
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset
from storage.errors import BadSource, Conflict, Invalid, Unavailable

ROWS = "1 1:1 3:0.5\n-1\n1 3:3 2:4 1:0\n"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = connect(f"sqlite:///{tmp_path / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
    yield engine
    engine.dispose()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.svm"
    path.write_text(ROWS)
    return path


def open_reported(home: Path, report: IngestReport) -> Dataset:
    return Dataset.open(home / "datasets" / report.dataset / report.snapshot)


def assert_nothing_written(home: Path, engine: sa.Engine) -> None:
    assert Catalog(engine, home).entries() == []
    assert list(home.rglob("*")) == [home / "datasets"]


def test_an_ingest_reports_what_stands_on_disk_and_in_the_catalog(home: Path, engine: sa.Engine, source: Path) -> None:
    report = ingest(source, name="x", home=home, engine=engine, options=IngestOptions(features=4, records_at_most=3))
    dataset = open_reported(home, report)
    assert (report.records, report.rows, report.features, report.nnz, report.blocks) == (3, 3, 4, 4, 1)
    block = dataset.read(0)
    assert block.indices.tolist() == [0, 2, 1, 2]
    assert block.values.tolist() == [1.0, 0.5, 4.0, 3.0]
    assert block.row_ptr.tolist() == [0, 2, 2, 4]
    assert dataset.verify() == report.content_digest
    manifest = dataset.manifest
    assert (manifest.ledger, manifest.populations, manifest.records_at_most) == ("a" * 32, ["x"], 3)
    assert (manifest.privacy_unit, manifest.source, manifest.dtype) == ("row", "svmlight", "float64")
    entry = Catalog(engine, home).current("x")
    assert (entry.snapshot, entry.content_digest) == (report.snapshot, report.content_digest)
    assert [path.name for path in (home / "datasets/x").iterdir()] == [report.snapshot]
    assert report.content_digest not in repr((report, manifest, entry))


def test_format_block_size_and_exact_dtype_do_not_change_the_content(
    home: Path, engine: sa.Engine, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    rows = sp.csr_array((rng.integers(1, 100, (200, 30)) * (rng.random((200, 30)) < 0.2)).astype(np.int32))
    sp.save_npz(tmp_path / "x.npz", rows)
    lines = (
        "0 " + " ".join(f"{column + 1}:{value}" for column, value in zip(row.indices, row.data, strict=True))
        for row in (rows[[number]] for number in range(200))
    )
    text = "\n".join(lines)
    (tmp_path / "x.svm").write_text(text)
    (tmp_path / "x.svm.gz").write_bytes(gzip.compress(text.encode()))
    reports = [
        ingest(
            tmp_path / name,
            name="x",
            home=home,
            engine=engine,
            options=IngestOptions(features=30, block_nnz=size, dtype=dtype),
        )
        for name in ("x.npz", "x.svm", "x.svm.gz")
        for size, dtype in ((1, None), (1000, "float32"), (1 << 20, "u1"))
    ]
    assert len({report.content_digest for report in reports}) == 1
    assert len({report.snapshot for report in reports}) == 9
    assert {report.blocks for report in reports} > {1, 2}
    stored = [open_reported(home, report).manifest.dtype for report in reports]
    assert stored == ["int32", "float32", "uint8"] + ["float64", "float32", "uint8"] * 2


@pytest.mark.parametrize(
    ("text", "shape"),
    [("1\n", (1, 0)), ("1 1:1", (1, 1)), ("1 " + " ".join(f"{k}:1" for k in range(1, 5001)), (1, 5000))],
)
def test_one_row_is_a_dataset(home: Path, engine: sa.Engine, source: Path, text: str, shape: tuple[int, int]) -> None:
    source.write_text(text)
    report = ingest(source, name="x", home=home, engine=engine, options=IngestOptions(features=5000, block_nnz=1))
    assert (report.rows, report.nnz) == shape
    assert open_reported(home, report).verify() == report.content_digest


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# nothing\n\n", "no row"),
        ("1 1:1\n" * 3 + "1 9:1\n", "line 4: '9:1' lies beyond the 4 declared features"),
        ("1 1:1\n1 1:nan\n", "line 2: the value of '1:nan' is not finite"),
        ("1 1:1e308 1:1e308\n", "line 1 has two values in one column"),
        ("1 1:1\n" * 11, "more than the declared 10 records"),
    ],
)
def test_a_bad_source_leaves_nothing_behind(
    home: Path, engine: sa.Engine, source: Path, text: str, reason: str
) -> None:
    source.write_text(text)
    with pytest.raises(BadSource, match=f"^{re.escape(str(source))}: .*{re.escape(reason)}"):
        ingest(source, name="x", home=home, engine=engine, options=IngestOptions(features=4, records_at_most=10))
    assert_nothing_written(home, engine)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "../x"},
        {"name": ""},
        {"name": "x\n"},
        {"population": "a/b"},
        {"block_nnz": 0},
        {"block_nnz": -1},
        {"records_at_most": 0},
        {"dtype": "float16"},
        {"features": 0},
        {"features": None},
        {"features": 1 << 31},
        {"block_nnz": 1 << 40},
        {"max_rows_per_unit": 0, "unit_column": "who"},
        {"density": float("nan")},
        {"density": 1.5},
        {"on_error": "ignore"},
        {"max_rows_per_unit": 2},
        {"unit_column": "who", "units": "units.npy"},
        {"public_items": True, "feature_names": "names.txt"},
    ],
)
def test_an_argument_out_of_range_is_refused_first(
    home: Path, engine: sa.Engine, source: Path, arguments: dict[str, Any]
) -> None:
    options = {"features": 4} | arguments
    with pytest.raises(Invalid):
        ingest(source, name=options.pop("name", "x"), home=home, engine=engine, options=IngestOptions(**options))
    assert not home.exists()


def test_a_name_keeps_its_population(home: Path, engine: sa.Engine, source: Path) -> None:
    first = ingest(source, name="x", home=home, engine=engine, options=IngestOptions(population="people", features=4))
    with pytest.raises(Conflict, match="belongs to population 'people'"):
        ingest(source, name="x", home=home, engine=engine, options=IngestOptions(features=4))
    second = ingest(source, name="x", home=home, engine=engine, options=IngestOptions(population="people", features=4))
    assert {path.name for path in (home / "datasets/x").iterdir()} == {first.snapshot, second.snapshot}


def test_losing_the_race_for_a_name_leaves_no_files(
    home: Path, engine: sa.Engine, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[IngestReport] = []

    publish = LocalPlace.publish

    def publish_after_the_other(place: LocalPlace, staged: Path, folder: str, *, marker: str) -> bool:
        monkeypatch.setattr(LocalPlace, "publish", publish)
        finished.append(
            ingest(source, name="x", home=home, engine=engine, options=IngestOptions(population="q", features=4))
        )
        return publish(place, staged, folder, marker=marker)

    monkeypatch.setattr(LocalPlace, "publish", publish_after_the_other)
    with pytest.raises(Conflict, match="belongs to population 'q'"):
        ingest(source, name="x", home=home, engine=engine, options=IngestOptions(population="p", features=4))
    assert [path.name for path in (home / "datasets/x").iterdir()] == [finished[0].snapshot]


def test_a_folder_that_cannot_be_written_is_unavailable(home: Path, engine: sa.Engine, source: Path) -> None:
    home.write_text("a file")
    with pytest.raises(Unavailable, match="stopped"):
        ingest(source, name="x", home=home, engine=engine, options=IngestOptions(features=4))


def test_progress_counts_bytes_up_to_the_end(home: Path, engine: sa.Engine, source: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int, int]] = []
    ingest(
        source,
        name="x",
        home=home,
        engine=engine,
        progress=lambda *args: seen.append(args),
        options=IngestOptions(features=4),
    )
    assert seen[-1] == ("reading", len(ROWS), len(ROWS), 3)
    path = tmp_path / "x.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n3 4 2\n3 1 1\n1 2 0.5\n")
    ingest(path, name="y", home=home, engine=engine, progress=lambda *args: seen.append(args))
    size = path.stat().st_size
    assert ("reading", size, size, 2) in seen
    assert seen[-1] == ("grouping", size, size, 3)
