"""The MLflow folder states signature and lineage, and its loader needs NumPy alone; ``make exports`` runs MLflow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml  # type: ignore[import-untyped]

from storage.artifacts import dpca_subspace
from storage.artifacts.mlflow_model import mlflow_model
from storage.backends.atomic_files import write_folder
from tests.exports.__main__ import subspaces

ROWS = np.random.default_rng(1).normal(size=(7, 30))
TAGS = {"dpca.artifact": "news@1"}


@pytest.fixture(params=["around zero", "around a mean"])
def case(request: pytest.FixtureRequest) -> str:
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


def test_the_lineage_is_metadata_and_tags(case: str) -> None:
    assert described(case)["metadata"] == TAGS
    assert json.loads(mlflow_model(subspaces()[case], TAGS)["tags.json"]) == TAGS


def test_the_folder_loads_without_this_package(case: str, tmp_path: Path) -> None:
    subspace = subspaces()[case]
    write_folder(tmp_path / "model", mlflow_model(subspace, TAGS))
    np.save(tmp_path / "rows.npy", ROWS)
    function = described(case)["flavors"]["python_function"]
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
