"""Integration test: start all services, release until the budget refuses, and inject faults.

The test also tries to access each service with wrong credentials, and times the output of commands in a terminal.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn


def main() -> int:
    """Run the whole integration test; the last line of the output has the counts."""
    root = Path(tempfile.mkdtemp(prefix="dpca-integration-"))
    root.chmod(0o711)  # PostgreSQL's own account must be able to traverse the folder
    tempfile.tempdir = str(root)
    os.environ["PREFECT_HOME"] = str(root / "prefect")  # Prefect reads this variable when it is imported
    for requested in (signal.SIGTERM, signal.SIGINT):
        signal.signal(requested, _stopped)
    from tests.integration.alone import work_alone
    from tests.integration.arrivals import refresh_unattended
    from tests.integration.entry_points import keep_strangers_out
    from tests.integration.failover import fail_over
    from tests.integration.faults import survive_faults
    from tests.integration.ledger_process import run_separately
    from tests.integration.processes import Failure
    from tests.integration.releases import release_together, release_until_refused
    from tests.integration.services import running_stack
    from tests.integration.silence import break_every_silence

    began = time.monotonic()

    def announce(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    try:
        with running_stack(root) as stack:
            processes = stack.processes
            announce("everything runs")
            runs, refused = release_until_refused(stack)
            announce(f"{runs} releases on a schedule, {refused} refused")
            announce(f"{keep_strangers_out(stack)} strangers kept out")
            announce(f"files that arrived moved the champion unattended, {refresh_unattended(stack)} notices")
            survive_faults(stack, announce)
            run_separately(stack, announce)
            work_alone(processes, announce)
        break_every_silence(processes, announce)
        fail_over(root, announce)
        release_together(root, announce)
        left = processes.marked()
    except SystemExit:
        shutil.rmtree(root, ignore_errors=True)
        raise
    except Failure as failure:
        return _failed(str(failure), root)
    except Exception as error:  # noqa: BLE001 - any error is reported in one line
        return _failed(f"{type(error).__name__}: {error}", root)
    for process in left:
        os.kill(process, signal.SIGKILL)
    shutil.rmtree(root, ignore_errors=True)
    print(f"runs={runs} refused={refused} leftovers={len(left)}")
    return 0 if (runs, refused, left) == (3, 1, []) else 1


def _failed(reason: str, root: Path) -> int:
    print(f"integration: {' '.join(reason.split())}; see the logs in {root}", file=sys.stderr)
    return 1


def _stopped(*_: object) -> NoReturn:
    sys.exit("integration: stopped")


if __name__ == "__main__":
    sys.exit(main())
