"""Raw text of any encoding, packed or not, gives the same rows; broken text is one line; a stopped ingest resumes."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.errors import BadSource
from storage.workspace import Workspace
from tests.storage.interrupted import Interrupted

TEXT = "a;ö\n1;é\n2;x\n3;é\n"
SCHEMA = """
text: {{delimiter: ";", encoding: {encoding}}}
columns:
  - {{name: a, kind: numeric, range: [0, {high}]}}
  - {{name: ö, kind: categorical, values: [é, x], others: refuse}}
"""


def rows_of(folder: Path, home: Path, content: bytes, encoding: str, **options: object) -> object:
    path = folder / ("rows.csv.gz" if content.startswith(b"\x1f\x8b") else "rows.csv")
    path.write_bytes(content)
    (folder / "schema.yaml").write_text(SCHEMA.format(encoding=encoding, high=4), encoding="utf-8")
    workspace = Workspace.open()
    more = IngestOptions(table_schema=str(folder / "schema.yaml"), allow_shared_rows=True, **options)  # type: ignore[arg-type]
    ingest(path, name="d", home=home, engine=workspace.ledger.engine, options=more)
    block = workspace.catalog.open(workspace.catalog.current("d")).read(0)
    return block.values.tolist(), block.indices.tolist()


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "cp437"]
)
@pytest.mark.parametrize("packed", [0, 1], ids=["plain", "gzip"])
def test_text_of_every_encoding_gives_the_same_rows(home: Path, tmp_path: Path, encoding: str, packed: int) -> None:
    content = TEXT.encode(encoding)
    found = rows_of(tmp_path, home, gzip.compress(content) if packed else content, encoding)
    assert found == ([0.25, 1, 0.5, 1, 0.75, 1], [0, 1, 0, 2, 0, 1])


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (TEXT.encode("cp1252") + b"2;\x81\n", "cp1252"),
        (TEXT.encode("utf-16") + b"\x00", "utf-16"),
        (TEXT.encode("latin-1"), "ascii"),
        (TEXT.encode("latin-1"), "utf-8"),
        (gzip.compress(TEXT.encode("latin-1"))[:-9], "latin-1"),
    ],
    ids=["byte", "half", "ascii", "utf-8", "cut"],
)
def test_text_of_another_encoding_is_one_line_and_leaves_nothing(
    home: Path, tmp_path: Path, content: bytes, encoding: str
) -> None:
    with pytest.raises(BadSource, match=r"^[^\n]*rows.csv[^\n]*; (declare its encoding|convert|fetch)[^\n]*$"):
        rows_of(tmp_path, home, content, encoding)
    assert not (home / "datasets" / "d").exists()


def test_an_ingest_that_was_stopped_resumes_by_the_same_schema_alone(home: Path, tmp_path: Path) -> None:
    engine = Workspace.open().ledger.engine
    files = [tmp_path / f"{part}.csv" for part in range(3)]
    for file in files:
        file.write_text("a;ö\n" + "1;é\n2;x\n" * 100, encoding="utf-8")

    def take(high: int, **more: Any) -> IngestReport:
        (tmp_path / "schema.yaml").write_text(SCHEMA.format(encoding="utf-8", high=high), encoding="utf-8")
        options = IngestOptions(
            table_schema=str(tmp_path / "schema.yaml"), block_nnz=100, resume="progress" not in more
        )
        return ingest(files, name=name, home=home, engine=engine, options=options, **more)

    def left() -> str:
        (folder,) = (home / "datasets" / name).glob(".*")
        return folder.name

    for high, resumes in ((4, True), (5, False)):
        name = f"until{high}"
        with pytest.raises(KeyboardInterrupt):
            take(4, progress=Interrupted(2))
        partial = left()
        assert (partial == f".{take(high).snapshot}.partial") is resumes
