"""Search for leaks: planted values are found, guessing attacks fail, and the threat model's list is complete.

- A canary is planted in every kind of carrier, and must be found.
- For every kind of release, no guess of the whole dataset can be tested against what leaves.
- The threat model lists every value that leaves, and its tables agree with the program.
"""

import base64
import dataclasses
import gzip
import io
import json
import pickle
import re
import shutil
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from dpca.artifacts import base, embeddings, tensor
from dpca.artifacts import subspace as values_that_leave_subspace
from dpca.home import key_folder
from dpca.registry.pointers import Pointer
from dpca_tasks.mechanisms import completion, sites, subspace, tensors
from dpca_tasks.privacy.gate import DIGEST
from dpca_tasks.queries import joint_sum
from flows.ingest import ingest_source
from flows.orchestration.stage_calls import ENDINGS, directly
from flows.releases.stages import make_release
from flows.releases.streams import make_tick, open_stream
from flows.requests import (
    CompletionEvaluationRequest,
    CompletionRequest,
    Request,
    SitesRequest,
    StreamRequest,
    SubspaceEvaluationRequest,
    SubspaceRequest,
    TensorRequest,
)
from flows.settings import Settings
from flows.sites.releases import fit_sites_directly
from storage.datasets.ingest_options import IngestOptions
from storage.ledger import journal, step_answers
from storage.ledger.trail_export import export_trail
from storage.trail.checkpoints import FIELDS, Subjects
from storage.workspace import Workspace
from tests.flows.conftest import isolate
from tests.leaks.decoding import pieces_of_tree
from tests.leaks.guessing import (
    CLIP_NORM,
    RECORD,
    Recorded,
    all_that_left,
    canaries_of,
    content_of,
    distinguished,
    guesses,
    plain_digest,
    recording,
)

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


def test_skipped_folders_are_not_searched_and_other_content_raises_no_alarm(tmp_path: Path) -> None:
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


ROWS, FEATURES, TRUE = 40, 4, 2
FEW, MANY = 4, 512
POPULATIONS = ("people", "users", "north", "south")
HERE = Settings(cluster="none")
TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
SUBSPACE = {**TERMS, "dataset": "people", "components": 2, "clip_norm": CLIP_NORM}
RATINGS = {**TERMS, "dataset": "users", "rank": 1, "ratings_between": "1:5", "ratings_per_user": 3}
MIXTURE = {**TERMS, "dataset": "people", "components": 2, "clip_norm": CLIP_NORM, "model": "mixture"}

PLAIN = SubspaceRequest(**SUBSPACE, publish="plain", keep_matrix=0.0)
KINDS: Mapping[str, tuple[Request, ...]] = {
    "plain": (PLAIN,),
    "kept matrix": (SubspaceRequest(**SUBSPACE, publish="kept"),),
    "laplace": (SubspaceRequest(**SUBSPACE | {"delta": 0.0}, publish="found", mechanism="laplace"),),
    "wishart": (SubspaceRequest(**SUBSPACE, publish="found", mechanism="wishart"),),
    "quantile": (SubspaceRequest(**SUBSPACE | {"clip_norm": "quantile:0.9"}, publish="found"),),
    "private centre": (SubspaceRequest(**SUBSPACE, publish="found", center="private"),),
    "evaluation": (PLAIN, SubspaceEvaluationRequest(**TERMS, artifact="plain@1", dataset="people")),
    "item means": (CompletionRequest(**RATINGS, publish="found", mechanism="item_means"),),
}
MORE: Mapping[str, tuple[Request, ...]] = {
    **{
        f"subspace {name}": (SubspaceRequest(**SUBSPACE, publish="found", mechanism=name),)
        for name in subspace.MECHANISMS
        if name != "laplace"
    },
    **{
        f"completion {name}": (CompletionRequest(**RATINGS, publish="found", mechanism=name),)
        for name in completion.MECHANISMS
    },
    **{
        f"tensor {name}": (
            TensorRequest(**MIXTURE | ({"delta": 0.0} if name == "avn" else {}), publish="found", mechanism=name),
        )
        for name in tensors.MECHANISMS
    },
    "normalised rows": (SubspaceRequest(**SUBSPACE, publish="found", row_policy="normalise"),),
    "prediction error": (
        CompletionRequest(**RATINGS, publish="means", mechanism="item_means"),
        CompletionEvaluationRequest(**TERMS, artifact="means@1", dataset="users"),
    ),
}


def table(name: str) -> NDArray[np.float64]:
    rng = np.random.default_rng([*name.encode()])
    if name == "users":
        return rng.integers(1, 6, (ROWS, FEATURES)).astype(np.float64)
    return np.round(rng.normal(size=(ROWS, FEATURES)), 3)


def candidates(name: str, count: int = FEW) -> list[str]:
    """Return the content digests of a table with various last rows; the one with number `TRUE` is the real table."""
    found, rows = [], table(name)
    for number in range(count):
        last = rows[-1] + (number - TRUE) * (1 if name == "users" else 0.001)
        found.append(content_of(np.vstack([rows[:-1], last])))
    return found


@pytest.fixture(scope="module")
def ready_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with four datasets of as many populations."""
    folder = tmp_path_factory.mktemp("guessing")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=folder / "home")
        ledger = Workspace.open().ledger
        for name in POPULATIONS:
            relation = "zero_out" if name == "people" else "add_remove"
            ledger.open_budget(name, epsilon=40.0, delta=9e-6, relation=relation)
            sparse.save_npz(folder / f"{name}.npz", sparse.csr_array(table(name)))
            ingest_source(str(folder / f"{name}.npz"), name, IngestOptions(population=name, records_at_most=ROWS))
            entry = Workspace.open().catalog.current(name)
            assert entry.content_digest == candidates(name)[TRUE], "the attacker hashes rows as the program does"
    return folder / "home"


@pytest.fixture
def home(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the ready home, set as the current home."""
    for suffix in ("", "-state"):
        shutil.copytree(f"{ready_home}{suffix}", tmp_path / f"home{suffix}")
    isolate(monkeypatch, home=tmp_path / "home")
    return tmp_path / "home"


def left_by(home: Path, *reports: Any) -> bytes:
    """Export the audit trail of every population, and return everything that left the home, with the reports."""
    workspace, trails = Workspace.open(), []
    for name in POPULATIONS:
        with workspace.ledger.transaction() as connection:
            trails.append(export_trail(connection, name, place=workspace.store, keys=key_folder()))
    return all_that_left(home, json.dumps([*trails, *reports]).encode())


def check(left: bytes, recorded: Recorded, *names: str, found: list[int], count: int = FEW) -> None:
    """Check which candidates the attacker finds, and that the attacker could rebuild all request digests."""
    assert recorded.steps
    rebuilt = {guess for name in names for guess in guesses(candidates(name)[TRUE], recorded)}
    assert all(bytes(arrays[DIGEST]) in rebuilt for arrays in recorded.steps)
    assert b"step_kept" in left
    for name in names:
        assert distinguished(left, candidates(name, count), recorded) == found


def released(home: Path, requests: tuple[Request, ...]) -> tuple[bytes, Recorded]:
    with recording() as recorded:
        reports = [make_release(directly, request, HERE) for request in requests]
    return left_by(home, *reports), recorded


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.audit_only)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_release_reveals_its_rows(home: Path, kind: str, count: int) -> None:
    left, recorded = released(home, KINDS[kind])
    check(left, recorded, KINDS[kind][0].dataset, found=[], count=count)


@pytest.mark.audit_only
@pytest.mark.parametrize(
    ("kind", "tile"),
    [*((kind, joint_sum.TILE) for kind in MORE), *((f"completion {name}", 2) for name in completion.MECHANISMS)],
)
def test_no_mechanism_reveals_its_rows(home: Path, kind: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_sum, "TILE", tile)
    left, recorded = released(home, MORE[kind])
    check(left, recorded, MORE[kind][0].dataset, found=[])


def test_no_tick_of_a_stream_reveals_its_rows(home: Path) -> None:
    terms = {**SUBSPACE, "population": "people", "ticks": 4, "publish": "nightly"}
    open_stream(StreamRequest(**terms))
    with recording() as recorded:
        report = make_tick(directly, "nightly", HERE, slot="2026-11-01")
    check(left_by(home, report), recorded, "people", found=[])


@pytest.mark.parametrize(
    "method",
    [
        "cape_pca",
        *(
            pytest.param(name, marks=pytest.mark.audit_only)
            for name in {**sites.METHODS, **sites.TENSOR_METHODS}
            if name != "cape_pca"
        ),
    ],
)
def test_no_share_of_a_site_reveals_its_rows(home: Path, method: str) -> None:
    model: dict[str, Any] = {"model": "mixture"} if method in sites.TENSOR_METHODS else {}
    request = SitesRequest(
        **TERMS, **model, datasets="north,south", method=method, components=2, clip_norm=CLIP_NORM, publish="joint"
    )
    with recording() as recorded:
        report = fit_sites_directly(request)
    check(left_by(home, report), recorded, "north", "south", found=[])


@pytest.mark.parametrize(
    ("kind", "count"),
    [("kept matrix", FEW), *(pytest.param(kind, MANY, marks=pytest.mark.audit_only) for kind in KINDS)],
)
def test_the_attack_finds_the_true_rows_from_a_plain_digest_of_a_step(
    home: Path, kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant a leak of plain step digests: the attacker must find exactly one candidate, the true rows."""
    monkeypatch.setattr(step_answers, "step_digest", lambda _key, _step, arrays: plain_digest(arrays))
    left, recorded = released(home, KINDS[kind])
    check(left, recorded, KINDS[kind][0].dataset, found=[TRUE], count=count)


PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "threat-model.md").read_text()
SECTION = PAGE.partition("## Every value that leaves\n")[2].partition("\n## ")[0]


def cells(first: str) -> list[list[str]]:
    """Return the cells of the threat model's table rows whose first cell starts with a text."""
    rows = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith(f"| {first}")]
    return [[cell.strip(" |") for cell in row] for row in rows]


def quoted(text: str) -> list[str]:
    return re.findall("`([^`]+)`", text)


def test_every_entry_of_the_journal_is_listed_with_all_its_facts() -> None:
    table = {quoted(row[0])[0]: row for row in cells("`")}
    assert table.keys() == journal.DETAILS.keys()
    for name, row in table.items():
        has_facts = bool(journal.DETAILS[name])
        assert quoted(row[1] if has_facts else "") == list(journal.DETAILS[name]), name
        subject = Subjects().of({"name": name, "population": "people", "release_id": None})
        assert row[-1] == ("hash" if subject is None else "whole"), name


def test_the_fields_of_an_entry_are_listed() -> None:
    text = " ".join(SECTION.split()).partition("An entry has the fields ")[2].partition(".")[0]
    assert quoted(text) == list(FIELDS)


def test_every_fact_of_a_manifest_is_listed() -> None:
    kinds = (embeddings._FACTS, values_that_leave_subspace._FACTS, tensor._FACTS)
    listed = [name for row in cells("manifest:") for name in quoted(row[0])]
    assert sorted(listed) == sorted({*base.FACTS}.union(*kinds))


def test_every_state_of_a_run_is_listed() -> None:
    (row,) = cells("state of a run:")
    assert quoted(row[0]) == list(ENDINGS)


def test_a_pointer_file_has_no_other_facts() -> None:
    """A pointer file consists of versions, aliases and marks, and of a checksum over them."""
    pointer = Pointer(name="map", versions={1: "d" * 64}, aliases={"champion": 1}, not_private=frozenset({1}))
    assert pointer.facts().keys() == {"versions", "aliases", "not_private"}
    assert {field.name for field in dataclasses.fields(Pointer)} == {"name", *pointer.facts()}
