"""A scikit-learn estimator on a budget: conventions, one charge a release, and refusals before any."""

import copy
import pickle
import subprocess
import sys

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import check_estimator

from dpca_tasks.errors import InvalidInput, Refused
from flows.estimators import InMemoryBudget, PrivatePCA
from storage.errors import BudgetExhausted, Invalid
from storage.workspace import Workspace

ROWS = np.random.default_rng(7).normal(size=(4_000, 5)) * [9.0, 4.0, 1.0, 1.0, 1.0] + 3.0
TERMS = {"epsilon": 2.0, "delta": 1e-6}


def model(**changed) -> PrivatePCA:
    return PrivatePCA(**{"n_components": 2, "clip_norm": 30.0, **TERMS, **changed})


def test_scikit_learn_finds_no_fault() -> None:
    with pytest.warns(match="SCIPY_ARRAY_API is not set"):  # the one check that skips itself
        results = check_estimator(PrivatePCA())
    assert {result["check_name"] for result in results if result["status"] != "passed"} == {"check_array_api_input"}


def test_variances_and_mean_are_those_of_pca_up_to_noise() -> None:
    """Fits of a hundredfold weaker noise than signal: relative errors of 0.1 are beyond twenty standard deviations."""
    private, plain = model(epsilon=50.0).fit(ROWS), PCA(2).fit(ROWS)
    assert private.explained_variance_ == pytest.approx(plain.explained_variance_, rel=0.1)
    assert private.explained_variance_ratio_ == pytest.approx(plain.explained_variance_ratio_, rel=0.1)
    assert private.noise_variance_ == pytest.approx(plain.noise_variance_, rel=0.1)
    assert private.mean_ == pytest.approx(plain.mean_, abs=0.3)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")  # anndata sets it
def test_equal_rows_and_request_are_one_release_whatever_holds_the_rows() -> None:
    budget = InMemoryBudget(2.0, 1e-6)
    names = pd.Index(list("abcde"))
    frame = pd.DataFrame(ROWS, columns=names)
    fitted = [
        model(budget=budget).fit(table)
        for table in (
            ROWS,
            sparse.csr_array(ROWS),
            frame,
            anndata.AnnData(X=ROWS, var=pd.DataFrame(index=names)),
            da.from_array(ROWS, chunks=(1_000, 5)),
        )
    ]
    assert len({one.components_.tobytes() for one in fitted}) == 1
    assert [hasattr(one, "feature_names_in_") for one in fitted] == [False, False, True, True, False]
    with pytest.raises(ValueError, match="feature names"):
        fitted[3].transform(frame[list("edcba")])


def test_other_rows_are_another_charge_which_a_spent_budget_refuses() -> None:
    budget = InMemoryBudget(2.0, 1e-6)
    first = model(budget=budget).fit(ROWS)
    assert budget.spent == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(BudgetExhausted, match="does not fit into InMemoryBudget"):
        model(budget=budget).fit(ROWS[1:])
    assert clone(first).fit(ROWS).components_.tobytes() == first.components_.tobytes()
    assert copy.deepcopy(budget) is budget


def test_an_unpickled_estimator_transforms_and_cannot_spend() -> None:
    again = pickle.loads(pickle.dumps(model(budget=InMemoryBudget(2.0, 1e-6)).fit(ROWS)))
    assert again.transform(ROWS).shape == (4_000, 2)
    with pytest.raises(BudgetExhausted, match="another process"):
        again.fit(ROWS)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"delta": None}, InvalidInput, "needs an epsilon and a delta"),
        ({"clip_norm": None}, InvalidInput, "clip_norm=None bounds no row"),
        ({"n_components": 6}, InvalidInput, "below n_features=5"),
        ({"delta": 0.01}, Refused, "is not below 1/records_at_most"),
        ({"records_at_most": 10}, Invalid, "more rows than records_at_most=10"),
        ({"relation": "replace_one"}, Invalid, "the budget is of 'add_remove'"),
        ({"mechanism": "nothing"}, InvalidInput, "unknown"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_private_is_refused_in_one_line_before_a_charge(changed, error, message) -> None:
    budget = InMemoryBudget(2.0, 1e-6)
    with pytest.raises(error, match=message) as refusal:
        model(budget=budget, **changed).fit(ROWS)
    assert "\n" not in str(refusal.value)
    assert budget.spent == 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model().fit(np.where(ROWS[0, 0] == ROWS, value, ROWS))


def test_a_cell_that_runs_twice_on_a_ledger_costs_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    Workspace.open().ledger.open_budget("patients", epsilon=4.0, delta=5e-6)
    budget = Workspace.open().budget("patients")
    first = model(budget=budget).fit(ROWS)
    spent = budget.statement().spent
    again = model(budget=Workspace.open().budget("patients")).fit(sparse.csr_array(ROWS))
    assert again.components_.tobytes() == first.components_.tobytes()
    assert again.published_ == first.published_ == "rows.patients@1"
    assert budget.statement().spent == spent > 0
    assert model(budget=budget).fit(ROWS[1:]).published_ == "rows.patients@2"
    assert budget.statement().spent > spent
    assert not any((tmp_path / "home" / "staging").rglob("rows.*"))
    Workspace.open().ledger.verify()


def test_neither_prefect_nor_dask_is_loaded() -> None:
    script = (
        "import sys, numpy as np\nfrom flows.estimators import PrivatePCA\n"
        "PrivatePCA(1, clip_norm=1.0).fit(np.eye(3))\n"
        "print([name for name in ('prefect', 'dask', 'distributed') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
