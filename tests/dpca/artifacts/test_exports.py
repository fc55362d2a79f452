"""Exports of artifacts: tags, MLflow folder, ONNX file and scikit-learn PCA agree with the artifact.

Tags must state where an export came from and which privacy it guarantees. The MLflow folder states signature and
lineage, and its loader needs NumPy alone; ``make exports`` runs MLflow. An independent reader parses the ONNX file, and
its graph must give the same scores; ``make exports`` runs it in ONNX Runtime. The exported PCA of scikit-learn must
give the same scores; ``make exports`` writes and reads it with skops.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml  # type: ignore[import-untyped]

from dpca.artifacts import dpca_subspace
from dpca.artifacts.exports import lineage_tags, mlflow_model, onnx_model, scikit_model
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.atomic_files import write_folder
from dpca.errors import Invalid, NotInstalled
from tests.dpca.artifacts.test_subspace import ENCODER, SUBSPACE
from tests.exports.__main__ import subspaces


def test_declared_facts_become_tags_and_other_facts_are_omitted() -> None:
    assert lineage_tags(SUBSPACE, reference="news@2", digest="ab") == {
        "dpca.artifact": "news@2",
        "dpca.digest": "sha256:ab",
        "dpca.private": "yes",
        "dpca.release": "a" * 32,
        "dpca.mechanism": "analyze_gauss",
        "dpca.code_version": "0.1.0",
        "dpca.epsilon": "1.0",
        "dpca.delta": "1e-06",
        "dpca.relation": "add_remove",
        "dpca.unit": "record",
    }


def test_an_artifact_without_guarantee_states_this() -> None:
    facts = {"mechanism": "non_private", "privacy": {"private": False}}
    reference = PrivateSubspace(components=np.eye(1, 2), manifest=facts)
    assert lineage_tags(reference, reference="x@1", digest="ab")["dpca.private"] == "no"


def test_a_release_of_an_encoded_table_states_its_input() -> None:
    facts = {"feature_names": ["age", "sex=f", "sex=m"], "encoder": ENCODER}
    encoded = PrivateSubspace(components=np.eye(1, 3), manifest=facts)
    tags = lineage_tags(encoded, reference="x@1", digest="ab")
    assert tags["dpca.input"] == "columns as the release's encoder makes them"


ROWS = np.random.default_rng(1).normal(size=(7, 30))
TAGS = {"dpca.artifact": "news@1"}


@pytest.fixture(params=["around zero", "around a mean"])
def case_of_mlflow_model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def described(case: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(mlflow_model(subspaces()[case], TAGS)["MLmodel"])
    return found


def test_the_signature_names_the_columns_where_there_are_names() -> None:
    names = subspaces()["around a mean"].feature_names
    columns = json.loads(described("around a mean")["signature"]["inputs"])
    assert [(one["name"], one["type"], one["required"]) for one in columns] == [
        (n, "double", True) for n in names or ()
    ]
    matrix = {"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 30]}}
    assert json.loads(described("around zero")["signature"]["inputs"]) == [matrix]


def test_the_lineage_is_metadata_and_tags(case_of_mlflow_model: str) -> None:
    assert described(case_of_mlflow_model)["metadata"] == TAGS
    assert json.loads(mlflow_model(subspaces()[case_of_mlflow_model], TAGS)["tags.json"]) == TAGS


def test_the_folder_loads_without_this_package(case_of_mlflow_model: str, tmp_path: Path) -> None:
    subspace = subspaces()[case_of_mlflow_model]
    write_folder(tmp_path / "model", mlflow_model(subspace, TAGS))
    np.save(tmp_path / "rows.npy", ROWS)
    function = described(case_of_mlflow_model)["flavors"]["python_function"]
    program = (
        "import sys, numpy as np\n"
        f"sys.path = [sys.argv[1] + '/model/{function['code']}', *sys.path]\n"
        f"import {function['loader_module']} as loader\n"
        f"model = loader._load_pyfunc(sys.argv[1] + '/model/{function['data']}')\n"
        "assert 'storage' not in sys.modules\n"
        "np.save(sys.argv[1] + '/scores.npy', model.predict(np.load(sys.argv[1] + '/rows.npy')))\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True, cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), subspace.transform(ROWS))


def test_the_loader_takes_columns_by_name(tmp_path: Path) -> None:
    subspace = subspaces()["around a mean"]
    write_folder(tmp_path / "model", mlflow_model(subspace, TAGS))
    model = dpca_subspace._load_pyfunc(str(tmp_path / "model" / "data"))
    table = pd.DataFrame(ROWS, columns=list(subspace.feature_names or ()))
    np.testing.assert_array_equal(model.predict(table[table.columns[::-1]]), subspace.transform(ROWS))
    with pytest.raises(KeyError, match="column 3"):
        model.predict(table.drop(columns="column 3"))


ONNX_MODEL_ROWS = np.random.default_rng(1).normal(size=(7, 30))


def fields(payload: bytes) -> dict[int, list[Any]]:
    """Parse a protocol buffers message; return the values of each field number, as numbers or bytes."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = payload[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(payload):
        key = number()
        if key & 7 == 0:
            found[key >> 3].append(number())
        else:
            assert key & 7 == 2
            size = number()
            found[key >> 3].append(payload[at : at + size])
            at += size
    return found


def shape(value: bytes) -> tuple[str, int, list[Any]]:
    """Return the name, type and dimensions of an input or output of an ONNX graph, from its bytes."""
    about = fields(value)
    tensor = fields(fields(about[2][0])[1][0])
    sides = [fields(side) for side in fields(tensor[2][0])[1]]
    return about[1][0].decode(), tensor[1][0], [side[1][0] if 1 in side else side[2][0].decode() for side in sides]


def evaluate(model: bytes, rows: Any) -> Any:
    graph = fields(fields(model)[7][0])
    known = {"rows": rows}
    for payload in graph[5]:
        tensor = fields(payload)
        assert tensor[2] == [11]
        known[tensor[8][0].decode()] = np.frombuffer(tensor[9][0], "<f8").reshape(tensor[1])
    operators = {"MatMul": np.matmul, "Sub": np.subtract}
    for payload in graph[1]:
        node = fields(payload)
        given = [known[name.decode()] for name in node[1]]
        known[node[2][0].decode()] = operators[node[4][0].decode()](*given)
    return known[shape(graph[12][0])[0]]


@pytest.mark.parametrize("case", ["around zero", "around a mean"])
def test_the_graph_gives_the_same_scores(case: str) -> None:
    subspace = subspaces()[case]
    np.testing.assert_array_equal(
        evaluate(onnx_model(subspace, {}), ONNX_MODEL_ROWS), subspace.transform(ONNX_MODEL_ROWS)
    )


def test_the_file_states_shapes_versions_names_and_lineage() -> None:
    subspace = subspaces()["around a mean"]
    model = fields(onnx_model(subspace, {"dpca.artifact": "news@1"}))
    assert (model[1], fields(model[8][0])[2]) == ([8], [17])
    graph = fields(model[7][0])
    assert shape(graph[11][0]) == ("rows", 11, ["n", 30])
    assert shape(graph[12][0]) == ("scores", 11, ["n", 5])
    facts = {entry[1][0].decode(): entry[2][0].decode() for entry in map(fields, model[14])}
    assert facts == {"dpca.artifact": "news@1", "feature_names": json.dumps(list(subspace.feature_names or ()))}


def test_equal_subspaces_give_equal_bytes() -> None:
    one, other = (onnx_model(subspaces()["around a mean"], {"a": "b"}) for _ in range(2))
    assert one == other


def test_subspaces_that_a_file_cannot_represent_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpca.artifacts.exports._MOST_BYTES", 8 * 4)
    with pytest.raises(Invalid, match="does not fit into an ONNX file; export npz"):
        onnx_model(PrivateSubspace(components=np.eye(1, 2), manifest={}), {})


SCIKIT_MODEL_ROWS = np.random.default_rng(1).normal(size=(7, 30))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of objects written with skops, which a stub replaces because it is not installed here."""
    kept: list[Any] = []

    def dumps(found: Any) -> bytes:
        kept.append(found)
        return b"a file"

    skops, io = ModuleType("skops"), ModuleType("skops.io")
    io.dumps = dumps  # type: ignore[attr-defined]
    skops.io = io  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "skops", skops)
    monkeypatch.setitem(sys.modules, "skops.io", io)
    return kept


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("case", ["around zero", "around a mean"])
def test_the_exported_pca_is_fitted_and_gives_equal_scores(written: list[Any], case: str) -> None:
    subspace = subspaces()[case]
    assert scikit_model(subspace, {"dpca.artifact": "news@1"}) == b"a file"
    (pca,) = written
    scores = subspace.transform(SCIKIT_MODEL_ROWS)
    np.testing.assert_allclose(pca.transform(SCIKIT_MODEL_ROWS), scores, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pca.inverse_transform(scores), subspace.inverse_transform(scores), rtol=0, atol=1e-12)
    assert getattr(pca, "feature_names_in_", None) is None or list(pca.feature_names_in_) == subspace.feature_names
    assert pca.dpca_lineage_ == {"dpca.artifact": "news@1"}


def test_a_missing_skops_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skops", None)
    with pytest.raises(
        NotInstalled, match=r"needs skops, which is not installed; install dpca-pipeline\[sklearn\]$"
    ) as caught:
        scikit_model(subspaces()["around zero"], {})
    assert "\n" not in str(caught.value)
