"""Simulated histories of the real code, planted faults, and tests of the tools that play and check them.

- A few histories are played, a seed determines a whole history, and a planted fault is found. `make integration` plays
  more histories; `make soak-histories` plays two thousand, and every planted fault.
- The linearizability check finds an order that explains the answers of a budget, if there is one.
- The scheduler runs simulated processes in an order that its seed determines.
- The verdict of the soak, the criterion for finding a planted fault, and the commands of histories.md are tested.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from storage import workspace
from storage.registry.restored import accept
from tests.crash.world import World
from tests.docs.reader import shell_blocks
from tests.histories.checks import violations
from tests.histories.linearisable import Answer, Charge, is_explained
from tests.histories.plans import Act, Fault, Plan, plan_of
from tests.histories.planted import PLANTS
from tests.histories.playing import History, Plant, play
from tests.histories.scheduler import Scheduler, Stuck
from tests.histories.soak import Report, least
from tests.histories.violation import Violation
from tests.histories.worlds import found_template

Judged = Callable[..., tuple[History, list[Violation]]]

SEEDS = (1, 4)
"""Histories on SQLite and in a folder, with kills, clock jumps, a full disk and a restored database."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """Yield a function that plays a plan in a world of this module, and checks it."""
    base = tmp_path_factory.mktemp("histories")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_KEY_FOLDER", "DPCA_DATABASE_URL", "DPCA_STORE_URL"):
            patch.setenv(name, os.environ.get(name, ""))  # restored afterwards
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
    """Erase the key of a release before the commit, and kill the process in between: the checks must find the fault.

    The story, reduced to what is needed, must be short.
    """
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
    """Return a plan that restores a copy without a release that has begun.

    The operator's acceptance charges this release again.
    """
    script = (Act(kind="fit", number=0, name="north"),)
    quiet = Plan(seed=0, database="file", store="folder", scripts=(script,), faults=(), switching=0.0)
    begun = _steps(judged(quiet)[0]).index(("p0", "begin.row_committed")) + 1
    faults = Fault(step=9, kind="copy"), Fault(step=begun, kind="restore", what="database")
    return replace(quiet, faults=faults)


def test_charges_of_an_acceptance_are_explained_even_if_its_answer_is_lost(judged: Judged, restored: Plan) -> None:
    history = judged(restored)[0]
    (accepted,) = (call for call in history.calls if call.what == "open" and call.act)
    within = range(accepted.start, accepted.end or 0)
    commits = [at + 1 for at in within if _steps(history)[at] == ("operator", "commit")]
    assert len(commits) > 1, "that of the acceptance, and of what comes after it"
    for step in commits:
        played, found = judged(replace(restored, faults=(*restored.faults, Fault(step=step, kind="answer"))))
        shown = [call.error for call in played.calls if call.what == "open" and call.act]
        assert (found, shown[0]) == ([], "Unavailable")


def test_charges_without_an_acceptance_are_not_explained(judged: Judged, restored: Plan) -> None:
    @contextmanager
    def by_nobody() -> Iterator[None]:
        def accept_it(*args: Any, reason: str, **terms: Any) -> Any:
            return accept(*args, reason=f"not {reason}", **terms)

        with patch.object(workspace, "accept", accept_it):
            yield

    assert judged(restored)[1] == []
    assert [violation.check for violation in judged(restored, plant=by_nobody)[1]] == ["order of charges"]


def _steps(history: History) -> list[tuple[str, str]]:
    """Return process and description of each step of a history, without steps that wait for a lock."""
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


def _charge(start: int, end: int | None, key: str, answer: Answer) -> Charge:
    return Charge(start=start, end=end, keys=frozenset({key}), answer=answer)


def _explained(*requested: Charge, room: int, charged: str = "") -> bool:
    return is_explained(requested, charged=frozenset(charged), fits=lambda keys: len(keys) <= room)


def test_sequential_answers_are_explained() -> None:
    assert _explained(_charge(0, 1, "a", "new"), _charge(2, 3, "a", "found"), _charge(4, 5, "b", "refused"), room=1)


@pytest.mark.parametrize(
    "requested",
    [
        pytest.param([_charge(0, 1, "a", "new"), _charge(2, 3, "b", "new")], id="more-than-the-budget-holds"),
        pytest.param([_charge(0, 1, "a", "new"), _charge(2, 3, "a", "new")], id="one-key-charged-twice"),
        pytest.param([_charge(0, 1, "a", "found"), _charge(2, 3, "a", "new")], id="found-before-it-was-charged"),
        pytest.param([_charge(0, 1, "b", "refused"), _charge(2, 3, "a", "new")], id="refused-while-there-was-room"),
        pytest.param([_charge(0, 1, "a", "new"), _charge(0, 1, "a", "refused")], id="refused-though-it-stands"),
    ],
)
def test_answers_that_contradict_every_order_are_not_explained(requested: list[Charge]) -> None:
    assert not _explained(*requested, room=1)


def test_concurrent_answers_are_explained_in_either_order() -> None:
    assert _explained(_charge(0, 9, "b", "refused"), _charge(1, 8, "a", "new"), room=1)


def test_a_request_without_an_answer_may_or_may_not_have_been_charged() -> None:
    dead = _charge(0, None, "a", None)
    assert _explained(dead, _charge(1, 2, "b", "refused"), room=1)
    assert _explained(dead, _charge(1, 2, "b", "new"), room=1)
    assert not _explained(dead, _charge(1, 2, "b", "new"), _charge(3, 4, "a", "found"), room=1)


def test_nothing_is_charged_before_it_is_requested() -> None:
    assert not _explained(_charge(0, 1, "b", "refused"), _charge(5, None, "a", None), room=1)


def test_charges_of_a_copy_and_of_an_acceptance_use_budget() -> None:
    entered = Charge(start=0, end=3, keys=frozenset({"a"}), answer="entered")
    assert _explained(entered, _charge(4, 5, "b", "refused"), room=1)
    assert _explained(_charge(4, 5, "b", "refused"), room=1, charged="a")
    assert not _explained(entered, _charge(4, 5, "b", "new"), room=1)


def _story(seed: int) -> list[tuple[str, str]]:
    scheduler = Scheduler(seed=seed, switching=0.5)

    def body() -> None:
        for number in range(20):
            scheduler.reach(f"step {number}")

    for name in "abc":
        scheduler.start(name, body)
    scheduler.run()
    return scheduler.trace


def test_a_seed_determines_the_order_of_processes() -> None:
    assert _story(1) == _story(1)
    assert _story(1) != _story(2)


def test_a_killed_process_runs_no_handler_and_leaves_its_locks() -> None:
    scheduler, ran = Scheduler(seed=1, switching=0.0), []

    def body() -> None:
        process = scheduler.running
        assert process is not None
        process.at_death.append(lambda: ran.append("unlocked"))
        try:
            scheduler.reach("here")
            ran.append("went on")
        finally:
            ran.append("cleaned up")

    process = scheduler.start("killed", body)
    scheduler.acts[1] = lambda: scheduler.kill(process)
    scheduler.run()
    assert ran == ["unlocked"]


def test_a_waiting_process_continues_when_another_releases_its_lock() -> None:
    scheduler, held, order = Scheduler(seed=1, switching=1.0), [True], []

    def holds() -> None:
        for _ in range(5):
            scheduler.reach("work")
        held.clear()
        order.append("holds")

    def wants() -> None:
        while held:
            scheduler.wait("the lock")
        order.append("wants")

    scheduler.start("holds", holds)
    scheduler.start("wants", wants)
    scheduler.run()
    assert order == ["holds", "wants"]


def test_a_deadlock_is_distinguished_from_waiting() -> None:
    scheduler = Scheduler(seed=1, switching=1.0)

    def waits() -> None:
        while True:
            scheduler.wait("the other")

    for name in "ab":
        scheduler.start(name, waits)
    with pytest.raises(Stuck, match="wait for each other"):
        scheduler.run()
    for process in scheduler.alive:
        scheduler.kill(process)


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "histories.md"


@pytest.mark.parametrize(
    ("found", "expected"),
    [({}, False), ({-3: ["the process of job 1 ended with 9"]}, False), ({-1: ["unlike"]}, False), ({7: ["x"]}, True)],
)
def test_a_planted_fault_counts_as_found_by_a_violation_and_not_by_a_dead_process(
    *, found: dict[int, list[str]], expected: bool
) -> None:
    report = Report(histories=1, counts=Counter(), found=found)
    assert report.is_found is expected
    assert Report.from_json(report.to_json()).is_found is expected


@pytest.mark.audit_only
def test_a_history_is_replayed_by_the_documented_command(tmp_path: Path) -> None:
    lines = "\n".join(shell_blocks(PAGE)).splitlines()
    assert len(lines) == 2
    for line in lines:
        words = line.removeprefix(".venv/bin/python ").split()
        command = [sys.executable, *words, "--no-server", "--folder", str(tmp_path)]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
        assert "seed=41 violations=" in shown.splitlines()[-1]
