"""Program that fits estimators with a slot in children that are killed, and in two concurrent children.

The program prints the results of the two concurrent children as JSON. It is run as a module with a folder for signals,
in a home that has a budget ``patients``. One process without threads is warmed up and forks all children.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dpca.backends import atomic_files
from flows.estimators import base
from flows.releases.running import charge_release
from storage.workspace import Workspace
from tests.flows.estimators.rows import NEIGHBOUR, ROWS, model

POINTS = ("reserve.row_committed", "keep.row_committed", "artifact.written")
TOGETHER = "together"


def fitted(slot: str, rows: Any) -> Any:
    return model(slot=slot, epsilon=0.5, budget=Workspace.open().budget("patients")).fit(rows)


def killed(point: str) -> None:
    atomic_files.hook = lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == point else None
    fitted(point, ROWS)


def together(folder: Path, number: int) -> None:
    """Fit in a child, but wait before the charge until both children have stored their different rows."""

    def charge_together(*arguments: Any) -> Any:
        (folder / f"{number}.stored").touch()
        while len(list(folder.glob("*.stored"))) < 2:
            time.sleep(0.01)
        return charge_release(*arguments)

    setattr(base, charge_release.__name__, charge_together)
    made = fitted(TOGETHER, (ROWS, NEIGHBOUR)[number])
    (folder / f"{number}.json").write_text(json.dumps([made.components_.tobytes().hex(), made.published_]))


def forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return pid


def main(folder: Path) -> None:
    for point in POINTS:
        _, status = os.waitpid(forked(partial(killed, point)), 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"{point} was not reached"
    for pid in [forked(partial(together, folder, number)) for number in range(2)]:
        os.waitpid(pid, 0)
    print(json.dumps([json.loads((folder / f"{number}.json").read_text()) for number in range(2)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
