"""Export of a subspace to MLflow, ONNX and scikit-learn, with its lineage.

*Lineage.* The origin and the guarantee of an artifact are exported as tags: short texts with names, as model registries
store them.

*MLflow.* The export is a folder that MLflow loads as a Python function. This module writes the folder without using
MLflow. The folder contains the file ``MLmodel``, the arrays, and a loader that needs only NumPy. So a model server
needs neither this package nor its dependencies. Nothing in the folder is a pickle.

*ONNX.* The export is a graph that computes ``scores = rows @ components.T - mean @ components.T`` in float64. This
module encodes the protocol buffers itself, so that no ONNX package is needed. Field numbers are those in
``onnx.proto`` (IR version 8).

*scikit-learn.* The export is a fitted ``PCA`` in a skops file. The file contains no pickle, and loading the file needs
nothing from this package.
"""

import json
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import Artifact, LinearMap, canonical_json
from dpca.errors import Invalid
from dpca.installed import needing

_FACTS = ("release", "mechanism", "code_version", "parent")
_PRIVACY = ("epsilon", "delta", "relation", "unit", "rows_per_unit", "statement")


def lineage_tags(artifact: Artifact, *, reference: str, digest: str) -> dict[str, str]:
    """Return the origin and the privacy guarantee of an artifact as tags, whose names begin with ``dpca.``.

    Parameters
    ----------
    artifact : Artifact
    reference : str
        The artifact's name and version, such as ``news@3``.
    digest : str
        The artifact's digest in hex.

    Returns
    -------
    dict
        Public facts as text by tag name; undeclared facts are omitted. The tag ``dpca.input`` is present if the
        artifact has an encoder, so that raw tables must be encoded before the exported model is applied.
    """
    manifest: Mapping[str, Any] = artifact.manifest
    privacy: Mapping[str, Any] = manifest.get("privacy", {})
    facts = {name: manifest.get(name) for name in _FACTS} | {name: privacy.get(name) for name in _PRIVACY}
    known = {name: value for name, value in facts.items() if value is not None}
    shown = {
        "artifact": reference,
        "digest": f"sha256:{digest}",
        "private": "yes" if artifact.is_private else "no",
        **{name: value if isinstance(value, str) else repr(value) for name, value in known.items()},
        **({"input": "columns as the release's encoder makes them"} if manifest.get("encoder") else {}),
    }
    return {f"dpca.{name}": text for name, text in shown.items()}


_LOADER = "dpca_subspace"
_PYTHON = python_version()  # MLflow warns if a Python of another version loads the model
_ENVIRONMENT = f"python: {_PYTHON}\nbuild_dependencies: []\ndependencies:\n- -r requirements.txt\n"


def mlflow_model(subspace: LinearMap, tags: Mapping[str, str]) -> dict[str, bytes]:
    """Write a subspace as an MLflow model, and return its files by path.

    Parameters
    ----------
    subspace : LinearMap
    tags : mapping of str to str
        The lineage tags. They become the model's metadata, and also the file ``tags.json``, from which they can be
        copied when the model is registered.

    Returns
    -------
    dict of str to bytes
        The files by path. If the release has feature names, the model's signature names the input columns. MLflow then
        accepts these columns in any order, and refuses rows that lack one of them. Without feature names, the signature
        is a matrix with one column per feature.
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
        # MLflow reads the file MLmodel as YAML. JSON is valid YAML, so no YAML library is needed here.
        "MLmodel": canonical_json({"flavors": {"python_function": function}, "metadata": tags, "signature": signature}),
        "code/dpca_subspace.py": Path(__file__).with_name(f"{_LOADER}.py").read_bytes(),
        "data/subspace.npz": archive.getvalue(),
        "python_env.yaml": _ENVIRONMENT.encode(),
        "requirements.txt": b"numpy>=2\n",
        "tags.json": canonical_json(tags),
    }


def _matrix(width: int) -> dict[str, Any]:
    return {"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, width]}}


_IR_VERSION, _OPERATORS = 8, 17
_DOUBLE = 11
_MOST_BYTES = 1 << 31  # the size limit of a protocol buffers message, and so of an ONNX file


def onnx_model(subspace: LinearMap, tags: Mapping[str, str]) -> bytes:
    """Write a subspace as an ONNX model with one input, ``rows`` (n, d), and one output, ``scores`` (n, k).

    Parameters
    ----------
    subspace : LinearMap
    tags : mapping of str to str
        The lineage tags. They become the model's metadata, together with ``feature_names`` as a JSON list if the
        release has feature names.

    Raises
    ------
    Invalid
        If the components are too large for an ONNX file.
    """
    if 8 * subspace.components.size >= _MOST_BYTES // 2:
        raise Invalid(
            "the components need 1 GiB or more, which does not fit into an ONNX file; export npz instead, or a "
            "subspace with fewer components"
        )
    arrays = {"components": np.ascontiguousarray(subspace.components.T)}
    nodes = [_node("MatMul", ("rows", "components"), "scores")]
    if subspace.mean is not None:
        arrays["offset"] = subspace.components @ subspace.mean
        nodes = [
            _node("MatMul", ("rows", "components"), "products"),
            _node("Sub", ("products", "offset"), "scores"),
        ]
    graph = _join(
        *(_bytes(1, node) for node in nodes),
        _text(2, "private_subspace"),
        *(_bytes(5, _tensor(name, values)) for name, values in arrays.items()),
        _bytes(11, _value("rows", subspace.n_features)),
        _bytes(12, _value("scores", subspace.n_components)),
    )
    names = subspace.feature_names
    facts = {**tags, **({"feature_names": json.dumps(list(names))} if names is not None else {})}
    return _join(
        _number(1, _IR_VERSION),
        _text(2, "dpca-pipeline"),
        _bytes(7, graph),
        _bytes(8, _number(2, _OPERATORS)),
        *(_bytes(14, _join(_text(1, name), _text(2, text))) for name, text in facts.items()),
    )


def _node(operator: str, inputs: Iterable[str], output: str) -> bytes:
    return _join(*(_text(1, name) for name in inputs), _text(2, output), _text(3, output), _text(4, operator))


def _tensor(name: str, values: NDArray[np.float64]) -> bytes:
    sides = (_number(1, side) for side in values.shape)
    return _join(*sides, _number(2, _DOUBLE), _text(8, name), _bytes(9, values.astype("<f8").tobytes()))


def _value(name: str, width: int) -> bytes:
    """Encode the ONNX description of an input or output matrix: float64, `width` columns, any number of rows."""
    shape = _join(_bytes(1, _text(2, "n")), _bytes(1, _number(1, width)))
    return _join(_text(1, name), _bytes(2, _bytes(1, _join(_number(1, _DOUBLE), _bytes(2, shape)))))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _join(*parts: bytes) -> bytes:
    return b"".join(parts)


def _varint(value: int) -> bytes:
    """Encode a nonnegative integer as a protocol buffers varint: groups of seven bits, lowest first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def scikit_model(subspace: LinearMap, tags: Mapping[str, str]) -> bytes:
    """Write a subspace as a fitted ``sklearn.decomposition.PCA``.

    Parameters
    ----------
    subspace : LinearMap
        A subspace without a mean becomes a PCA whose mean is zero.
    tags : mapping of str to str
        The lineage tags, which become the attribute ``dpca_lineage_`` of the PCA.

    Raises
    ------
    NotInstalled
        If scikit-learn or skops is missing.
    """
    with needing("format sklearn", extra="sklearn"):
        import skops.io
        from sklearn.decomposition import PCA
    found = PCA(n_components=subspace.n_components)
    found.components_ = np.array(subspace.components)
    found.mean_ = np.zeros(subspace.n_features) if subspace.mean is None else np.array(subspace.mean)
    found.n_components_, found.n_features_in_ = subspace.n_components, subspace.n_features
    if subspace.feature_names is not None:
        found.feature_names_in_ = np.array(subspace.feature_names, dtype=object)
    if (ratios := subspace.explained_variance_ratio) is not None:
        found.explained_variance_ratio_ = ratios
    found.dpca_lineage_ = dict(tags)
    payload: bytes = skops.io.dumps(found)
    return payload
