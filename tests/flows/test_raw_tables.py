"""Raw tables: a schema alone is enough to ingest them, and the release scores the same tables."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.client.orchestration import SyncPrefectClient

from dpca.registry.reader import Registry
from flows.cli import main
from storage.datasets.snapshot_reader import Dataset
from storage.workspace import Workspace
from tests.flows.conftest import Command, facts_of, isolate, kept_by, newest_run
from tests.flows.test_ingest_options import dense
from tests.raw_tables import BANK, CENSUS, NESTED, NULLABLE, REPEATED, TABLES, RawTable


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with a release of each raw table, published under the name of the table."""
    place = tmp_path_factory.mktemp("raw") / "home"
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        for name, table in TABLES.items():
            folder = place.parent / name
            folder.mkdir()
            words = ["--name", name, "--table-schema", str(table.write_schema(folder)), "--direct"]
            assert main(["dataset", "ingest", str(table.write(folder)), *words]) == 0
            unit = (
                [] if table.ids is None else ["--unit", Workspace.read_only().catalog.current(name).privacy_unit.name]
            )
            assert main(["budget", "open", name, "--epsilon", "2", "--delta", "1e-6", *unit]) == 0
            fit = f"subspace fit {name} --components 2 --epsilon 1 --delta 1e-6 --clip-norm 3 --publish {name}"
            assert main([*fit.split(), "--direct", "--yes"]) == 0
    return place


@pytest.fixture
def releases(fitted: Path, home: Path) -> Path:
    shutil.copytree(fitted, home)
    return home


def snapshot(name: str) -> Dataset:
    catalog = Workspace.read_only().catalog
    return catalog.open(catalog.current(name))


def record_rows(table: RawTable) -> Any:
    """Return the rows of a table, sorted by individual if the table has ids."""
    rows = table.rows
    return rows if table.ids is None else rows[np.argsort(np.array(table.ids * REPEATED), kind="stable")]


@pytest.mark.parametrize("name", TABLES)
def test_a_raw_table_is_ingested_by_its_schema_alone(releases: Path, name: str) -> None:
    table, dataset = TABLES[name], snapshot(name)
    assert dataset.feature_names() == table.names
    assert dataset.n_records == len(set(table.ids or range(4 * REPEATED)))
    found = np.array(dense(dataset))
    if table.ids is None:
        np.testing.assert_allclose(found, table.rows, rtol=1e-15, atol=0)
    else:
        expected = {tuple(row) for row in np.round(table.rows, 12).tolist()}
        assert {tuple(row) for row in np.round(found, 12).tolist()} == expected
        assert len(found) == 4 * REPEATED
    dataset.verify()


@pytest.mark.parametrize("name", TABLES)
def test_the_schema_travels_in_the_release_and_bounds_the_norm(releases: Path, dpca: Command, name: str) -> None:
    release = Registry.open().load(name)
    assert list(release.manifest["feature_names"]) == list(TABLES[name].names)
    assert release.encoder.norm_at_most == pytest.approx(TABLES[name].norm, rel=1e-12)
    assert np.linalg.norm(TABLES[name].rows, axis=1).max() <= TABLES[name].norm * (1 + 1e-12)
    shown = json.loads(dpca("dataset", "show", name, "--json").out)
    bound = shown["norm_at_most"]
    assert bound is None if TABLES[name].ids else bound == pytest.approx(TABLES[name].norm, abs=1e-6)
    assert dpca("subspace", "refit", name, "--components", 1, "--publish", "small").status == 0
    assert Registry.open().load("small").manifest["encoder"] == release.manifest["encoder"]


def scores(dpca: Command, name: str, source: Path, *words: Any) -> tuple[pa.Table, dict[str, Any]]:
    output = source.with_name("scores.parquet")
    ending = dpca("transform", name, source, "--output", output, *words, "--json")
    assert (ending.status, ending.err) == (0, ""), ending
    return pq.read_table(output), json.loads(ending.out)


@pytest.mark.parametrize("name", TABLES)
def test_the_same_raw_file_is_scored_with_its_ids(releases: Path, dpca: Command, tmp_path: Path, name: str) -> None:
    table = TABLES[name]
    found, facts = scores(dpca, name, table.write(tmp_path))
    values = np.column_stack([found.column(f"component{at}") for at in range(2)])
    np.testing.assert_allclose(values, table.rows @ Registry.open().load(name).components.T, rtol=1e-12, atol=1e-12)
    assert facts.keys() == {"artifact", "rows", "components", "output"}
    if table.ids is None:
        assert "id" not in found.column_names
    else:
        assert found.column("id").to_pylist() == table.ids * REPEATED
        if table.suffix == ".parquet":
            assert found.column("id").type == dict(table.columns)["patient"].type


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.has_header])
def test_permuted_raw_columns_give_bit_equal_scores(releases: Path, dpca: Command, tmp_path: Path, name: str) -> None:
    table = TABLES[name]
    straight, _ = scores(dpca, name, table.write(tmp_path))
    permuted, facts = scores(dpca, name, table.write(tmp_path, order=range(len(table.columns))[::-1]))
    assert permuted == straight
    assert facts["permuted"].endswith("on; matched by name")


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_raw_column_is_refused_in_one_line(releases: Path, dpca: Command, tmp_path: Path, name: str) -> None:
    table, output = TABLES[name], tmp_path / "scores.npy"
    source = table.write(tmp_path, without=table.needed)
    refused = dpca("transform", name, source, "--output", output).complaint(1)
    expected = f"column '{table.needed}' is missing" if table.has_header else "has 3 fields, but the schema lists 4"
    assert expected in refused
    assert not output.exists()


@pytest.mark.parametrize("table", [CENSUS, NULLABLE], ids=["text", "typed"])
def test_a_column_outside_the_schema_is_refused_or_dropped(
    releases: Path, dpca: Command, tmp_path: Path, table: RawTable
) -> None:
    name = "census" if table is CENSUS else "nullable"
    more = (*table.columns, ("shoe", ["1"] * 4 if table.text else pa.array([1] * 4)))
    source = RawTable(**{**vars(table), "columns": more}).write(tmp_path)
    refused = dpca("transform", name, source, "--output", tmp_path / "s.npy").complaint(1)
    assert "column 'shoe' is not among" in refused
    straight, _ = scores(dpca, name, table.write(tmp_path))
    source = RawTable(**{**vars(table), "columns": more}).write(tmp_path)
    found, facts = scores(dpca, name, source, "--drop-others")
    assert found == straight
    assert facts["left_out"] == "shoe"


def test_a_loaded_release_takes_raw_frames_and_tables(releases: Path, dpca: Command, tmp_path: Path) -> None:
    for name in ("nullable", "nested"):
        table, release = TABLES[name], Registry.open().load(name)
        raw = pq.read_table(table.write(tmp_path))
        expected = release.transform(release.encoder.transform(raw))
        assert release.transform(raw).tobytes() == expected.tobytes()
        frame = raw.to_pandas(types_mapper=pd.ArrowDtype if name == "nested" else None)
        assert release.transform(frame[frame.columns[::-1]]).tobytes() == expected.tobytes()
        np.testing.assert_array_equal(release.encoder.transform(raw), table.rows)


def test_a_bad_row_is_named_by_position_and_rule_without_its_value(home: Path, dpca: Command, tmp_path: Path) -> None:
    schema = CENSUS.write_schema(tmp_path)
    for at, value, rule in (
        (0, "SECRETage", "not a finite number"),
        (3, "SECRETsex", "the schema does not list"),
        (3, "?", "has a missing value; the schema refuses"),
        (5, "SECRET", "the schema does not list"),
    ):
        columns = [
            (name, [*values[:2], value, values[3]] if at == n else values)
            for n, (name, values) in enumerate(CENSUS.columns)
        ]
        source = RawTable(**{**vars(CENSUS), "columns": tuple(columns)}).write(tmp_path)
        refused = dpca("dataset", "ingest", source, "--name", "d", "--table-schema", schema, "--direct").complaint(1)
        assert f"raw.csv: line 4: column {CENSUS.columns[at][0]!r} has a" in refused
        assert rule in refused
        assert "SECRET" not in refused
        words = ("--table-schema", schema, "--on-error", "quarantine", "--direct", "--json")
        ending = dpca("dataset", "ingest", source, "--name", "q", *words)
        report = json.loads(ending.out)
        assert (report["records"], report["quarantined"]) == (4 * REPEATED, REPEATED)
        assert [kind["column"] for kind in report["quarantined_by"]] == [CENSUS.columns[at][0]]
        assert ending.err.startswith("hint: the schema limits the norm of a record to 1000.002")
        assert "SECRET" not in Path(report["path"]).with_name(f"{report['snapshot']}.rejected.csv").read_text()


def test_options_that_repeat_facts_of_a_schema_are_refused(home: Path, dpca: Command, tmp_path: Path) -> None:
    source, schema = BANK.write(tmp_path), BANK.write_schema(tmp_path)
    words = ("dataset", "ingest", source, "--name", "d", "--table-schema", schema, "--direct")
    for given in (("--features", 3), ("--header",), ("--unit-column", "kunde"), ("--public-items",), ("--scale", "x")):
        assert "is given together with a schema" in dpca(*words, *given).complaint(1)
    np.save(tmp_path / "units.npy", np.arange(4 * REPEATED))
    assert "not both" in dpca(*words, "--units", tmp_path / "units.npy").complaint(1)
    np.save(tmp_path / "rows.npy", np.eye(3))
    other = dpca("dataset", "ingest", tmp_path / "rows.npy", "--name", "d", "--table-schema", schema, "--direct")
    assert "a schema is for raw tables" in other.complaint(1)
    assert dpca(*words, "--max-rows-per-unit", 2).status == 0
    assert json.loads(dpca("dataset", "show", "d", "--json").out)["norm_at_most"] == pytest.approx(2 * 2**0.5, abs=1e-6)


def test_prefect_stores_the_name_of_a_schema_and_no_values(
    home: Path, dpca: Command, prefect: SyncPrefectClient, tmp_path: Path
) -> None:
    words = ("--name", "d", "--table-schema", CENSUS.write_schema(tmp_path), "--json")
    assert dpca("dataset", "ingest", CENSUS.write(tmp_path), *words).status == 0
    assert newest_run(prefect, "ingest-dataset").parameters.get("table_schema") is None
    for secret in ("SECRET", "State-gov", str(tmp_path)):
        assert secret not in kept_by(prefect)


def test_an_evaluation_on_another_schema_is_refused(releases: Path, dpca: Command, tmp_path: Path) -> None:
    schema = NESTED.write_schema(tmp_path)
    schema.write_text(NESTED.schema.replace("range: [0, 100]", "range: [0, 150]"))
    words = ("--name", "other", "--table-schema", schema, "--direct")
    assert dpca("dataset", "ingest", NESTED.write(tmp_path), *words).status == 0
    before = facts_of(releases)
    refused = dpca("subspace", "evaluate", "nested", "other").complaint(1)
    assert "were encoded by another schema" in refused
    assert facts_of(releases) == before


def test_sites_with_equal_schemas_release_jointly_and_others_are_refused(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
    source, schema = NESTED.write(tmp_path), NESTED.write_schema(tmp_path)
    for name in ("a", "b", "c"):
        if name == "c":
            schema.write_text(NESTED.schema.replace("range: [0, 100]", "range: [0, 150]"))
        words = ("--name", name, "--table-schema", schema, "--allow-shared-rows", "--direct")
        assert dpca("dataset", "ingest", source, *words).status == 0
        assert dpca("budget", "open", name, "--epsilon", 2, "--delta", 1e-6).status == 0
    fit = "--method dps_pca --components 2 --epsilon 1 --delta 1e-6 --clip-norm 2 --publish joint --direct --yes"
    refused = dpca("sites", "fit", "--datasets", "a,c", *fit.split()).complaint(1)
    assert "the columns of dataset 'c' were encoded by another schema than those of dataset 'a'" in refused
    assert dpca("sites", "fit", "--datasets", "a,b", *fit.split()).status == 0
    assert Registry.open().load("joint").encoder.feature_names == NESTED.names
