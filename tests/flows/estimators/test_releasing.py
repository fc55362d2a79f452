"""An estimator on a ledger: a cell that runs twice costs nothing, here and in other processes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpca_tasks.errors import InvalidInput, Refused
from flows.estimators import PrivateMatrixFactorization, releasing
from flows.estimators.tables import Entries, Table, TableRows
from storage import errors
from storage.datasets.ingest import ingest
from storage.errors import BudgetExhausted, Conflict, Invalid, NotFound
from storage.registry import Registry
from storage.workspace import PopulationBudget, Workspace
from tests.flows.estimators.rows import ROWS, model

ELSEWHERE = """
import json, sys
from flows.estimators import PrivatePCA
from storage.registry import Registry
from storage.workspace import Workspace
from tests.flows.estimators.rows import ROWS, model
fitted = model(budget=Workspace.open().budget("patients")).fit(ROWS)
loaded = [name for name in ("prefect", "dask", "distributed") if name in sys.modules]
print(json.dumps([fitted.components_.tobytes().hex(), fitted.published_, loaded]))
"""

FILMS = ["alien", "brazil", "casablanca", "dune", "eraserhead", "fargo"]


@pytest.fixture
def budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PopulationBudget:
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    Workspace.open().ledger.open_budget("patients", epsilon=4.0, delta=5e-6)
    return Workspace.open().budget("patients")


def test_a_cell_that_runs_twice_costs_nothing_here_and_in_another_process(
    budget: PopulationBudget, tmp_path: Path
) -> None:
    """The other process loads neither Prefect nor Dask."""
    first = model(budget=budget).fit(ROWS)
    assert first.published_ == "subspace.patients@1"
    spent = budget.statement().spent
    assert 0 < spent < 4.0
    for rows in (ROWS, sparse.csr_array(ROWS), da.from_array(ROWS, chunks=(900, 5))):
        again = model(budget=Workspace.open().budget("patients")).fit(rows)
        assert again.components_.tobytes() == first.components_.tobytes()
        assert again.published_ == first.published_
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [first.components_.tobytes().hex(), first.published_, []]
    assert budget.statement().spent == spent
    assert list((tmp_path / "home" / "staging").iterdir()) == []
    Workspace.open().ledger.verify()


def test_other_rows_are_another_release_until_the_budget_refuses(budget: PopulationBudget) -> None:
    assert model(budget=budget).fit(ROWS).published_ == "subspace.patients@1"
    assert model(budget=budget).fit(da.from_array(ROWS[1:], chunks=(900, 5))).published_ == "subspace.patients@2"
    spent = budget.statement().spent
    with pytest.raises(BudgetExhausted) as refusal:
        model(budget=budget, epsilon=3.9).fit(ROWS)
    assert "\n" not in str(refusal.value)
    assert budget.statement().spent == spent


def test_processes_that_store_the_same_rows_at_once_agree_on_the_release(
    budget: PopulationBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = releasing._store

    def twice(*arguments, **options) -> None:
        store(*arguments, **options)
        store(*arguments, **options)  # another process found no snapshot either

    monkeypatch.setattr(releasing, "_store", twice)
    first = model(budget=budget).fit(ROWS)
    spent = budget.statement().spent
    content = TableRows(Table.in_memory(ROWS, entries=Entries())).content
    assert len(budget.workspace.catalog.with_rows(content, population="patients")) == 2
    assert model(budget=budget).fit(ROWS).components_.tobytes() == first.components_.tobytes()
    assert budget.statement().spent == spent


def test_an_unpickled_estimator_spends_from_the_same_ledger_and_from_no_other(
    budget: PopulationBudget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It transforms without any ledger."""
    fitted = model(budget=budget).fit(ROWS)
    spent, frozen = budget.statement().spent, pickle.dumps(fitted)
    assert str(tmp_path).encode() not in frozen
    again = pickle.loads(frozen)
    assert again.fit(ROWS).published_ == fitted.published_
    assert again.budget.statement().spent == spent
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "other-state"))
    elsewhere = pickle.loads(frozen)
    assert elsewhere.transform(ROWS).tobytes() == fitted.transform(ROWS).tobytes()
    assert not (tmp_path / "other").exists()
    with pytest.raises(errors.Refused, match="of another ledger"):
        elsewhere.fit(ROWS)


def test_ratings_keep_their_zeros_and_items_their_names(budget: PopulationBudget) -> None:
    """The table is found again by its rows, whose stored zeros are ratings and whose users without ratings count."""
    users = np.random.default_rng(5)
    films = pd.DataFrame(np.where(users.random((90, 6)) < 0.5, users.integers(0, 6, (90, 6)), np.nan), columns=FILMS)
    films.iloc[[3, 89]] = np.nan
    settings: dict[str, Any] = {"ratings_between": (0, 5), "ratings_per_user": 4, "epsilon": 2.0, "budget": budget}
    first = PrivateMatrixFactorization(2, **settings).fit(films)
    spent = budget.statement().spent
    (entry,) = budget.workspace.catalog.entries()
    assert budget.workspace.catalog.open(entry).manifest.nnz == films.notna().sum().sum()
    again = PrivateMatrixFactorization(2, **settings).fit(films)
    assert first.published_ == again.published_ == "completion.patients@1"
    assert again.components_.tobytes() == first.components_.tobytes()
    assert budget.statement().spent == spent
    assert Registry.open().load("completion.patients").items_of(FILMS[:1]).tolist() == [0]


@pytest.mark.parametrize("rows", [ROWS[:50], sparse.csr_array(ROWS[:50])], ids=["dense", "sparse"])
def test_rows_on_their_way_into_the_home_are_closed_to_others(
    rows: Any, budget: PopulationBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: set[int] = set()

    def watched(source: list[Path], **options: Any) -> Any:
        for file in (*source, Path(options["options"].feature_names or source[0])):
            modes.update(path.stat().st_mode & 0o077 for path in (file, *file.parents[:3]))
        return ingest(source, **options)

    monkeypatch.setattr("flows.estimators.releasing.ingest", watched)
    before = os.umask(0)
    try:
        model(budget=budget).fit(rows)
    finally:
        os.umask(before)
    assert modes == {0}


def test_what_is_refused_stores_no_row(budget: PopulationBudget) -> None:
    for changed, error in (
        ({"n_components": 9}, InvalidInput),
        ({"relation": "replace_one"}, Invalid),
        ({"delta": 0.01}, Refused),
        ({"records_at_most": 5}, Invalid),
    ):
        with pytest.raises(error):
            model(budget=budget, **changed).fit(ROWS)
    assert budget.workspace.catalog.entries() == []
    assert budget.statement().spent == 0


@pytest.mark.parametrize("name", ["", "a\nb", "a\r"])
def test_names_that_are_not_one_line_are_refused_before_a_charge(budget: PopulationBudget, name: str) -> None:
    with pytest.raises(Invalid, match="each name is one line") as caught:
        model(budget=budget).fit(pd.DataFrame(ROWS, columns=[name, *"bcde"]))
    assert "\n" not in str(caught.value)
    assert budget.statement().spent == 0


def test_rows_of_another_population_are_refused_before_a_charge(budget: PopulationBudget) -> None:
    model(budget=budget).fit(ROWS)
    Workspace.open().ledger.open_budget("staff", epsilon=4.0, delta=5e-6)
    staff = Workspace.open().budget("staff")
    with pytest.raises(Conflict, match="the same people under two budgets"):
        model(budget=staff).fit(ROWS)
    assert staff.statement().spent == 0


def test_names_are_checked_when_the_budget_is_taken(budget: PopulationBudget) -> None:
    with pytest.raises(NotFound):
        Workspace.open().budget("nobody")
    with pytest.raises(Invalid, match="is not allowed"):
        Workspace.open().budget("patients", publish="No Name")
    named = Workspace.open().budget("patients", dataset="visits", publish="visits-map")
    assert model(budget=named).fit(ROWS).published_ == "visits-map@1"
    assert repr(named) == "PopulationBudget('patients')"
