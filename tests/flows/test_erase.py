"""One individual is erased from a dataset: a new snapshot without their rows, and no trace of their id."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets import erase as subject
from storage.datasets.erase import erase_unit, find_unit
from storage.errors import Conflict
from storage.home import key_folder
from storage.workspace import Workspace
from tests.flows.conftest import Command

UNIT = "SECRET-17"
PEOPLE = ["7", UNIT, "30", UNIT, "4", "11"]
ROWS = np.arange(1.0, 13.0).reshape(6, 2)
pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")  # anndata


def schema_table(folder: Path) -> list[str | Path]:
    lines = [f"{unit};{row[0]:g};{row[1]:g}" for unit, row in zip(PEOPLE, ROWS, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["who;a;b", *lines]) + "\n")
    numeric = "".join(f"  - {{name: {name}, kind: numeric, range: [0, 20], scale: none}}\n" for name in "ab")
    (folder / "schema.yaml").write_text(f"text: {{delimiter: ';'}}\ncolumns:\n  - {{name: who, kind: id}}\n{numeric}")
    return [folder / "rows.csv", "--table-schema", folder / "schema.yaml"]


def unit_column(folder: Path) -> list[str | Path]:
    table = pa.table({"a": ROWS[:, 0], "who": PEOPLE, "b": ROWS[:, 1]})
    pq.write_table(table, folder / "rows.parquet")
    return [folder / "rows.parquet", "--unit-column", "who", "--max-rows-per-unit", "2"]


def unit_file(folder: Path) -> list[str | Path]:
    np.save(folder / "rows.npy", ROWS)
    np.save(folder / "who.npy", np.array(PEOPLE))
    return [folder / "rows.npy", "--units", folder / "who.npy"]


def ratings(folder: Path) -> list[str | Path]:
    lines = [f"{unit},{column},{row[column]:g}" for unit, row in zip(PEOPLE, ROWS, strict=True) for column in (0, 1)]
    (folder / "rows.csv").write_text("\n".join(["user,film,stars", *lines]) + "\n")
    columns = "row=user,column=film,value=stars"
    return [folder / "rows.csv", "--columns", columns, "--features", "2", "--duplicates", "sum"]


def named_rows(folder: Path) -> list[str | Path]:
    store = ad.AnnData(ROWS)
    store.obs_names = PEOPLE
    store.write_h5ad(folder / "rows.h5ad")
    return [folder / "rows.h5ad"]


KINDS = {make.__name__: make for make in (schema_table, unit_column, unit_file, ratings, named_rows)}


def records(name: str) -> list[list[float]]:
    """Return the sum of the rows of each record, as a bag."""
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
    """Return the files of a home, and of the state next to it, that hold the id of the individual or are named so."""
    paths = [path for path in home.parent.rglob("*") if home in path.parents or "state" in str(path)]
    known = (UNIT.encode(),)
    return [
        path
        for path in paths
        if UNIT in path.name or (path.is_file() and any(word in path.read_bytes() for word in known))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_snapshot_lacks_the_individual_and_holds_all_others_as_they_were(
    home: Path, dpca: Command, tmp_path: Path, kind: str
) -> None:
    before = ingest(dpca, tmp_path, kind)
    whole = records("visits")
    ending = dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes", "--json")
    assert (ending.status, ending.err) == (0, "")
    found = json.loads(ending.out)
    theirs = ROWS[[1, 3]].tolist() if kind == "named_rows" else [(ROWS[1] + ROWS[3]).tolist()]
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
    assert "does not hold this id" in again
    assert UNIT not in again


@pytest.mark.parametrize("kind", KINDS)
def test_the_snapshot_is_that_of_a_source_without_the_individual(
    home: Path, dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    ingest(dpca, tmp_path, kind)
    assert dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes").status == 0
    erased = Workspace.read_only().catalog.current("visits")
    kept = [at for at, unit in enumerate(PEOPLE) if unit != UNIT]
    monkeypatch.setitem(globals(), "PEOPLE", [PEOPLE[at] for at in kept])
    monkeypatch.setitem(globals(), "ROWS", ROWS[kept])
    ingest(dpca, tmp_path, kind)
    ingested = Workspace.read_only().catalog.current("visits")
    assert (ingested.content_digest, ingested.rows_digest) == (erased.content_digest, erased.rows_digest)


def test_what_remains_is_listed_with_what_to_do_and_the_older_snapshots_are_removed_by_one_command(
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
    assert "backups made before" in shown
    assert "dpca dataset remove visits --older --force" in shown
    assert "so removing it needs force" in dpca("dataset", "remove", "visits", "--older").complaint(1)
    spent = json.loads(dpca("budget", "show", "visits", "--json").out)["spent"]
    current = Workspace.read_only().catalog.current("visits").snapshot
    assert dpca("dataset", "remove", "visits", "--older", "--force").status == 0
    assert [path.name for path in (home / "datasets" / "visits").iterdir() if path.is_dir()] == [current]
    assert json.loads(dpca("budget", "show", "visits", "--json").out)["spent"] == spent
    assert dpca(*fit, "--publish", "map", "--direct", "--yes").status == 0


def test_nothing_is_done_without_a_yes(home: Path, dpca: Command, tmp_path: Path) -> None:
    before = ingest(dpca, tmp_path, "unit_column")
    refused = dpca("dataset", "erase", "visits", "--unit", UNIT).complaint(1)
    assert "no terminal can confirm it" in refused
    assert "without 2 rows of this individual" in refused
    assert Workspace.read_only().catalog.current("visits").snapshot == before["snapshot"]


def test_rows_without_ids_and_a_dataset_of_one_person_are_refused(home: Path, dpca: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    assert dpca("dataset", "ingest", tmp_path / "rows.npy", "--name", "plain", "--direct").status == 0
    assert "have no ids" in dpca("dataset", "erase", "plain", "--unit", "1", "--yes").complaint(1)
    np.save(tmp_path / "who.npy", np.array([3, 3, 3, 3, 3, 3]))
    words = ("--units", tmp_path / "who.npy", "--name", "one", "--allow-shared-rows", "--direct")
    assert dpca("dataset", "ingest", tmp_path / "rows.npy", *words).status == 0
    assert "holds no other individual" in dpca("dataset", "erase", "one", "--unit", "3", "--yes").complaint(1)


def test_a_lost_key_is_refused_with_the_next_step(home: Path, dpca: Command, tmp_path: Path) -> None:
    ingest(dpca, tmp_path, "unit_column")
    (home / "keys" / "owners-visits").unlink()
    assert "ingest it again" in dpca("dataset", "erase", "visits", "--unit", UNIT, "--yes").complaint(1)


def test_whoever_has_the_rows_and_not_the_key_cannot_test_a_guess_of_an_id(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
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
    """The process ends here."""


@pytest.mark.parametrize("step", ["SnapshotWriter", "publish", "place.publish"])
def test_a_killed_erasure_leaves_the_current_snapshot_and_is_done_again(
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


def test_an_ingest_in_between_is_not_undone(home: Path, dpca: Command, tmp_path: Path) -> None:
    ingest(dpca, tmp_path, "schema_table")
    workspace = Workspace.open()
    found = find_unit("visits", UNIT, catalog=workspace.catalog, keys=key_folder())
    newer = ingest(dpca, tmp_path, "schema_table")
    with pytest.raises(Conflict, match="another snapshot of dataset 'visits' is current"):
        erase_unit(found, catalog=workspace.catalog)
    assert Workspace.read_only().catalog.current("visits").snapshot == newer["snapshot"]


def test_individuals_keep_when_they_were_first_seen(home: Path, dpca: Command, tmp_path: Path) -> None:
    first = np.array(["a", "b"])
    np.save(tmp_path / "rows.npy", ROWS[:2])
    np.save(tmp_path / "who.npy", first)
    words = ("--units", tmp_path / "who.npy", "--name", "visits", "--direct")
    assert dpca("dataset", "ingest", tmp_path / "rows.npy", *words).status == 0
    np.save(tmp_path / "rows.npy", ROWS)
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
    assert records("visits") == ROWS[2:5].tolist()
