"""Names of columns reach a release and are matched in every format; ids of rows come out beside their scores."""

import json
import shutil
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from flows.cli import main
from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.flows.conftest import Command, isolate

pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")  # by anndata

NAMES = ["age", "hours, weekly", "größe", "gain", "a'b", "loss"]
RANDOM = np.random.default_rng(3)
ROWS = RANDOM.normal(size=(50, 6)) * (RANDOM.random((50, 6)) < 0.7)
ORDER = [5, 2, 0, 4, 1, 3]


def write(path: Path, rows: Any, names: list[str], ids: Any = None) -> Path:
    """Write rows with names of columns, and ids of rows where there are some."""
    frame = pd.DataFrame(rows, columns=names)
    if path.suffix in (".h5ad", ".zarr"):
        index = [f"row{number}" for number in range(len(frame))] if ids is None else [str(one) for one in ids]
        store = anndata.AnnData(np.asarray(rows), obs=pd.DataFrame(index=index), var=pd.DataFrame(index=names))
        if path.suffix == ".h5ad":
            store.write_h5ad(path)
        else:
            store.write_zarr(path)
        return path
    if ids is not None:
        frame.insert(2, "who", ids)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.fixture(scope="module")
def named_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a release of columns with names, as ``map@1``."""
    place = tmp_path_factory.mktemp("named")
    source = write(place.with_name("named.csv"), ROWS, NAMES)
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        assert main(["dataset", "ingest", str(source), "--name", "d", "--features", "6", "--direct"]) == 0
        assert main(["budget", "open", "d", "--epsilon", "2", "--delta", "1e-6"]) == 0
        fit = "subspace fit d --components 3 --epsilon 1 --delta 1e-6 --clip-norm 3 --publish map --direct --yes"
        assert main(fit.split()) == 0
    return place


@pytest.fixture
def named(named_home: Path, home: Path) -> Path:
    shutil.copytree(named_home, home)
    return home


def scores_of(dpca: Command, source: Path, *words: Any) -> tuple[bytes, dict[str, Any]]:
    output = source.with_name("scores.npy")
    ending = dpca("subspace", "transform", "map", source, "--output", output, *words, "--json")
    assert (ending.status, ending.err) == (0, ""), ending
    return np.load(output).tobytes(), json.loads(ending.out)


def test_names_of_the_header_reach_dataset_artifact_and_export(named: Path, dpca: Command, tmp_path: Path) -> None:
    catalog = Workspace.read_only().catalog
    assert catalog.open(catalog.current("d")).feature_names() == tuple(NAMES)
    assert Registry.open().load("map").manifest["feature_names"] == NAMES
    assert dpca("registry", "export", "map", "--format", "npz", "--output", tmp_path / "map.npz").status == 0
    assert json.loads(str(np.load(tmp_path / "map.npz")["manifest"]))["feature_names"] == NAMES


@pytest.mark.parametrize("suffix", ["csv", "parquet", "h5ad", "zarr"])
def test_names_of_every_format_reach_the_dataset(home: Path, dpca: Command, tmp_path: Path, suffix: str) -> None:
    source = write(tmp_path / f"rows.{suffix}", ROWS, NAMES)
    words = ("--features", 6) if suffix == "csv" else ()
    assert dpca("dataset", "ingest", source, "--name", "d", *words, "--direct").status == 0
    catalog = Workspace.read_only().catalog
    assert catalog.open(catalog.current("d")).feature_names() == tuple(NAMES)


@pytest.mark.parametrize("suffix", ["csv", "npy", "h5ad", "zarr"])
def test_declared_names_name_columns_and_never_mix_them(home: Path, dpca: Command, tmp_path: Path, suffix: str) -> None:
    source, listed = tmp_path / f"rows.{suffix}", tmp_path / "names.txt"
    np.save(source, ROWS) if suffix == "npy" else write(source, ROWS, NAMES)
    words = ("dataset", "ingest", source, "--name", "d", "--feature-names", listed, "--direct")
    listed.write_text("\n".join(NAMES[at] for at in ORDER), encoding="utf-8")
    if suffix in ("h5ad", "zarr"):
        assert "are those of the file in another order" in dpca(*words).complaint(1)
        listed.write_text("\n".join(f"gene{at}" for at in range(6)), encoding="utf-8")
    assert dpca(*words).status == 0
    catalog = Workspace.read_only().catalog
    dataset = catalog.open(catalog.current("d"))
    assert dataset.feature_names() == tuple(listed.read_text("utf-8").split("\n"))
    rows = ROWS[:, ORDER] if suffix == "csv" else ROWS  # a table is read by name, a matrix by position
    block = dataset.read(0)
    np.testing.assert_allclose(block.values, rows[rows != 0], rtol=1e-15)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "h5ad", "zarr"])
def test_permuted_columns_give_bit_equal_scores(named: Path, dpca: Command, tmp_path: Path, suffix: str) -> None:
    straight = scores_of(dpca, write(tmp_path / f"straight.{suffix}", ROWS, NAMES))
    assert "permuted" not in straight[1]
    path = write(tmp_path / f"permuted.{suffix}", ROWS[:, ORDER], [NAMES[at] for at in ORDER])
    permuted = scores_of(dpca, path)
    assert permuted[0] == straight[0]
    assert permuted[1]["permuted"] == "from column 'loss' on; matched by name"
    expected = ROWS @ Registry.open().load("map").components.T
    np.testing.assert_allclose(np.frombuffer(permuted[0]).reshape(50, 3), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "h5ad"])
def test_a_missing_column_is_one_line_and_an_unknown_one_too_unless_dropped(
    named: Path, dpca: Command, tmp_path: Path, suffix: str
) -> None:
    words = ("--output", tmp_path / "scores.npy")
    narrow = write(tmp_path / f"narrow.{suffix}", np.delete(ROWS, 3, axis=1), [*NAMES[:3], *NAMES[4:]])
    refused = dpca("subspace", "transform", "map", narrow, *words).complaint(1)
    assert "column 'gain' is missing; this" in refused
    wide = write(tmp_path / f"wide.{suffix}", np.column_stack([ROWS, ROWS[:, 1]]), [*NAMES, "shoe"])
    assert "column 'shoe' is not among the 6" in dpca("subspace", "transform", "map", wide, *words).complaint(1)
    assert not (tmp_path / "scores.npy").exists()
    found = scores_of(dpca, wide, "--drop-others")
    assert found[0] == scores_of(dpca, write(tmp_path / f"rows.{suffix}", ROWS, NAMES))[0]
    assert found[1]["left_out"] == "shoe"


def test_a_first_row_taken_for_names_is_not_shown(named: Path, dpca: Command, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("anna,b,c,d,e,f\n1,2,3,4,5,6\n")
    refused = dpca("subspace", "transform", "map", path, "--output", tmp_path / "s.npy").complaint(1)
    assert "column 'age' and 5 more are missing" in refused
    assert "anna" not in refused


@pytest.mark.parametrize(
    ("suffix", "ids", "kind"),
    [
        ("csv", [f"p{9 - number:03}" for number in range(50)], pa.string()),
        ("parquet", np.arange(50, dtype=np.int32)[::-1], pa.int32()),
        ("parquet", [f"p{9 - number}" for number in range(50)], pa.large_string()),
        ("h5ad", [f"cell{50 - number}" for number in range(50)], pa.string()),
    ],
    ids=["csv", "integers", "text", "anndata"],
)
def test_ids_stand_beside_the_scores_in_their_order_and_type(
    named: Path, dpca: Command, tmp_path: Path, suffix: str, ids: Any, kind: pa.DataType
) -> None:
    source = write(tmp_path / f"rows.{suffix}", ROWS, NAMES, ids)
    words = () if suffix == "h5ad" else ("--id-column", "who")
    output = tmp_path / "scores.parquet"
    assert dpca("subspace", "transform", "map", source, "--output", output, *words).status == 0
    table = pq.read_table(output)
    assert table.column_names == ["id", "component0", "component1", "component2"]
    assert table.column("id").type == kind
    assert table.column("id").to_pylist() == list(ids)
    scores = np.column_stack([table.column(at) for at in (1, 2, 3)])
    assert scores.tobytes() == scores_of(dpca, source, *words)[0]


def test_rows_without_ids_give_scores_alone_and_a_column_that_is_not_there_is_refused(
    named: Path, dpca: Command, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    output = tmp_path / "scores.parquet"
    assert dpca("subspace", "transform", "map", tmp_path / "rows.npy", "--output", output).status == 0
    assert pq.read_table(output).column_names == ["component0", "component1", "component2"]
    words = ("--output", output, "--id-column", "who")
    assert "npy has no columns" in dpca("subspace", "transform", "map", tmp_path / "rows.npy", *words).complaint(1)
    source = write(tmp_path / "rows.csv", ROWS, NAMES)
    assert "no column 'who'" in dpca("subspace", "transform", "map", source, *words).complaint(1)


def test_a_plain_zarr_matrix_goes_by_position(named: Path, dpca: Command, tmp_path: Path) -> None:
    zarr.save_array(tmp_path / "rows.zarr", ROWS)
    straight = scores_of(dpca, write(tmp_path / "rows.h5ad", ROWS, NAMES))[0]
    assert scores_of(dpca, tmp_path / "rows.zarr")[0] == straight
