"""Estimators on a ledger: public results depend on arguments and never on rows; a slot is charged once.

Private ridge regression as an estimator gives the same release and model as through the command, charged once.
"""

import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from scipy import sparse
from sklearn.base import clone

from dpca import errors
from dpca.errors import BudgetExhausted, Conflict, Invalid, NotFound
from dpca.registry import Registry
from dpca_tasks.errors import InvalidInput, Refused
from flows.estimators import InMemoryBudget, PrivateMatrixFactorization, PrivateRidge, RepeatedFitWarning, base
from flows.estimators.tables import Entries, Table, TableRows
from storage.database import tables
from storage.datasets.ingest import ingest
from storage.ledger.releases import Release
from storage.workspace import PopulationBudget, Workspace
from tests.flows.estimators.forks import POINTS, TOGETHER
from tests.flows.estimators.rows import NEIGHBOUR, ROWS, model

ELSEWHERE = """
import json, sys
from storage.workspace import Workspace
from tests.flows.estimators.rows import NEIGHBOUR, model
fitted = model(slot="night", budget=Workspace.open().budget("patients")).fit(NEIGHBOUR)
loaded = [name for name in ("prefect", "dask", "distributed") if name in sys.modules]
print(json.dumps([fitted.components_.tobytes().hex(), fitted.published_, loaded]))
"""
SIDEWAYS = ROWS[:, ::-1].copy()
"""Rows of other components: the first column of `ROWS` varies most, and here it is the last."""

FILMS = ["alien", "brazil", "casablanca", "dune", "eraserhead", "fargo"]


@pytest.fixture
def budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PopulationBudget:
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    Workspace.open().ledger.open_budget("patients", epsilon=4.0, delta=5e-6)
    return Workspace.open().budget("patients")


def content_of(rows: np.ndarray) -> str:
    return TableRows(Table.in_memory(rows, entries=Entries())).content


@pytest.mark.parametrize("slot", [None, "night"])
def test_neighbours_have_equal_versions_charges_and_warnings(
    slot: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeat a fit on the same rows and on rows with one row changed: versions and ledger must be equal.

    All statements of the ledger are compared.
    """
    found: list[list[Any]] = []
    for name, second in (("same", ROWS.copy()), ("changed", NEIGHBOUR)):
        monkeypatch.setenv("DPCA_HOME", str(tmp_path / name))
        monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / f"{name}-state"))
        Workspace.open().ledger.open_budget("patients", epsilon=4.0, delta=5e-6)
        budget = Workspace.open().budget("patients")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            versions = [model(epsilon=1.0, slot=slot, budget=budget).fit(rows).published_ for rows in (ROWS, second)]
        statement = budget.statement()
        states = [(release.state, release.epsilon, release.charge) for release in statement.releases]
        with budget.workspace.ledger.transaction() as connection:
            names = list(connection.scalars(sa.select(tables.event.c.name).order_by(tables.event.c.seq)))
        shown = [(warning.category, str(warning.message)) for warning in caught]
        found.append([versions, statement.spent, statement.remaining, states, names, shown])
    same, changed = found
    assert same == changed
    assert same[0] == ["subspace.patients@1", "subspace.patients@2" if slot is None else "subspace.patients@1"]
    assert [str(kind) for kind, _ in same[-1]] == ([str(RepeatedFitWarning)] if slot is None else [])


def test_a_second_fit_with_equal_parameters_warns_before_rows_are_stored_and_charged(budget: PopulationBudget) -> None:
    model(epsilon=1.0, budget=budget).fit(ROWS)
    spent, stored = budget.statement().spent, snapshots(budget)
    with pytest.raises(RepeatedFitWarning, match=r"^fit 2 with equal parameters on PopulationBudget\('patients'\)"):
        # a repeated fit warns, and pytest turns warnings into errors here
        model(epsilon=1.0, budget=Workspace.open().budget("patients")).fit(NEIGHBOUR)
    assert budget.statement().spent == spent
    assert snapshots(budget) == stored


def snapshots(budget: PopulationBudget) -> list[Path]:
    return sorted((budget.workspace.home / "datasets" / budget.dataset).iterdir())


def test_a_slot_is_one_release_in_any_process_and_for_any_rows(budget: PopulationBudget, tmp_path: Path) -> None:
    """Fit with a used slot, here and in another process: the first release is returned, and no rows are read.

    The other process loads neither Prefect nor Dask.
    """
    first = model(slot="night", budget=budget).fit(ROWS)
    assert first.published_ == "subspace.patients@1"
    spent = budget.statement().spent
    assert 0 < spent < 4.0
    bad = np.full((3, 5), np.nan)
    for rows in (ROWS, NEIGHBOUR, sparse.csr_array(ROWS), da.from_array(bad, chunks=(1, 5)), bad, ROWS[:0]):
        again = model(slot="night", budget=Workspace.open().budget("patients")).fit(rows)
        assert again.components_.tobytes() == first.components_.tobytes()
        assert again.published_ == first.published_
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [first.components_.tobytes().hex(), first.published_, []]
    assert budget.statement().spent == spent
    assert len(snapshots(budget)) == 1
    assert list((tmp_path / "home" / "staging").iterdir()) == []
    Workspace.open().ledger.verify()


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Any]:
    """Run `forks` in a new home; return the settings of the home, and the output of its two concurrent children."""
    folder = tmp_path_factory.mktemp("forks")
    settings = {"DPCA_HOME": str(folder / "home"), "DPCA_STATE_FOLDER": str(folder / "state")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        Workspace.open().ledger.open_budget("patients", epsilon=4.0, delta=5e-6)
        words = [sys.executable, "-m", "tests.flows.estimators.forks", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    return settings, json.loads(done.stdout)


@pytest.fixture
def forked_budget(forks: tuple[dict[str, str], Any], monkeypatch: pytest.MonkeyPatch) -> PopulationBudget:
    for name, value in forks[0].items():
        monkeypatch.setenv(name, value)
    return Workspace.open().budget("patients")


def of_slot(budget: PopulationBudget, slot: str) -> Release:
    (release,) = [each for each in budget.statement().releases if each.run_key.endswith(f"/{slot}")]
    return release


@pytest.mark.audit_only
@pytest.mark.parametrize("point", POINTS)
def test_a_slot_of_a_killed_process_is_finished_from_the_charged_rows(
    forked_budget: PopulationBudget, point: str
) -> None:
    """Fit with the slot of a killed process: the charged rows are used, and other terms are refused.

    The rows of the second fit vary along another axis, so the result shows which rows were used.
    """
    budget, spent = forked_budget, forked_budget.statement().spent
    release = of_slot(budget, point)
    assert release.state == ("reserved" if point.startswith("reserve") else "noising")
    with pytest.raises(Conflict, match=r"other terms \(clip_norm\)"):
        model(slot=point, epsilon=0.5, clip_norm=20.0, budget=budget).fit(SIDEWAYS)
    fitted = model(slot=point, epsilon=0.5, budget=budget).fit(SIDEWAYS)
    assert np.abs(fitted.components_[0]).argmax() == 0
    finished = of_slot(budget, point)
    assert (finished.id, finished.state) == (release.id, "committed")
    assert fitted.artifact_.manifest["release"] == release.id
    assert budget.statement().spent == spent
    assert budget.workspace.catalog.entry(release.snapshot_id).content_digest == content_of(ROWS)


def test_processes_with_one_slot_at_once_are_one_release_and_keep_one_snapshot(
    forks: tuple[dict[str, str], Any], forked_budget: PopulationBudget
) -> None:
    """Two processes fit with one slot at the same time: there is one release and one snapshot.

    Both processes have stored their different rows before either is charged.
    """
    first, second = forks[1]
    assert first == second
    assert of_slot(forked_budget, TOGETHER).state == "committed"
    releases = forked_budget.statement().releases
    assert len(releases) == len(POINTS) + 1
    kept = {path.name for path in snapshots(forked_budget) if not path.name.startswith(".")}
    assert kept == {release.snapshot_id for release in releases}


@pytest.mark.parametrize("rows", [ROWS, NEIGHBOUR], ids=["same", "changed"])
def test_a_slot_with_other_terms_is_refused_in_one_line(rows: np.ndarray, budget: PopulationBudget) -> None:
    model(slot="night", epsilon=1.0, budget=budget).fit(pd.DataFrame(ROWS, columns=list("abcde")))
    spent, workspace = budget.statement().spent, budget.workspace
    frame = pd.DataFrame(rows, columns=list("abcde"))
    named = workspace.budget("patients", publish="other")
    for changed, columns, term in (
        ({"epsilon": 1.5}, frame, "epsilon"),
        ({"clip_norm": 20.0}, frame, "clip_norm"),
        ({"n_components": 1}, frame, "n_components"),
        ({"records_at_most": 9_000}, frame, "column names or public bounds"),
        ({}, frame.iloc[:, :4], "number of columns"),
        ({}, rows, "column names or public bounds"),
        ({"budget": named}, frame, "published name"),
    ):
        with pytest.raises(Conflict) as refusal:
            model(**{"slot": "night", "epsilon": 1.0, "budget": budget, **changed}).fit(columns)
        assert str(refusal.value) == (
            f"slot 'night' was charged with other terms ({term}), and a slot has one release; pass the same terms, or "
            "another slot."
        )
    assert budget.statement().spent == spent
    assert model(slot="night", epsilon=1.0, relation="add_remove", budget=budget).fit(frame).published_


def test_slots_of_two_populations_are_two_releases(budget: PopulationBudget) -> None:
    Workspace.open().ledger.open_budget("staff", epsilon=4.0, delta=5e-6)
    staff = Workspace.open().budget("staff")
    assert model(slot="night", budget=budget).fit(ROWS).published_ == "subspace.patients@1"
    assert model(slot="night", budget=staff).fit(SIDEWAYS).published_ == "subspace.staff@1"
    with pytest.raises(Conflict, match="belongs to population 'patients'"):
        model(slot="night", budget=Workspace.open().budget("staff", dataset=budget.dataset)).fit(SIDEWAYS)


def test_a_slot_closed_by_an_operator_is_refused(budget: PopulationBudget) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "finish_release", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(slot="night", budget=budget).fit(ROWS)
    (release,) = budget.statement().releases
    budget.workspace.catalog.remove(budget.dataset, force=True)
    with pytest.raises(errors.Refused, match=f"removed; end it with `dpca budget abandon {release.id}`"):
        model(slot="night", budget=budget).fit(ROWS)
    budget.workspace.ledger.abandon(release.id)
    with pytest.raises(errors.Refused, match="slot 'night' was abandoned by an operator"):
        model(slot="night", budget=budget).fit(ROWS)


def test_other_rows_are_another_release_until_the_budget_refuses(budget: PopulationBudget) -> None:
    """Fit on other rows until the budget refuses: each fit is a release, and rows of a refused fit are removed."""
    assert model(budget=budget).fit(ROWS).published_ == "subspace.patients@1"
    with pytest.warns(RepeatedFitWarning):
        again = model(budget=budget).fit(da.from_array(ROWS[1:], chunks=(900, 5)))
    assert again.published_ == "subspace.patients@2"
    spent = budget.statement().spent
    with pytest.raises(BudgetExhausted) as refusal:
        model(budget=budget, epsilon=3.9).fit(ROWS)
    assert "\n" not in str(refusal.value)
    assert budget.statement().spent == spent
    assert len(snapshots(budget)) == 2


def test_an_unpickled_estimator_spends_from_the_same_ledger_and_from_no_other(
    budget: PopulationBudget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpickle an estimator: it spends from the same ledger only, and transforms rows without any ledger."""
    fitted = model(slot="night", budget=budget).fit(ROWS)
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
    with pytest.raises(errors.Refused, match="belongs to another ledger"):
        elsewhere.fit(ROWS)


def test_ratings_keep_their_zeros_and_items_their_names(budget: PopulationBudget) -> None:
    """Fit ratings with stored zeros: they are ratings, users without ratings count, and items keep their names."""
    users = np.random.default_rng(5)
    films = pd.DataFrame(np.where(users.random((90, 6)) < 0.5, users.integers(0, 6, (90, 6)), np.nan), columns=FILMS)
    films.iloc[[3, 89]] = np.nan
    settings: dict[str, Any] = {
        "ratings_between": (0, 5),
        "ratings_per_user": 4,
        "epsilon": 2.0,
        "budget": budget,
        "slot": "a",
    }
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
def test_rows_being_stored_in_the_home_are_unreadable_to_others(
    rows: Any, budget: PopulationBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: set[int] = set()

    def watched(source: list[Path], **options: Any) -> Any:
        for file in (*source, Path(options["options"].feature_names or source[0])):
            modes.update(path.stat().st_mode & 0o077 for path in (file, *file.parents[:3]))
        return ingest(source, **options)

    monkeypatch.setattr("flows.estimators.base.ingest", watched)
    before = os.umask(0)
    try:
        model(budget=budget).fit(rows)
    finally:
        os.umask(before)
    assert modes == {0}


def test_a_refused_fit_stores_no_row(budget: PopulationBudget) -> None:
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


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("", "column 1 has no name"), ("a\nb", "a name is one line"), ("a\r", "a name is one line")],
)
def test_names_that_are_not_one_line_are_refused_before_a_charge(
    budget: PopulationBudget, name: str, sentence: str
) -> None:
    with pytest.raises((Invalid, ValueError), match=sentence) as caught:
        model(budget=budget).fit(pd.DataFrame(ROWS, columns=[name, *"bcde"]))
    assert "\n" not in str(caught.value)
    assert budget.statement().spent == 0


def test_rows_of_another_population_are_refused_before_a_charge(budget: PopulationBudget) -> None:
    model(budget=budget).fit(ROWS)
    Workspace.open().ledger.open_budget("staff", epsilon=4.0, delta=5e-6)
    staff = Workspace.open().budget("staff")
    with pytest.raises(Conflict, match="privacy losses of two populations with the same people add up"):
        model(budget=staff).fit(ROWS)
    assert staff.statement().spent == 0


def test_names_are_checked_when_a_budget_is_requested(budget: PopulationBudget) -> None:
    with pytest.raises(NotFound):
        Workspace.open().budget("nobody")
    with pytest.raises(Invalid, match="is not allowed"):
        Workspace.open().budget("patients", publish="No Name")
    named = Workspace.open().budget("patients", dataset="visits", publish="visits-map")
    assert model(budget=named).fit(ROWS).published_ == "visits-map@1"
    assert repr(named) == "PopulationBudget('patients')"


RNG = np.random.default_rng(2)
RIDGE_ROWS = RNG.uniform(-1.0, 1.0, (8000, 3))
TARGET = RIDGE_ROWS @ [1.0, -0.5, 0.0] + 0.3 + RNG.normal(0, 0.1, 8000)


def test_a_fit_is_one_charge_and_predicts_within_its_errors() -> None:
    budget = InMemoryBudget(epsilon=3.0, delta=1e-5)
    model = PrivateRidge(epsilon=2.0, delta=1e-6, clip_norm=3.0, slot="first", budget=budget).fit(RIDGE_ROWS, TARGET)
    spent = budget.spent
    assert spent > 0
    again = clone(model).fit(RIDGE_ROWS, TARGET)
    assert budget.spent == spent
    assert np.array_equal(again.coef_, model.coef_)
    assert model.artifact_.n_features == 4
    derived = model.artifact_.ridge("3")
    assert derived.weights is not None
    assert derived.errors is not None
    assert np.array_equal(model.coef_, derived.weights[0])
    assert np.array_equal(model.ridge_coef_, derived.coefficients[0])
    assert np.array_equal(model.ridge_coef_errors_, derived.errors[0])
    assert np.allclose(model.predict(RIDGE_ROWS), derived.predict(RIDGE_ROWS))
    assert model.score(RIDGE_ROWS, TARGET) > 0.8
    assert model.r_squared_ > 0.8
    with pytest.raises(BudgetExhausted):
        PrivateRidge(epsilon=2.9, delta=1e-6, clip_norm=3.0, budget=budget).fit(RIDGE_ROWS, TARGET)


def test_columns_have_names_and_no_intercept_needs_no_mean() -> None:
    frame = pd.DataFrame(RIDGE_ROWS, columns=["a", "b", "c"])
    budget = InMemoryBudget(epsilon=9.0, delta=1e-5)
    model = PrivateRidge(epsilon=4.0, delta=1e-6, clip_norm=3.0, fit_intercept=False, budget=budget).fit(frame, TARGET)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert model.intercept_ == 0.0
    assert not model.artifact_.has_mean
    assert model.predict(frame).shape == (8000,)


def test_a_missing_bound_is_refused_and_noise_is_warned_of() -> None:
    budget = InMemoryBudget(epsilon=9.0, delta=1e-5)
    with pytest.raises(InvalidInput, match="clip_norm=None sets no bound"):
        PrivateRidge(budget=budget).fit(RIDGE_ROWS, TARGET)
    assert budget.spent == 0
    with pytest.warns(UserWarning, match="the noise hides whether the columns predict the target"):
        PrivateRidge(epsilon=0.01, clip_norm=3.0, budget=budget).fit(RIDGE_ROWS[:200], TARGET[:200])
