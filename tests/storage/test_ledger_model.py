"""Ledger compared with a model in plain Python, and concurrent spending.

For any sequence of requests, ledger and model agree. Processes that spend one budget at the same time spend it once.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dpca.errors import BudgetExhausted, Conflict, Finished, Refused
from dpca_tasks.accounting.calibration import UNITS, largest_units
from storage.ledger.budgets import LEVELS
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.contenders import Contenders, contenders, open_database, open_ledger
from tests.storage.contenders import reserve as ledger_concurrency_reserve
from tests.storage.releasing import ANSWER, DELTA, EPSILON, commit, gaussian, open_budget, reserve

POPULATIONS = ("people", "others")
# noise multipliers that need a half, less than a third, and a twentieth of a budget of 1 at 1e-6
MULTIPLIERS = (6.0, 8.0, 20.0)
MOVES = {
    "begin": ("reserved", "noising"),
    "abandon": ("reserved",),
    "close": ("noising",),
    "commit": ("noising", "committed"),
}


@dataclass(slots=True)
class Known:
    """The state of a release in the model."""

    population: str
    fingerprint: str
    square: Fraction
    state: str = "reserved"
    digest: str | None = None


class LedgerMachine(RuleBasedStateMachine):
    """A state machine that sends the same requests to a ledger and a model, and compares them after each step."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        os.environ["DPCA_HOME"] = self._folder.name
        self.ledger = Workspace.open().ledger
        self.known: dict[str, Known] = {}
        for population in POPULATIONS:
            open_budget(self.ledger, population)
        self.limit = Fraction(largest_units(EPSILON, DELTA), UNITS)

    def teardown(self) -> None:
        self._folder.cleanup()

    @rule(
        run_key=st.sampled_from(["a", "b", "c", "d", "e"]),
        population=st.sampled_from(POPULATIONS),
        multiplier=st.sampled_from(MULTIPLIERS),
    )
    def reserve(self, run_key: str, population: str, multiplier: float) -> None:
        requested = Known(population, f"{multiplier}", 1 / Fraction(multiplier) ** 2)

        def call() -> bool:
            event = gaussian(multiplier)
            grant = reserve(self.ledger, run_key, population=population, fingerprint=requested.fingerprint, event=event)
            assert grant.state == self.known.setdefault(run_key, requested).state
            return grant.is_new

        standing = self.known.get(run_key)
        if standing is None and self.charged(population) + requested.square > self.limit:
            with pytest.raises(BudgetExhausted):
                call()
        elif standing and (standing.population, standing.fingerprint) != (population, requested.fingerprint):
            with pytest.raises(Conflict):
                call()
        else:
            assert call() == (standing is None)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), move=st.sampled_from(sorted(MOVES)), digest=st.sampled_from(["d", "e"]))
    def move(self, data: st.DataObject, move: str, digest: str) -> None:
        run_key = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[run_key]
        found = self.ledger.find(run_key)
        assert found is not None
        arrived = {"begin": "noising", "abandon": "abandoned", "close": "closed", "commit": "committed"}[move]

        def act() -> None:
            match move:
                case "begin":
                    self.ledger.begin(found.id).keep(0, ANSWER)
                case "commit":
                    commit(self.ledger, found.id, digest)
                case _:
                    getattr(self.ledger, move)(found.id)

        if known.state not in (*MOVES[move], arrived):
            with pytest.raises(Refused):
                act()
        elif move == "commit" and known.digest not in (None, digest):
            with pytest.raises(Finished):
                act()
        else:
            act()
            known.state = arrived
            known.digest = digest if move == "commit" else None

    @rule()
    def reopen(self) -> None:
        self.ledger = Workspace.open().ledger

    def charged(self, population: str) -> Fraction:
        rows = self.known.values()
        return sum(
            (row.square for row in rows if row.population == population and row.state != "abandoned"), Fraction(0)
        )

    @invariant()
    def ledger_and_model_agree(self) -> None:
        live = set()
        for population in POPULATIONS:
            statement = self.ledger.statement(population)
            rows = {row.run_key: row for row in statement.releases}
            expected = {key: row for key, row in self.known.items() if row.population == population}
            assert {key: (row.state, row.artifact_digest) for key, row in rows.items()} == {
                key: (row.state, row.digest) for key, row in expected.items()
            }
            assert statement.spent <= EPSILON
            assert (statement.spent == 0) == (self.charged(population) == 0)
            live |= {row.id for row in rows.values() if row.state in ("reserved", "noising")}
        keys = {path.name for path in (Path(self._folder.name) / "keys").iterdir() if "witness" not in path.name}
        assert keys == live
        self.ledger.verify()


def test_the_ledger_agrees_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPCA_HOME", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"):
        monkeypatch.setenv(name, "")
    run_state_machine_as_test(LedgerMachine, settings=settings(max_examples=12, stateful_step_count=20))


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
    """Return a ledger whose budget admits ten releases of multiplier `TEN`, and no eleventh."""
    from dp_accounting import get_epsilon_gaussian

    ledger.open_budget("people", epsilon=get_epsilon_gaussian(TEN / 10.5**0.5, 1e-6), delta=1e-6)


def test_exactly_10_of_64_concurrent_requests_fit(processes: Contenders, environment: dict[str, str]) -> None:
    ledger = Workspace.open().ledger
    budget_for_ten(ledger)
    outcomes = sum(processes.race(partial(ledger_concurrency_reserve, one_key=False), environment, TEN), Counter[str]())
    granted = [name for name in outcomes if name.startswith("new")]
    assert len(granted) == 10
    assert outcomes["refused"] == 54
    assert outcomes.total() == 64
    statement = ledger.statement("people")
    assert {f"new {row.id}" for row in statement.releases} == set(granted)
    assert statement.spent <= statement.budget.epsilon
    assert {path.name for path in key_files(ledger)} == {row.id for row in statement.releases}
    assert ledger.verify() == 2 + 10 + len(LEVELS), "the ledger, the budget, the releases, and one alert a level"


def test_one_run_key_is_one_release_for_all_processes(processes: Contenders, environment: dict[str, str]) -> None:
    ledger = Workspace.open().ledger
    ledger.open_budget("people", epsilon=1.0, delta=1e-6)
    outcomes = sum(processes.race(partial(ledger_concurrency_reserve, one_key=True), environment, ONE), Counter[str]())
    (release,) = ledger.statement("people").releases
    assert outcomes == {f"new {release.id}": 1, f"old {release.id}": 63}


def key_files(ledger: Ledger) -> list[Path]:
    return [path for path in (ledger.home / "keys").iterdir() if "." not in path.name]
