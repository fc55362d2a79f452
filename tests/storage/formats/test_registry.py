"""A new format is a reader and one entry of the registry; a name without an entry is refused everywhere."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.errors import BadSource, Invalid
from storage.formats import registry
from storage.formats.declared import Declared
from storage.formats.files import SourceFile, locate
from storage.formats.registry import Format
from storage.formats.sources import open_file
from storage.formats.svmlight import SvmlightReader

ROOT = Path(__file__).parents[3]
ENTRY = 'FORMATS = {\n    "toy": Format(reader="storage.formats.toy:ToyReader", suffixes=(".toy",), repeats=False),\n'
HELP = "from flows.cli import main; import sys; sys.exit(main())"

type Take = Callable[..., IngestReport]


class ToyReader(SvmlightReader):
    """Read svmlight text of three columns, none of them twice."""

    repeats = False

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        super().__init__(file, declared=replace(declared, n_features=3))
        self.format = "toy"


@pytest.fixture
def take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Take]:
    """Register the toy format, and ingest a file of it."""
    toy = Format(reader=f"{__name__}:ToyReader", suffixes=(".toy",), repeats=False)
    monkeypatch.setitem(registry.FORMATS, "toy", toy)
    (tmp_path / "rows.toy").write_text("0 1:1.5 3:2\n0 2:1\n")
    engine = connect(f"sqlite:///{tmp_path / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
    yield lambda source="rows.toy", **declared: ingest(
        tmp_path / source,
        name=Path(source).stem,
        home=tmp_path / "home",
        engine=engine,
        options=IngestOptions(**{"population": "x"} | declared),
    )
    engine.dispose()


def test_a_new_format_is_listed_in_the_help_texts(tmp_path: Path) -> None:
    for package in ("dpca", "dpca_tasks", "storage", "flows"):
        if (ROOT / package).is_dir():
            shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "storage/formats/registry.py"
    assert "FORMATS = {\n" in table.read_text()
    table.write_text(table.read_text().replace("FORMATS = {\n", ENTRY))
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "400"}
    for words in (("dataset", "ingest"), ("subspace", "transform")):
        command = [sys.executable, "-c", HELP, *words, "--help"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert "toy, svmlight" in done.stdout, words
        assert ".toy, .svm" in done.stdout, words


def test_a_new_format_is_ingested_by_suffix_and_by_name(take: Take, tmp_path: Path) -> None:
    assert take().features == 3
    (tmp_path / "other").write_text("0 1:1.5\n")
    assert take("other", format="toy").features == 3


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"keep_zeros": True, "format": "toy"}, "keep_zeros is of triplets"),
        ({"keep_zeros": True}, "keep_zeros is of triplets"),
        ({"duplicates": "sum", "format": "toy"}, "duplicates are of formats"),
        ({"duplicates": "sum"}, "duplicates are of formats"),
        ({"unit_column": "who"}, "toy has no columns to take the unit from"),
    ],
)
def test_a_new_format_refuses_contradicting_declarations(take: Take, declared: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        take(**declared)


def test_a_format_that_needs_a_width_is_refused_without_one(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.FORMATS, "toy", replace(registry.FORMATS["toy"], needs_width=True))
    with pytest.raises(Invalid, match="toy declares no width"):
        take()


@pytest.mark.parametrize("options", [{}, {"unattended": True, "duplicates": "sum"}])
def test_an_unknown_name_is_refused_before_a_file_is_opened(options: dict[str, Any]) -> None:
    message = "^format 'xlsx' is not one of svmlight, npz, .*; choose one of them$"
    for refused in (Declared, lambda **named: IngestOptions(**options, **named)):
        with pytest.raises(Invalid, match=message):
            refused(format="xlsx")


def test_a_suffix_without_a_format_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_text("0 1:1\n")
    with pytest.raises(BadSource, match=r"no known format; it must end in one of \.svm, "):
        open_file(tmp_path / "rows.xlsx", Declared(n_features=1))


def test_no_name_without_an_entry_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.npz").write_text("0 1:1\n")
    declared = Declared(format="svmlight", n_features=1)
    with closing(open_file(locate(tmp_path / "rows.npz"), declared)) as reader:
        assert reader.format == "svmlight"
    others = {name: each for name, each in registry.FORMATS.items() if name != "svmlight"}
    monkeypatch.setattr(registry, "FORMATS", others)
    with pytest.raises(Invalid, match="format 'svmlight' is not one of"):
        open_file(locate(tmp_path / "rows.npz"), declared)


def test_every_entry_has_a_reader_and_no_suffix_has_two_formats() -> None:
    suffixes = [suffix for each in registry.FORMATS.values() for suffix in each.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(isinstance(resolve_name(each.reader), type) for each in registry.FORMATS.values())
