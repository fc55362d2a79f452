"""The svmlight parser, and sources in an object store.

The parser reads exact values, accepts the documented grammar, and reports the number of a line that breaks it. Sources
in an object store are read like files on a disk, or refused in one line.
"""

import io
import math
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca.backends.local import LocalPlace
from dpca.errors import BadSource, Invalid, Unavailable
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.formats import files
from storage.formats.decimals import DECIDED, MALFORMED, UNDECIDED, leading_digits, load_eight, scan_decimal
from storage.formats.files import ObjectFile, find_files, locate
from storage.formats.svmlight import MalformedLine, ParsedRows, SvmlightParser
from tests.fuzz.seeds import Seed, files_of, write_seeds
from tests.s3 import Server

DIGITS = st.text("0123456789", max_size=22)


def parse(text: bytes, *, n_features: int = 5, first_line: int = 1) -> ParsedRows:
    return SvmlightParser(n_features=n_features, capacity=1 << 16).parse(memoryview(text), first_line=first_line)


def scan(text: str) -> tuple[int, float, int]:
    verdict, value, stop = scan_decimal(np.frombuffer(f"{text}\n".encode(), dtype=np.uint8), 0)
    return int(verdict), float(value), int(stop)


def same_bits(a: float, b: float) -> bool:
    return struct.pack("<d", a) == struct.pack("<d", b)


def numerals() -> st.SearchStrategy[str]:
    """Decimal text of every form: short, long, halfway, and as written by repr and the usual formats."""
    halves = st.builds(lambda m, k: str((2 * m + 1) << k), st.integers(2**52, 2**53 - 1), st.integers(0, 6))
    floats = st.floats(allow_nan=False, allow_infinity=False)
    formatted = st.builds(format, floats, st.sampled_from((".16g", ".17g", ".6g", ".3f", ".12e", "")))
    built = st.builds(
        "{}{}{}{}".format,
        st.sampled_from(("", "-", "+")),
        st.text("0123456789", min_size=1, max_size=22),
        st.one_of(st.just(""), DIGITS.map(".{}".format)),
        st.one_of(st.just(""), st.builds("e{}".format, st.integers(-400, 400)), st.just("E+07"), st.just("e-00005")),
    )
    return st.one_of(halves, floats.map(repr), formatted, built, DIGITS.filter(bool).map(".{}".format))


@given(numerals())
def test_numbers_parsed_by_the_fast_path_have_the_bits_of_float(text: str) -> None:
    verdict, value, stop = scan(text)
    assert stop == len(text)
    assert verdict in (DECIDED, UNDECIDED)
    assert verdict == UNDECIDED or same_bits(value, float(text))


@given(st.floats(min_value=1e-290, max_value=1e290))
def test_numbers_written_by_repr_are_parsed_by_the_fast_path(value: float) -> None:
    verdict, read, _ = scan(repr(value))
    assert verdict == UNDECIDED or same_bits(read, value)
    assert scan(f"{value:.12e}")[0] == DECIDED


@pytest.mark.parametrize("text", ["", "-", "+", ".", "e5", "1e", "1e+", "-.e1", "nan", "inf", "x1"])
def test_text_that_is_not_decimal_is_malformed(text: str) -> None:
    assert scan(text)[0] == MALFORMED


@given(st.lists(st.lists(st.tuples(st.integers(1, 5), numerals()), max_size=6), min_size=1, max_size=6))
def test_values_columns_and_lines_are_those_of_a_plain_parser(rows: list[list[tuple[int, str]]]) -> None:
    text = "".join("1 " + " ".join(f"{c}:{v}" for c, v in row) + "\n" for row in rows)
    flat = [pair for row in rows for pair in row]
    if not all(math.isfinite(float(value)) for _, value in flat):
        with pytest.raises(MalformedLine, match="not finite"):
            parse(text.encode())
        return
    parsed = parse(text.encode())
    assert parsed.indices.tolist() == [column - 1 for column, _ in flat]
    assert parsed.values.tobytes() == np.array([float(value) for _, value in flat]).tobytes()
    assert np.diff(parsed.row_ptr).tolist() == [len(row) for row in rows]
    assert parsed.lines.tolist() == list(range(1, len(rows) + 1))
    rises = all(a < b for row in rows for (a, _), (b, _) in pairwise(row))
    assert parsed.is_canonical == (rises and all(float(value) for _, value in flat))


COLUMNS = st.builds("{}{}".format, st.sampled_from(("", "0", "00000")), st.integers(0, 10**10))


@given(st.lists(st.lists(st.tuples(COLUMNS, st.integers(0, 9)), max_size=5), min_size=1, max_size=4), st.integers(1, 9))
def test_features_of_one_digit_are_read_with_column_numbers_of_any_length(
    rows: list[list[tuple[str, int]]], digits: int
) -> None:
    text = "".join("1 " + " ".join(f"{c}:{v}" for c, v in row) + "\n" for row in rows)
    flat = [(int(column), value) for row in rows for column, value in row]
    if not all(0 < column < 10**digits for column, _ in flat):
        with pytest.raises(MalformedLine, match=r"column 0|beyond the"):
            parse(text.encode(), n_features=10**digits - 1)
        return
    parsed = parse(text.encode(), n_features=10**digits - 1)
    assert parsed.indices.tolist() == [column - 1 for column, _ in flat]
    assert parsed.values.tolist() == [value for _, value in flat]


@given(st.text("0123456789:. -/", min_size=8, max_size=8))
def test_the_digits_that_begin_a_word_are_read(text: str) -> None:
    number, bits = leading_digits(load_eight(np.frombuffer(text.encode(), dtype=np.uint8), 0))
    count = len(text) - len(text.lstrip("0123456789"))
    assert (int(number), int(bits)) == (int(text[:count] or "0"), 8 * count)


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        (b"+1 1:2 3:4\n", [[0, 2]], [7]),
        (b"1 1:2\r\n-1 2:1\r\n", [[0], [1]], [7, 8]),
        (b"# a comment\n\n1 1:2 # tail 9:9\n   \n0#1:1\n", [[0], []], [9, 11]),
        (b"1 qid:7 2:1\n1 qid:7\n", [[1], []], [7, 8]),
        (b"  1e0\t5:1\x0b1:1 5:2  \n", [[4, 0, 4]], [7]),
        (b"1 2:123456789012345678901234567890\n", [[1]], [7]),
    ],
)
def test_lines_follow_the_documented_layout(text: bytes, columns: list[list[int]], lines: list[int]) -> None:
    parsed = parse(text, first_line=7)
    found = [parsed.indices[a:b].tolist() for a, b in zip(parsed.row_ptr, parsed.row_ptr[1:], strict=False)]
    assert found == columns
    assert parsed.lines.tolist() == lines
    assert parsed.n_lines == text.count(b"\n")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1:2 3:4", "label '1:2' is not a number"),
        (b"spam", "label 'spam' is not a number"),
        (b"1,2 1:1", "label '1,2' is not a number"),
        (b"1 0.5 0.2", "'0.5' is not COLUMN:VALUE"),
        (b"1 0:1", "column 0, but svmlight columns start at 1"),
        (b"1 000:1", "column 0, but svmlight columns start at 1"),
        (b"1 -3:1", "negative column"),
        (b"1 6:1", "beyond the 5 declared features"),
        (b"1 " + b"9" * 5000 + b":1", "beyond the 5 declared features"),
        (b"1 a:1", "a column that is not a whole number"),
        (b"1 1.0:1", "a column that is not a whole number"),
        (b"1 qid:x 1:1", "a column that is not a whole number"),
        (b"1 1:", "the value of '1:' is not a number"),
        (b"1 1:2:3", "is not a number"),
        (b"1 1:1_0", "is not a number"),
        (b"1 1:0x10", "is not a number"),
        (b"1 1:nan", "is not finite"),
        (b"1 1:-inf", "is not finite"),
        (b"1 1:1e999", "is not finite"),
        (b"1 1:" + b"9" * 400, "is not finite"),
        (b"1 1:1e400 9:9", "is not finite"),
        (b"1 1:\xff\x00", "is not a number"),
    ],
)
def test_a_malformed_line_is_named(line: bytes, reason: str) -> None:
    with pytest.raises(MalformedLine) as caught:
        parse(b"1 1:1\n# two\n" + line + b"\n1 nonsense\n", first_line=10)
    assert caught.value.line == 12
    assert reason in caught.value.reason
    assert "\n" not in caught.value.reason
    assert len(caught.value.reason) < 200


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_one_malformed_line(noise: bytes) -> None:
    text = b"1 1:1\n" + noise + b"\n"
    n_lines, line = text.count(b"\n"), 1
    try:
        parsed = parse(text)
        assert parsed.n_lines == n_lines
        assert np.isfinite(parsed.values).all()
    except MalformedLine as error:
        line = error.line
    assert 1 <= line <= n_lines


@pytest.mark.parametrize("text", [b"", b"1 1:1", b"1 1:1\n" * 20_000])
def test_incomplete_lines_and_lines_beyond_capacity_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not complete lines"):
        parse(text)


KINDS = ("x.svm.zst", "x.mtx.gz", "packed.npz", "x.npy", "items.csv", "wide.parquet", "x.h5ad", "sparse.zarr")


@pytest.fixture
def _client(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.enter(monkeypatch)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory, s3_server: Server) -> dict[str, Seed]:
    """Copy valid sources of every kind to the S3 server; return them by file name."""
    seeds = write_seeds(tmp_path_factory.mktemp("sources") / "seeds")
    for seed in seeds:
        for path in files_of(seed.path):
            s3_server.call("PUT", f"{s3_server.bucket}/seeds/{path.relative_to(seed.path.parent)}", path.read_bytes())
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


@pytest.mark.usefixtures("_client")
@pytest.mark.parametrize("kind", KINDS)
def test_an_object_is_read_like_the_equal_file(
    tmp_path: Path, seeds: dict[str, Seed], s3_server: Server, kind: str
) -> None:
    seed = seeds[kind]
    far = take(tmp_path, s3_server.url(f"seeds/{kind}"), **seed.declared)
    assert far.content_digest == take(tmp_path, seed.path, **seed.declared).content_digest


@pytest.mark.usefixtures("_client")
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
    with pytest.raises(BadSource, match="would count twice; give") as refused:
        find_files(named)
    assert "\n" not in str(refused.value)
    assert len(find_files(named[:1])) == 1


@pytest.mark.usefixtures("_client")
def test_a_copy_of_a_file_counts_as_a_different_file(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("a\n1\n")
    assert len(find_files([tmp_path / "a.csv", tmp_path / "b.csv"])) == 2
    assert len(find_files([tmp_path / "a.csv", tmp_path / "missing.csv", tmp_path / "missed.csv"])) == 3


@pytest.mark.usefixtures("_client")
@pytest.mark.parametrize("again", ["twice/a.svm", "twice/*.svm", "twice", "/twice/a.svm", "twice/a.svm/"])
def test_an_object_that_is_named_twice_is_refused(s3_server: Server, again: str) -> None:
    s3_server.call("PUT", f"{s3_server.bucket}/twice/a.svm", b"1 1:1\n")
    with pytest.raises(BadSource, match="would count twice; give"):
        find_files([s3_server.url("twice/a.svm"), s3_server.url(again)])


@pytest.mark.usefixtures("_client")
def test_folders_and_patterns_of_a_store_are_listed_by_name(s3_server: Server) -> None:
    for name in ("b.svm", "a.svm", ".hidden", "c.csv"):
        s3_server.call("PUT", f"{s3_server.bucket}/parts/{name}", b"1 1:1\n")
    names = [file.name for file in find_files([s3_server.url("parts/")])]
    assert names == ["a.svm", "b.svm", "c.csv"]
    found = find_files([s3_server.url("parts/*.svm"), s3_server.url("parts/c.csv")])
    assert [file.address for file in found] == [s3_server.url(f"parts/{name}") for name in ("a.svm", "b.svm", "c.csv")]


@pytest.mark.usefixtures("_client")
@pytest.mark.parametrize("source", ["nothing", "parts-of-nothing/*", ""])
def test_missing_objects_are_refused(tmp_path: Path, s3_server: Server, source: str) -> None:
    with pytest.raises(BadSource, match="no file exists there"):
        take(tmp_path, f"s3://{s3_server.bucket}/{source}" if source else f"s3://{s3_server.bucket}/x*", features=3)


@pytest.mark.usefixtures("_client")
def test_a_store_that_cannot_be_used_and_other_urls_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the bucket does not exist"):
        take(tmp_path, "s3://no-such-bucket/x.svm", features=3)
    with pytest.raises(Invalid, match=r"not gs://"):
        take(tmp_path, "gs://bucket/x.svm", features=3)
    assert not (tmp_path / "home/datasets").exists()


@pytest.mark.usefixtures("_client")
def test_arrays_in_column_major_order_are_refused_in_an_object_store(
    tmp_path: Path, seeds: dict[str, Seed], s3_server: Server
) -> None:
    assert seeds["columns.npy"].path.exists()
    with pytest.raises(BadSource, match="column-major order"):
        take(tmp_path, s3_server.url("seeds/columns.npy"))


@pytest.mark.usefixtures("_client")
def test_an_object_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_AHEAD", 1 << 10)
    s3_server.call("PUT", f"{s3_server.bucket}/moving.svm", b"1 1:1\n" * 1000)
    stream = ObjectFile(s3_server.url("moving.svm")).open()
    assert stream.read(6) == b"1 1:1\n"
    s3_server.call("PUT", f"{s3_server.bucket}/moving.svm", b"1 1:2\n" * 1000)
    with pytest.raises(BadSource, match="changed while it was read"):
        stream.read()


@pytest.mark.usefixtures("_client")
def test_an_object_is_a_seekable_file(s3_server: Server) -> None:
    content = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))
    s3_server.call("PUT", f"{s3_server.bucket}/noise", content)
    with locate(s3_server.url("noise")).open() as stream, io.BytesIO(content) as expected:
        for offset, whence, length in ((0, 0, 10), (-7, 2, 20), (4990, 0, 5), (3, 1, 1), (100, 0, -1)):
            assert stream.seek(offset, whence) == expected.seek(offset, whence)
            assert stream.read(length) == expected.read(length)
