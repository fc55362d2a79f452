"""A subspace as an ONNX graph: ``scores = rows @ components.T - mean @ components.T``, in float64.

The file is written byte by byte, as its protocol buffers are, so that nothing has to be installed for it. Field numbers
are those of ``onnx.proto`` (IR version 8).
"""

import json
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from storage.artifacts.base import LinearMap
from storage.errors import Invalid

_IR_VERSION, _OPERATORS = 8, 17
_DOUBLE = 11
_MOST_BYTES = 1 << 31  # of a message of protocol buffers


def onnx_model(subspace: LinearMap, tags: Mapping[str, str]) -> bytes:
    """Write a subspace as an ONNX model with one input, ``rows`` (n, d), and one output, ``scores`` (n, k).

    Parameters
    ----------
    subspace : LinearMap
    tags : mapping of str to str
        The lineage, which becomes the model's metadata, beside ``feature_names`` as a JSON list, where there are any.

    Raises
    ------
    Invalid
        If it is larger than an ONNX file may be.
    """
    if 8 * subspace.components.size >= _MOST_BYTES // 2:
        raise Invalid("a subspace of more than 1 GiB is more than an ONNX file holds; export npz, or fewer components")
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
    """Describe a matrix of any number of rows."""
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
    """Write a number in groups of seven bits, the lowest first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
