"""The scheduler of simulated processes."""

import pytest

from tests.histories.scheduler import Scheduler, Stuck


def _story(seed: int) -> list[tuple[str, str]]:
    scheduler = Scheduler(seed=seed, switching=0.5)

    def body() -> None:
        for number in range(20):
            scheduler.reach(f"step {number}")

    for name in "abc":
        scheduler.start(name, body)
    scheduler.run()
    return scheduler.trace


def test_a_seed_decides_every_turn() -> None:
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


def test_a_process_that_waits_goes_on_when_another_has_let_go() -> None:
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


def test_processes_that_wait_for_each_other_are_told_from_those_that_wait() -> None:
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
