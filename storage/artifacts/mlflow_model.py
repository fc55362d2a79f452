"""A subspace as a folder that MLflow loads as a Python function, written without MLflow.

The folder holds ``MLmodel``, the arrays, and a loader that needs NumPy alone, so that whatever serves the model needs
neither this package nor what it depends on. Nothing in it is a pickle.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np

from storage.artifacts.base import LinearMap
from storage.artifacts.manifest import canonical_json

_LOADER = "dpca_subspace"
_PYTHON = python_version()  # MLflow warns where the model is loaded by another one
_ENVIRONMENT = f"python: {_PYTHON}\nbuild_dependencies: []\ndependencies:\n- -r requirements.txt\n"


def mlflow_model(subspace: LinearMap, tags: Mapping[str, str]) -> dict[str, bytes]:
    """Write a subspace as an MLflow model: its files by their paths.

    Parameters
    ----------
    subspace : LinearMap
    tags : mapping of str to str
        The lineage: the model's metadata, and ``tags.json`` for whoever registers it.

    Returns
    -------
    dict of str to bytes
        The signature names the input columns where the release has names, so that MLflow takes them in any order and
        refuses rows without one; else it is a matrix of that many columns.
    """
    names = subspace.feature_names
    arrays: dict[str, Any] = {"components": subspace.components, "offset": np.zeros(subspace.n_components)}
    if subspace.mean is not None:
        arrays["offset"] = subspace.components @ subspace.mean
    if names is not None:
        arrays["names"] = np.array(list(names))
    archive = BytesIO()
    np.savez(archive, **arrays)
    columns = [{"type": "double", "name": name, "required": True} for name in names or ()]
    function = {
        "loader_module": _LOADER,
        "code": "code",
        "data": "data",
        "env": {"virtualenv": "python_env.yaml"},
        "python_version": _PYTHON,
    }
    signature = {
        "inputs": json.dumps(columns or [_matrix(subspace.n_features)]),
        "outputs": json.dumps([_matrix(subspace.n_components)]),
        "params": None,
    }
    return {
        # JSON is YAML too, which is what MLflow reads.
        "MLmodel": canonical_json({"flavors": {"python_function": function}, "metadata": tags, "signature": signature}),
        "code/dpca_subspace.py": Path(__file__).with_name(f"{_LOADER}.py").read_bytes(),
        "data/subspace.npz": archive.getvalue(),
        "python_env.yaml": _ENVIRONMENT.encode(),
        "requirements.txt": b"numpy>=2\n",
        "tags.json": canonical_json(tags),
    }


def _matrix(width: int) -> dict[str, Any]:
    return {"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, width]}}
