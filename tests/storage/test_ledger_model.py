"""Whatever is asked in whatever order, the ledger does what a few lines of plain Python say."""

import os
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dpca_tasks.accounting.gaussian import UNITS, largest_units
from storage.errors import BudgetExhausted, Conflict, Finished, Refused
from storage.workspace import Workspace
from tests.storage.releasing import ANSWER, DELTA, EPSILON, commit, gaussian, open_budget, reserve

POPULATIONS = ("people", "others")
MULTIPLIERS = (6.0, 8.0, 20.0)  # of mu^2 that a budget of 1 at 1e-6 holds: a half, less than a third, a twentieth
MOVES = {
    "begin": ("reserved", "noising"),
    "abandon": ("reserved",),
    "close": ("noising",),
    "commit": ("noising", "committed"),
}


@dataclass(slots=True)
class Known:
    """What the model remembers of a release."""

    population: str
    fingerprint: str
    square: Fraction
    state: str = "reserved"
    digest: str | None = None


class LedgerMachine(RuleBasedStateMachine):
    """Ask a ledger and a model the same, and compare them after each step."""

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
        asked = Known(population, f"{multiplier}", 1 / Fraction(multiplier) ** 2)

        def ask() -> bool:
            event = gaussian(multiplier)
            grant = reserve(self.ledger, run_key, population=population, fingerprint=asked.fingerprint, event=event)
            assert grant.state == self.known.setdefault(run_key, asked).state
            return grant.is_new

        standing = self.known.get(run_key)
        if standing is None and self.charged(population) + asked.square > self.limit:
            with pytest.raises(BudgetExhausted):
                ask()
        elif standing and (standing.population, standing.fingerprint) != (population, asked.fingerprint):
            with pytest.raises(Conflict):
                ask()
        else:
            assert ask() == (standing is None)

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
    def both_tell_the_same(self) -> None:
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


def test_the_ledger_does_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPCA_HOME", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"):
        monkeypatch.setenv(name, "")
    run_state_machine_as_test(LedgerMachine, settings=settings(max_examples=12, stateful_step_count=20))
