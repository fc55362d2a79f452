"""The scan is worth something only if it sees: every carrier is planted with a canary, and it must be found."""

import base64
import gzip
import io
import json
import pickle
import sqlite3
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.leaks.canaries import RECORD, canaries_of
from tests.leaks.decoding import pieces_of_tree

TOTALS = np.array([268_436_001, 311_940_117, -150_000_003])
FLOATS = np.array(RECORD)
CANARIES = canaries_of(RECORD, TOTALS)


def _npz(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, array=array)
    return buffer.getvalue()


def _zip(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("member", content)
    return buffer.getvalue()


FORMS: dict[str, bytes] = {
    "float64 little": b"head" + FLOATS.astype("<f8").tobytes(),
    "float64 big": b"x" + FLOATS[:1].astype(">f8").tobytes(),
    "float32 little": FLOATS.astype("<f4").tobytes(),
    "float32 big": FLOATS.astype(">f4").tobytes(),
    "int64 little": TOTALS[:1].astype("<i8").tobytes(),
    "int64 big": b"xyz" + TOTALS[2:].astype(">i8").tobytes(),
    "totals as float64": TOTALS.astype("<f8").tobytes(),
    "totals as float32": TOTALS.astype("<f4").tobytes(),
    "repr": f"value {RECORD[0]!r} of row 7".encode(),
    "numpy text": str(FLOATS).encode(),
    "rounded text": f"{RECORD[1]:.8f}".encode(),
    "scientific text": f"{RECORD[2]:.12e}".encode(),
    "whole text": f"sum={TOTALS[1]};".encode(),
    "negative whole text": f"[{TOTALS[2]}]".encode(),
    "pickled float": pickle.dumps(RECORD[0]),
    "pickled whole": pickle.dumps(int(TOTALS[0])),
    "pickled array": pickle.dumps(FLOATS),
    "pickled error": pickle.dumps(ValueError("row", list(RECORD))),
    "json number": json.dumps({"deep": [{"value": RECORD[3]}]}).encode(),
    "npz": _npz(TOTALS),
    "bytes in a repr": repr(FLOATS.tobytes()).encode(),
}
CARRIERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "zlib inside": lambda content: b"prefix" + zlib.compress(content),
    "zip": _zip,
    "base64": lambda content: b'{"result": "' + base64.b64encode(content) + b'"}',
    "base64, urlsafe and bare": lambda content: base64.urlsafe_b64encode(content).rstrip(b"="),
    "base64, wrapped": lambda content: base64.encodebytes(content),
    "hex": lambda content: b"digest " + content.hex().encode(),
    "json string": lambda content: json.dumps({"text": content.decode("latin-1")}).encode(),
    "pickle": lambda content: pickle.dumps({"inner": content}),
    "base64 of a pickle of a zlib": lambda content: base64.b64encode(pickle.dumps(zlib.compress(content))),
}


def _found(folder: Path) -> list[str]:
    return [what for _, piece in pieces_of_tree(folder) for what in CANARIES.found_in(piece)]


@pytest.mark.parametrize("carrier", sorted(CARRIERS))
@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_canary_is_found_in_every_form_and_carrier(tmp_path: Path, form: str, carrier: str) -> None:
    (tmp_path / "left").write_bytes(CARRIERS[carrier](FORMS[form]))
    assert _found(tmp_path)


@pytest.mark.parametrize("column", ["TEXT", "BLOB", "REAL", "INTEGER"])
@pytest.mark.parametrize("logged", [True, False])
def test_a_canary_is_found_in_every_kind_of_column(tmp_path: Path, column: str, *, logged: bool) -> None:
    value: object = {
        "TEXT": f"state: {RECORD[0]!r}",
        "BLOB": base64.b64encode(pickle.dumps(FLOATS)),
        "REAL": RECORD[0],
        "INTEGER": int(TOTALS[0]),
    }[column]
    connection = sqlite3.connect(tmp_path / "kept.db")
    if logged:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"CREATE TABLE kept (value {column})")
    connection.execute("INSERT INTO kept VALUES (?)", (value,))
    connection.commit()
    try:
        assert _found(tmp_path)
    finally:
        connection.close()


def test_a_canary_is_found_in_a_name(tmp_path: Path) -> None:
    (tmp_path / f"part-{RECORD[0]!r}").mkdir()
    assert _found(tmp_path)


def test_what_is_left_out_is_left_out_and_nothing_else_alarms(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "rows").write_bytes(FLOATS.tobytes())
    (tmp_path / "noise").write_bytes(np.random.default_rng(7).bytes(1 << 20))
    (tmp_path / "ids").write_text(" ".join(np.random.default_rng(8).bytes(16).hex() for _ in range(20_000)))
    left = [
        what
        for _, piece in pieces_of_tree(tmp_path, without=frozenset({"datasets"}))
        for what in CANARIES.found_in(piece)
    ]
    assert left == []
    assert _found(tmp_path)
