"""Program that runs a ``dpca`` command while another user tries to get access at each stage.

    python -m tests.integration.watched_fit REPORT WORDS...

Successful accesses are written to REPORT as JSON.
"""

import json
import os
import sys
from pathlib import Path
from threading import Thread
from typing import Any

from dpca.home import home
from flows.cli import main
from flows.releases import running, stages
from flows.reports.terminal import log_event
from tests.strangers import Stranger, family, listening, stranger

COMPANIONS = {"began": "computing"}
"""Stages that continue after an event, while the stranger tries concurrently."""


class Watch:
    """Lets another user try to get access at every event of a fit, and during the fit's long stages."""

    def __init__(self, somebody: Stranger) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._somebody, self._nearby = somebody, Thread()

    def log_event(self, event: str, **facts: Any) -> None:
        """Let the other user try before the fit continues; replaces the product's log function."""
        if event != "summed":  # the event "summed" is logged in a thread of the cluster, which must not wait
            if self._nearby.is_alive():
                self._nearby.join()
            self.knock(event)
        if event in COMPANIONS:
            self._nearby = Thread(target=self.knock, args=(COMPANIONS[event],))
            self._nearby.start()
        log_event(event, **facts)

    def knock(self, stage: str) -> None:
        """Let the other user try to access all ports, files and processes of this process and its children."""
        processes = family(os.getpid()) - {self._somebody.pid}
        paths = [
            home(),
            *home().glob("*"),
            *home().glob("keys/*"),
            *home().glob("datasets/*/*/*"),
            *home().glob("scratch/*"),
        ]
        paths += [Path(os.environ["PREFECT_HOME"]), *Path(os.environ["PREFECT_HOME"]).glob("*")]
        kinds = self._somebody.open_entries(processes=processes, paths=paths)
        self.found[stage] = {"ways": kinds, "ports": len(listening(processes)), "paths": len(paths)}


if __name__ == "__main__":
    with stranger() as somebody:
        watch = Watch(somebody)
        for module in (running, stages):
            module.log_event = watch.log_event  # type: ignore[attr-defined]
        status = main(sys.argv[2:])
        watch.knock("done")
        Path(sys.argv[1]).write_text(json.dumps(watch.found))
    sys.exit(status)
