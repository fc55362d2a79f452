"""Faults of each service during a scheduled run: after recovery there is one release, charged once."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import obstore

from tests.integration.processes import check, wait_until
from tests.integration.releases import ingest, write_rows
from tests.integration.services import Job, Stack

PEOPLE, NAME = "crowd", "crowd-map"
FEATURES, PASSES = 60, 100
WORKER = "the Prefect worker"
FIT: Mapping[str, Any] = {
    "dataset": PEOPLE,
    "components": 3,
    "epsilon": 0.5,
    "delta": 1e-6,
    "clip_norm": 2.0,
    "publish": NAME,
    "mechanism": "noisy_power",
    "settings": {"iterations": str(PASSES)},
}


def survive_faults(stack: Stack, announce: Callable[[str], None]) -> None:
    """Kill the worker, the scheduler, PostgreSQL and the store, each during a separate scheduled run."""
    ingest(stack, PEOPLE, write_rows(stack.root / "crowd.svm", seed=9, features=FEATURES), features=FEATURES)
    stack.dpca("budget", "open", PEOPLE, "--epsilon", 4, "--delta", 1e-6)
    job = Job(stack, "fit-subspace/release-weekly", FIT)
    for number, (part, kill, revive) in enumerate(_faults(stack, job), start=1):
        run, shown = job.fire(), stack.worker.log.stat().st_size
        steps = wait_until("a run computes", partial(_steps, stack, number))
        kill()
        if part != WORKER:  # after the worker's death, no process is left to report it
            wait_until(f"the run meets the death of {part}", partial(_noticed, stack, shown))
        revive(run)
        ended = job.ending(run)
        assert ended.state is not None
        check(ended.state.is_completed(), f"killing {part}: the run ended {ended.state.name}: {ended.state.message}")
        _check_record(stack, number, part)
        announce(f"{part} killed after {steps} of {PASSES} steps: resumed, charged once")


def _faults(stack: Stack, job: Job) -> Iterator[tuple[str, Callable[[], None], Callable[[UUID], None]]]:
    """Yield each service, the function that kills it, and the operator's recovery for a run."""

    def new_worker(run: UUID) -> None:
        stack.worker.start()
        job.retry(run)

    def new_cluster(_: UUID) -> None:
        for service in (stack.scheduler, *stack.dask_workers):
            service.kill()
            service.start()

    yield WORKER, stack.worker.kill, new_worker
    yield "the Dask scheduler", stack.scheduler.kill, new_cluster
    yield "PostgreSQL", stack.postgres.stop, lambda _: stack.postgres.start()
    yield "the S3 server", stack.s3.kill, lambda _: stack.s3.start()


def _noticed(stack: Stack, shown: int) -> bool:
    return b"dpca.flows - Unavailable" in stack.worker.log.read_bytes()[shown:]


def _steps(stack: Stack, number: int) -> int | None:
    """Return the number of stored steps of the newest release, or None if fewer than two are stored."""
    releases = stack.query("SELECT id FROM release WHERE population = :p ORDER BY seq", p=PEOPLE)
    if len(releases) < number:
        return None
    (row,) = stack.query("SELECT count(*) AS kept FROM step WHERE release_id = :id", id=releases[-1].id)
    check(row.kept < PASSES, "a run was over before anything could be killed")
    return row.kept if row.kept > 1 else None


def _check_record(stack: Stack, number: int, part: str) -> None:
    """Check that ledger, registry, store and folders contain exactly one committed release for each run."""
    releases = stack.query("SELECT id, state, artifact_digest FROM release WHERE population = :p", p=PEOPLE)
    states = [row.state for row in releases]
    check(states == ["committed"] * number, f"killing {part}: the releases are {states}")
    charges = stack.query("SELECT release_id FROM event WHERE name = 'release_reserved' AND population = :p", p=PEOPLE)
    check(
        sorted(row.release_id for row in charges) == sorted(row.id for row in releases),
        f"killing {part}: not charged once",
    )
    conflicts = stack.query("SELECT seq FROM event WHERE name = 'step_conflict'")
    check(not conflicts, f"killing {part}: a step was answered twice")
    versions = stack.query("SELECT digest FROM version WHERE name = :name", name=NAME)
    check(
        sorted(row.digest for row in versions) == sorted(row.artifact_digest for row in releases),
        f"killing {part}: versions and releases differ",
    )
    known = {row.digest for row in stack.query("SELECT digest FROM version")}
    check(_stored(stack) == known, f"killing {part}: the store holds an artifact without a version, or lacks one")
    staged = sorted(path.name for path in (stack.root / "home" / "staging").glob("*"))
    check(not staged, f"killing {part}: staged and left: {staged}")


def _stored(stack: Stack) -> set[str]:
    listed = obstore.list(stack.store("curator"), "registry/artifacts").collect()
    return {str(entry["path"]).split("/")[2] for entry in listed}
