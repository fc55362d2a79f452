"""A record with a line break in quotes is one bad row; no line of it is a row, and no unknown end is guessed."""

import csv
import gzip
import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.errors import BadSource
from storage.formats import delimited, text
from storage.formats.declared import Declared
from storage.formats.rejects import Quarantine, Rejects
from storage.formats.sources import open_file
from storage.schemas.schema import Schema
from storage.workspace import Workspace

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
    """Read ids and values of all rows, None and 0 where a row is bad."""
    found: list[tuple[str | None, float]] = []
    with closing(open_file(path, Declared(schema=schema))) as reader:
        for batch in reader.batches(Rejects() if rejects is None else rejects):
            values = np.zeros(len(batch.places))
            values[np.diff(batch.row_ptr) > 0] = batch.values
            assert batch.unit_ids is not None
            found += zip(batch.unit_ids.to_pylist(), values.tolist(), strict=True)
    return found


def quarantined(folder: Path, content: bytes, *, schema: Schema = SCHEMA) -> tuple[list[Any], list[str]]:
    """Read a text and go on behind bad rows; return its rows and the lines of the bad ones."""
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
def test_a_file_is_refused_where_a_record_ends_unknown(
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
def test_quotes_within_a_line_take_no_other_line_with_them(tmp_path: Path, row: bytes, kept: bool) -> None:  # noqa: FBT001
    rows, bad = quarantined(tmp_path, HEAD + row + b"u3,3,z\n")
    assert rows == [("u1", 1.0) if kept else BAD, GOOD]
    assert bad == ([] if kept else ["2"])


@pytest.mark.parametrize("head", [b'who,a,"no\nte"\n', b'who,a,"note\n', b'who,"a" b,note\n', b'\xef\xbb\xbf"who,a\n'])
def test_a_header_whose_quote_is_open_is_refused(tmp_path: Path, head: bytes) -> None:
    with pytest.raises(BadSource, match=r"line 1: the quote at character [0-9]+ is not closed"):
        quarantined(tmp_path, head + b"u1,1,x\n")


def test_quotes_are_followed_in_every_encoding_and_with_every_sign(tmp_path: Path) -> None:
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
    with pytest.raises(BadSource, match="line 2 is not ISO2022_JP, so which quotes it opens"):
        quarantined(tmp_path, spoilt, schema=schema)


def test_a_line_too_long_to_follow_its_quotes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "LONGEST", 1 << 10)
    monkeypatch.setattr(text, "PIECE", 64)
    content = HEAD + b'u1,1,"' + b"x" * (1 << 12) + b"\nu2,2,y\n" + b'"\nu3,3,z\n'
    with pytest.raises(BadSource, match="line 2: longer than"):
        quarantined(tmp_path, content)


def drawn(seed: int) -> list[list[str]]:
    """Draw rows whose notes hold quotes, delimiters, line breaks and rows that others might have written."""
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
    """Twenty random tables, in pieces of any size: rows without line breaks are read, others are one bad row."""
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
