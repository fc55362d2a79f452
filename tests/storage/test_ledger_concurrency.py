"""Processes that spend one budget at the same time spend it once."""

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from storage.ledger.alerts import LEVELS
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.contenders import Contenders, contenders, open_database, open_ledger, reserve

ONE, TEN = 50.0, 16.0  # noise multipliers


@pytest.fixture(scope="module")
def processes() -> Iterator[Contenders]:
    with contenders() as started:
        yield started


@pytest.fixture
def environment(home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("DPCA_DATABASE_URL", database_url)
    return {"DPCA_HOME": os.environ["DPCA_HOME"], "DPCA_DATABASE_URL": database_url}


def test_the_first_openers_of_a_database_do_not_race(processes: Contenders, database_url: str) -> None:
    assert len(set(processes.race(open_database, database_url))) == 1


def test_the_first_openers_of_a_ledger_agree_on_it(processes: Contenders, environment: dict[str, str]) -> None:
    assert set(processes.race(open_ledger, environment)) == {Workspace.open().ledger.id}
    assert Workspace.open().ledger.verify() == 1


def budget_for_ten(ledger: Ledger) -> None:
    """Open a budget that admits ten releases of multiplier `TEN`, and no eleventh."""
    from dp_accounting import get_epsilon_gaussian

    ledger.open_budget("people", epsilon=get_epsilon_gaussian(TEN / 10.5**0.5, 1e-6), delta=1e-6)


def test_of_64_requests_from_8_processes_exactly_10_fit(processes: Contenders, environment: dict[str, str]) -> None:
    ledger = Workspace.open().ledger
    budget_for_ten(ledger)
    outcomes = sum(processes.race(partial(reserve, one_key=False), environment, TEN), Counter[str]())
    granted = [name for name in outcomes if name.startswith("new")]
    assert len(granted) == 10
    assert outcomes["refused"] == 54
    assert outcomes.total() == 64
    statement = ledger.statement("people")
    assert {f"new {row.id}" for row in statement.releases} == set(granted)
    assert statement.spent <= statement.budget.epsilon
    assert {path.name for path in key_files(ledger)} == {row.id for row in statement.releases}
    assert ledger.verify() == 2 + 10 + len(LEVELS), "the ledger, the budget, the releases, and one alert a level"


def test_one_run_key_is_one_release_whoever_asks(processes: Contenders, environment: dict[str, str]) -> None:
    ledger = Workspace.open().ledger
    ledger.open_budget("people", epsilon=1.0, delta=1e-6)
    outcomes = sum(processes.race(partial(reserve, one_key=True), environment, ONE), Counter[str]())
    (release,) = ledger.statement("people").releases
    assert outcomes == {f"new {release.id}": 1, f"old {release.id}": 63}


def key_files(ledger: Ledger) -> list[Path]:
    return [path for path in (ledger.home / "keys").iterdir() if "." not in path.name]
