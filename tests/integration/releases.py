"""Scheduled releases of each new snapshot until the budget is spent, and a consumer that uses them.

A federation of ten site processes on loopback, with and without a helper, gives the bits of one process.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from prefect.client.schemas.objects import Artifact

from flows.demo import Federation, aggregator, make_federation, running
from flows.sites import releases as stages
from flows.sites.roster import MASKS
from tests.flows.sites.conftest import (
    METHODS,
    SHARED,
    check_same,
    computed,
    documents,
    planned_of,
    released_alone,
    request,
)
from tests.integration.processes import BIN, check
from tests.integration.services import Job, Stack

FEATURES, RECORDS = 24, 3_000
# Gaussian releases add in quadrature: three cost epsilon 0.90, four would cost 1.06
EPSILON, DELTA, BUDGET = 0.5, 1e-6, 0.95
FIT = {
    "dataset": "people",
    "components": 3,
    "epsilon": EPSILON,
    "delta": DELTA,
    "clip_norm": 2.0,
    "publish": "people-map",
}

_CONSUMER = """
import os, sys
from dpca.registry.reader import Registry
found = Registry.open().resolve("people-map@champion")
subspace = Registry.open().load("people-map@champion")
assert subspace.components.shape == (3, 24)
assert not {"sqlalchemy", "psycopg", "prefect", "dask", "flows"} & set(sys.modules), "a consumer needs files alone"
assert not any(name.startswith("DPCA_DATABASE") for name in os.environ)
print(found, found.digest)
"""


def write_rows(path: Path, *, seed: int, records: int = RECORDS, features: int = FEATURES) -> Path:
    """Write random rows as svmlight text."""
    rng = np.random.default_rng(seed)
    columns = np.sort(rng.permuted(np.tile(np.arange(1, features + 1), (records, 1)), axis=1)[:, :4], axis=1)
    values = np.round(rng.normal(size=(records, 4)), 3)
    lines = (
        " ".join(["1", *(f"{c}:{v}" for c, v in zip(*row, strict=True))]) for row in zip(columns, values, strict=True)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def ingest(stack: Stack, name: str, source: Path, *, features: int = FEATURES, block_nnz: int = 4_000) -> str:
    """Ingest a file as a new snapshot; return its id."""
    words = ("--name", name, "--features", features, "--records-at-most", 100_000, "--block-nnz", block_nnz)
    facts = json.loads(stack.dpca("dataset", "ingest", source, *words, "--direct", "--json"))
    return str(facts["snapshot"])


def release_until_refused(stack: Stack) -> tuple[int, int]:
    """Let the schedule run four times, each on a new snapshot; return the numbers of releases and of refused runs."""
    job = Job(stack, "fit-subspace/release-weekly", FIT)
    snapshots, left, runs, refused = [], [], 0, 0
    for number in range(1, 5):
        snapshots.append(ingest(stack, "people", write_rows(stack.root / "rows.svm", seed=number)))
        if number == 1:
            stack.dpca("budget", "open", "people", "--epsilon", BUDGET, "--delta", DELTA)
        run = job.fire()
        ended, shown = job.ending(run), job.artifacts(run)
        assert ended.state is not None
        if number < 4:
            check(ended.state.is_completed(), f"scheduled run {number} ended {ended.state.name}: {ended.state.message}")
            check("release-people-map" in shown, f"run {number} attached {sorted(shown)}")
            stack.dpca("registry", "promote", f"people-map@{number}", "champion")
            consume(stack, number)
            runs += 1
        else:
            _check_refusal(ended.state.type.value, ended.state.name, ended.state.message, shown)
            refused += 1
        left.append(_left(shown))
    check(left[0] > left[1] > left[2] == left[3], f"the budget did not decline run by run: {left}")
    check(len(set(snapshots)) == 4, "a snapshot was not new")
    released = [row.snapshot_id for row in stack.query("SELECT snapshot_id FROM release ORDER BY seq")]
    check(released == snapshots[:3], "the runs did not release the successive snapshots")
    consume(stack, 3)
    return runs, refused


def consume(stack: Stack, version: int) -> None:
    """Load the champion version in a process without database access, with a key that can only read the registry."""
    printed = stack.processes.expect(BIN / "python", "-c", _CONSUMER, environment=stack.consumer)
    (row,) = stack.query("SELECT digest FROM version WHERE name = 'people-map' AND version = :version", version=version)
    check(printed.split() == [f"people-map@{version}", row.digest], f"the consumer loaded {printed!r}")


def _left(shown: Mapping[str, Artifact]) -> float:
    """Return the remaining budget stated in the Prefect artifact that a run created."""
    check("budget-people" in shown, f"a run attached {sorted(shown)}")
    found = re.search(r"left for one release ([0-9.]+)", str(shown["budget-people"].description))
    return float(found[1]) if found else -1.0


def _check_refusal(kind: str, name: str | None, message: str | None, shown: Mapping[str, Artifact]) -> None:
    check((kind, name) == ("FAILED", "BudgetExhausted"), f"the fourth run ended {kind} {name}: {message}")
    check("nothing was charged" in (message or ""), f"the fourth run ended with the words {message!r}")
    check("refusal-people" in shown, f"the fourth run attached {sorted(shown)}")


SITES = 10


def release_together(root: Path, announce: Callable[[str], None]) -> None:
    """Make a joint release with every mechanism with shared noise, and compare it with a release by one process."""
    for masks in MASKS:
        _release_under(masks, root / masks, announce)


def _release_under(masks: str, folder: Path, announce: Callable[[str], None]) -> None:
    folder.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "states" / "makers"))
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        federation = make_federation(
            folder, SITES, features=12, records=150, rows_of=documents, timeout=120, masks=masks
        )
        with running(federation):
            for method in SHARED[:4]:
                _release(federation, method)
                announce(f"{SITES} sites as processes released {method} under {masks}, to the bit as one process does")


def _release(federation: Federation, method: str) -> None:
    requested = request(federation, **METHODS[method])
    releases, artifact = computed(federation, requested)
    check(len(releases) == SITES, f"{len(releases)} sites reserved {method}")
    alone = released_alone(federation, planned_of(requested), releases)
    check_same(artifact, alone)
    with aggregator(federation):
        digest = stages.compute_sites(requested, releases, "")
        published = stages.publish_sites(requested, digest)[0]
        unfinished = stages.finish_sites(requested, digest)
    check(published.startswith("joint@") and unfinished == [], f"{published} of {method} left {unfinished} unfinished")
