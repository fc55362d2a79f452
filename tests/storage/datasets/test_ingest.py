"""Ingest: it creates one complete and registered snapshot, or none and a one-line error.

A killed ingest leaves nothing visible, and the next one resumes or starts over.
"""

import errno
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sqlalchemy as sa

from dpca.backends.atomic_files import make_folder
from dpca.backends.local import LocalPlace
from dpca.errors import BadSource, Conflict, Invalid, Unavailable
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets import staging as staging_module
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset
from storage.datasets.snapshot_writer import _PaddedRows
from storage.datasets.staging import begin, scratch_folder
from storage.datasets.whole_records import Progress
from tests.storage.conftest import Interrupted

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


def test_the_report_of_an_ingest_agrees_with_disk_and_catalog(home: Path, engine: sa.Engine, source: Path) -> None:
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
        ("1 1:1\n" * 3 + "1 9:1\n", "line 4: '9:1' is beyond the 4 declared features"),
        ("1 1:1\n1 1:nan\n", "line 2: the value of '1:nan' is not finite"),
        ("1 1:1e308 1:1e308\n", "line 1 has two values in one column"),
        ("1 1:1\n" * 11, "more than the declared 10 records"),
    ],
)
def test_a_bad_source_leaves_no_files(home: Path, engine: sa.Engine, source: Path, text: str, reason: str) -> None:
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


OPEN = Path("/proc/self/fd")
STAGING_ROWS = np.random.default_rng(8).random((3000, 4))

KILLED = """
import os, signal, sys
from pathlib import Path
from storage.database.engine import connect
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
calls = []
def progress(phase, done, size, rows):
    calls.append(done)
    if len(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
folder = Path(sys.argv[1])
engine = connect(f"sqlite:///{folder / 'dpca.sqlite'}")
parts = [folder / f"{part}.npy" for part in range(6)]
options = IngestOptions(block_nnz=400)
ingest(parts, name="x", home=folder / "home", engine=engine, options=options, progress=progress)
"""


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Write the rows in six files, so that there are six batches."""
    paths = [tmp_path / f"{part}.npy" for part in range(6)]
    for path, rows in zip(paths, np.split(STAGING_ROWS, 6), strict=True):
        np.save(path, rows)
    return paths


def take(catalog: Catalog, parts: list[Path], *, progress: Progress | None = None, **declared: Any) -> IngestReport:
    options = IngestOptions(block_nnz=400, **declared)
    return ingest(parts, name="x", home=catalog.home, engine=catalog.engine, options=options, progress=progress)


def hidden(catalog: Catalog) -> list[Path]:
    return sorted((catalog.home / "datasets/x").glob(".*"))


@pytest.mark.parametrize("after", [1, 4])
def test_a_killed_ingest_is_invisible_and_can_be_resumed(
    tmp_path: Path, catalog: Catalog, parts: list[Path], after: int
) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(after)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert catalog.entries() == []
    (left,) = hidden(catalog)
    resumed = take(catalog, parts, resume=True)
    assert left.name == f".{resumed.snapshot}.partial"
    assert hidden(catalog) == []
    assert catalog.verify("x") == resumed.content_digest == take(catalog, parts).content_digest
    assert {path.name for path in (catalog.home / "datasets/x" / resumed.snapshot).iterdir()} == {
        "zarr.json",
        "values",
        "indices",
        "row_nnz",
        "extents",
    }


@pytest.mark.parametrize("blocks", [0, 3])
def test_a_full_disk_keeps_complete_blocks(
    catalog: Catalog, parts: list[Path], monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    write, writes = _PaddedRows.write, []

    def until_full(self: _PaddedRows, block: int, *, alone: bool) -> bytes:
        if block == blocks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        writes.append(block)
        return write(self, block, alone=alone)

    monkeypatch.setattr(_PaddedRows, "write", until_full)
    with pytest.raises(
        Unavailable,
        match="No space left on device; free disk space or correct the permissions, and continue with --resume",
    ):
        take(catalog, parts)
    assert catalog.entries() == []
    assert len(hidden(catalog)) == (1 if blocks else 0)
    monkeypatch.setattr(_PaddedRows, "write", write)
    if blocks:
        (left,) = hidden(catalog)
        assert set(writes) == set(range(blocks))
        assert left.name == f".{take(catalog, parts, resume=True).snapshot}.partial"
        assert hidden(catalog) == []
        assert catalog.verify("x") == take(catalog, parts).content_digest


def test_an_ingest_stops_at_the_batch_that_passes_the_declared_number_of_records(
    catalog: Catalog, parts: list[Path]
) -> None:
    """Ingest six parts of 500 rows with a bound of 700: the second exceeds it, so the third is never read."""
    read: list[int] = []
    with pytest.raises(BadSource, match="more than the declared 700 records"):
        take(catalog, parts, records_at_most=700, progress=lambda phase, done, size, rows: read.append(done))
    assert len(read) == 1  # only one batch is reported, because a batch is reported when the next one is requested
    assert hidden(catalog) == []
    assert take(catalog, parts, records_at_most=3000).records == 3000


def test_an_ingest_without_resume_removes_leftovers(catalog: Catalog, parts: list[Path]) -> None:
    with pytest.raises(KeyboardInterrupt):
        take(catalog, parts, progress=Interrupted(3))
    (left,) = hidden(catalog)
    fresh = take(catalog, parts)
    assert fresh.snapshot not in left.name
    assert hidden(catalog) == []


def test_only_an_equal_request_resumes_an_ingest(catalog: Catalog, parts: list[Path]) -> None:
    with pytest.raises(KeyboardInterrupt):
        take(catalog, parts, progress=Interrupted(3))
    (left,) = hidden(catalog)
    other = take(catalog, parts, resume=True, dtype="float32")
    assert other.snapshot not in left.name
    assert hidden(catalog) == []


def test_only_an_equal_declaration_of_a_header_resumes_an_ingest(catalog: Catalog, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.csv" for number in range(6)]
    for path in paths:
        path.write_text("1,2\n" * 500)
    with pytest.raises(KeyboardInterrupt):
        take(catalog, paths, progress=Interrupted(3), header=True, features=2)
    (left,) = hidden(catalog)
    assert take(catalog, paths, resume=True, header=False, features=2).snapshot not in left.name


@pytest.mark.parametrize("change", [lambda rows: rows + 1, lambda rows: rows[::-1]])
def test_changed_rows_are_detected_on_resume(catalog: Catalog, parts: list[Path], change: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        take(catalog, parts, progress=Interrupted(3))
    status = parts[0].stat()
    for part in parts:
        size = part.stat().st_size
        np.save(part, change(np.load(part)))
        assert part.stat().st_size == size
        os.utime(part, ns=(status.st_atime_ns, part.stat().st_mtime_ns))
    (left,) = hidden(catalog)
    for part in parts:
        _restore_time(left, part)
    with pytest.raises(Conflict, match="blocks that the killed ingest wrote"):
        take(catalog, parts, resume=True)
    assert hidden(catalog) == []
    assert catalog.entries() == []


def test_rows_that_are_missing_on_resume_are_detected(catalog: Catalog, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.svm" for number in range(6)]
    for path in paths:
        path.write_text("1 1:1 2:2 3:3 4:4\n" * 500)
    with pytest.raises(KeyboardInterrupt):
        take(catalog, paths, progress=Interrupted(3), features=4)
    (left,) = hidden(catalog)
    for path in paths[1:]:
        path.write_text("#" * (path.stat().st_size - 1) + "\n")
        _restore_time(left, path)
    with pytest.raises(Conflict, match="fewer rows than the killed ingest wrote"):
        take(catalog, paths, resume=True, features=4)
    assert catalog.entries() == []


def _restore_time(left: Path, part: Path) -> None:
    """Reset a file's time to the time that the killed ingest saw."""
    seen = {path: int(when) for path, _, when in json.loads((left / ".request").read_text())["files"]}
    os.utime(part, ns=(seen[str(part)], seen[str(part)]))


def test_a_damaged_block_is_detected_on_resume(catalog: Catalog, parts: list[Path]) -> None:
    with pytest.raises(KeyboardInterrupt):
        take(catalog, parts, progress=Interrupted(3))
    (left,) = hidden(catalog)
    chunk = next(path for path in (left / "values/c/0").iterdir())
    chunk.write_bytes(chunk.read_bytes()[:-9])
    with pytest.raises(Conflict, match="again without --resume"):
        take(catalog, parts, resume=True)


def test_concurrent_writers_of_one_name_do_not_interfere(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    options: dict[str, Any] = {"request": {"rows": 1}, "is_registered": lambda _: False, "discard": lambda _: None}
    with begin(folder, resume=False, **options) as first:
        first.block_written((1, 1, 1, 0, 0))
        with begin(folder, resume=True, **options) as second:
            assert first.path.is_dir()
            assert second.path != first.path
            assert not second.resumed
        assert not second.path.exists()
    assert not folder.exists()


def test_a_snapshot_that_was_moved_but_never_registered_is_swept(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    options: dict[str, Any] = {"request": {}, "resume": False, "discard": lambda _: None}
    with begin(folder, is_registered=lambda _: False, **options) as first:
        moved = first.path.rename(folder / first.snapshot)
    (folder / "of another ledger").mkdir()
    with begin(folder, is_registered=lambda _: False, **options):
        assert not moved.exists()
    assert (folder / "of another ledger").is_dir()


def test_leftover_notes_of_a_killed_writer_are_removed_from_a_registered_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    options: dict[str, Any] = {"request": {}, "resume": False, "discard": lambda _: None}
    with begin(folder, is_registered=lambda _: False, **options) as first:
        first.block_written((1, 1, 1, 0, 0))
        moved = first.path.rename(folder / first.snapshot)
    (moved / "zarr.json").touch()
    with begin(folder, is_registered=lambda snapshot: snapshot == first.snapshot, **options):
        assert [path.name for path in moved.iterdir()] == ["zarr.json"]


def test_quarantine_notes_without_a_snapshot_are_swept(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    options: dict[str, Any] = {"request": {}, "resume": False, "discard": lambda _: None}
    folder.mkdir()
    kept, lost = (folder / f"{digit * 32}.rejected.csv" for digit in "ab")
    kept.touch()
    lost.touch()
    with begin(folder, is_registered=lambda snapshot: snapshot == "a" * 32, **options) as living:
        mine = folder / f"{living.snapshot}.rejected.csv"
        mine.touch()
        with begin(folder, is_registered=lambda snapshot: snapshot == "a" * 32, **options):
            assert sorted(folder.glob("*.csv")) == sorted((kept, mine))


def test_an_empty_staging_folder_is_removed_and_created_again_by_a_waiting_writer(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    options: dict[str, Any] = {
        "request": {},
        "resume": False,
        "is_registered": lambda _: False,
        "discard": lambda _: None,
    }

    def come_and_go(_: int) -> bool:
        with begin(folder, **options) as staging:
            return staging.path.is_dir()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(come_and_go, range(100)))
    assert not folder.exists()


def test_a_failure_to_create_a_staging_folder_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: str) -> None:
        raise Unavailable("the store does not answer")

    def full(path: Path, payload: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space", path)

    folder, is_registered = tmp_path / "x", lambda _: False
    for digit, request in (("a", {}), ("b", {"of": "others"})):
        left = folder / f".{digit * 32}.partial"
        make_folder(left)
        (left / ".request").write_text(json.dumps(request))
        (left / ".blocks").write_bytes(b"\1" * 40)
    opened = len(list(OPEN.iterdir()))
    with (
        pytest.raises(Unavailable),
        begin(folder, request={}, resume=True, is_registered=is_registered, discard=lost),
    ):
        pass
    with begin(folder, request={}, resume=True, is_registered=is_registered, discard=lambda _: None) as staging:
        assert staging.resumed
        assert staging.snapshot == "a" * 32
    with monkeypatch.context() as patch:
        patch.setattr(staging_module, "write_atomically", full)
        with (
            pytest.raises(OSError, match="no space"),
            begin(folder, request={}, resume=False, is_registered=is_registered, discard=lambda _: None),
        ):
            pass
    assert not folder.exists()
    assert len(list(OPEN.iterdir())) == opened


def test_scratch_folders_are_private_and_abandoned_ones_removed(tmp_path: Path) -> None:
    dead = tmp_path / "scratch" / "dead"
    make_folder(dead)
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        assert first.stat().st_mode & 0o777 == second.stat().st_mode & 0o777 == 0o700
        assert not dead.exists()
        assert {first, second} == set((tmp_path / "scratch").iterdir())
    assert list((tmp_path / "scratch").iterdir()) == []
