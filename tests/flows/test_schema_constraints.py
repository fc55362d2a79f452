"""Constraints of a schema through the commands: on by default, stated in the artifact, and kept by every further use.

The rows have two categorical columns that every row fills, and a number that may be missing.
"""

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

from dpca.artifacts.moment import PrivateMoment
from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.reader import Registry
from dpca.schemas.schema import Schema
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.refinement.schema_constraints import Constraints
from flows.families.columns import constraints_of
from flows.families.restated_subspace import unpacked_rounds
from flows.orchestration.stage_calls import directly
from flows.releases.streams import make_tick
from flows.settings import Settings
from storage.workspace import Workspace
from tests.flows.conftest import Command

ROWS = 3_000
SCHEMA = """columns:
- {name: job, kind: categorical, values: [a, b, c, d], others: refuse}
- {name: age, kind: numeric, range: [0, 100], missing: category}
- {name: city, kind: categorical, values: [x, y, z], others: category}
- {name: pet, kind: categorical, values: [cat, dog, cow], others: zero}
"""
EXPECTED = {"groups": [[0, 4], [4, 6], [6, 10], [10, 13]], "filled": [True, False, True, False]}
TERMS = ("--epsilon", "3", "--delta", "1e-6", "--clip-norm", "2", "--direct", "--yes", "--json")


@pytest.fixture
def ready(dpca: Command, tmp_path: Path) -> Path:
    """Ingest people by a schema and open their budget."""
    rng = np.random.default_rng(3)
    table, schema = tmp_path / "people.csv", tmp_path / "schema.yaml"
    cells = zip(
        rng.choice(4, ROWS, p=[0.4, 0.3, 0.2, 0.1]), rng.integers(0, 110, ROWS), rng.choice(5, ROWS), strict=True
    )
    lines = [
        f"{'abcd'[job]},{age if age < 100 else ''},{'xyzvw'[city]},{('cat', 'dog', '')[age % 3]}"
        for job, age, city in cells
    ]
    table.write_text("\n".join(["job,age,city,pet", *lines]))
    schema.write_text(SCHEMA.replace("others: zero}", "others: zero, missing: zero}"))
    words = ("--name", "people", "--table-schema", schema, "--records-at-most", ROWS, "--direct")
    assert dpca("dataset", "ingest", table, *words).status == 0
    assert dpca("budget", "open", "people", "--epsilon", "99", "--delta", "1e-5").status == 0
    return tmp_path


def made(dpca: Command, *words: Any) -> dict[str, Any]:
    ending = dpca(*words, *TERMS)
    assert ending.status == 0, ending
    found: dict[str, Any] = json.loads(ending.out)
    return found


def fit(dpca: Command, name: str, *words: Any) -> PrivateSubspace:
    made(dpca, "subspace", "fit", "people", "--components", "3", "--publish", name, *words)
    return Registry.open().load(name, PrivateSubspace)


@pytest.mark.parametrize("center", ["none", "private"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_release_satisfies_the_constraints_and_so_does_its_refit(
    ready: Path, dpca: Command, center: str, rounds: int
) -> None:
    found = fit(dpca, "sub", "--center", center, "--rounds", rounds)
    if rounds == 1:
        stated = found.outcome["noise"]["constraints"]
        order = 13 + (center == "private")
        assert found.matrix is not None
        matrix = unpack_symmetric(found.matrix, order)
        constraints = Constraints.of(stated, n_features=13)
        assert constraints is not None
        np.testing.assert_allclose(constraints.project(matrix), matrix, rtol=0, atol=1e-9 * np.abs(matrix).max())
        if center == "none":
            assert not matrix[0, 1:4].any()
    else:
        stated = found.outcome["rounds"]["constraints"]
        assert unpacked_rounds(found).constraints is not None
    assert stated == EXPECTED
    difference = np.r_[np.ones(4), np.zeros(2), -np.ones(4), np.zeros(3)]
    assert np.abs(found.components @ difference).max() < 1e-6  # no row varies along it
    refitted = dpca("subspace", "refit", "sub", "--components", "3", "--publish", "again", "--refine", "none", "--json")
    assert refitted.status == 0, refitted
    again = Registry.open().load("again")
    assert np.abs(again.components @ difference).max() < 1e-6


def test_a_release_without_constraints_is_another_release(ready: Path, dpca: Command) -> None:
    fit(dpca, "sub", "--rounds", 1, "--run-key", "one")
    other = fit(dpca, "sub", "--rounds", 1, "--no-schema-constraints")
    assert "constraints" not in other.outcome["noise"]
    assert len(list(Workspace.read_only().ledger.history("people"))) == 2
    complaint = dpca(
        "subspace",
        "fit",
        "people",
        "--components",
        "3",
        "--publish",
        "sub",
        "--rounds",
        1,
        "--run-key",
        "one",
        "--no-schema-constraints",
        *TERMS,
    )
    assert complaint.status == 1
    assert len(list(Workspace.read_only().ledger.history("people"))) == 2


def test_a_moment_and_what_is_derived_from_it_use_the_constraints(ready: Path, dpca: Command) -> None:
    made(dpca, "moment", "fit", "people", "--publish", "moment")
    found = Registry.open().load("moment", PrivateMoment)
    assert found.manifest["outcome"]["noise"]["constraints"] == EXPECTED
    ending = dpca("derive", "pca", "moment", "--components", "2", "--json")
    assert ending.status == 0, ending
    ending = dpca("derive", "correlation", "moment", "--json")
    assert ending.status == 0, ending


def test_a_later_release_starts_from_one_with_constraints(ready: Path, dpca: Command) -> None:
    fit(dpca, "sub", "--rounds", 3)
    found = fit(dpca, "next", "--like", "sub@1")
    assert found.outcome["rounds"]["constraints"] == EXPECTED


def test_noise_that_is_not_isometric_stays_as_it_is(ready: Path, dpca: Command) -> None:
    found = fit(dpca, "sub", "--mechanism", "mod_sulq")
    assert "constraints" not in (found.outcome.get("noise") or {})


def test_each_tick_of_a_stream_satisfies_the_constraints(ready: Path, dpca: Command) -> None:
    words = ("--population", "people", "--components", "2", "--ticks", "3", "--publish", "nightly", *TERMS[:6], "--yes")
    opened = dpca("stream", "open", "people", *words)
    assert opened.status == 0, opened
    make_tick(directly, "nightly", Settings(cluster="none"), slot=date.today().isoformat())
    found = Registry.open().load("nightly")
    difference = np.r_[np.ones(4), np.zeros(2), -np.ones(4), np.zeros(3)]
    assert np.abs(found.components @ difference).max() < 1e-6


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("{name: age, kind: numeric, range: [0, 1]}", None),
        ("{name: age, kind: numeric, range: [0, 1], missing: category}", ([[0, 2]], [False])),
        ("{name: job, kind: categorical, values: [a, b], others: zero}", ([[0, 2]], [False])),
        ("{name: job, kind: categorical, values: [a], others: refuse}", None),
        ("{name: job, kind: categorical, values: [a, b], others: refuse, missing: zero}", ([[0, 2]], [False])),
        ("{name: job, kind: categorical, values: [a, b], others: category, missing: {value: a}}", ([[0, 3]], [True])),
        ("{name: v, kind: vector, length: 3, norm: 1, missing: category}", None),
        (
            "{name: v, kind: vector, length: 2, norm: 1}\n- {name: id, kind: id}\n- {name: other, kind: drop}\n"
            "- {name: job, kind: categorical, values: [a, b], others: refuse}",
            ([[2, 4]], [True]),
        ),
    ],
)
def test_constraints_follow_from_the_rules_of_the_columns(columns: str, expected: Any) -> None:
    found = constraints_of(Schema.parse(yaml.safe_load(f"columns:\n- {columns}")).facts())
    assert (None if found is None else found.facts()) == (
        None if expected is None else {"groups": expected[0], "filled": expected[1]}
    )
