"""Command ``dpca transform``: rows are projected from every format, and invalid input is refused.

Names of columns reach a release and are matched in every format, and ids of rows appear next to their scores. Published
components are listed, and weighed for new rows; artifacts without components are refused in one line.
"""

import errno
import json
import os
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
from scipy import sparse

from dpca.artifacts.files import write_artifact
from dpca.artifacts.tensor import TensorComponents
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from flows.cli import main
from storage.formats.registry import FORMATS
from storage.workspace import Workspace
from tests.flows.conftest import Command, isolate

DENSE = np.array([[1.0, 0, 0.5, 0, 0, 0.25], [0, 0, 0, 0, 0, 0], [-2, 3, 0, 0, 1e-3, 0]])


def _write(kind: str, folder: Path) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "npy":
        np.save(path, DENSE)
    elif kind == "npz":
        sparse.save_npz(path, sparse.csr_array(DENSE))
    else:
        lines = (" ".join(f"{at + 1}:{value!r}" for at, value in enumerate(row.tolist()) if value) for row in DENSE)
        path.write_text("".join(f"1 {line}\n" for line in lines))
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "svm"])
@pytest.mark.parametrize("reference", ["sub", "sub@1"])
def test_scores_are_rows_times_components(
    released: Path, dpca: Command, tmp_path: Path, kind: str, reference: str
) -> None:
    output = tmp_path / "scores.npy"
    ending = dpca("transform", reference, _write(kind, tmp_path), "--output", output, "--json")
    assert (ending.status, ending.err) == (0, "")
    assert json.loads(ending.out) == {"artifact": "sub@1", "rows": 3, "components": 2, "output": str(output)}
    scores = np.load(output, allow_pickle=False)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, DENSE @ Registry.open().load("sub").components.T, rtol=0, atol=1e-12)


def test_a_consumer_needs_the_registry_alone(
    released: Path, dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(released / "registry", elsewhere / "registry")
    monkeypatch.setenv("DPCA_HOME", str(elsewhere))
    monkeypatch.setenv("DPCA_DATABASE_URL", "sqlite:////proc/nothing")
    assert dpca("transform", "sub", _write("npy", tmp_path), "--output", tmp_path / "o.npy").status == 0
    assert dpca("registry", "verify", "sub").status == 0
    assert [path.name for path in elsewhere.iterdir()] == ["registry"]


def test_bad_rows_are_refused_and_an_existing_output_is_kept(released: Path, dpca: Command, tmp_path: Path) -> None:
    output = tmp_path / "scores.npy"
    output.write_bytes(b"older")
    files = {
        "gone.npy": (None, "no such file"),
        "text.npy": (b"not numpy", "not a .npy matrix"),
        "gone.svm": (None, "no such file"),
        "empty.svm": (b"", "is empty"),
        "word.svm": (b"1 1:1\n1 2:two\n", "line 2: the value of '2:two' is not a number"),
        "wide.svm": (b"1 7:1\n", "is beyond the 6 declared features"),
        "zip.npz": (b"PK\x03\x04", "not a readable .npz archive"),
    }
    arrays = {
        "narrow.npy": (np.ones((2, 5)), "has 5 columns"),
        "flat.npy": (np.ones(6), "is 1-D"),
        "nan.npy": (np.full((1, 6), np.nan), "NaN or infinity"),
        "words.npy": (np.full((1, 6), "a"), "must hold real numbers"),
    }
    cases = []
    for name, (content, complaint) in files.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        cases.append((name, complaint))
    for name, (array, complaint) in arrays.items():
        np.save(tmp_path / name, array)
        cases.append((name, complaint))
    for name, complaint in cases:
        ending = dpca("transform", "sub", tmp_path / name, "--output", output, "--json")
        assert complaint in ending.complaint(1)
    assert output.read_bytes() == b"older"


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_an_output_that_cannot_be_written_completely_keeps_its_content(
    dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    output, rows = tmp_path / f"scores{suffix}", _write("npy", tmp_path)
    output.write_bytes(b"older")
    monkeypatch.setattr(os, "fsync", fail)
    assert "No space left on device" in dpca("transform", "sub", rows, "--output", output).complaint(1)
    assert output.read_bytes() == b"older"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted([output.name, rows.name])


def test_a_bad_output_or_reference_is_refused(released: Path, dpca: Command, tmp_path: Path) -> None:
    rows = _write("npy", tmp_path)
    for reference, output, complaint in (
        ("sub", tmp_path / "scores.txt", "must be a .npy file"),
        ("sub", tmp_path / "no" / "scores.npy", "in an existing folder"),
        ("sub", "/proc/scores.npy", "cannot be written"),
        ("sub@2", tmp_path / "scores.npy", "sub has no version 2"),
        ("sub@champion", tmp_path / "scores.npy", "sub has no alias 'champion'"),
        ("other", tmp_path / "scores.npy", "'other' does not exist"),
    ):
        assert complaint in dpca("transform", reference, rows, "--output", output, "--json").complaint(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "rows.npy"]


def test_files_with_any_name_are_projected_if_their_format_is_stated(
    released: Path, dpca: Command, tmp_path: Path
) -> None:
    scores = {}
    lines = [",".join(map(repr, row)) for row in DENSE.tolist()]
    _write("svm", tmp_path).rename(tmp_path / "rows")
    (tmp_path / "rows.csv").write_text("\n".join([*lines, ""]))
    (tmp_path / "named.csv").write_text("\n".join(["a,b,c,d,e,f", *lines, ""]))
    words = ("--output", tmp_path / "scores.npy", "--json")
    for name, option in (("rows", ("--format", "svmlight")), ("rows.csv", ("--no-header",)), ("named.csv", ())):
        if option:
            refused = dpca("transform", "sub", tmp_path / name, *words).complaint(1)
            assert option[0] in refused
        assert dpca("transform", "sub", tmp_path / name, *option, *words).status == 0
        scores[name] = np.load(tmp_path / "scores.npy")
    for found in scores.values():
        np.testing.assert_allclose(found, DENSE @ Registry.open().load("sub").components.T, rtol=0, atol=1e-12)


def test_help_names_the_formats(dpca: Command) -> None:
    shown = dpca("transform", "--help").out
    assert all(name in shown for name in (*FORMATS, ".svm", "--format"))


def test_a_pipe_is_refused_as_a_matrix(released: Path, dpca: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.npy")
    words = ("--output", tmp_path / "scores.npy")
    assert "not a .npy matrix" in dpca("transform", "sub", tmp_path / "rows.npy", *words).complaint(1)


# set by anndata

NAMES = ["age", "hours, weekly", "größe", "gain", "a'b", "loss"]
RANDOM = np.random.default_rng(3)
ROWS = RANDOM.normal(size=(50, 6)) * (RANDOM.random((50, 6)) < 0.7)
ORDER = [5, 2, 0, 4, 1, 3]


def write(path: Path, rows: Any, names: list[str], ids: Any = None) -> Path:
    """Write rows to a file, with names of columns, and with ids of rows if ``ids`` is given."""
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
    """Return a home with a release of named columns, published as ``map@1``."""
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
    ending = dpca("transform", "map", source, "--output", output, *words, "--json")
    assert (ending.status, ending.err) == (0, ""), ending
    return np.load(output).tobytes(), json.loads(ending.out)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_names_of_the_header_reach_dataset_artifact_and_export(named: Path, dpca: Command, tmp_path: Path) -> None:
    catalog = Workspace.read_only().catalog
    assert catalog.open(catalog.current("d")).feature_names() == tuple(NAMES)
    assert Registry.open().load("map").manifest["feature_names"] == NAMES
    assert dpca("registry", "export", "map", "--format", "npz", "--output", tmp_path / "map.npz").status == 0
    assert json.loads(str(np.load(tmp_path / "map.npz")["manifest"]))["feature_names"] == NAMES


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
@pytest.mark.parametrize("suffix", ["csv", "parquet", "h5ad", "zarr"])
def test_names_of_every_format_reach_the_dataset(home: Path, dpca: Command, tmp_path: Path, suffix: str) -> None:
    source = write(tmp_path / f"rows.{suffix}", ROWS, NAMES)
    words = ("--features", 6) if suffix == "csv" else ()
    assert dpca("dataset", "ingest", source, "--name", "d", *words, "--direct").status == 0
    catalog = Workspace.read_only().catalog
    assert catalog.open(catalog.current("d")).feature_names() == tuple(NAMES)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
@pytest.mark.parametrize("suffix", ["csv", "npy", "h5ad", "zarr"])
def test_declared_names_name_columns_and_never_mix_them(home: Path, dpca: Command, tmp_path: Path, suffix: str) -> None:
    source, listed = tmp_path / f"rows.{suffix}", tmp_path / "names.txt"
    np.save(source, ROWS) if suffix == "npy" else write(source, ROWS, NAMES)
    words = ("dataset", "ingest", source, "--name", "d", "--feature-names", listed, "--direct")
    listed.write_text("\n".join(NAMES[at] for at in ORDER), encoding="utf-8")
    if suffix in ("h5ad", "zarr"):
        assert "are the file's names in another order" in dpca(*words).complaint(1)
        listed.write_text("\n".join(f"gene{at}" for at in range(6)), encoding="utf-8")
    assert dpca(*words).status == 0
    catalog = Workspace.read_only().catalog
    dataset = catalog.open(catalog.current("d"))
    assert dataset.feature_names() == tuple(listed.read_text("utf-8").split("\n"))
    # columns of a table are read by name, columns of a matrix by position
    rows = ROWS[:, ORDER] if suffix == "csv" else ROWS
    block = dataset.read(0)
    np.testing.assert_allclose(block.values, rows[rows != 0], rtol=1e-15)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
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


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
@pytest.mark.parametrize("suffix", ["csv", "parquet", "h5ad"])
def test_missing_and_unknown_columns_are_refused_in_one_line(
    named: Path, dpca: Command, tmp_path: Path, suffix: str
) -> None:
    words = ("--output", tmp_path / "scores.npy")
    narrow = write(tmp_path / f"narrow.{suffix}", np.delete(ROWS, 3, axis=1), [*NAMES[:3], *NAMES[4:]])
    refused = dpca("transform", "map", narrow, *words).complaint(1)
    assert "column 'gain' is missing; this" in refused
    wide = write(tmp_path / f"wide.{suffix}", np.column_stack([ROWS, ROWS[:, 1]]), [*NAMES, "shoe"])
    assert "column 'shoe' is not among the 6" in dpca("transform", "map", wide, *words).complaint(1)
    assert not (tmp_path / "scores.npy").exists()
    found = scores_of(dpca, wide, "--drop-others")
    assert found[0] == scores_of(dpca, write(tmp_path / f"rows.{suffix}", ROWS, NAMES))[0]
    assert found[1]["left_out"] == "shoe"


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_a_first_row_read_as_column_names_is_not_printed(named: Path, dpca: Command, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("anna,b,c,d,e,f\n1,2,3,4,5,6\n")
    refused = dpca("transform", "map", path, "--output", tmp_path / "s.npy").complaint(1)
    assert "column 'age' and 5 more are missing" in refused
    assert "anna" not in refused


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
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
def test_ids_are_written_with_the_scores_in_their_order_and_type(
    named: Path, dpca: Command, tmp_path: Path, suffix: str, ids: Any, kind: pa.DataType
) -> None:
    source = write(tmp_path / f"rows.{suffix}", ROWS, NAMES, ids)
    words = () if suffix == "h5ad" else ("--id-column", "who")
    output = tmp_path / "scores.parquet"
    assert dpca("transform", "map", source, "--output", output, *words).status == 0
    table = pq.read_table(output)
    assert table.column_names == ["id", "component0", "component1", "component2"]
    assert table.column("id").type == kind
    assert table.column("id").to_pylist() == list(ids)
    scores = np.column_stack([table.column(at) for at in (1, 2, 3)])
    assert scores.tobytes() == scores_of(dpca, source, *words)[0]


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_rows_without_ids_give_scores_alone_and_a_column_that_is_not_there_is_refused(
    named: Path, dpca: Command, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    output = tmp_path / "scores.parquet"
    assert dpca("transform", "map", tmp_path / "rows.npy", "--output", output).status == 0
    assert pq.read_table(output).column_names == ["component0", "component1", "component2"]
    words = ("--output", output, "--id-column", "who")
    assert "npy files have no columns" in dpca("transform", "map", tmp_path / "rows.npy", *words).complaint(1)
    source = write(tmp_path / "rows.csv", ROWS, NAMES)
    assert "no column 'who'" in dpca("transform", "map", source, *words).complaint(1)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_columns_of_a_plain_zarr_matrix_are_matched_by_position(named: Path, dpca: Command, tmp_path: Path) -> None:
    zarr.save_array(tmp_path / "rows.zarr", ROWS)
    straight = scores_of(dpca, write(tmp_path / "rows.h5ad", ROWS, NAMES))[0]
    assert scores_of(dpca, tmp_path / "rows.zarr")[0] == straight


WORDS = ["bank", "rate", "corn", "rain"]
TOPICS = np.array([[0.6, 0.4, 0.0, 0.0], [0.0, 0.1, 0.5, 0.4]])


def publish(home: Path, *, name: str = "topics", **changes: Any) -> TensorComponents:
    """Publish topics as version 1 of a name, where a consumer finds it."""
    facts: dict[str, Any] = {"components": TOPICS, "weights": np.array([0.7, 0.3]), "model": "topics", "n_features": 4}
    made = TensorComponents(**{**facts, "manifest": {"feature_names": WORDS}, **changes})
    digest = write_artifact(made, home=home)
    pointer = home / Pointer.path(name)
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.write_bytes(Pointer(name=name, versions={1: digest}, aliases={}).encode())
    return made


def test_components_are_listed_by_weight_with_their_words(dpca: Command, home: Path) -> None:
    publish(home)
    found = json.loads(dpca("tensor", "show", "topics@1", "--top-words", 2, "--json").out)
    assert (found["artifact"], found["model"], found["noise_variance"]) == ("topics@1", "topics", None)
    assert [(row["component"], row["weight"]) for row in found["components"]] == [(0, 0.7), (1, 0.3)]
    assert found["components"][1]["words"] == [{"word": "corn", "entry": 0.5}, {"word": "rain", "entry": 0.4}]
    shown = dpca("tensor", "show", "topics")
    assert shown.err == ""
    assert shown.out.splitlines()[1].split() == [
        "0",
        "0.7000",
        "bank",
        "0.6,",
        "rate",
        "0.4,",
        "corn",
        "0,",
        "rain",
        "0",
    ]


def test_columns_without_names_are_shown_by_number(dpca: Command, home: Path) -> None:
    publish(home, manifest={})
    assert "3 0.4" in dpca("tensor", "show", "topics", "--top-words", 2).out


def test_a_release_without_components_reports_this(dpca: Command, home: Path) -> None:
    publish(home, components=None, weights=None)
    assert "no component is above the noise" in dpca("tensor", "show", "topics").out
    np.save(home / "rows.npy", np.ones((1, 4)))
    refused = dpca("transform", "topics", home / "rows.npy", "--output", home / "weights.npy")
    assert "no component, because noise hid all" in refused.complaint(1)


@pytest.mark.parametrize("kind", ["npy", "svm", "csv"])
def test_component_weights_of_a_file_equal_those_of_its_rows(
    dpca: Command, home: Path, tmp_path: Path, kind: str
) -> None:
    made = publish(home)
    counts = np.array([[3, 1, 0, 0], [0, 0, 2, 1], [1, 0, 1, 0]])
    source, output = tmp_path / f"rows.{kind}", tmp_path / "weights.npy"
    if kind == "npy":
        np.save(source, counts)
    elif kind == "csv":
        source.write_text("\n".join([",".join(WORDS), *(",".join(map(str, row)) for row in counts)]) + "\n")
    else:
        entries = (" ".join(f"{at + 1}:{count}" for at, count in enumerate(row) if count) for row in counts)
        source.write_text("".join(f"1 {line}\n" for line in entries))
    header = ("--header",) if kind == "csv" else ()
    ended = dpca("transform", "topics@1", source, "--output", output, *header, "--json")
    assert json.loads(ended.out) == {"artifact": "topics@1", "rows": 3, "components": 2, "output": str(output)}
    np.testing.assert_allclose(np.load(output), made.transform(counts), rtol=0, atol=1e-12)


def test_rows_that_are_not_documents_are_refused_and_an_existing_output_is_kept(
    dpca: Command, home: Path, tmp_path: Path
) -> None:
    publish(home)
    source, output = tmp_path / "rows.npy", tmp_path / "weights.npy"
    output.write_bytes(b"older")
    for rows, rule in ((np.full((2, 4), -1.0), "negative"), (np.ones((2, 3)), "has 3 columns")):
        np.save(source, rows)
        assert rule in dpca("transform", "topics", source, "--output", output).complaint(1)
    assert output.read_bytes() == b"older"


def test_a_subspace_is_refused_as_tensor_components(released: Path, dpca: Command) -> None:
    publish(released)
    complaint = dpca("tensor", "show", "sub").complaint(1)
    assert "sub@1 is a subspace, but a set of tensor components is needed" in complaint
