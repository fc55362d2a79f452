"""Sources in an object store are read as those on a disk are, or refused in one clear line."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.backends.local import LocalPlace
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.errors import BadSource, Invalid, Unavailable
from storage.formats import files
from storage.formats.files import ObjectFile, find_files, locate
from tests.fuzz.seeds import Seed, files_of, write_seeds
from tests.s3 import Server

KINDS = ("x.svm.zst", "x.mtx.gz", "packed.npz", "x.npy", "items.csv", "wide.parquet", "x.h5ad", "sparse.zarr")


@pytest.fixture(autouse=True)
def _client(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.enter(monkeypatch)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory, s3_server: Server) -> dict[str, Seed]:
    """Put every seed where the test's server has it too."""
    seeds = write_seeds(tmp_path_factory.mktemp("sources") / "seeds")
    for seed in seeds:
        for path in files_of(seed.path):
            s3_server.ask("PUT", f"{s3_server.bucket}/seeds/{path.relative_to(seed.path.parent)}", path.read_bytes())
    return {seed.path.name: seed for seed in seeds}


def take(folder: Path, source: Any, **declared: Any) -> IngestReport:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    engine = connect(f"sqlite:///{folder / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        if connection.execute(tables.ledger.select()).first() is None:
            connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
    report = ingest(
        source, name="x", home=home, engine=engine, place=LocalPlace(home), options=IngestOptions(**declared)
    )
    engine.dispose()
    return report


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_is_read_as_the_file_is(tmp_path: Path, seeds: dict[str, Seed], s3_server: Server, kind: str) -> None:
    seed = seeds[kind]
    far = take(tmp_path, s3_server.url(f"seeds/{kind}"), **seed.declared)
    assert far.content_digest == take(tmp_path, seed.path, **seed.declared).content_digest


@pytest.mark.parametrize(
    "named",
    [
        ("one.csv", "one.csv"),
        ("one.csv", "./sub/../one.csv"),
        ("one.csv", "link.csv"),
        ("one.csv", "hard.csv"),
        ("one.csv", "way/one.csv"),
        ("o*.csv", "one.csv"),
        ("o*.csv", "?ne.csv"),
        ("way", "sub/two.csv"),
        ("sub", "sub/t*"),
        ("rows.zarr", "rows.zarr/inner.zarr"),
        ("rows.zarr/inner.zarr", "rows.zarr"),
    ],
)
def test_a_file_that_is_named_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("sub", "rows.zarr/inner.zarr"):
        Path(folder).mkdir(parents=True)
    for name in ("one.csv", "sub/two.csv", "rows.zarr/zarr.json", "rows.zarr/inner.zarr/zarr.json"):
        Path(name).write_text("a\n1\n")
    Path("link.csv").symlink_to("one.csv")
    Path("hard.csv").hardlink_to("one.csv")
    Path("way").symlink_to("sub" if named[0] == "way" else ".")
    with pytest.raises(BadSource, match="would count twice; name") as refused:
        find_files(named)
    assert "\n" not in str(refused.value)
    assert len(find_files(named[:1])) == 1


def test_a_copy_of_a_file_is_another_file(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("a\n1\n")
    assert len(find_files([tmp_path / "a.csv", tmp_path / "b.csv"])) == 2
    assert len(find_files([tmp_path / "a.csv", tmp_path / "missing.csv", tmp_path / "missed.csv"])) == 3


@pytest.mark.parametrize("again", ["twice/a.svm", "twice/*.svm", "twice", "/twice/a.svm", "twice/a.svm/"])
def test_an_object_that_is_named_twice_is_refused(s3_server: Server, again: str) -> None:
    s3_server.ask("PUT", f"{s3_server.bucket}/twice/a.svm", b"1 1:1\n")
    with pytest.raises(BadSource, match="would count twice; name"):
        find_files([s3_server.url("twice/a.svm"), s3_server.url(again)])


def test_folders_and_patterns_of_a_store_are_listed_by_name(s3_server: Server) -> None:
    for name in ("b.svm", "a.svm", ".hidden", "c.csv"):
        s3_server.ask("PUT", f"{s3_server.bucket}/parts/{name}", b"1 1:1\n")
    names = [file.name for file in find_files([s3_server.url("parts/")])]
    assert names == ["a.svm", "b.svm", "c.csv"]
    found = find_files([s3_server.url("parts/*.svm"), s3_server.url("parts/c.csv")])
    assert [file.address for file in found] == [s3_server.url(f"parts/{name}") for name in ("a.svm", "b.svm", "c.csv")]


@pytest.mark.parametrize("source", ["nothing", "parts-of-nothing/*", ""])
def test_what_is_not_there_is_refused(tmp_path: Path, s3_server: Server, source: str) -> None:
    with pytest.raises(BadSource, match="no file is there"):
        take(tmp_path, f"s3://{s3_server.bucket}/{source}" if source else f"s3://{s3_server.bucket}/x*", features=3)


def test_a_store_that_cannot_be_used_and_other_urls_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there is no such bucket"):
        take(tmp_path, "s3://no-such-bucket/x.svm", features=3)
    with pytest.raises(Invalid, match=r"not gs://"):
        take(tmp_path, "gs://bucket/x.svm", features=3)
    assert not (tmp_path / "home/datasets").exists()


def test_columns_first_are_not_jumped_through(tmp_path: Path, seeds: dict[str, Seed], s3_server: Server) -> None:
    assert seeds["columns.npy"].path.exists()
    with pytest.raises(BadSource, match="column by column"):
        take(tmp_path, s3_server.url("seeds/columns.npy"))


def test_an_object_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_AHEAD", 1 << 10)
    s3_server.ask("PUT", f"{s3_server.bucket}/moving.svm", b"1 1:1\n" * 1000)
    stream = ObjectFile(s3_server.url("moving.svm")).open()
    assert stream.read(6) == b"1 1:1\n"
    s3_server.ask("PUT", f"{s3_server.bucket}/moving.svm", b"1 1:2\n" * 1000)
    with pytest.raises(BadSource, match="changed while it was read"):
        stream.read()


def test_an_object_is_a_seekable_file(s3_server: Server) -> None:
    content = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))
    s3_server.ask("PUT", f"{s3_server.bucket}/noise", content)
    with locate(s3_server.url("noise")).open() as stream, io.BytesIO(content) as expected:
        for offset, whence, length in ((0, 0, 10), (-7, 2, 20), (4990, 0, 5), (3, 1, 1), (100, 0, -1)):
            assert stream.seek(offset, whence) == expected.seek(offset, whence)
            assert stream.read(length) == expected.read(length)
