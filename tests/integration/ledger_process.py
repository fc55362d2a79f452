"""Remote ledger: its process is killed while a runner without database access releases; there is one charge."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flows.cli import PREFECT_DEFAULTS
from flows.parties.certificates import make_identity
from tests.integration.processes import BIN, answers, check, free_port, wait_until
from tests.integration.releases import ingest, write_rows
from tests.integration.services import Stack

PEOPLE, NAME = "guests", "guests-map"
FEATURES, PASSES = 60, 40
FIT = (
    *("subspace", "fit", PEOPLE, "--components", "3", "--epsilon", "0.5", "--delta", "1e-6", "--clip-norm", "2"),
    *("--mechanism", "noisy_power", "--settings", f"iterations={PASSES}", "--publish", NAME, "--yes", "--json"),
)
_CONFIG = """
listen: "127.0.0.1:{port}"
key: ledger.key
clients:
  - {{name: runner, certificate: runner.pem, role: runner, populations: [{people}]}}
"""


def run_separately(stack: Stack, announce: Callable[[str], None]) -> None:
    """Release through a separate process that serves the ledger, and kill this process after some steps."""
    ingest(stack, PEOPLE, write_rows(stack.root / "guests.svm", seed=12, features=FEATURES), features=FEATURES)
    stack.dpca("budget", "open", PEOPLE, "--epsilon", 4, "--delta", 1e-6)
    folder, port = stack.root / "ledger-keys", free_port()
    for name in ("ledger", "runner"):
        make_identity(name, folder)
    (folder / "ledger.yaml").write_text(_CONFIG.format(port=port, people=PEOPLE))
    serve = (BIN / "dpca", "ledger", "serve", "--config", folder / "ledger.yaml")
    ledger = stack.processes.service("ledger", *serve, environment=stack.curator, ready=lambda _: answers(port))
    environment = _runner(stack, folder, port)
    fit = stack.processes.service("runner", BIN / "dpca", *FIT, environment=environment, ready=lambda _: True)
    steps = wait_until("a release computes through the ledger", partial(_steps, stack))
    ledger.kill()
    ledger.start()
    ended = fit.ending()
    check(ended in (0, 1), f"the runner ended with {ended}")
    again = json.loads(stack.processes.expect(BIN / "dpca", *FIT, "--direct", environment=environment))
    check((again["artifact"], again["reused"]) == (f"{NAME}@1", ended == 0), f"the runner was told {again}")
    ((state,),) = stack.query("SELECT state FROM release WHERE population = :people", people=PEOPLE)
    check(state == "committed", f"the ledger says that the release is {state}")
    check(_count(stack, "release_reserved") == 1, "the release was charged twice")
    check(_kept(stack) == PASSES and not _conflicts(stack), "a step was answered twice")
    _check_rights(stack)
    ledger.stop()
    shown = "went on by itself" if ended == 0 else "resumed"
    announce(f"the ledger's process killed after {steps} of {PASSES} steps of a runner: {shown}, charged once")


def _runner(stack: Stack, folder: Path, port: int) -> dict[str, str]:
    """Return the variables of the runner: the curator's variables, with another home and without the database."""
    held = ("DPCA_DATABASE_URL", "DPCA_STATE_FOLDER")
    environment = {name: value for name, value in stack.curator.items() if name not in held}
    return {
        **PREFECT_DEFAULTS,
        **environment,
        "DPCA_HOME": str(stack.root / "runner"),
        "DPCA_STATE_FOLDER": str(stack.root / "runner-state"),
        "DPCA_LEDGER_URL": f"https://127.0.0.1:{port}",
        "DPCA_LEDGER_CERT": str(folder / "ledger.pem"),
        "DPCA_LEDGER_KEY": str(folder / "runner.key"),
    }


def _check_rights(stack: Stack) -> None:
    """Check that no process of the cluster receives the database's address, and that the runner created no database."""
    for worker in stack.dask_workers:
        for process in stack.processes.marked(worker.name):
            given = Path(f"/proc/{process}/environ").read_bytes()
            check(b"DPCA_DATABASE_URL" not in given and b"DPCA_LEDGER" not in given, f"{worker.name} is given rights")
    made = [path.name for path in (stack.root / "runner").rglob("*") if "sqlite" in path.name or path.name == "keys"]
    check(not made, f"the runner made {made}")


_OF = "FROM event WHERE name = :name AND release_id IN (SELECT id FROM release WHERE population = :people)"


def _count(stack: Stack, name: str) -> int:
    ((count,),) = stack.query(f"SELECT count(*) {_OF}", name=name, people=PEOPLE)
    return int(str(count))


def _kept(stack: Stack) -> int:
    return _count(stack, "step_kept")


def _conflicts(stack: Stack) -> int:
    return _count(stack, "step_conflict")


def _steps(stack: Stack) -> int | None:
    steps = _kept(stack)
    check(steps < PASSES, "the release was over before the ledger could be killed")
    return steps if steps >= 3 else None
