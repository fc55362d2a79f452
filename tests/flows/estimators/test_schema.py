"""A private PCA of raw data frames by a declared schema, in memory and on a ledger."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import dpca
from dpca.errors import Invalid
from dpca.schemas.schema import Schema
from storage.workspace import Workspace

SCHEMA: dict[str, Any] = {
    "columns": [
        {"name": "job", "kind": "categorical", "values": ["a", "b", "c"], "others": "refuse"},
        {"name": "age", "kind": "numeric", "range": [0, 100]},
        {"name": "city", "kind": "categorical", "values": ["x", "y"], "others": "category"},
        {"name": "note", "kind": "drop"},
    ]
}
DIFFERENCE = np.array([1.0, 1.0, 1.0, 0.0, -1.0, -1.0, -1.0])


def people(n_rows: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "city": rng.choice(["x", "y", "z"], n_rows),
            "age": rng.integers(0, 100, n_rows),
            "note": ["-"] * n_rows,
            "job": rng.choice(["a", "b", "c"], n_rows),
        }
    )


def model(**options: Any) -> dpca.PrivatePCA:
    return dpca.PrivatePCA(
        **{"n_components": 2, "epsilon": 5.0, "delta": 1e-7, "clip_norm": 2.0, "schema": SCHEMA, **options}
    )


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("center", ["none", "private"])
def test_raw_frames_are_encoded_and_the_constraints_hold(rounds: int, center: str) -> None:
    budget = dpca.Budget(epsilon=50, delta=1e-5)
    fitted = model(rounds=rounds, center=center, budget=budget).fit(people())
    assert fitted.feature_names_in_.tolist() == [
        *("job=a", "job=b", "job=c", "age", "city=x", "city=y", "city=(other)"),
    ]
    assert np.abs(fitted.components_ @ DIFFERENCE).max() < 1e-6
    scores = fitted.transform(people(20))
    assert scores.shape == (20, 2)
    np.testing.assert_allclose(fitted.artifact_.transform(people(20)), scores, atol=1e-12)
    assert np.isfinite(fitted.score(people(20))) or (center == "none" and rounds == 1)


@pytest.mark.parametrize("form", ["schema", "file"])
def test_a_schema_may_be_an_object_or_a_file(form: str, tmp_path: Path) -> None:
    file = tmp_path / "schema.yaml"
    file.write_text(
        "columns:\n- {name: job, kind: categorical, values: [a, b, c], others: refuse}\n"
        "- {name: city, kind: categorical, values: [x, y], others: category}\n"
    )
    schema = file if form == "file" else Schema.parse({"columns": [SCHEMA["columns"][0], SCHEMA["columns"][2]]})
    budget = dpca.Budget(epsilon=50, delta=1e-5)
    made = clone(model(schema=schema, budget=budget)).set_params(budget=budget)
    assert made.fit(people()[["job", "city"]]).components_.shape == (2, 6)


def test_rows_that_the_schema_refuses_are_not_charged() -> None:
    budget = dpca.Budget(epsilon=50, delta=1e-5)
    rows = people()
    rows.loc[7, "job"] = "unknown"
    for table in (rows, people().drop(columns="job")):
        with pytest.raises(Invalid):
            model(budget=budget).fit(table)
    assert budget.remaining == 50


def test_a_slot_returns_its_release_whatever_the_rows() -> None:
    """The rows of a repeated slot are not encoded."""
    budget, rows = dpca.Budget(epsilon=50, delta=1e-5), people()
    fitted = model(budget=budget, slot="one").fit(rows)
    rows.loc[7, "job"] = "unknown"
    again = model(budget=budget, slot="one").fit(rows)
    np.testing.assert_array_equal(again.components_, fitted.components_)
    assert again.feature_names_in_.tolist() == fitted.feature_names_in_.tolist()


def test_ids_of_individuals_are_refused() -> None:
    schema = {"columns": [*SCHEMA["columns"][:3], {"name": "note", "kind": "id"}]}
    with pytest.raises(Invalid, match="each row of X is the data of one person"):
        model(schema=schema).fit(people())


def test_a_ledger_stores_the_raw_table_and_states_the_schema(home: Path) -> None:
    budget = dpca.open_budget("people", epsilon=50, delta=1e-6)
    fitted = model(rounds=1, budget=budget, slot="one").fit(people())
    assert np.abs(fitted.components_ @ DIFFERENCE).max() < 1e-6
    assert fitted.artifact_.manifest["encoder"]["columns"][0]["name"] == "job"
    again = model(rounds=1, budget=budget, slot="one").fit(people())
    np.testing.assert_array_equal(again.components_, fitted.components_)
    assert len(list(Workspace.read_only().ledger.history("people"))) == 1
    following = model(budget=budget, slot="two", like=fitted.published_).fit(people())
    assert following.artifact_.manifest["plan"]["like"] == fitted.published_
