"""Curator on a shared machine: killed commands leave no process, and other users get no access at any stage."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from flows.cli import PREFECT_DEFAULTS
from tests.flows.clusters.test_launchers import HARMLESS
from tests.integration.processes import BIN, SERVICE, Processes, check, wait_until
from tests.integration.releases import write_rows
from tests.strangers import NEEDS_ROOT

FEATURES, GRACE = 40, 10.0
STAGES = {"reserved", "began", "computing", "computed", "published", "done"}
FIT = (
    *("subspace", "fit", "neighbours", "--components", "3", "--epsilon", "0.5", "--delta", "1e-6", "--clip-norm", "2"),
    *("--publish", "alone", "--mechanism", "noisy_power", "--settings", "iterations=60", "--yes"),
)


def work_alone(processes: Processes, announce: Callable[[str], None]) -> None:
    """Kill a fit while its server starts and while it computes; finish it while another user tries to get access."""
    root = processes.root
    places = {"DPCA_HOME": str(root / "alone"), "PREFECT_HOME": str(root / "prefect-alone"), "DPCA_LOG": "text"}
    environment = PREFECT_DEFAULTS | places | {"DPCA_CLUSTER": "local", "DPCA_WORKERS": "2"}
    source = write_rows(root / "neighbours.svm", seed=3, features=FEATURES)
    shown = ("--name", "neighbours", "--features", str(FEATURES), "--records-at-most", "100000", "--direct")
    processes.expect(BIN / "dpca", "dataset", "ingest", source, *shown, environment=environment)
    # budget for one release, which is charged once for any number of attempts
    terms = ("--epsilon", "0.6", "--delta", "1e-6")
    processes.expect(BIN / "dpca", "budget", "open", "neighbours", *terms, environment=environment)
    for stage, reached in {
        "its server starts": lambda log, living: any("server_process" in _command(pid) for pid in living),
        "it computes": lambda log, living: "began" in log.read_text(),
    }.items():
        announce(f"killed while {stage}: {_kill(processes, environment, stage, reached)} processes, none left")
    if os.geteuid() != 0:
        announce(f"no stranger tried: {NEEDS_ROOT}")
        return
    report = root / "strangers.json"
    watched = (BIN / "python", "-m", "tests.integration.watched_fit", report)
    processes.expect(*watched, *FIT, environment=environment)
    found = json.loads(report.read_text())
    check(set(found) >= STAGES, f"a stranger tried at {sorted(found)}")
    for stage in ("began", "computing", "computed"):
        check(found[stage]["ports"] >= 7, f"{found[stage]['ports']} ports listened at {stage!r}")
    for stage, seen in found.items():
        check("GET http /api/health" in seen["ways"], f"at {stage!r} nobody had time to answer a stranger")
        check(set(seen["ways"]) <= HARMLESS, f"a stranger got in at {stage!r}: {seen['ways']}")
    announce(
        f"a second user tried {sum(seen['ports'] for seen in found.values())} ports at {len(found)} stages: nothing"
    )


def _kill(
    processes: Processes, environment: dict[str, str], stage: str, reached: Callable[[Path, list[int]], bool]
) -> int:
    """Kill a fit's main process at a stage; return the number of processes, with its children, that then end."""
    name, log = f"fit {stage}", processes.root / f"fit-{stage.replace(' ', '-')}.log"
    with log.open("wb") as out:
        fit = subprocess.Popen(
            [BIN / "dpca", *FIT], env=processes.base | environment | {SERVICE: name}, stdin=subprocess.DEVNULL,
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip

    def there() -> bool:
        check(fit.poll() is None, f"a fit was over before {stage}: {' '.join(log.read_text().split())[-600:]}")
        return reached(log, processes.marked(name))

    wait_until(f"a fit of which {stage}", there)
    living = processes.marked(name)
    os.kill(fit.pid, signal.SIGKILL)
    fit.wait()
    deadline = time.monotonic() + GRACE
    while (left := processes.marked(name)) and time.monotonic() < deadline:
        time.sleep(0.1)
    check(not left, f"{GRACE:g} s after a fit was killed while {stage}, {[_command(pid) for pid in left]} live on")
    return len(living)


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
