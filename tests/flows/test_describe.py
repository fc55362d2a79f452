"""Published components are shown and weighed for one's own rows; what is no set of them is refused in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifacts.files import write_artifact
from storage.artifacts.tensor import TensorComponents
from storage.registry.pointers import Pointer
from tests.flows.conftest import Command

WORDS = ["bank", "rate", "corn", "rain"]
TOPICS = np.array([[0.6, 0.4, 0.0, 0.0], [0.0, 0.1, 0.5, 0.4]])


def publish(home: Path, *, name: str = "topics", **changes: Any) -> TensorComponents:
    """Publish topics as version 1 of a name, as a consumer finds them."""
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


def test_a_release_without_components_says_so(dpca: Command, home: Path) -> None:
    publish(home, components=None, weights=None)
    assert "the noise left no component" in dpca("tensor", "show", "topics").out
    np.save(home / "rows.npy", np.ones((1, 4)))
    refused = dpca("tensor", "transform", "topics", home / "rows.npy", "--output", home / "weights.npy")
    assert "no component, since noise hid all" in refused.complaint(1)


@pytest.mark.parametrize("kind", ["npy", "svm", "csv"])
def test_weights_of_a_file_are_those_of_its_rows(dpca: Command, home: Path, tmp_path: Path, kind: str) -> None:
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
    ended = dpca("tensor", "transform", "topics@1", source, "--output", output, *header, "--json")
    assert json.loads(ended.out) == {"artifact": "topics@1", "rows": 3, "components": 2, "output": str(output)}
    np.testing.assert_allclose(np.load(output), made.transform(counts), rtol=0, atol=1e-12)


def test_rows_that_are_no_documents_are_refused_and_an_older_output_stays(
    dpca: Command, home: Path, tmp_path: Path
) -> None:
    publish(home)
    source, output = tmp_path / "rows.npy", tmp_path / "weights.npy"
    output.write_bytes(b"older")
    for rows, rule in ((np.full((2, 4), -1.0), "negative"), (np.ones((2, 3)), "has 3 columns")):
        np.save(source, rows)
        assert rule in dpca("tensor", "transform", "topics", source, "--output", output).complaint(1)
    assert output.read_bytes() == b"older"


def test_a_subspace_is_no_set_of_components_and_the_other_way_round(
    released: Path, dpca: Command, tmp_path: Path
) -> None:
    publish(released)
    np.save(tmp_path / "rows.npy", np.ones((1, 6)))
    files = (tmp_path / "rows.npy", "--output", tmp_path / "out.npy")
    complaint = dpca("tensor", "show", "sub").complaint(1)
    assert "sub@1 is a subspace, and a set of tensor components is needed" in complaint
    assert "a set of tensor components is needed" in dpca("tensor", "transform", "sub", *files).complaint(1)
    complaint = dpca("subspace", "transform", "topics", *files).complaint(1)
    assert "topics@1 is a set of tensor components, and a subspace is needed" in complaint
    assert not (tmp_path / "out.npy").exists()
