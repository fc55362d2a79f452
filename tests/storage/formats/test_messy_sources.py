"""Files as other programs write them, and line breaks in quoted fields.

Files are read, or refused by one line that states what to do. A record with a line break in quotes is one bad row. None
of its lines becomes a row, and the end of an unclosed quote is never guessed.
"""

import csv
import decimal
import gzip
import io
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import anndata as ad
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from dpca.errors import BadSource, Invalid
from dpca.schemas.encoder import Encoder
from dpca.schemas.schema import Schema
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.formats import delimited, text
from storage.formats.batch import Quarantine, Rejects
from storage.formats.declared import Declared
from storage.formats.files import LocalFile, find_files
from storage.formats.sources import FilesReader, open_file
from storage.workspace import Workspace

# set by anndata

WIDE, TRIPLETS = "x,y\n1,2\n3,4\n", "row,column,value\na,0,1\nb,1,2\n"
MTX = "%%MatrixMarket matrix coordinate {} general\n3 2 2\n1 1 5\n2 2 7\n"


def rows_of(path: Path, **declared: Any) -> np.ndarray:
    """Return the valid rows of a file as a dense array."""
    parts = []
    with closing(open_file(LocalFile(path), Declared(**{"n_features": 2, **declared}))) as reader:
        n_rows = reader.n_rows if reader.scattered else None
        for batch in reader.batches(Rejects()):
            rows = np.arange(len(batch.places)) if batch.row_ids is None else batch.row_ids.to_numpy()
            shape = (n_rows or len(rows), reader.n_features)
            coordinates = (np.repeat(rows, np.diff(batch.row_ptr)), batch.indices)
            parts.append(sp.coo_array((batch.values, coordinates), shape=shape).toarray())
    return np.concatenate(parts)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize("ends", ["\r", "\n", "\r\n"])
def test_the_line_end_of_the_first_line_applies_and_gives_the_same_rows(tmp_path: Path, ends: str) -> None:
    for name, written in (("a.csv", WIDE), ("a.tsv", WIDE.replace(",", "\t")), ("a.svm", "0 1:1 2:2\n0 1:3 2:4\n")):
        (tmp_path / name).write_bytes(written.replace("\n", ends).encode())
        assert rows_of(tmp_path / name).tolist() == [[1, 2], [3, 4]]
    (tmp_path / "a.mtx").write_bytes(MTX.format("integer").replace("\n", ends).encode())
    assert rows_of(tmp_path / "a.mtx").tolist() == [[5, 0], [0, 7], [0, 0]]


def test_a_header_is_split_at_delimiters_outside_quotes_if_there_is_a_quote() -> None:
    for delimiter in (",", "::"):
        line = f'"a{delimiter}b"{delimiter}c\r'
        assert delimited.split_line(line, delimiter=delimiter, quote=None) == ['"a', 'b"', "c"]
    assert delimited.split_line('"a,b",c\r', delimiter=",", quote='"') == ["a,b", "c"]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_mixed_line_ends_are_read_after_a_return_and_spoil_their_line_after_a_line_feed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y\r1,2\r\n3,4\n5,6")
    assert rows_of(tmp_path / "a.csv").tolist() == [[1, 2], [3, 4], [5, 6]]
    (tmp_path / "b.csv").write_bytes(b"x,y\n1,2\r3,4\n5,6\n")
    with pytest.raises(BadSource, match="line 2 holds a carriage return; end lines in LF or CRLF"):
        rows_of(tmp_path / "b.csv")


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_rows_of_an_unattended_text_without_a_header_do_not_affect_line_ends(tmp_path: Path) -> None:
    first, other = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_bytes(b"1\r,2\n3,4\n")
    other.write_bytes(b"1,2\n3,4\n")
    shapes = []
    for path in (first, other):
        rejects = Quarantine()
        rejects.open(tmp_path / "notes")
        declared = Declared(n_features=2, header=False, is_unattended=True)
        with closing(open_file(LocalFile(path), declared)) as reader, closing(rejects):
            (batch,) = list(reader.batches(rejects))
        shapes.append((len(batch.places), batch.values[-2:].tolist()))
    assert shapes == [(2, [3, 4])] * 2


LARGE = 2**53 + 1


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.decimal128(20, 0)], ids=str)
def test_an_integer_that_float64_rounds_is_reported_in_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    numbers = [decimal.Decimal(LARGE)] if pa.types.is_decimal(kind) else [LARGE]
    pq.write_table(pa.table({"x": pa.array([*numbers, None], kind), "y": [1.0, 2.0]}), tmp_path / "a.parquet")
    with pytest.raises(BadSource, match=r"row 0 has a whole number of 2\^53 or more"):
        rows_of(tmp_path / "a.parquet")


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.h5ad", "a.mtx"])
def test_an_integer_that_float64_rounds_is_reported(tmp_path: Path, name: str) -> None:
    values, path = np.array([[1, LARGE], [2, 3]]), tmp_path / name
    writers: dict[str, Callable[[], object]] = {
        "a.npy": lambda: np.save(path, values),
        "a.npz": lambda: sp.save_npz(path, sp.csr_array(values)),
        "a.h5ad": lambda: ad.AnnData(values).write_h5ad(path),
        "a.mtx": lambda: path.write_text(MTX.format("integer").replace("5", str(LARGE))),
    }
    writers[name]()
    if name == "a.mtx":  # the values of .mtx files are checked later, when rows are made canonical
        return
    with pytest.raises(BadSource, match=r"row 0 has a whole number of 2\^53 or more"):
        rows_of(path)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_unsigned_matrix_market_is_read_and_skew_symmetry_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mtx").write_text(MTX.format("unsigned-integer"))
    assert rows_of(tmp_path / "a.mtx").tolist() == [[5, 0], [0, 7], [0, 0]]
    (tmp_path / "b.mtx").write_text(MTX.format("unsigned-integer").replace("general", "skew-symmetric"))
    with pytest.raises(BadSource, match="is not supported; save a real, integer, unsigned-integer or pattern matrix"):
        rows_of(tmp_path / "b.mtx")


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_a_10x_file_is_cells_by_features_with_the_names_of_both(tmp_path: Path) -> None:
    matrix = sp.csr_array(np.array([[1, 0, 2], [0, 3, 0]]))
    for version, features in (("matrix", "features/id"), ("GRCh38", "genes")):
        path = tmp_path / f"{version}.h5"
        with h5py.File(path, "w") as file:
            group = file.create_group(version)
            for name in ("data", "indices", "indptr"):
                group[name] = getattr(matrix, name)
            group["shape"] = np.array([3, 2])
            group["barcodes"] = np.array([b"AA-1", b"CC-1"])
            group[features] = np.array([b"E1", b"E2", b"E3"])
        assert rows_of(path, n_features=3).tolist() == matrix.toarray().tolist()
        with closing(open_file(LocalFile(path), Declared())) as reader:
            assert (reader.n_features, reader.n_rows, list(reader.names or ())) == (3, 2, ["E1", "E2", "E3"])
            (batch,) = reader.batches(Rejects())
        assert batch.row_names is not None
        assert batch.row_names.to_pylist() == ["AA-1", "CC-1"]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_a_store_without_x_is_refused_with_the_layer_that_could_be_it(tmp_path: Path) -> None:
    names: dict[str, Any] = {"obs": {"a": ["1", "2"]}, "var": {"b": ["1", "2", "3"]}}
    store = ad.AnnData(X=None, **names)
    store.layers["counts"] = np.ones((2, 3))
    store.write_h5ad(tmp_path / "a.h5ad")
    with pytest.raises(BadSource, match=r"no X, but the layer 'counts'; copy a layer to X"):
        open_file(LocalFile(tmp_path / "a.h5ad"), Declared())
    ad.AnnData(X=None, obs=names["obs"]).write_h5ad(tmp_path / "b.h5ad")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["stuff/a"] = np.arange(3)
    for name in ("b.h5ad", "c.h5"):
        with pytest.raises(BadSource, match="the store has no X, the matrix of rows, and is not a 10x file"):
            open_file(LocalFile(tmp_path / name), Declared())


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_marker_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "part-0.csv").write_text(WIDE)
    for name in ("_SUCCESS", "_metadata", "_common_metadata", "part-0.csv.crc", ".part-0.csv.crc", ".DS_Store"):
        (tmp_path / name).touch()
    for source in (tmp_path, tmp_path / "*"):
        assert [file.name for file in find_files([source])] == ["part-0.csv"]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("_delta_log", "it is a Delta table"),
        (".hoodie", "it is a Hudi table"),
        ("_temporary", "the output of an unfinished job"),
        ("year=2020", r"partitions by 'year', a column that its files lack; give the files as '.*/year=\*/\*'"),
    ],
)
def test_a_partitioned_folder_whose_paths_contain_columns_is_refused(tmp_path: Path, inside: str, message: str) -> None:
    (tmp_path / inside).mkdir()
    shutil.copy(__file__, tmp_path / inside / "part.csv")
    (tmp_path / "part-0.csv").write_text(WIDE)
    with pytest.raises(BadSource, match=message):
        find_files([tmp_path])


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_the_files_of_partitions_can_be_named(tmp_path: Path) -> None:
    for year in ("2020", "2021"):
        (tmp_path / f"year={year}").mkdir()
        (tmp_path / f"year={year}" / "part.csv").write_text(WIDE)
    assert len(find_files([tmp_path / "year=*" / "*"])) == 2


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_fields_between_two_colons_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("1::2::5::978300760\n1::3::3::978302109\n2::2::4::1\n")
    declared: dict[str, Any] = {"header": False, "columns": ("0", "1", "2"), "columns_named": True}
    with pytest.raises(BadSource, match="the first line is one field, because it has '::' instead of the delimiter"):
        rows_of(path, **declared)
    with closing(open_file(LocalFile(path), Declared(n_features=4, delimiter="::", **declared))) as reader:
        (batch,) = reader.batches(Rejects())
    assert (batch.values.tolist(), batch.indices.tolist()) == ([5, 3, 4], [2, 3, 2])
    with pytest.raises(Invalid, match="delimiter: must be one ASCII character that does not occur in numbers, or ::"):
        Declared(delimiter="ab")
    path.write_text("x::y\n1::2\n3::4\n")
    encoder = Encoder.of(
        {
            "text": {"delimiter": "::"},
            "columns": [{"name": name, "kind": "numeric", "range": [0, 1], "scale": "none"} for name in "xy"],
        }
    )
    assert rows_of(path, schema=encoder.schema, n_features=None).tolist() == [[1, 1], [1, 1]]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_every_pair_of_formats_is_read_or_refused_by_one_line(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(WIDE)
    (tmp_path / "t.csv").write_text(TRIPLETS)
    (tmp_path / "t.mtx").write_text(MTX.format("integer"))
    (tmp_path / "w.svm").write_text("0 1:1\n")
    np.save(tmp_path / "w.npy", np.ones((3, 2)))
    sp.save_npz(tmp_path / "w.npz", sp.csr_array(np.eye(3, 2)))
    pq.write_table(pa.table({"x": [1, 2], "y": [3.0, 4.0]}), tmp_path / "w.parquet")
    ad.AnnData(np.ones((3, 2))).write_h5ad(tmp_path / "w.h5ad")
    files, refused = [LocalFile(path) for path in sorted(tmp_path.iterdir())], 0
    for one in files:
        for other in files:
            if one == other:
                continue
            try:
                with closing(FilesReader([one, other], Declared(n_features=2), Rejects())) as reader:
                    assert sum(len(batch.places) for batch in reader.batches(Rejects())) >= 3
            except BadSource:
                refused += 1
    assert 30 < refused < 50
    with pytest.raises(BadSource, match="a Matrix Market file numbers its rows, but a table of triplets names them"):
        FilesReader([LocalFile(tmp_path / "t.mtx"), LocalFile(tmp_path / "t.csv")], Declared(n_features=2), Rejects())


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_a_timestamp_becomes_a_day_of_the_declared_time_zone() -> None:
    late = pa.array([1_577_833_200], pa.timestamp("s")).cast(pa.timestamp("us", "UTC"))  # 2019-12-31 23:00 UTC
    table = pa.table({"when": late, "text": ["2019-12-31T23:00:00+0000"], "plain": late.cast(pa.timestamp("us"))})
    for zone, day in ((None, 0.0), ("UTC", 0.0), ("Europe/Berlin", 1.0), ("America/New_York", 0.0)):
        column = {"kind": "date", "range": ["2019-12-31", "2020-01-01"], "timezone": zone}
        form = {"formats": ["%Y-%m-%dT%H:%M:%S%z"]}
        columns = [{"name": "when", **column}, {"name": "text", **column, **form}, {"name": "plain", **column}]
        assert Encoder.of({"columns": columns}).transform(table).tolist() == [[day, day, 0.0]]
    with pytest.raises(Invalid, match="timezone: must name a time zone"):
        Encoder.of({"columns": [{"name": "when", **column, "timezone": "Mars/Base"}]}).transform(table)


HEAD = b"who,a,note\n"
SCHEMA = Schema.parse(
    {
        "unlisted": "drop",
        "columns": [
            {"name": "who", "kind": "id"},
            {"name": "a", "kind": "numeric", "range": [0, 1000], "scale": "none"},
        ],
    }
)


def read(path: Path, rejects: Rejects | None = None, schema: Schema = SCHEMA) -> list[tuple[str | None, float]]:
    """Return id and value of each row of a file; bad rows give None and 0."""
    found: list[tuple[str | None, float]] = []
    with closing(open_file(path, Declared(schema=schema))) as reader:
        for batch in reader.batches(Rejects() if rejects is None else rejects):
            values = np.zeros(len(batch.places))
            values[np.diff(batch.row_ptr) > 0] = batch.values
            assert batch.unit_ids is not None
            found += zip(batch.unit_ids.to_pylist(), values.tolist(), strict=True)
    return found


def quarantined(folder: Path, content: bytes, *, schema: Schema = SCHEMA) -> tuple[list[Any], list[str]]:
    """Read a text without its bad rows; return its rows and the line numbers of the bad ones."""
    path = folder / "x.csv"
    path.write_bytes(content)
    rejects = Quarantine()
    rejects.open(folder / "notes")
    with closing(rejects):
        rows = read(path, rejects, schema)
    return rows, [line.split(",")[2] for line in (folder / "notes").read_text().splitlines()[1:]]


BAD, GOOD = (None, 0.0), ("u3", 3.0)
WHOLE = {
    "a row in quotes": b'u1,1,"x\nu2,2,y\nz"\n',
    "CRLF": b'u1,1,"x\r\nu2,2,y\r\nz"\r\n',
    "a carriage return alone": b'u1,1,"x\ru2,2,y\n"\n',
    "the id": b'"u1\nu2,2,y\n",1,x\n',
    "doubled quotes": b'u1,1,"say ""x""\nu2,2,y\n"""\n',
    "a blank line": b'u1,1,"x\n\n\nu2,2,y\n"\n',
    "two such fields": b'u1,"\n1","x\nu2,2,y\n"\n',
    "a field that opens where one closes": b'u1,1,"x\nu2,2",1,"\nu2,2,y\n"\n',
    "quoted fields in quotes": b'u1,1,"x\n""u2"",""2"",""y""\n"\n',
    "too many fields": b'u1,1,"x\nu2,2,y\n",5\n',
    "a NUL byte": b'u1,1,"x\x00\nu2,2,y\n"\n',
    "bytes that are not UTF-8": b'u1,1,"x\xff\nu2,2,y\n\xfe"\n',
    "the last line without a newline": b'u1,1,"\nu2,2,y\n"',
    "blanks behind the closing quote": b'u1,"1\nu2,2,y\n" ,x\n',
}


@pytest.mark.parametrize("record", WHOLE)
def test_a_quoted_record_of_several_lines_is_one_bad_row(tmp_path: Path, record: str) -> None:
    first = WHOLE[record]
    if first.endswith(b"\n"):
        assert quarantined(tmp_path, HEAD + first + b"u3,3,z\n") == ([BAD, GOOD], ["2"])
    assert quarantined(tmp_path, HEAD + b"u3,3,z\n\n" + first) == ([GOOD, BAD], ["4"])


LOST = {
    "an open quote": (b'u1,1,"x\nu2,2,y\n', 2, 6, "note"),
    "an open quote behind letters": (b'\xc3\xa4\xc3\xb6,1,"x\nu2,2,y\n', 2, 6, "note"),
    "an open quote that a later row seems to close": (b'u1,1,"x\nu2,2,y\nu4,4,"z"\n', 2, 6, "note"),
    "a quote that is not doubled": (b'u1,1,"he said "x\nu2,2,y\n"\n', 2, 6, "note"),
    "a quote that is not doubled, on its line": (b'"u1"x,1,y\nu2,2,y\n', 2, 1, "who"),
    "blanks before the quote": (b'u1,1, "x\nu2,2,y\n"\n', 2, 7, "note"),
    "text behind the closing quote": (b'u1,1,"x\nu2,2,y\n"z\n', 2, 6, "note"),
    "a quote on the last line": (b'u1,1,x\nu2,"', 3, 4, "a"),
    "another one in the same record": (b'u1,"1\n","x\nu2,2,y\n', 3, 3, "note"),
}


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("piece", [1 << 20, 16], ids=["one piece", "many pieces"])
def test_a_file_is_refused_if_the_end_of_a_record_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, piece: int
) -> None:
    monkeypatch.setattr(text, "PIECE", piece)
    content, line, character, column = LOST[fault]
    with pytest.raises(BadSource, match=rf"^line {line}: the quote at character {character} \(column '{column}'\) is"):
        quarantined(tmp_path, HEAD + content)


@pytest.mark.parametrize("fault", [*WHOLE.values(), *(content for content, *_ in LOST.values())])
def test_the_first_bad_row_is_named_with_its_line(tmp_path: Path, fault: bytes) -> None:
    (tmp_path / "x.csv").write_bytes(HEAD + b"u0,1,x\n" + fault)
    with pytest.raises(BadSource, match=r"^line [34]"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (b'u1,1,"a, b ""c"""\n', True),
        (b'u1,1,5" wide and 3" high\n', True),
        (b'u1,1,""\n', True),
        (b'"u1","1","x"\r\n', True),
        (b'u1,1,5" wide\n', False),
        (b'u1,1,"a" b "c"\n', False),
    ],
)
def test_quotes_within_a_line_affect_no_other_line(tmp_path: Path, row: bytes, kept: bool) -> None:  # noqa: FBT001
    rows, bad = quarantined(tmp_path, HEAD + row + b"u3,3,z\n")
    assert rows == [("u1", 1.0) if kept else BAD, GOOD]
    assert bad == ([] if kept else ["2"])


@pytest.mark.parametrize("head", [b'who,a,"no\nte"\n', b'who,a,"note\n', b'who,"a" b,note\n', b'\xef\xbb\xbf"who,a\n'])
def test_a_header_with_an_unclosed_quote_is_refused(tmp_path: Path, head: bytes) -> None:
    with pytest.raises(BadSource, match=r"line 1: the quote at character [0-9]+ is not closed"):
        quarantined(tmp_path, head + b"u1,1,x\n")


def test_quotes_are_parsed_in_every_encoding_with_every_quote_character(tmp_path: Path) -> None:
    body = "who;a;note\nu1;1;'ä\nu2;2;y\n'\nu3;3;z\n"
    for encoding in ("latin-1", "cp1252", "utf-16", "shift_jis", "iso2022_jp"):
        written = {"encoding": encoding, "delimiter": ";", "quote": "'"}
        content = body if encoding[0] != "s" and encoding[0] != "i" else body.replace("ä", "あ")
        schema = Schema.parse({**SCHEMA.facts(), "text": written})
        assert quarantined(tmp_path, content.encode(encoding), schema=schema) == ([BAD, GOOD], ["2"]), encoding
    spoilt = b"who;a;note\nu1;1;'\x81\nu2;2;y\n'\nu3;3;z\n"
    schema = Schema.parse({**SCHEMA.facts(), "text": {"encoding": "cp1252", "delimiter": ";", "quote": "'"}})
    assert quarantined(tmp_path, spoilt, schema=schema) == ([BAD, GOOD], ["2"])
    schema = Schema.parse({**SCHEMA.facts(), "text": {"encoding": "iso2022_jp", "delimiter": ";", "quote": "'"}})
    with pytest.raises(BadSource, match="line 2 is not ISO2022_JP, so its quotes are unknown"):
        quarantined(tmp_path, spoilt, schema=schema)


def test_a_line_too_long_to_parse_its_quotes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "LONGEST", 1 << 10)
    monkeypatch.setattr(text, "PIECE", 64)
    content = HEAD + b'u1,1,"' + b"x" * (1 << 12) + b"\nu2,2,y\n" + b'"\nu3,3,z\n'
    with pytest.raises(BadSource, match="line 2: longer than"):
        quarantined(tmp_path, content)


def drawn(seed: int) -> list[list[str]]:
    """Return random rows whose notes contain quotes, delimiters, line breaks and text that looks like other rows."""
    rng = Random(seed)
    parts = ['"', '""', ",", "\n", "\r\n", " ", "x", "é", "\nu9,9,9\n", '\n"u9",9,9\n', "\t", ""]
    return [
        [f"u{row}", str(row + 1), "".join(rng.choices(parts, k=rng.randint(0, 6)))] for row in range(rng.randint(1, 40))
    ]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL], ids=["where needed", "everywhere"])
@pytest.mark.parametrize("packing", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_no_line_of_a_written_record_becomes_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quoting: Any, packing: Callable[[bytes], bytes]
) -> None:
    """Read twenty random tables in pieces of any size: a record with line breaks must become one bad row.

    Rows without line breaks are read.
    """
    for seed in range(20):
        monkeypatch.setattr(text, "PIECE", Random(seed).choice([8, 64, 1 << 20]))
        stream, rows = io.StringIO(newline=""), drawn(seed)
        writer = csv.writer(stream, quoting=quoting, lineterminator=Random(seed).choice(["\n", "\r\n"]))
        writer.writerows([["who", "a", "note"], *rows])
        broken = ["\n" in note for _, _, note in rows]
        found, bad = quarantined(tmp_path, packing(stream.getvalue().encode()))
        assert len(bad) == sum(broken), seed
        assert found == [BAD if no else (who, float(a)) for no, (who, a, _) in zip(broken, rows, strict=True)], seed


def test_a_quoted_record_is_counted_once_and_makes_one_empty_record(home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'who,a,b\nu1,"1\nu9,9,9\n",2\nu3,3,4\n')
    engine = Workspace.open().ledger.engine
    options = IngestOptions(features=2, unit_column="who", on_error="quarantine")
    report = ingest(tmp_path / "x.csv", name="x", home=home, engine=engine, options=options)
    assert (report.records, report.rows, report.quarantined) == (2, 2, 1)
    (tmp_path / "y.csv").write_bytes(b'who,a,b\nu1,"1\nu9,9,9\n')
    with pytest.raises(BadSource, match=r"y\.csv: line 2: the quote at character 4 \(column 'a'\)"):
        ingest(tmp_path / "y.csv", name="y", home=home, engine=engine, options=options)
    assert not list((home / "datasets").glob("y/*"))
