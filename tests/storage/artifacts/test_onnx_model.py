"""The ONNX file is read back by a reader of its own, and its graph, evaluated, gives the same scores.

``make exports`` runs it in ONNX Runtime.
"""

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from storage.artifacts.onnx_model import onnx_model
from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid
from tests.exports.__main__ import subspaces

ROWS = np.random.default_rng(1).normal(size=(7, 30))


def fields(payload: bytes) -> dict[int, list[Any]]:
    """Return the fields of a message of protocol buffers: numbers, and bytes."""
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
    """Return the name, type and sides of an input or output."""
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
    np.testing.assert_array_equal(evaluate(onnx_model(subspace, {}), ROWS), subspace.transform(ROWS))


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


def test_what_no_file_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.artifacts.onnx_model._MOST_BYTES", 8 * 4)
    with pytest.raises(Invalid, match="more than an ONNX file holds; export npz"):
        onnx_model(PrivateSubspace(components=np.eye(1, 2), manifest={}), {})
