"""Every option of ``dpca dataset ingest`` and ``export``, as given on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from dpca.backends.local import LocalPlace
from storage.datasets.catalog import Catalog
from storage.datasets.snapshot_reader import Dataset
from storage.formats.registry import FORMATS
from storage.workspace import Workspace
from tests.flows.conftest import Command, facts_of, kept_by, newest_run

VISITS = """\
user,item,rating
u2,pear,1
u1,apple,2
u2,fig,3
u1,pear,4
u2,apple,5
u3,fig,6
"""
ITEMS = "apple\npear\nfig\n"
RATINGS = ("--columns", "row=user,column=item,value=rating")


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Write a file of triplets with text ids, and the list of items."""
    (tmp_path / "items.txt").write_text(ITEMS)
    path = tmp_path / "visits.csv"
    path.write_text(VISITS)
    return path


def ingested(dpca: Command, *words: Any) -> tuple[dict[str, Any], Dataset]:
    """Ingest files as dataset ``d``; return the report and the snapshot."""
    ending = dpca("dataset", "ingest", *words, "--name", "d", "--direct", "--json")
    assert (ending.status, ending.err) == (0, ""), ending
    ledger = Workspace.open().ledger
    catalog = Catalog(ledger.engine, ledger.home, LocalPlace(ledger.home))
    dataset = catalog.open(catalog.current("d"))
    ledger.engine.dispose()
    return json.loads(ending.out), dataset


def dense(dataset: Dataset) -> list[list[float]]:
    """Return the rows of a dataset with a single block, as lists."""
    block = dataset.read(0)
    parts = (block.values.astype(np.float64), block.indices.astype(np.int64), block.row_ptr)
    rows: list[list[float]] = (
        sparse.csr_array(parts, shape=(len(block.row_ptr) - 1, dataset.n_features)).toarray().tolist()
    )
    return rows


def test_triplets_with_names_of_columns_and_items(dpca: Command, visits: Path) -> None:
    report, dataset = ingested(dpca, visits, "--feature-names", visits.with_name("items.txt"), *RATINGS)
    assert (report["rows"], report["records"], report["privacy_unit"]) == (3, 3, "row")
    assert dense(dataset) == [[2, 4, 0], [5, 1, 3], [0, 0, 6]]
    assert dataset.feature_names() == ("apple", "pear", "fig")


def test_public_items_are_taken_from_the_rows(dpca: Command, visits: Path) -> None:
    _, dataset = ingested(dpca, visits, "--public-items", *RATINGS)
    assert dataset.feature_names() == ("apple", "fig", "pear")
    assert dense(dataset) == [[2, 0, 4], [5, 3, 1], [0, 6, 0]]


def test_rows_of_one_individual_are_one_record(dpca: Command, tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text("who,a,b\nann,1,0\nbob,2,0\nann,3,0\nann,0,4\n")
    words = (tmp_path / "wide.csv", "--features", 2, "--unit-column", "who")
    report, dataset = ingested(dpca, *words)
    assert (report["rows"], report["records"], report["privacy_unit"]) == (4, 2, "who")
    assert dense(dataset) == [[1, 0], [3, 0], [0, 4], [2, 0]]
    assert dataset.read(0).record_ptr.tolist() == [0, 3, 4]
    report, dataset = ingested(dpca, *words, "--max-rows-per-unit", 2)
    assert (report["rows"], report["max_rows_per_unit"]) == (3, 2)
    assert dense(dataset) == [[1, 0], [3, 0], [2, 0]]


def test_a_file_of_ids_assigns_rows_to_individuals(dpca: Command, tmp_path: Path, rows_file: Path) -> None:
    np.save(tmp_path / "owners.npy", np.arange(60) % 7)
    report, dataset = ingested(dpca, rows_file, "--features", 6, "--units", tmp_path / "owners.npy")
    assert (report["rows"], report["records"], report["privacy_unit"]) == (60, 7, "unit")
    assert np.diff(dataset.read(0).record_ptr).tolist() == [9, 9, 9, 9, 8, 8, 8]


def test_a_declared_density_is_kept_and_read_with_each_block(dpca: Command, rows_file: Path) -> None:
    for words, density in (((), None), (("--density", 0.5), 0.5)):
        report, dataset = ingested(dpca, rows_file, "--features", 6, *words)
        assert (report["density"], dataset.read(0).density) == (density, density)
    refused = dpca("dataset", "ingest", rows_file, "--features", 6, "--density", 1.5, "--name", "e", "--direct")
    assert "density" in refused.complaint(2)


def test_a_public_scale_is_applied_and_one_from_the_rows_refused(dpca: Command, visits: Path) -> None:
    visits.with_name("scale.txt").write_text("0.5\n2\n1\n")
    words = (visits, "--feature-names", visits.with_name("items.txt"), *RATINGS)
    _, dataset = ingested(dpca, *words, "--scale", visits.with_name("scale.txt"))
    assert dense(dataset) == [[1, 8, 0], [2.5, 2, 3], [0, 0, 6]]
    refused = dpca("dataset", "ingest", *words, "--scale", "std", "--name", "e", "--direct")
    assert "reveal them outside the budget" in refused.complaint(1)


@pytest.mark.parametrize("named", ["folder", "pattern", "each"])
def test_several_files_are_one_source(dpca: Command, tmp_path: Path, named: str) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        (folder / f"part-{part}.svm").write_text(f"1 1:{part + 1}\n")
    words = {"folder": [folder], "pattern": [folder / "part-*.svm"], "each": sorted(folder.iterdir())}[named]
    _, dataset = ingested(dpca, *words, "--features", 1)
    assert dense(dataset) == [[1], [2], [3]]


def test_bad_rows_become_empty_records_and_their_positions_are_reported_privately(
    dpca: Command, tmp_path: Path
) -> None:
    (tmp_path / "rows.svm").write_text("1 1:1\n1 1:nan\n1 9:1\n1 2:2\n")
    words = (tmp_path / "rows.svm", "--features", 2, "--on-error")
    assert "line 2" in dpca("dataset", "ingest", *words, "fail", "--name", "d", "--direct").complaint(1)
    report, dataset = ingested(dpca, *words, "quarantine")
    assert (report["records"], report["rows"], report["quarantined"]) == (4, 4, 2)
    assert [(kind["rows"], kind["column"]) for kind in report["quarantined_by"]] == [(1, None), (1, None)]
    notes = Path(report["path"]).with_name(f"{report['snapshot']}.rejected.csv")
    assert notes.stat().st_mode & 0o777 == 0o600
    noted = notes.read_text().splitlines()
    assert noted[0] == "file,place,number,reason,column"
    assert [line.split(",")[1:3] for line in noted[1:]] == [["line", "2"], ["line", "3"]]
    assert dense(dataset) == [[1, 0], [0, 0], [0, 0], [0, 2]]
    assert dpca("dataset", "remove", "d").status == 0
    assert not notes.parent.exists()


def test_an_explicit_format_is_used_if_the_file_name_has_no_known_suffix(dpca: Command, visits: Path) -> None:
    plain = visits.rename(visits.with_name("visits"))
    words = (plain, "--feature-names", visits.with_name("items.txt"), *RATINGS)
    assert "give --format" in dpca("dataset", "ingest", *words, "--name", "d", "--direct").complaint(1)
    _, dataset = ingested(dpca, *words, "--format", "csv")
    assert dense(dataset) == [[2, 4, 0], [5, 1, 3], [0, 0, 6]]


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (("--columns", "user"), 2, "row=NAME,column=NAME,value=NAME"),
        (("--columns", "who=user"), 1, "the roles in columns are who"),
        (("--columns", "row=user,column=user,value=rating"), 1, "has two roles"),
        (("--columns", "row=nobody"), 1, "no column 'nobody'"),
        (("--unit-column", "nobody"), 1, "no column 'nobody'"),
        (("--max-rows-per-unit", "3"), 1, "requires the individual of each row"),
        (("--units", "none.npy", "--unit-column", "user"), 1, "not both"),
        (("--format", "xlsx"), 1, "is not one of"),
        (("--on-error", "ignore"), 1, "is not one of"),
        (("--feature-names", "none.txt"), 1, "cannot be read"),
    ],
)
def test_inconsistent_options_are_refused_without_leftovers(
    ready: Path, dpca: Command, visits: Path, words: tuple[str, ...], status: int, complaint: str
) -> None:
    before, folders = facts_of(ready), sorted(ready.rglob("*"))
    ending = dpca("dataset", "ingest", visits, "--features", 3, *words, "--name", "e", "--direct")
    assert complaint in ending.complaint(status)
    assert facts_of(ready) == before
    assert sorted(ready.rglob("*")) == folders


def test_exports_are_read_by_other_programs_and_by_dpca(dpca: Command, tmp_path: Path, rows_file: Path) -> None:
    report, dataset = ingested(dpca, rows_file, "--features", 6)
    for format in ("npz", "svmlight", "parquet", "h5ad"):  # noqa: A001
        output = tmp_path / f"out.{format}"
        reported = dpca("dataset", "export", "d", "--format", format, "--output", output, "--json")
        assert json.loads(reported.out) == {"dataset": "d", "format": format, "output": str(output)}
        back, _ = ingested(dpca, output, "--features", 6, "--format", format)
        assert back["content_digest"] == report["content_digest"]
    assert sparse.load_npz(tmp_path / "out.npz").toarray().tolist() == dense(dataset)
    assert load_svmlight_file(str(tmp_path / "out.svmlight"), n_features=6)[0].toarray().tolist() == dense(dataset)
    again = dpca("dataset", "export", "d", "--format", "npz", "--output", tmp_path / "out.npz")
    assert "never overwrites a file" in again.complaint(1)
    assert "is not one of" in dpca("dataset", "export", "d", "--format", "csv", "--output", tmp_path / "x").complaint(1)


def test_prefect_stores_neither_ids_nor_bad_rows(
    home: Path, dpca: Command, prefect: SyncPrefectClient, tmp_path: Path
) -> None:
    (tmp_path / "wide.csv").write_text("who,a,b\nann-tadmor,1,0\nbob-tadmor,zz-tadmor,0\nann-tadmor,3,7\n")
    words = ("--name", "d", "--features", 2, "--unit-column", "who", "--on-error", "quarantine", "--json")
    ending = dpca("dataset", "ingest", tmp_path / "wide.csv", *words)
    report = json.loads(ending.out)
    assert (report["records"], report["rows"], report["quarantined"]) == (2, 3, 1)
    run = newest_run(prefect, "ingest-dataset")
    assert (run.state_name, run.parameters["unit_column"]) == ("Completed", "who")
    for secret in ("tadmor", report["content_digest"]):
        assert secret not in kept_by(prefect)


def test_similar_ids_are_reported_to_the_curator_alone(
    dpca: Command, prefect: SyncPrefectClient, tmp_path: Path
) -> None:
    (tmp_path / "wide.csv").write_text("who,a,b\n7,1,0\n07,2,0\nzenobia-palmyra,3,0\n zenobia-palmyra,4,0\nyan,5,0\n")
    words = ("--name", "d", "--features", 2, "--unit-column", "who", "--json")
    ending = dpca("dataset", "ingest", tmp_path / "wide.csv", *words)
    assert ending.status == 0, ending.err
    (line,) = (line for line in ending.err.splitlines() if line.startswith("warning: "))
    assert line.startswith(
        "warning: 2 ids of individuals in 'd' differ from another id only in a sign + or leading zeros"
    )
    assert "zenobia-palmyra" not in ending.err
    assert json.loads(ending.out)["records"] == 4
    assert not any(secret in kept_by(prefect) for secret in ("differ from another", "zenobia-palmyra"))


def test_a_lost_table_of_first_seen_ids_is_reported_in_one_line(home: Path, dpca: Command, tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text("who,a\nann,1\nbob,2\n")
    words = (
        "dataset",
        "ingest",
        tmp_path / "wide.csv",
        "--name",
        "d",
        "--features",
        1,
        "--unit-column",
        "who",
        "--direct",
    )
    assert "warning" not in dpca(*words).err
    (key,) = (home / "keys").glob("arrivals-*")
    key.unlink()
    ending = dpca(*words)
    assert ending.status == 0, ending.err
    (line,) = (line for line in ending.err.splitlines() if line.startswith("warning: "))
    assert line.startswith("warning: the table of the first arrival of each individual of 'd' is lost or damaged, so a")
    assert "ann" not in ending.err + ending.out
    assert "warning" not in dpca(*words).err


def test_rows_of_another_population_are_refused_in_one_line_without_their_digest(
    dpca: Command, rows_file: Path
) -> None:
    words = ("dataset", "ingest", rows_file, "--features", 6, "--direct")
    first = json.loads(dpca(*words, "--name", "people", "--json").out)
    line = dpca(*words, "--name", "others").complaint(1)
    assert "equal the rows of dataset 'people' of population 'people'" in line
    assert first["content_digest"][:8] not in line
    assert dpca(*words, "--name", "others", "--population", "people").status == 0
    assert dpca(*words, "--name", "again", "--allow-shared-rows").status == 0


def test_a_budget_whose_delta_grew_too_large_is_reported_to_the_curator(dpca: Command, rows_file: Path) -> None:
    words = ("dataset", "ingest", rows_file, "--name", "people", "--features", 6, "--direct")
    assert dpca(*words, "--records-at-most", 100).err == ""
    assert dpca("budget", "open", "people", "--epsilon", 1, "--delta", 1e-3).status == 0
    assert dpca(*words, "--records-at-most", 100).err == ""
    warned = dpca(*words, "--records-at-most", 5000)
    assert warned.status == 0
    assert warned.err.startswith(
        "warning: the budget of 'people' has a delta that is not below 1/records for the declared"
    )


def test_help_names_every_format_option_and_default(dpca: Command) -> None:
    shown = " ".join(dpca("dataset", "ingest", "--help").out.split())
    for part in (
        *(
            *FORMATS,
            "s3://",
            ".gz",
            ".zst",
        ),
        *("--unit-column", "--units", "--max-rows-per-unit", "--feature-names", "--public-items", "--scale"),
        *("--on-error", "quarantine", "--resume", "--block-nnz", "--dtype", "--records-at-most", "--format"),
    ):
        assert part in shown
