"""Shares of a budget, proven by reserving them: every run is admitted, and with the next float the last is refused."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.events import approximate, gaussian, non_private, poisson_sampled, self_composed
from flows.reports.budget_facts import pacing_facts, runs_that_fit, written_share
from storage.errors import BudgetExhausted
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.flows.conftest import Command

DELTA = 1e-6
MIXED = (
    (approximate(0.25, 0.0), 0.25),
    (gaussian(gaussian_noise_multiplier(epsilon=1.2, delta=DELTA)), 1.2),
    (approximate(0.125, 1e-8), 0.125),
    (self_composed(poisson_sampled(gaussian(2.0), 0.01), 50), 0.5),
)
NUMBERS = itertools.count()
HALF = ((gaussian(gaussian_noise_multiplier(epsilon=2.4, delta=DELTA)), 2.4),)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Open the ledger of an empty home."""
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    return Workspace.open().ledger


def reserve(ledger: Ledger, population: str, event: Any, *, epsilon: float, delta: float = DELTA) -> None:
    what: dict[str, Any] = {"fingerprint": "f", "snapshot_id": "s" * 32, "request": {}}
    key = f"{population} {next(NUMBERS)}"
    ledger.reserve(population, run_key=key, event=event, epsilon=epsilon, delta=delta, void=True, **what)


def run(ledger: Ledger, population: str, *, epsilon: float, delta: float) -> None:
    """Reserve one Gaussian release as a mechanism would ask for it."""
    event = gaussian(gaussian_noise_multiplier(epsilon=epsilon, delta=delta))
    reserve(ledger, population, event, epsilon=epsilon, delta=delta)


@pytest.mark.parametrize(
    ("filter_", "relation", "before", "runs", "delta"),
    [
        ("gdp", "add_remove", (), 52, None),
        ("renyi", "add_remove", HALF, 52, None),
        ("gdp", "zero_out", MIXED, 12, None),
        ("gdp", "replace_one", MIXED, 12, 1e-9),
        ("renyi", "zero_out", MIXED, 12, 1e-9),
        ("renyi", "replace_one", MIXED, 12, None),
    ],
)
def test_all_runs_are_admitted_and_with_the_next_float_the_last_is_refused(
    ledger: Ledger, filter_: str, relation: str, before: tuple[Any, ...], runs: int, delta: float | None
) -> None:
    for population in ("exact", "next"):
        ledger.open_budget(population, epsilon=4.0, delta=DELTA, filter=filter_, relation=relation)
        for event, epsilon in before:
            reserve(ledger, population, event, epsilon=epsilon, delta=2e-8)
    facts = pacing_facts(ledger, "exact", runs=runs, delta=delta)
    each, delta = facts["epsilon_each"], facts["delta_each"]
    assert facts["state"] == "open"
    assert runs_that_fit(ledger, "exact", epsilon=each, delta=delta) == runs
    for _ in range(runs):
        run(ledger, "exact", epsilon=each, delta=delta)
    assert ledger.statement("exact").remaining == facts["after"]
    more = math.nextafter(each, math.inf)
    for _ in range(runs_that_fit(ledger, "next", epsilon=more, delta=delta)):
        run(ledger, "next", epsilon=more, delta=delta)
    with pytest.raises(BudgetExhausted):
        run(ledger, "next", epsilon=more, delta=delta)
    assert len(ledger.statement("next").releases) == len(before) + runs - 1


def test_shares_that_are_computed_anew_before_every_run_stay_what_they_were(ledger: Ledger) -> None:
    """Each run asks for its share of what is left then; none is refused, and none is starved."""
    ledger.open_budget("people", epsilon=4.0, delta=DELTA)
    shares = []
    for left in range(12, 0, -1):
        shares.append(written_share(pacing_facts(ledger, "people", runs=left)["epsilon_each"]))
        run(ledger, "people", epsilon=shares[-1], delta=DELTA)
    assert shares == pytest.approx([shares[0]] * 12, rel=1e-7)
    assert pacing_facts(ledger, "people", runs=1)["remaining"] < 1e-3


def test_a_written_share_never_exceeds_the_share_and_loses_a_part_in_a_hundred_million() -> None:
    for share in (0.46594812345678, 1.0, 0.1 + 0.2, 3.9999999999999996, 1e-5 / 3):
        assert share * (1 - 1e-8) <= written_share(share) <= share
        assert float(f"{written_share(share):.9g}") == written_share(share)
    assert written_share(0.0) == 0.0


def test_a_budget_that_admits_nothing_says_why(ledger: Ledger) -> None:
    for population, (event, epsilon) in {
        "spent": (approximate(4.0, 0.0), 4.0),
        "void": (non_private(), math.inf),
    }.items():
        ledger.open_budget(population, epsilon=4.0, delta=DELTA)
        reserve(ledger, population, event, epsilon=epsilon)
    ledger.open_budget("rest", epsilon=4.0, delta=DELTA)
    facts = {
        (population, runs): pacing_facts(ledger, population, runs=runs)
        for population, runs in itertools.product(("spent", "void", "rest"), (1, 2**57))
    }
    assert {at: found["state"] for at, found in facts.items()} == {
        **{("spent", runs): "exhausted" for runs in (1, 2**57)},
        **{("void", runs): "voided" for runs in (1, 2**57)},
        **{("rest", runs): "open" for runs in (1, 2**57)},
    }
    assert {at for at, found in facts.items() if found["epsilon_each"] > 0} == {("rest", 1)}


def test_the_command_prints_the_share_and_json_the_exact_one(dpca: Command) -> None:
    ledger = Workspace.open().ledger
    ledger.open_budget("people", epsilon=4.0, delta=DELTA)
    facts = pacing_facts(ledger, "people", runs=52)
    printed = dpca("budget", "pace", "people", "--runs", "52")
    assert (printed.status, printed.err) == (0, "")
    asked = float(printed.out.split("epsilon_each")[1].split()[0])
    assert asked == written_share(facts["epsilon_each"])
    assert json.loads(dpca("budget", "pace", "people", "--runs", "52", "--json").out) == facts
    reserve(ledger, "people", approximate(4.0, 0.0), epsilon=4.0)
    gone = dpca("budget", "pace", "people", "--runs", "52")
    assert gone.status == 0
    assert "budget 'people' is exhausted" in gone.err
    assert "delta=2.0 must be in (0, 1)" in dpca("budget", "pace", "people", "--runs", "2", "--delta", "2").complaint(1)
    assert "has no budget" in dpca("budget", "pace", "strangers", "--runs", "2").complaint(1)
