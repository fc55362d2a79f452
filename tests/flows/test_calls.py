"""Public functions and classes: they can be called as documented, and the examples of their docstrings work."""

import doctest
import inspect
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpca as public
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BudgetExhausted, Conflict, Invalid, NotFound
from dpca.registry.reader import Registry
from dpca_tasks.errors import InvalidInput
from flows.calls import fit_subspace, open_budget
from flows.cli import main
from flows.estimators import PrivatePCA
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, Command, isolate

WORDS: dict[str, Any] = {"components": 2, "epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.5}


@pytest.fixture(scope="module")
def documented_home(tmp_path_factory: pytest.TempPathFactory, rows_file: Path) -> Path:
    """Return a home with a dataset ``visits``, its budget, and a release ``news@champion``."""
    place = tmp_path_factory.mktemp("documented")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        words = ["dataset", "ingest", str(rows_file), "--name", "visits", "--features", str(FEATURES), "--direct"]
        assert main(words) == 0
        open_budget("visits", epsilon=4.0, delta=2e-6)
        fit_subspace("visits", publish="news", **WORDS)
        Workspace.open().promote("news", version=1, alias="champion")
    return place


@pytest.mark.parametrize("name", public.__all__)
def test_the_examples_of_a_docstring_run(name: str, documented_home: Path, home: Path) -> None:
    shutil.copytree(documented_home, home)
    shown = doctest.DocTestFinder(recurse=False).find(getattr(public, name), name)
    assert [len(test.examples) > 1 for test in shown] == [True]
    reported: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(shown[0], out=reported.append).failed == 0, "".join(reported)


@pytest.mark.parametrize("name", public.__all__)
def test_a_docstring_has_a_see_also_section(name: str) -> None:
    assert "\nSee Also\n" in (inspect.getdoc(getattr(public, name)) or "")


def test_a_function_call_gives_the_same_release_as_the_command(ready: Path, dpca: Command) -> None:
    assert ready.exists()
    made = fit_subspace("people", publish="sub", **WORDS)
    assert isinstance(made, PrivateSubspace)
    assert made.components.shape == (2, FEATURES)
    again = dpca(
        *("subspace", "fit", "people", "--components", 2, "--epsilon", 1, "--delta", 1e-6, "--clip-norm", 1.5),
        *("--publish", "sub", "--direct", "--yes", "--json"),
    )
    assert '"reused": true' in again.out
    assert [row.version for row in Registry.open().versions("sub")] == [1]
    assert np.array_equal(fit_subspace("people", publish="sub", **WORDS).components, made.components)


def test_a_call_that_is_refused_charges_nothing(ready: Path) -> None:
    assert ready.exists()
    before = Workspace.open().ledger.budget("people")
    with pytest.raises(BudgetExhausted):
        fit_subspace("people", publish="sub", **{**WORDS, "epsilon": 50.0})
    with pytest.raises((InvalidInput, Invalid)):
        fit_subspace("people", publish="sub", **{**WORDS, "components": 0})
    with pytest.raises(NotFound):
        fit_subspace("nobody", publish="sub", **WORDS)
    assert Workspace.open().ledger.budget("people") == before


def test_a_budget_is_opened_once_and_charged_by_fits(home: Path) -> None:
    assert not home.exists()
    budget = open_budget("patients", epsilon=2.0, delta=2e-6, relation="zero_out")
    rows = np.random.default_rng(0).normal(size=(500, 4))
    model = PrivatePCA(1, epsilon=1.0, delta=1e-6, clip_norm=2.0, slot="first", budget=budget).fit(rows)
    assert model.published_ == "subspace.patients@1"
    assert open_budget("patients", epsilon=2.0, delta=2e-6, relation="zero_out").population == "patients"
    with pytest.raises(Conflict):
        open_budget("patients", epsilon=3.0, delta=2e-6, relation="zero_out")
