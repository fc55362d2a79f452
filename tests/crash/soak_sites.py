"""Soak of sites: joint releases with killed sites, a killed server, and lost or repeated messages.

``python -m tests.crash.soak_sites`` makes 200 rounds over three sites, each a process on loopback, with secure sums.
Each round is one joint release by a separate aggregator process, with a fault at a random call. The release is
repeated, finally without a fault, until it is published and every site has finished it. Failed rounds are counted as

- unaccounted, if the release was not published, or a site was not charged exactly once, or the result is not the sum of
  the noised integers that the ledgers of the sites store for charged steps;
- hung, if a call exceeded its timeout, or a run exceeded the total timeout of its calls;
- inconsistent, for each ledger that does not verify at the end, or artifact that disagrees with the registry.
"""

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.files import read_artifact, read_manifest
from dpca.errors import StorageError
from dpca.home import store
from dpca.registry.reader import Registry
from dpca_tasks.errors import DpcaError, SiteSilent
from dpca_tasks.sites.rounds import Opened
from flows.demo import (
    FEDERATION_DELTA,
    Federation,
    aggregator,
    await_listening,
    make_federation,
    own_home,
    running,
    start,
    stop,
)
from flows.parties.calling import Caller
from flows.requests import SitesRequest
from flows.sites import releases as stages
from storage.registry.agreement import compare_artifacts
from storage.workspace import Workspace
from tests.crash import processes
from tests.flows.sites.conftest import planned_of

KINDS = ("site killed", "server killed", "request lost", "answer lost", "sent twice", "site cut off", "site stopped")
TIMEOUT = 5.0
SLACK = 10.0
"""Allowance in seconds beyond the timeout of a call, for a busy machine."""
CALLS = 60
"""Maximum number of sequential calls of one run, which bounds its duration."""
RUNS = 4
LAST_CALL = 36
"""Last call at which a fault may occur; an undisturbed run has about as many calls."""
SLOW_CALL = 3
"""Exit status of a run in which a call took too long."""


@dataclass(kw_only=True)
class Report:
    """Number of faults of each kind, and numbers of failed rounds."""

    struck: Counter[str] = field(default_factory=Counter)
    unaccounted: int = 0
    hung: int = 0
    inconsistent: int = 0


@dataclass(kw_only=True)
class Fault:
    """One fault: its kind, the number of the call at which it occurs, before or after this call, and the site."""

    kind: str
    call: int
    site: str
    is_before: bool


def main() -> int:
    """Run the soak of sites and print the results; the last line is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=20181109, help="seed of the faults; noise is drawn without a seed")
    parser.add_argument("--folder", metavar="PATH", help="folder for the test homes; /dev/shm avoids disk writes")
    requested = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    logging.getLogger("dpca").setLevel(logging.CRITICAL)  # sites that do not answer, and refusals, are expected here
    drawn, report, began = random.Random(requested.seed), Report(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dpca-sites-", dir=requested.folder) as folder:
        federation = _federation(Path(folder))
        with running(federation):
            for number in range(requested.rounds):
                _disturb(federation, number, drawn, report)
            _revive(federation)
            report.unaccounted = sum(_is_unaccounted(federation, number) for number in range(requested.rounds))
        report.inconsistent = _inconsistent(federation)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(report.struck.items())) or "nothing went wrong")
    print(f"{time.monotonic() - began:.0f} s")
    print(
        f"rounds={requested.rounds} unaccounted={report.unaccounted} hung={report.hung} "
        f"inconsistent={report.inconsistent}"
    )
    return 1 if report.unaccounted or report.hung or report.inconsistent else 0


def _federation(folder: Path) -> Federation:
    os.environ["DPCA_STATE_FOLDER"] = str(folder / "states" / "makers")
    facts: dict[str, Any] = {"colluders": 0, "dropouts": 1, "attempts": 2, "timeout": TIMEOUT, "masks": "secure_sum"}
    return make_federation(folder, 3, features=12, records=150, **facts)


def _request(federation: Federation, number: int) -> SitesRequest:
    return SitesRequest(
        roster=str(federation.roster),
        publish=f"round-{number}",
        method="cape_pca",
        components=2,
        clip_norm=1.0,
        epsilon=0.5,
        delta=FEDERATION_DELTA,
        run_key=f"round-{number}",
    )


def _disturb(federation: Federation, number: int, drawn: random.Random, report: Report) -> None:
    """Repeat one joint release until it is published; the last attempt has no fault."""
    for run in range(RUNS):
        is_last = run == RUNS - 1
        fault = None
        if run == 0 or (not is_last and drawn.random() < 0.3):
            fault = Fault(
                kind=drawn.choice(KINDS),
                call=drawn.randrange(1, LAST_CALL),
                site=drawn.choice(federation.names),
                is_before=drawn.random() < 0.5,
            )
        if is_last:
            _revive(federation)
        marks = federation.folder / "struck"
        marks.unlink(missing_ok=True)
        back = time.monotonic() + drawn.uniform(0.0, 2 * TIMEOUT)
        status = _run(federation, number, fault, marks=marks, back=back)
        report.hung += status in (processes.TIMED_OUT, SLOW_CALL)
        report.struck[fault.kind if fault and marks.exists() else "undisturbed"] += 1
        if status == 0:
            return


def _run(federation: Federation, number: int, fault: Fault | None, *, marks: Path, back: float) -> int:
    """Run the aggregator in a child, and return its exit status; killed or stopped sites resume during the run."""
    sites = {name: federation.processes[name].pid for name in federation.names}

    def body() -> None:
        slow: list[float] = []
        request, is_done = _request(federation, number), False
        with (
            aggregator(federation),
            _accounts(federation, request),
            _going_wrong(fault, sites, marks, slow),
            suppress(DpcaError, StorageError),
        ):
            is_done = not stages.fit_sites_directly(request).get("unfinished")
        os._exit(SLOW_CALL if slow else int(not is_done))

    pid, end = processes.start(body), time.monotonic() + CALLS * TIMEOUT
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > back:
                _revive(federation)
                back = end
            time.sleep(0.02)
        return processes.TIMED_OUT
    finally:
        processes.stop(pid)


def _revive(federation: Federation) -> None:
    """Restart killed sites, and resume stopped ones."""
    for name in federation.names:
        process = federation.processes[name]
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        if process.poll() is not None:
            stop(process)
            federation.processes[name] = start(federation, name)
            await_listening(federation, name, federation.processes[name])


@contextmanager
def _going_wrong(fault: Fault | None, sites: dict[str, int], marks: Path, slow: list[float]) -> Iterator[None]:
    """Inject one fault into the calls of this process, and record calls that exceed their timeout."""
    original, calls = Caller.call, 0

    def strike(caller: Caller, call: Callable[[], Any]) -> Any:
        assert fault is not None
        marks.touch()
        if fault.kind == "sent twice":
            call()
            return call()
        if fault.is_before or fault.kind in ("request lost", "site cut off"):
            _hit(fault, sites)
            return call()
        answer = call()
        _hit(fault, sites)
        return answer

    def counted(caller: Caller, *facts: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1

        def call() -> Any:
            began = time.monotonic()
            try:
                return original(caller, *facts, **more)
            finally:
                if time.monotonic() - began > TIMEOUT + SLACK:
                    slow.append(began)

        is_cut_off = fault is not None and fault.kind == "site cut off" and caller.name == fault.site
        if fault is not None and (calls == fault.call or (is_cut_off and calls > fault.call)):
            return strike(caller, call)
        return call()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Caller, "call", counted)
        yield


def _hit(fault: Fault, sites: dict[str, int]) -> None:
    if fault.kind == "server killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.kind in ("site killed", "site stopped"):
        with suppress(ProcessLookupError):
            os.kill(sites[fault.site], signal.SIGKILL if fault.kind == "site killed" else signal.SIGSTOP)
        return
    raise SiteSilent(f"{fault.kind}: the message did not arrive.")


# --- accounts ---


@contextmanager
def _accounts(federation: Federation, request: SitesRequest) -> Iterator[None]:
    """Compare each artifact with the stored answers of its sites, before the sites commit the release."""
    finish = stages.finish_sites

    def first_account(requested: SitesRequest, digest: str) -> Any:
        if not _accounted(federation, digest).exists():
            _account(federation, request, digest)
        return finish(requested, digest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "finish_sites", first_account)
        yield


class _Given:
    """Parties whose total is already opened, so that a mechanism can be run again on it."""

    def __init__(self, total: Any, roster: Any) -> None:
        self.total, self.roster = total, roster

    def open(self, query: Any, *, roster: Any, index: int) -> Opened[Any]:
        return Opened(total=self.total, query=query, roster=self.roster)


def _is_unaccounted(federation: Federation, number: int) -> bool:
    """Return whether a round has no published result, or a result that is not the sum of charged integers."""
    request = _request(federation, number)
    with aggregator(federation):
        planned = planned_of(request)
        try:
            shown = Registry.open().show(request.publish)
        except Exception as error:  # noqa: BLE001 - any error means no result
            return _notify(number, f"was not published ({type(error).__name__})")
        lineage = {site["site"]: site["release"] for site in shown["manifest"]["plan"]["sites"]}
    for name in federation.names:
        with _at_home(federation, name) as workspace:
            rows = [
                row
                for row in workspace.ledger.statement("rows").releases
                if row.request.get("run_key") == request.run_key and row.state != "abandoned"
            ]
        if not rows and name not in lineage:  # the site never answered in this round
            continue
        if len(rows) != 1 or rows[0].event != planned.plan_of(name).event:
            return _notify(number, f"is charged {len(rows)} times at {name}")
        committed = (lineage.get(name, rows[0].id), "committed", shown["digest"])
        if (rows[0].id, rows[0].state, rows[0].artifact_digest) != committed:
            return _notify(number, f"is {rows[0].state} at {name}")
    if not _accounted(federation, shown["digest"]).exists():
        return _notify(number, f"is no sum of what {', '.join(lineage)} held")
    return False


def _accounted(federation: Federation, digest: str) -> Path:
    """Return the marker file of an artifact that was found to be a sum of charged integers."""
    return federation.folder / f"accounted-{digest}"


def _account(federation: Federation, request: SitesRequest, digest: str) -> None:
    """Write a marker file if an artifact equals the sum of the answers stored at its sites.

    The sites delete their stored answers when they commit.
    """
    planned, made = planned_of(request), read_artifact(store(), digest)
    roster = planned.plan.roster
    assert roster is not None
    lineage = {site["site"]: site["release"] for site in read_manifest(store(), digest)["plan"]["sites"]}
    kept: list[list[Any]] = []
    for name, release in lineage.items():
        with _at_home(federation, name) as workspace:
            reservation = workspace.ledger.begin(release)
            kept.append([reservation.kept(step) for step in range(roster.attempts)])
    lost = sorted(set(roster.names) - set(lineage))
    for answers in zip(*kept, strict=True):
        if all(answer is not None for answer in answers):
            total = sum(answer["answer"] for answer in answers)
            given = _Given(total, roster.without(*lost) if lost else roster)
            if np.array_equal(planned.mechanism.run(given, planned.plan).components, made.components):
                _accounted(federation, digest).touch()


def _notify(number: int, what: str) -> bool:
    print(f"round {number} {what}", file=sys.stderr, flush=True)
    return True


@contextmanager
def _at_home(federation: Federation, name: str) -> Iterator[Workspace]:
    before = os.environ["DPCA_STATE_FOLDER"]
    os.environ["DPCA_STATE_FOLDER"] = str(federation.folder / "states" / name)
    try:
        with own_home(federation.home(name)):
            yield Workspace.open()
    finally:
        os.environ["DPCA_STATE_FOLDER"] = before


def _inconsistent(federation: Federation) -> int:
    """Return the number of ledgers that do not verify and of artifacts that disagree with the registry."""
    found = 0
    for name in ("aggregator", *federation.names):
        with _at_home(federation, name) as workspace:
            try:
                workspace.ledger.verify()
                with workspace.ledger.transaction() as connection:
                    compare_artifacts(connection, workspace.store)
            except Exception as error:  # noqa: BLE001 - every error is counted
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                found += 1
    return found


if __name__ == "__main__":
    sys.exit(main())
