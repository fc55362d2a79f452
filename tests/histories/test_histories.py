"""A few simulated histories of the real code, the proof that a seed decides all of one, and that a fault is found.

`make integration` plays more of them, and `make soak-histories` two thousand and every planted fault.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from storage import opened_home
from storage.registry.restored import accept
from tests.crash.world import World
from tests.histories.checks import violations
from tests.histories.plans import Act, Fault, Plan, plan_of
from tests.histories.planted import PLANTS
from tests.histories.playing import History, Plant, play
from tests.histories.shrinking import least
from tests.histories.violation import Violation
from tests.histories.worlds import found_template

Judged = Callable[..., tuple[History, list[Violation]]]

SEEDS = (1, 4)
"""Histories on SQLite and in a folder, with kills, jumps of the clock, a full disk and a restored database."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """Play a plan in a world of this module, and check it."""
    base = tmp_path_factory.mktemp("histories")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_KEY_FOLDER", "DPCA_DATABASE_URL", "DPCA_STORE_URL"):
            patch.setenv(name, os.environ.get(name, ""))  # and put back afterwards
        template, world = found_template(base / "template" / "home"), World(home=base / "lane" / "home")
        world.home.parent.mkdir()

        def judge(plan: Plan, *, plant: Plant | None = None) -> tuple[History, list[Violation]]:
            history = play(plan, template, world, plant=plant)
            return history, violations(history, template, world, {})

        yield judge


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_the_real_code_has_no_violation(judged: Judged, seed: int) -> None:
    history, found = judged(plan_of(seed, on_server=False))
    assert found == []
    assert history.counts, "nothing went wrong in it"
    assert history.seen.totals, "no row was summed in it"
    assert history.seen.answers
    assert history.reserves


def test_a_seed_reproduces_a_history_to_the_last_step(judged: Judged) -> None:
    first, second = (judged(plan_of(SEEDS[-1], on_server=False))[0] for _ in range(2))
    assert first.scheduler.trace == second.scheduler.trace
    for one, other in zip(first.calls, second.calls, strict=True):
        assert (one.end, one.result, one.message) == (other.end, other.result, other.message)


def test_a_planted_fault_is_found_and_its_story_is_short(judged: Judged) -> None:
    """The key is erased before the commit, and the process is killed in between."""
    script = (Act(kind="fit", number=0, name="north"), Act(kind="statement"))
    quiet = Plan(seed=0, database="file", store="folder", scripts=(script,), faults=(), switching=0.0)
    reached = [what for _, what in judged(quiet, plant=PLANTS["key"].plant)[0].scheduler.trace]
    between = reached.index("commit.staging_removed") + 1
    faults = (Fault(step=9, kind="jump", by=1.0), Fault(step=between, kind="kill"))
    plan = replace(quiet, faults=faults)

    def fails(plan: Plan) -> bool:
        return bool(PLANTS["key"].found_in(judged(plan, plant=PLANTS["key"].plant)[1]))

    assert fails(plan)
    assert judged(plan)[1] == []
    unrelated = replace(PLANTS["key"], finders=frozenset({"charged once"}))
    assert unrelated.found_in(judged(plan, plant=unrelated.plant)[1]) == []
    assert least(plan, fails) == replace(quiet, scripts=(script[:1],), faults=faults[1:])


@pytest.fixture(scope="module")
def restored(judged: Judged) -> Plan:
    """Restore a copy that lacks a release which began: an operator's acceptance charges it again."""
    script = (Act(kind="fit", number=0, name="north"),)
    quiet = Plan(seed=0, database="file", store="folder", scripts=(script,), faults=(), switching=0.0)
    begun = _steps(judged(quiet)[0]).index(("p0", "begin.row_committed")) + 1
    faults = Fault(step=9, kind="copy"), Fault(step=begun, kind="restore", what="database")
    return replace(quiet, faults=faults)


def test_what_an_acceptance_charged_stands_whichever_answer_to_it_is_lost(judged: Judged, restored: Plan) -> None:
    history = judged(restored)[0]
    (accepted,) = (call for call in history.calls if call.what == "open" and call.act)
    within = range(accepted.start, accepted.end or 0)
    commits = [at + 1 for at in within if _steps(history)[at] == ("operator", "commit")]
    assert len(commits) > 1, "that of the acceptance, and of what comes after it"
    for step in commits:
        played, found = judged(replace(restored, faults=(*restored.faults, Fault(step=step, kind="answer"))))
        told = [call.error for call in played.calls if call.what == "open" and call.act]
        assert (found, told[0]) == ([], "Unavailable")


def test_what_nobody_accepted_explains_no_charge(judged: Judged, restored: Plan) -> None:
    @contextmanager
    def by_nobody() -> Iterator[None]:
        def accept_it(*args: Any, reason: str, **terms: Any) -> Any:
            return accept(*args, reason=f"not {reason}", **terms)

        with patch.object(opened_home, "accept", accept_it):
            yield

    assert judged(restored)[1] == []
    assert [violation.check for violation in judged(restored, plant=by_nobody)[1]] == ["order of charges"]


def _steps(history: History) -> list[tuple[str, str]]:
    """Return who reached what at each step, from the first."""
    return [(who, what) for who, what in history.scheduler.trace if not what.startswith("waits for ")]


def test_plans_have_every_kind_of_fault_and_act() -> None:
    plans = [plan_of(seed, on_server=True) for seed in range(100)]
    faults = {fault.kind for plan in plans for fault in plan.faults}
    acts = {act.kind for plan in plans for script in plan.scripts for act in script}
    assert faults == {"kill", "jump", "disk", "answer", "copy", "restore", "lose"}
    assert acts == {"fit", "tick", "promote", "read", "statement"}
    assert {(plan.database, plan.store) for plan in plans} == {
        (database, store) for database in ("file", "server") for store in ("folder", "objects")
    }
