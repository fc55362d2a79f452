"""Rejected rows, packed text, contradictory headers, and new formats.

Rows that break a rule are set aside and counted, at a cost that does not grow with their fraction. Raw text of any
encoding, packed or not, gives the same rows; broken text is reported in one line, and a stopped ingest resumes. A
header that contradicts the data is refused in one line, in every format with headers. A new format needs a reader and
one registry entry; a name without an entry is refused everywhere.
"""

import gzip
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from types import FrameType
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import dump_svmlight_file

from dpca.errors import BadSource, Invalid
from dpca.schemas.canonical import cast_cells
from storage.database import tables as registry_tables
from storage.database.engine import connect, transaction
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.formats import registry, svmlight, tables
from storage.formats.batch import Quarantine, Rejects, describe, read_tally
from storage.formats.declared import Declared
from storage.formats.files import SourceFile, locate
from storage.formats.registry import Format
from storage.formats.sources import open_file
from storage.formats.svmlight import SvmlightReader
from storage.workspace import Workspace
from tests.storage.conftest import Interrupted

ROWS = 4096


def calls_of(module: str, path: Path, rejects: Quarantine) -> tuple[int, int]:
    """Read a source of two features completely; return the number of calls of a module's functions, and of batches."""
    calls = 0

    def watch(frame: FrameType, event: str, _value: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == module

    with closing(open_file(path, Declared(n_features=2))) as reader:
        sys.setprofile(watch)
        try:
            batches = sum(1 for _ in reader.batches(rejects))
        finally:
            sys.setprofile(None)
    return calls, batches


@pytest.fixture
def rejects(tmp_path: Path) -> Iterator[Quarantine]:
    """Yield a quarantine for bad rows, with an open file for its notes."""
    quarantine = Quarantine()
    quarantine.open(tmp_path / "notes")
    yield quarantine
    quarantine.close()


@pytest.mark.parametrize("line", ["x,1\n", "x,1\n2,1\n", "x,y\n", "1,\n"])
def test_bad_cells_of_a_table_are_found_in_a_fixed_number_of_calls(
    tmp_path: Path, rejects: Quarantine, line: str
) -> None:
    (tmp_path / "x.csv").write_text("a,b\n" + line * (ROWS // line.count("\n")))
    calls, _ = calls_of(tables.__file__, tmp_path / "x.csv", rejects)
    assert rejects.count == ROWS // line.count("\n")
    assert calls < 100


def test_bad_lines_of_svmlight_do_not_add_batches(tmp_path: Path, rejects: Quarantine) -> None:
    (tmp_path / "x.svm").write_text("1 9:1\n1 2:1\n1 x\n" * ROWS)
    _, batches = calls_of(svmlight.__file__, tmp_path / "x.svm", rejects)
    assert rejects.count == 2 * ROWS
    assert batches == 1


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        (
            pa.array(["1", "+1", " 2 ", "1.", ".5", "1e3", "-inf", "NaN", "007"]),
            [1, 1, 2, 1, 0.5, 1e3, -np.inf, None, 7],
        ),
        (pa.array(["x", "", "1_0", "0x10", "e5", "1e", "--1", "1,0", "."]), [None] * 9),
        (pa.array([1, 2**53, 2**53 + 1, 2**64 - 1], pa.uint64()), [1, 2**53, None, None]),
        (pa.array([-1, -(2**53), -(2**53) - 1, None], pa.int64()), [-1, -(2**53), None, None]),
    ],
)
def test_a_numeric_cell_does_not_depend_on_other_cells(cells: pa.Array, kept: list[float | None]) -> None:
    for number, alone in enumerate(kept):
        for nearby in (cells[number : number + 1], cells):
            found = cast_cells(nearby, pa.float64())[number if len(nearby) > 1 else 0].as_py()
            assert found == alone or (alone is None and (found is None or np.isnan(found)))


def test_a_source_without_a_good_row_ends_in_counts_by_reason_and_column(home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "age,pay\n" + f"1,{'none':50}\n" * 30_000 + "old,2\n" * 20_000 + "1,nan\n" * 3 + "1\n" * 2
    )
    ledger, notices = Workspace.open().ledger, []
    with pytest.raises(BadSource) as caught:
        ingest(
            tmp_path / "x.csv",
            name="x",
            home=home,
            engine=ledger.engine,
            progress=lambda _phase, done, total, _rows: notices.append(done / total),
            options=IngestOptions(features=2, on_error="quarantine"),
        )
    assert str(caught.value) == (
        f"{tmp_path / 'x.csv'}: no row is left, and 50005 were set aside: "
        "30000 x has a value that is missing or not a number (column pay), "
        "20000 x has a value that is missing or not a number (column age), "
        "3 x has a value that is not finite (column pay), 2 x has a different number of fields than the header; "
        "correct the rows, or the declarations about the source"
    )
    assert notices == sorted(notices)
    assert notices[0] < 1 == notices[-1]


def test_notes_of_bad_rows_are_counted_by_reason_and_rare_reasons_together(tmp_path: Path, rejects: Quarantine) -> None:
    for column in range(2000):
        rejects.reject(place="row", number=column, reason="is bad; correct it", column=column)
    rejects.reject(place="row", number=9, reason="is bad; correct it", column=0)
    rejects.close()
    assert read_tally(tmp_path / "notes") == rejects.tally
    assert len(rejects.tally) == 1001
    assert describe(rejects.tally) == (
        "1000 x is bad, 2 x is bad (column 0), 1 x is bad (column 1), 1 x is bad (column 2), 1 x is bad (column 3), "
        "996 x other reasons or columns"
    )


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
def test_text_of_another_encoding_is_refused_in_one_line_without_leftovers(
    home: Path, tmp_path: Path, content: bytes, encoding: str
) -> None:
    with pytest.raises(BadSource, match=r"^[^\n]*rows.csv[^\n]*; (declare its encoding|convert|fetch)[^\n]*$"):
        rows_of(tmp_path, home, content, encoding)
    assert not (home / "datasets" / "d").exists()


def test_a_stopped_ingest_resumes_only_with_the_same_schema(home: Path, tmp_path: Path) -> None:
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


CSR = sp.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]))
ARRAYS = {"indptr": CSR.indptr, "indices": CSR.indices, "data": CSR.data}


def read(path: Path, rejects: Rejects | None = None) -> list[float]:
    """Read a source to its end; return the values of accepted rows, in file order."""
    found: list[float] = []
    with closing(open_file(path, Declared())) as reader:
        for batch in reader.batches(Rejects() if rejects is None else rejects):
            kept = np.repeat(np.ones(len(batch.places), bool), np.diff(batch.row_ptr))
            if batch.rejected is not None:
                kept = ~np.repeat(batch.rejected, np.diff(batch.row_ptr))
            found += batch.values[kept].tolist()
    return found


@pytest.mark.parametrize(
    ("head", "entries", "reason"),
    [
        ("real symmetric\n3 2 1", "1 1 1", "symmetric matrix of 3 rows and 2 columns"),
        ("real symmetric\n2 3 1", "1 1 1", "symmetric matrix of 2 rows and 3 columns"),
        ("integer skew-symmetric\n3 2 1", "2 1 1", "symmetric matrix of 3 rows and 2 columns"),
        ("real symmetric\n2 2 2", "2 1 5\n1 2 5", "line 4 is above the diagonal"),
        ("real symmetric\n2 2 2", "1 2 5\n2 1 5", "line 3 is above the diagonal"),
        ("pattern symmetric\n2 2 2", "2 1\n1 2", "line 4 is above the diagonal"),
        ("real skew-symmetric\n2 2 2", "2 1 5\n1 2 -5", "line 4 is on or above the diagonal"),
        ("real skew-symmetric\n2 2 2", "2 1 5\n2 2 1", "line 4 is on or above the diagonal"),
        ("pattern skew-symmetric\n2 2 1", "2 1", "kind 'coordinate pattern skew-symmetric' is not supported"),
        ("real hermitian\n2 2 1", "2 1 1", "kind 'coordinate real hermitian' is not supported"),
        ("complex hermitian\n2 2 1", "2 1 1 0", "kind 'coordinate complex hermitian' is not supported"),
        ("integer general\n2 2 2", "2 1 5\n1 2 0.5", "line 4 is not an entry of the declared kind"),
        ("pattern general\n2 2 1", "2 1 5", "line 3 is not an entry of the declared kind"),
        ("real general\n2 2 1", "2 1 5 0", "line 3 is not an entry of the declared kind"),
        ("real general\n2 2 1", "2 1 -", "line 3 is not an entry of the declared kind"),
        ("real general\n2 2 1", "2 1 5e", "line 3 is not an entry of the declared kind"),
        ("real general\n2 2 1", "2 1 ", "line 3 is not an entry of the declared kind"),
        ("real general\n2 2 2", "2 1 5", "1 entries, but the size line declares 2"),
        ("real general\n2 2 1", "2 1 5\n1 1 1", "2 entries, but the size line declares 1"),
    ],
)
def test_matrix_market_entries_fit_their_banner(tmp_path: Path, head: str, entries: str, reason: str) -> None:
    (tmp_path / "x.mtx").write_text(f"%%MatrixMarket matrix coordinate {head}\n{entries}\n")
    with pytest.raises(BadSource, match=reason):
        read(tmp_path / "x.mtx")


def test_an_entry_of_the_wrong_triangle_rejects_its_row_alone(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n1 1 7\n2 3 5\n3 1 4\n")
    rejects = Quarantine()
    rejects.open(tmp_path / "notes")
    assert read(tmp_path / "x.mtx", rejects) == [7.0, 4.0, 4.0]
    rejects.close()
    assert (tmp_path / "notes").read_text().count("above the diagonal") == 1


def test_symmetric_files_that_scipy_writes_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 5\n")
    assert read(tmp_path / "x.mtx") == [5.0, -5.0]


def npz(path: Path, members: Mapping[str, Any], *, twice: str | None = None) -> None:
    """Write arrays to an archive, optionally one of them twice."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in (*members.items(), *([(twice, members[twice])] if twice else [])):
            stream = io.BytesIO()
            np.save(stream, np.asarray(value))
            archive.writestr(f"{name}.npy", stream.getvalue())


SAVED = {**ARRAYS, "format": b"csr", "shape": CSR.shape}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("changed", "twice", "reason"),
    [
        ({"indptr": [0, 2, 2]}, None, "indptr ends with 2, but 3 values are stored"),
        ({"indptr": [0], "shape": (0, 3)}, None, "indptr ends with 0, but 3 values are stored"),
        ({"mask": [1, 0, 0]}, None, "'mask'"),
        ({"labels": [1, 0], "ids": [1, 2]}, None, "'labels'"),
        ({}, "data", "'data' twice"),
    ],
)
def test_an_npz_with_other_than_one_complete_matrix_is_refused(
    tmp_path: Path, changed: Mapping[str, Any], twice: str | None, reason: str
) -> None:
    npz(tmp_path / "x.npz", {**SAVED, **changed}, twice=twice)
    with pytest.raises(BadSource, match=reason):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_an_npz_that_scipy_wrote_is_read(tmp_path: Path, kind: Any) -> None:
    sp.save_npz(tmp_path / "x.npz", kind(CSR))
    assert read(tmp_path / "x.npz") == [1.0, 2.0, 3.0]


def test_a_second_array_in_an_npy_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as stream:
        np.save(stream, np.eye(2))
        np.save(stream, np.ones((2, 2)))
    with pytest.raises(BadSource, match="more bytes than its header declares"):
        read(tmp_path / "x.npy")


def store(path: Path, arrays: Mapping[str, Any], attributes: Mapping[str, Any], frames: Mapping[str, int]) -> None:
    """Write an .h5ad or Zarr file whose X is an array or a group of arrays.

    ``frames`` have an index of the given length.
    """
    root: Any = h5py.File(path, "w") if path.suffix == ".h5ad" else zarr.open_group(path, mode="w")
    write: Any = (
        (lambda place, name, data: place.create_dataset(name, data=data))
        if path.suffix == ".h5ad"
        else (lambda place, name, data: place.create_array(name, data=data))
    )
    if "X" in arrays:
        write(root, "X", np.asarray(arrays["X"]))
    else:
        root.create_group("X")
        for name, data in arrays.items():
            write(root["X"], name, np.asarray(data))
    for name, value in attributes.items():
        root["X"].attrs[name] = value
    for frame, count in frames.items():
        root.create_group(frame)
        write(root[frame], "_index", np.arange(count))
        root[frame].attrs["_index"] = "_index"
    if path.suffix == ".h5ad":
        root.close()


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize("attribute", ["scale_factor", "add_offset", "_FillValue", "missing_value"])
def test_packed_values_of_a_sparse_store_are_refused(tmp_path: Path, suffix: str, attribute: str) -> None:
    store(tmp_path / f"x.{suffix}", ARRAYS, GROUP, {})
    root: Any = h5py.File(tmp_path / "x.h5ad", "r+") if suffix == "h5ad" else zarr.open_group(tmp_path / "x.zarr")
    root["X"]["data"].attrs[attribute] = 0.5
    if suffix == "h5ad":
        root.close()
    with pytest.raises(BadSource, match=f"data of X has the attribute {attribute}"):
        read(tmp_path / f"x.{suffix}")


def test_svmlight_that_counts_columns_from_0_is_refused(tmp_path: Path) -> None:
    for zero_based in (True, False):
        dump_svmlight_file(CSR, np.zeros(2), str(tmp_path / "x.svm"), zero_based=zero_based, comment="rows")
        with closing(open_file(tmp_path / "x.svm", Declared(n_features=3))) as reader:
            if zero_based:
                with pytest.raises(BadSource, match="a comment states that columns start at 0"):
                    list(reader.batches(Rejects()))
            else:
                assert [batch.indices.tolist() for batch in reader.batches(Rejects())] == [[0, 2, 1]]


GROUP = {"encoding-type": "csr_matrix", "shape": [2, 3]}


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize(
    ("arrays", "attributes", "frames", "reason"),
    [
        ({**ARRAYS, "indptr": [0, 2, 2]}, GROUP, {}, "indptr ends with 2, but 3 values are stored"),
        (ARRAYS, {**GROUP, "shape": [3, 3]}, {}, "disagree in length"),
        (ARRAYS, {**GROUP, "shape": [2.5, 3.0]}, {}, "no attribute `shape` with its numbers"),
        (ARRAYS, {**GROUP, "shape": [2, 3], "h5sparse_format": "csc"}, {}, "attribute h5sparse_format"),
        (ARRAYS, {**GROUP, "shape": [2, 3], "h5sparse_shape": [3, 2]}, {}, "attribute h5sparse_shape"),
        ({**ARRAYS, "indptr": [0, 2, 3, 3]}, {"shape": [3, 3]}, {}, "needs the attribute encoding-type"),
        ({**ARRAYS, "mask": [1, 0, 0]}, GROUP, {}, "'mask'"),
        ({"X": CSR.toarray()}, {"shape": [3, 2]}, {}, r"attribute `shape` is \(3, 2\)"),
        ({"X": CSR.toarray()}, {"encoding-type": "csr_matrix"}, {}, "`encoding-type` is 'csr_matrix'"),
        ({"X": CSR.toarray()}, {"scale_factor": 0.1}, {}, "scale_factor"),
        ({"X": CSR.toarray()}, {"add_offset": 5.0}, {}, "add_offset"),
        ({"X": CSR.toarray()}, {"_FillValue": 2.0}, {}, "_FillValue"),
        ({"X": CSR.toarray()}, {}, {"mask": 2}, "'mask' in addition to X"),
        ({"X": CSR.toarray()}, {}, {"var": 2}, "2 names in var, but 3 columns"),
        (ARRAYS, GROUP, {"var": 4}, "4 names in var, but 3 columns"),
        ({"X": CSR.toarray()}, {}, {"obs": 3}, "3 names in obs, but 2 rows"),
        (ARRAYS, GROUP, {"obs": 1}, "1 names in obs, but 2 rows"),
    ],
)
def test_attributes_of_a_store_fit_its_arrays(
    tmp_path: Path,
    suffix: str,
    arrays: Mapping[str, Any],
    attributes: Mapping[str, Any],
    frames: Mapping[str, int],
    reason: str,
) -> None:
    store(tmp_path / f"x.{suffix}", arrays, attributes, frames)
    with pytest.raises(BadSource, match=reason):
        read(tmp_path / f"x.{suffix}")


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize(
    ("arrays", "attributes"),
    [
        (ARRAYS, GROUP),
        (ARRAYS, {"shape": [2, 3]}),
        ({"X": CSR.toarray()}, {"encoding-type": "array", "shape": [2, 3], "scale_factor": 1.0, "_FillValue": np.nan}),
    ],
)
def test_a_consistent_store_is_read(
    tmp_path: Path, suffix: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]
) -> None:
    store(tmp_path / f"x.{suffix}", arrays, attributes, {"obs": 2, "var": 3})
    assert read(tmp_path / f"x.{suffix}") == [1.0, 2.0, 3.0]


ROOT = Path(__file__).parents[3]
ENTRY = 'FORMATS = {\n    "toy": Format(reader="storage.formats.toy:ToyReader", suffixes=(".toy",), repeats=False),\n'
HELP = "from flows.cli import main; import sys; sys.exit(main())"

type Take = Callable[..., IngestReport]


class ToyReader(SvmlightReader):
    """A reader of svmlight text with three columns, none of them repeated."""

    repeats = False

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        super().__init__(file, declared=replace(declared, n_features=3))
        self.format = "toy"


@pytest.fixture
def take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Take]:
    """Return a function that registers the toy format and ingests a file of this format."""
    toy = Format(reader=f"{__name__}:ToyReader", suffixes=(".toy",), repeats=False)
    monkeypatch.setitem(registry.FORMATS, "toy", toy)
    (tmp_path / "rows.toy").write_text("0 1:1.5 3:2\n0 2:1\n")
    engine = connect(f"sqlite:///{tmp_path / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        connection.execute(registry_tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
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
    for words in (("dataset", "ingest"), ("transform",)):
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
        ({"keep_zeros": True, "format": "toy"}, "keep_zeros applies only to triplets"),
        ({"keep_zeros": True}, "keep_zeros applies only to triplets"),
        ({"duplicates": "sum", "format": "toy"}, "duplicates applies only to formats"),
        ({"duplicates": "sum"}, "duplicates applies only to formats"),
        ({"unit_column": "who"}, "toy has no columns with names"),
    ],
)
def test_a_new_format_refuses_contradicting_declarations(take: Take, declared: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        take(**declared)


def test_a_format_that_needs_a_width_is_refused_without_one(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.FORMATS, "toy", replace(registry.FORMATS["toy"], needs_width=True))
    with pytest.raises(Invalid, match="toy does not declare its number of columns"):
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


def test_no_format_without_a_registry_entry_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
