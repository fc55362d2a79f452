"""Ingest through the command and the flow: what it reports, and what it leaves when the source is bad."""

import gzip
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient
from scipy import sparse

from flows.ingest import ingest_dataset, run_ingest
from flows.orchestration.prefect_stages import ENDINGS
from storage.datasets.catalog import Catalog
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.kept_sources import find_source
from storage.errors import BadSource, Invalid, NotFound
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
    "beyond-features": (GOOD + "1 7:1\n", "line 51: '7:1' lies beyond the 6 declared features"),
}


def ending_of(source: str, name: str, **options: Any) -> str | None:
    """Run the flow as a deployment calls it; name the state in which it ends."""
    state: Any = ingest_dataset(source, name, **options, return_state=True)
    ended: str | None = state.name
    return ended


@pytest.mark.parametrize("case", sorted(BAD_TEXT))
@pytest.mark.parametrize("suffix", [".svm", ".svm.gz"])
def test_a_bad_source_is_refused_in_one_line_and_leaves_nothing(
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


def test_a_missing_or_cut_source_is_refused_and_leaves_nothing(ready: Path, dpca: Command, tmp_path: Path) -> None:
    cut, plain, zipped = tmp_path / "cut.svm.gz", tmp_path / "plain.svm.gz", tmp_path / "cut.npz"
    cut.write_bytes(gzip.compress(GOOD.encode() * 20)[:-9])
    plain.write_text(GOOD)
    sparse.save_npz(zipped, sparse.csr_array(np.eye(FEATURES)))
    zipped.write_bytes(zipped.read_bytes()[:-30])
    (tmp_path / "nothing").mkdir()
    before = facts_of(ready)
    for source, complaint in (
        (tmp_path / "gone.svm", "no such file"),
        (tmp_path / "nothing", "no file is there"),
        (cut, "cut short or corrupt"),
        (plain, "the content is not gzip"),
        (zipped, "no readable .npz archive"),
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


def test_a_name_stays_with_its_population(ready: Path, dpca: Command, rows_file: Path) -> None:
    words = ("--name", "people", "--population", "others", "--features", FEATURES, "--direct", "--json")
    before = facts_of(ready)
    assert "belongs to population 'people' for ever" in dpca("dataset", "ingest", rows_file, *words).complaint(1)
    assert facts_of(ready) == before


def test_the_report_has_the_promised_fields_and_show_list_verify_agree(
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
    assert "needs force" in dpca("dataset", "remove", "people", "--json").complaint(1)
    assert facts_of(released) == before
    removed = json.loads(dpca("dataset", "remove", "people", "--force", "--json").out)["removed"]
    assert len(removed) == 1
    assert not list(released.glob("datasets/people/*/zarr.json"))
    assert json.loads(dpca("budget", "show", "people", "--json").out)["spent"] == pytest.approx(1.0)


def test_unknown_datasets_are_named(ready: Path, dpca: Command) -> None:
    for verb in ("show", "verify", "remove"):
        assert "no dataset is named 'nobody'" in dpca("dataset", verb, "nobody", "--json").complaint(1)


def test_the_flow_ingests_and_tells_prefect_names_alone(
    home: Path, prefect: SyncPrefectClient, rows_file: Path
) -> None:
    report = run_ingest(str(rows_file), name="d", options=OPTIONS)
    assert (report["records"], report["features"]) == (ROWS, FEATURES)
    run = newest_run(prefect, "ingest-dataset")
    assert (run.state_name, run.parameters["source"]) == ("Completed", "@d")
    for secret in (report["content_digest"], str(rows_file), rows_file.name):
        assert secret not in kept_by(prefect)


def test_no_file_of_an_ingest_is_told_to_prefect_and_a_schedule_needs_none(
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
    told = tmp_path / "told.svm"
    told.write_bytes(rows_file.read_bytes())
    assert ending_of(str(told), "given", features=FEATURES) == "Completed"
    assert not (home / "sources").exists()
    assert ending_of("@given", "given", features=FEATURES) == "Refused"


def test_a_failed_ingest_keeps_the_source_of_the_one_before(home: Path, rows_file: Path, tmp_path: Path) -> None:
    run_ingest(str(rows_file), name="d", direct=True, options=OPTIONS)
    bad = tmp_path / "bad.svm"
    bad.write_text("1 1:x\n")
    with pytest.raises(BadSource):
        run_ingest(str(bad), name="d", direct=True, options=OPTIONS)
    assert find_source(home, "@d")["source"] == str(rows_file)
    for unknown in ("@e", "@../d"):
        with pytest.raises((NotFound, Invalid)):
            find_source(home, unknown)


def test_the_flow_of_a_bad_source_ends_as_refused_without_saying_why(
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
