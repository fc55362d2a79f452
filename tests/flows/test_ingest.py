"""Ingest through the command and the flow, killed ingests, and erasure of individuals.

The report of an ingest is tested, and what is left when the source is bad. An ingest killed at any moment leaves a
consistent catalog, and the next one completes; two concurrent ingests do no harm. The erasure of one individual creates
a new snapshot without their rows and leaves no trace of their id.
"""

import gzip
import json
import os
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.client.orchestration import SyncPrefectClient
from scipy import sparse

from dpca.errors import BadSource, Conflict, Invalid, NotFound
from dpca.home import key_folder
from flows.ingest import ingest_directly
from flows.jobs import ingest_dataset, run_ingest
from flows.orchestration.stage_calls import ENDINGS
from storage.datasets import erase as subject
from storage.datasets.catalog import Catalog
from storage.datasets.erase import erase_unit, find_unit
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.kept_sources import find_source
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, ROWS, Command, facts_of, kept_by, newest_run

OPTIONS = IngestOptions(features=FEATURES)
GOOD = "1 1:0.5 2:0.25\n" * 50
BAD_TEXT = {
    "empty": ("", "is empty"),
    "only-comments": ("\n# nothing\n\n", "holds no row"),
    "value": (GOOD + "1 2:zz\n", "line 51: the value of '2:zz' is not a number"),
    "pair": (GOOD + "1 oops\n", "line 51: 'oops' is not COLUMN:VALUE"),
    "label": (GOOD + "one 2:1\n", "line 51: label 'one' is not a number"),
    "nan": (GOOD + "1 2:nan\n", "line 51: the value of '2:nan' is not finite"),
    "inf": (GOOD + "1 2:-inf\n", "line 51: the value of '2:-inf' is not finite"),
    "overflow": (GOOD + "1 2:1e999\n", "line 51: the value of '2:1e999' is not finite"),
    "negative-column": (GOOD + "1 -3:1\n", "line 51: '-3:1' has a negative column"),
    "zero-column": (GOOD + "1 0:1\n", "line 51: '0:1' has column 0"),
    "beyond-features": (GOOD + "1 7:1\n", "line 51: '7:1' is beyond the 6 declared features"),
}


def ending_of(source: str, name: str, **options: Any) -> str | None:
    """Run the ingest flow as a deployment calls it; return the name of its final state."""
    state: Any = ingest_dataset(source, name, **options, return_state=True)
    ended: str | None = state.name
    return ended


@pytest.mark.parametrize("case", sorted(BAD_TEXT))
@pytest.mark.parametrize("suffix", [".svm", ".svm.gz"])
def test_a_bad_source_is_refused_in_one_line_without_leftovers(
    ready: Path, dpca: Command, tmp_path: Path, case: str, suffix: str
) -> None:
    text, complaint = BAD_TEXT[case]
    source = tmp_path / f"bad{suffix}"
    packed = gzip.compress(text.encode()) if suffix.endswith(".gz") and text else text.encode()
    source.write_bytes(packed)
    before = facts_of(ready)
    ending = dpca("dataset", "ingest", source, "--name", "bad", "--features", FEATURES, "--direct", "--json")
    assert complaint in ending.complaint(1)
    assert facts_of(ready) == before


def test_a_missing_or_truncated_source_is_refused_without_leftovers(ready: Path, dpca: Command, tmp_path: Path) -> None:
    cut, plain, zipped = tmp_path / "cut.svm.gz", tmp_path / "plain.svm.gz", tmp_path / "cut.npz"
    cut.write_bytes(gzip.compress(GOOD.encode() * 20)[:-9])
    plain.write_text(GOOD)
    sparse.save_npz(zipped, sparse.csr_array(np.eye(FEATURES)))
    zipped.write_bytes(zipped.read_bytes()[:-30])
    (tmp_path / "nothing").mkdir()
    before = facts_of(ready)
    for source, complaint in (
        (tmp_path / "gone.svm", "no such file"),
        (tmp_path / "nothing", "no file exists there"),
        (cut, "cut short or corrupt"),
        (plain, "the content is not gzip"),
        (zipped, "not a readable .npz archive"),
    ):
        ending = dpca("dataset", "ingest", source, "--name", "bad", "--features", FEATURES, "--direct", "--json")
        assert complaint in ending.complaint(1)
    assert facts_of(ready) == before


def test_an_npz_matrix_is_checked_like_text(ready: Path, dpca: Command, tmp_path: Path) -> None:
    def matrix(value: float, column: int) -> Path:
        path = tmp_path / f"{value}-{column}.npz"
        arrays = {"indices": np.array([column]), "indptr": np.array([0, 1]), "data": np.array([value])}
        np.savez(path, format=np.array("csr"), shape=np.array([1, FEATURES]), **arrays)  # type: ignore[arg-type]
        return path

    before = facts_of(ready)
    for source, complaint in (
        (matrix(np.nan, 0), "row 0 has a value that is not finite"),
        (matrix(1.0, -1), "row 0 has a column outside 0..5"),
        (matrix(1.0, 6), "row 0 has a column outside 0..5"),
    ):
        assert complaint in dpca("dataset", "ingest", source, "--name", "bad", "--direct").complaint(1)
    assert facts_of(ready) == before


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ((), 1, "declare the number of features"),
        (("--features", "0"), 2, "'--features'"),
        (("--features", "many"), 2, "'--features'"),
        (("--features", "3000000000"), 1, "n_features=3000000000"),
        (("--features", "6", "--block-nnz", "0"), 2, "'--block-nnz'"),
        (("--features", "6", "--records-at-most", "0"), 2, "'--records-at-most'"),
        (("--features", "6", "--records-at-most", "59"), 1, "more than the declared 59 records"),
        (("--features", "6", "--dtype", "float16"), 1, "dtype 'float16' is not stored"),
        (("--features", "6", "--dtype", "int32"), 1, "is not whole"),
        (("--features", "6", "--population", "two words"), 1, "name 'two words'"),
    ],
)
def test_declarations_are_checked(
    ready: Path, dpca: Command, rows_file: Path, words: tuple[str, ...], status: int, complaint: str
) -> None:
    before = facts_of(ready)
    ending = dpca("dataset", "ingest", rows_file, "--name", "other", *words, "--direct", "--json")
    assert complaint in ending.complaint(status)
    assert facts_of(ready) == before


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "a b"])
def test_a_dataset_name_is_a_plain_word(ready: Path, dpca: Command, rows_file: Path, name: str) -> None:
    before = facts_of(ready)
    ending = dpca("dataset", "ingest", rows_file, "--name", name, "--features", FEATURES, "--direct")
    assert "choose another" in ending.complaint(1)
    assert facts_of(ready) == before


def test_a_dataset_name_keeps_its_population(ready: Path, dpca: Command, rows_file: Path) -> None:
    words = ("--name", "people", "--population", "others", "--features", FEATURES, "--direct", "--json")
    before = facts_of(ready)
    assert "belongs to population 'people' permanently" in dpca("dataset", "ingest", rows_file, *words).complaint(1)
    assert facts_of(ready) == before


def test_the_report_has_the_documented_fields_and_show_list_verify_agree(
    home: Path, dpca: Command, rows_file: Path
) -> None:
    words = (
        "--name",
        "d",
        "--population",
        "p",
        "--features",
        FEATURES,
        "--records-at-most",
        "100",
        "--block-nnz",
        "40",
    )
    report = json.loads(dpca("dataset", "ingest", rows_file, *words, "--dtype", "float32", "--direct", "--json").out)
    expected = {"dataset": "d", "population": "p", "records": ROWS, "rows": ROWS, "features": FEATURES}
    assert expected.items() <= report.items()
    assert {"nnz": 180, "dtype": "float32", "records_at_most": 100}.items() <= report.items()
    assert report["blocks"] > 1
    assert len(report["snapshot"]) == 32
    assert len(report["content_digest"]) == 64
    assert json.loads(dpca("dataset", "show", "d", "--json").out) == report
    assert json.loads(dpca("dataset", "list", "--json").out) == [report]
    verified = json.loads(dpca("dataset", "verify", "d", "--json").out)
    assert verified == {"dataset": "d", "content_digest": report["content_digest"], "verified": True}
    assert (home / "datasets" / "d" / report["snapshot"]).is_dir()


def test_format_block_size_and_compression_do_not_change_the_content_digest(
    dpca: Command, rows_file: Path, tmp_path: Path
) -> None:
    packed, matrix = tmp_path / "rows.svm.gz", tmp_path / "rows.npz"
    packed.write_bytes(gzip.compress(rows_file.read_bytes()))
    dense = np.array(
        [[1 + row % 3, 0, 0.5, 0, 0, row % 2 + 0.25] for row in range(ROWS)],
    )
    sparse.save_npz(matrix, sparse.csr_array(dense))
    reports = [
        json.loads(dpca("dataset", "ingest", source, "--name", "d", *words, "--direct", "--json").out)
        for source, words in (
            (rows_file, ("--features", FEATURES)),
            (packed, ("--features", FEATURES, "--block-nnz", "7")),
            (matrix, ("--dtype", "float32")),
        )
    ]
    assert len({report["content_digest"] for report in reports}) == 1
    assert len({report["snapshot"] for report in reports}) == 3


def test_a_flipped_byte_of_a_dataset_is_found(ready: Path, dpca: Command) -> None:
    chunk = max(ready.glob("datasets/people/*/values/c/**/*"), key=lambda path: path.is_file() and path.stat().st_size)
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    assert "restore them or ingest" in dpca("dataset", "verify", "people", "--json").complaint(1)


def test_a_dataset_with_releases_is_removed_only_by_force(released: Path, dpca: Command) -> None:
    before = facts_of(released)
    assert "must be forced" in dpca("dataset", "remove", "people", "--json").complaint(1)
    assert facts_of(released) == before
    removed = json.loads(dpca("dataset", "remove", "people", "--force", "--json").out)["removed"]
    assert len(removed) == 1
    assert not list(released.glob("datasets/people/*/zarr.json"))
    assert json.loads(dpca("budget", "show", "people", "--json").out)["spent"] == pytest.approx(1.0)


def test_unknown_datasets_are_named(ready: Path, dpca: Command) -> None:
    for verb in ("show", "verify", "remove"):
        assert "dataset 'nobody' does not exist" in dpca("dataset", verb, "nobody", "--json").complaint(1)


def test_the_flow_ingests_and_prefect_stores_names_alone(
    home: Path, prefect: SyncPrefectClient, rows_file: Path
) -> None:
    report = run_ingest(str(rows_file), name="d", options=OPTIONS)
    assert (report["records"], report["features"]) == (ROWS, FEATURES)
    run = newest_run(prefect, "ingest-dataset")
    assert (run.state_name, run.parameters["source"]) == ("Completed", "@d")
    for secret in (report["content_digest"], str(rows_file), rows_file.name):
        assert secret not in kept_by(prefect)


def test_no_file_of_an_ingest_is_reported_to_prefect_and_a_schedule_needs_none(
    home: Path, prefect: SyncPrefectClient, rows_file: Path, tmp_path: Path
) -> None:
    names, scale = tmp_path / "secret-names.txt", tmp_path / "secret-scale.txt"
    names.write_text("".join(f"column {at}\n" for at in range(FEATURES)))
    scale.write_text("1.0\n" * FEATURES)
    first = run_ingest(str(rows_file), name="kept", options=IngestOptions(feature_names=str(names), scale=str(scale)))
    kept = home / "sources" / "kept.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert ending_of("@kept", "kept") == "Completed"
    ledger = Workspace.open().ledger
    second = Catalog(ledger.engine, ledger.home).current("kept")
    assert second.snapshot != first["snapshot"]
    assert second.content_digest == first["content_digest"]
    assert newest_run(prefect, "ingest-dataset").parameters["source"] == "@kept"
    for secret in (rows_file.name, "secret-names", "secret-scale"):
        assert secret not in kept_by(prefect)


def test_files_given_to_the_flow_are_read_and_an_unknown_reference_is_refused(
    home: Path, prefect: SyncPrefectClient, rows_file: Path, tmp_path: Path
) -> None:
    reported = tmp_path / "told.svm"
    reported.write_bytes(rows_file.read_bytes())
    assert ending_of(str(reported), "given", features=FEATURES) == "Completed"
    assert not (home / "sources").exists()
    assert ending_of("@given", "given", features=FEATURES) == "Refused"


def test_a_failed_ingest_keeps_the_stored_source_of_the_previous_ingest(
    home: Path, rows_file: Path, tmp_path: Path
) -> None:
    ingest_directly(str(rows_file), name="d", options=OPTIONS)
    bad = tmp_path / "bad.svm"
    bad.write_text("1 1:x\n")
    with pytest.raises(BadSource):
        ingest_directly(str(bad), name="d", options=OPTIONS)
    assert find_source(home, "@d")["source"] == str(rows_file)
    for unknown in ("@e", "@../d"):
        with pytest.raises((NotFound, Invalid)):
            find_source(home, unknown)


def test_the_flow_of_a_bad_source_ends_as_refused_without_the_reason(
    home: Path, prefect: SyncPrefectClient, tmp_path: Path
) -> None:
    source = tmp_path / "bad.svm"
    source.write_text(GOOD + "1 2:0.7390851332zz\n")
    with pytest.raises(BadSource, match=r"line 51: the value of '2:0\.7390851332zz'"):
        run_ingest(str(source), name="d", options=OPTIONS)
    run = newest_run(prefect, "ingest-dataset")
    assert run.state is not None
    assert (run.state.type.value, run.state.name) == ("FAILED", "Refused")
    assert run.state.message == ENDINGS["Refused"]
    assert "7390851332" not in kept_by(prefect)
    assert not any(facts_of(home)[1]["snapshot"])


def run(folder: Path, *kind: str) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.flows.killing", str(folder), *kind],
        capture_output=True,
        text=True,
        env={**os.environ, "DPCA_CLUSTER": "none"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.audit_only
@pytest.mark.parametrize("moments", [8, pytest.param(12, marks=pytest.mark.audit_only)])
def test_an_ingest_killed_at_random_moments_is_invisible_and_the_next_succeeds(tmp_path: Path, moments: int) -> None:
    """Kill ingests of text and triplets at random moments: no partial snapshot, and the next ingest succeeds.

    Each combination of source and action is killed two or three times.
    """
    found = run(tmp_path, "kill", str(moments))
    assert len(found) == moments
    assert all(ending["right"] for ending in found)
    for ending in found:
        before, after = ending["before"], ending["after"]
        assert before["listed"] == len(before["digests"]) <= 1
        assert after["listed"] == 1
        assert set(after["digests"]) == {ending["digest"]}
        assert (after["hidden"], after["unregistered"], after["scratch"], after["notes"]) == ([], [], [], [])
    assert any(ending["before"]["hidden"] for ending in found if ending["resume"])
    assert any(ending["before"]["hidden"] for ending in found if not ending["resume"])


def test_two_processes_that_ingest_one_name_at_once_do_not_harm_each_other(tmp_path: Path) -> None:
    afresh, resumed, contrary = run(tmp_path, "race")
    for found in (afresh, resumed, contrary):
        assert found["right"]
        assert found["listed"] == 1
        assert (found["hidden"], found["unregistered"], found["notes"]) == ([], [], [])
    assert afresh["statuses"] == resumed["statuses"] == [0, 0]
    assert (afresh["new"], resumed["new"]) == (2, 2)
    assert (contrary["statuses"], contrary["new"]) == ([0, 1], 1)


UNIT = "SECRET-17"
PEOPLE = ["7", UNIT, "30", UNIT, "4", "11"]
ERASE_ROWS = np.arange(1.0, 13.0).reshape(6, 2)
# set by anndata


def schema_table(folder: Path) -> list[str | Path]:
    lines = [f"{unit};{row[0]:g};{row[1]:g}" for unit, row in zip(PEOPLE, ERASE_ROWS, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["who;a;b", *lines]) + "\n")
    numeric = "".join(f"  - {{name: {name}, kind: numeric, range: [0, 20], scale: none}}\n" for name in "ab")
    (folder / "schema.yaml").write_text(f"text: {{delimiter: ';'}}\ncolumns:\n  - {{name: who, kind: id}}\n{numeric}")
    return [folder / "rows.csv", "--table-schema", folder / "schema.yaml"]


def unit_column(folder: Path) -> list[str | Path]:
    table = pa.table({"a": ERASE_ROWS[:, 0], "who": PEOPLE, "b": ERASE_ROWS[:, 1]})
    pq.write_table(table, folder / "rows.parquet")
    return [folder / "rows.parquet", "--unit-column", "who", "--max-rows-per-unit", "2"]


def unit_file(folder: Path) -> list[str | Path]:
    np.save(folder / "rows.npy", ERASE_ROWS)
    np.save(folder / "who.npy", np.array(PEOPLE))
    return [folder / "rows.npy", "--units", folder / "who.npy"]


def ratings(folder: Path) -> list[str | Path]:
    lines = [
        f"{unit},{column},{row[column]:g}" for unit, row in zip(PEOPLE, ERASE_ROWS, strict=True) for column in (0, 1)
    ]
    (folder / "rows.csv").write_text("\n".join(["user,film,stars", *lines]) + "\n")
    columns = "row=user,column=film,value=stars"
    return [folder / "rows.csv", "--columns", columns, "--features", "2", "--duplicates", "sum"]


def named_rows(folder: Path) -> list[str | Path]:
    store = ad.AnnData(ERASE_ROWS)
    store.obs_names = PEOPLE
    store.write_h5ad(folder / "rows.h5ad")
    return [folder / "rows.h5ad"]


KINDS = {make.__name__: make for make in (schema_table, unit_column, unit_file, ratings, named_rows)}


def records(name: str) -> list[list[float]]:
    """Return the sum of the rows of each record of a dataset, sorted."""
    catalog = Workspace.read_only().catalog
    dataset = catalog.open(catalog.current(name))
    found = []
    for number in range(dataset.n_blocks):
        block = dataset.read(number)
        dense = np.zeros((len(block.row_ptr) - 1, dataset.n_features))
        dense[np.repeat(np.arange(len(dense)), np.diff(block.row_ptr)), block.indices] = block.values
        found += [dense[first:stop].sum(axis=0).tolist() for first, stop in pairwise(block.record_ptr)]
    return sorted(found)


def ingest(dpca: Command, folder: Path, kind: str, *words: str) -> dict[str, Any]:
    made = dpca("dataset", "ingest", *KINDS[kind](folder), "--name", "visits", "--direct", "--json", *words)
    assert made.status == 0, made.err
    facts: dict[str, Any] = json.loads(made.out)
    return facts


def traces(home: Path) -> list[Path]:
    """Return the files of a home and its state folder whose content or name contains the individual's id."""
    paths = [path for path in home.parent.rglob("*") if home in path.parents or "state" in str(path)]
    known = (UNIT.encode(),)
    return [
        path
        for path in paths
        if UNIT in path.name or (path.is_file() and any(word in path.read_bytes() for word in known))
    ]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_snapshot_lacks_the_individual_and_keeps_all_others(
    home: Path, dpca: Command, tmp_path: Path, kind: str
) -> None:
    before = ingest(dpca, tmp_path, kind)
    whole = records("visits")
    ending = dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes", "--json")
    assert (ending.status, ending.err) == (0, "")
    found = json.loads(ending.out)
    theirs = ERASE_ROWS[[1, 3]].tolist() if kind == "named_rows" else [(ERASE_ROWS[1] + ERASE_ROWS[3]).tolist()]
    assert records("visits") == sorted(row for row in whole if row not in theirs)
    assert found["erased_records"] == len(theirs)
    assert found["replaces"] == before["snapshot"] != found["snapshot"]
    after = json.loads(dpca("dataset", "show", "visits", "--json").out)
    for fact in ("features", "privacy_unit", "max_rows_per_unit", "dtype", "population"):
        assert after[fact] == before[fact]
    assert dpca("dataset", "verify", "visits").status == 0
    assert traces(home) == []
    assert UNIT not in ending.out
    again = dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes").complaint(1)
    assert "does not contain this id" in again
    assert UNIT not in again


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_snapshot_is_that_of_a_source_without_the_individual(
    home: Path, dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    ingest(dpca, tmp_path, kind)
    assert dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes").status == 0
    erased = Workspace.read_only().catalog.current("visits")
    kept = [at for at, unit in enumerate(PEOPLE) if unit != UNIT]
    monkeypatch.setitem(globals(), "PEOPLE", [PEOPLE[at] for at in kept])
    monkeypatch.setitem(globals(), "ERASE_ROWS", ERASE_ROWS[kept])
    ingest(dpca, tmp_path, kind)
    ingested = Workspace.read_only().catalog.current("visits")
    assert (ingested.content_digest, ingested.rows_digest) == (erased.content_digest, erased.rows_digest)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_remaining_traces_are_listed_and_older_snapshots_are_removed_by_one_command(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
    ingest(dpca, tmp_path, "schema_table")
    assert dpca("budget", "open", "visits", "--epsilon", 4, "--delta", 1e-6, "--unit", "who").status == 0
    fit = ("subspace", "fit", "visits", "--components", 1, "--epsilon", 1, "--delta", 1e-7, "--clip-norm", 20)
    assert dpca(*fit, "--publish", "map", "--direct", "--yes").status == 0
    shown = dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes").out
    assert "releases of visits: 1" in shown
    assert "spent budget stays spent" in shown
    assert str(tmp_path / "rows.csv") in shown
    assert "earlier backups" in shown
    assert "dpca dataset remove visits --older --force" in shown
    assert "so its removal must be forced" in dpca("dataset", "remove", "visits", "--older").complaint(1)
    spent = json.loads(dpca("budget", "show", "visits", "--json").out)["spent"]
    current = Workspace.read_only().catalog.current("visits").snapshot
    assert dpca("dataset", "remove", "visits", "--older", "--force").status == 0
    assert [path.name for path in (home / "datasets" / "visits").iterdir() if path.is_dir()] == [current]
    assert json.loads(dpca("budget", "show", "visits", "--json").out)["spent"] == spent
    assert dpca(*fit, "--publish", "map", "--direct", "--yes").status == 0


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_an_erasure_needs_confirmation(home: Path, dpca: Command, tmp_path: Path) -> None:
    before = ingest(dpca, tmp_path, "unit_column")
    refused = dpca("dataset", "erase", "visits", "--unit", UNIT).complaint(1)
    assert "there is no terminal to confirm it" in refused
    assert "without 2 rows of this individual" in refused
    assert Workspace.read_only().catalog.current("visits").snapshot == before["snapshot"]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_rows_without_ids_and_a_dataset_of_one_person_are_refused(home: Path, dpca: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ERASE_ROWS)
    assert dpca("dataset", "ingest", tmp_path / "rows.npy", "--name", "plain", "--direct").status == 0
    assert "have no ids" in dpca("dataset", "erase", "plain", "--unit", "1", "--yes").complaint(1)
    np.save(tmp_path / "who.npy", np.array([3, 3, 3, 3, 3, 3]))
    words = ("--units", tmp_path / "who.npy", "--name", "one", "--allow-shared-rows", "--direct")
    assert dpca("dataset", "ingest", tmp_path / "rows.npy", *words).status == 0
    assert "has no other individual" in dpca("dataset", "erase", "one", "--unit", "3", "--yes").complaint(1)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_a_lost_key_is_refused_with_the_next_step(home: Path, dpca: Command, tmp_path: Path) -> None:
    ingest(dpca, tmp_path, "unit_column")
    (home / "keys" / "owners-visits").unlink()
    assert "ingest it again" in dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes").complaint(1)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_without_the_key_no_guess_of_an_id_can_be_tested(home: Path, dpca: Command, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        made = dpca("dataset", "ingest", *unit_column(tmp_path), "--name", name, "--allow-shared-rows", "--direct")
        assert made.status == 0
        catalog = Workspace.read_only().catalog
        owners = catalog.open(catalog.current(name)).owners(0)
        assert owners is not None
        assert len(np.unique(owners, axis=0)) == 5
        found.append(owners.tolist())
    assert found[0] != found[1], "each population has a key"
    assert {oct(path.stat().st_mode & 0o777) for path in (home / "keys").glob("owners-*")} == {"0o600"}


class Killed(BaseException):
    """Exception that simulates a killed process."""


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
@pytest.mark.parametrize("step", ["SnapshotWriter", "publish", "place.publish"])
def test_a_killed_erasure_keeps_the_current_snapshot_and_can_be_repeated(
    home: Path, dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = ingest(dpca, tmp_path, "schema_table")
    workspace = Workspace.open()
    found = find_unit("visits", UNIT, catalog=workspace.catalog, keys=key_folder())

    def dies(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if step == "place.publish":
            patch.setattr(type(workspace.catalog), "register", dies)
        else:
            patch.setattr(subject, step, dies)
        with pytest.raises(Killed):
            erase_unit(found, catalog=workspace.catalog)
    assert Workspace.read_only().catalog.current("visits").snapshot == before["snapshot"]
    assert dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes").status == 0
    current = Workspace.read_only().catalog.current("visits").snapshot
    folders = {path.name for path in (home / "datasets" / "visits").iterdir() if path.is_dir()}
    assert folders == {before["snapshot"], current}


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_an_erasure_does_not_undo_a_concurrent_ingest(home: Path, dpca: Command, tmp_path: Path) -> None:
    ingest(dpca, tmp_path, "schema_table")
    workspace = Workspace.open()
    found = find_unit("visits", UNIT, catalog=workspace.catalog, keys=key_folder())
    newer = ingest(dpca, tmp_path, "schema_table")
    with pytest.raises(Conflict, match="another snapshot of dataset 'visits' is now current"):
        erase_unit(found, catalog=workspace.catalog)
    assert Workspace.read_only().catalog.current("visits").snapshot == newer["snapshot"]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")
def test_an_erasure_keeps_first_seen_numbers_of_others(home: Path, dpca: Command, tmp_path: Path) -> None:
    first = np.array(["a", "b"])
    np.save(tmp_path / "rows.npy", ERASE_ROWS[:2])
    np.save(tmp_path / "who.npy", first)
    words = ("--units", tmp_path / "who.npy", "--name", "visits", "--direct")
    assert dpca("dataset", "ingest", tmp_path / "rows.npy", *words).status == 0
    np.save(tmp_path / "rows.npy", ERASE_ROWS)
    np.save(tmp_path / "who.npy", np.array(["d", "a", "c", "b", "e", "d"]))
    assert dpca("dataset", "ingest", tmp_path / "rows.npy", *words).status == 0
    assert dpca("dataset", "erase", "visits", "--unit", "a", "--yes").status == 0
    catalog = Workspace.read_only().catalog
    dataset = catalog.open(catalog.current("visits"))
    seen = {
        dataset.read(block).first_seen: len(dataset.read(block).record_ptr) - 1 for block in range(dataset.n_blocks)
    }
    assert list(seen.values()) == [1, 3]
    assert dpca("dataset", "erase", "visits", "--unit", "d", "--yes").status == 0
    assert records("visits") == ERASE_ROWS[2:5].tolist()
