"""Scenario of a curator's work with a dataset, in one process: successful and failing fits.

    python -m tests.leaks.scenario FOLDER

The environment sets home, Prefect, temporary files and settings. The output of the commands goes to ``FOLDER/printed``,
the state of the Dask schedulers to ``FOLDER/dask``, and the exit codes to ``FOLDER/endings.json``.
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from distributed import Client, Scheduler

from dpca.home import home
from dpca_tasks.privacy import curator
from dpca_tasks.sums import exact_sum
from flows.cli import main
from flows.clusters.connecting import connect
from flows.jobs import run_release
from flows.requests import SubspaceRequest
from tests.leaks.guessing import RECORD

FEATURES, CLIP_NORM, COMPONENTS = 8, 2.0, 2
TERMS = ("--epsilon", "8", "--delta", "1e-6")
FIT = (
    *("subspace", "fit", "people", "--components", str(COMPONENTS), "--epsilon", "1", "--delta", "1e-6"),
    *("--clip-norm", str(CLIP_NORM), "--yes", "--json"),
)
SEPARATE = ("--workers", "1")


class Scenario:
    """Runs commands one by one, and stores their output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endings: dict[str, int] = {}
        for name in ("printed", "dask"):
            (folder / name).mkdir()

    def run(self, label: str, *words: str) -> None:
        """Run one ``dpca`` command, and store its output and exit code under a label."""
        self.call(label, lambda: main([*words]))

    def call(self, label: str, body: Callable[[], int]) -> None:
        """Run one function, and store its output and exit code like those of a command."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.endings[label] = body()
        (self.folder / "printed" / f"{label}.out").write_text(out.getvalue())
        (self.folder / "printed" / f"{label}.err").write_text(err.getvalue())

    def play(self) -> None:
        """Run all commands of the scenario."""
        ingest = ("--name", "people", "--features", str(FEATURES), "--json")
        self.run("ingest-malformed", "dataset", "ingest", str(self.folder / "malformed.svm"), *ingest)
        self.run("ingest", "dataset", "ingest", str(self.folder / "good.svm"), *ingest)
        self.run("budget", "budget", "open", "people", *TERMS)
        with patch("flows.releases.stages.connect", self._observed):
            alone = patch.dict(os.environ, {"DPCA_CLUSTER": "none"})
            with alone, patch.object(curator, "exact_sum", _failing_after(0)):
                self.run("fit-that-breaks", *FIT, "--publish", "sub", "--run-key", "broken")
            self._play_the_rest(ingest)
        (self.folder / "endings.json").write_text(json.dumps(self.endings))

    def _play_the_rest(self, ingest: tuple[str, ...]) -> None:
        self.run("ingest-quoted", "dataset", "ingest", str(self.folder / "quoted.svm"), *ingest)
        self.run("fit", *FIT, "--publish", "sub")
        self.run("fit-again", *FIT, "--publish", "other")
        with _damaged_block():
            self.run("fit-on-a-damaged-block", *FIT, "--publish", "sub", *SEPARATE, "--run-key", "damaged")
        with patch.object(curator, "exact_sum", _failing_after(1)):
            power = ("--mechanism", "noisy_power", "--settings", "iterations=2")
            self.run("fit-that-breaks-later", *FIT, *power, "--publish", "sub", *SEPARATE, "--run-key", "later")
        self.call("fit-refused", lambda: _ending_of_flow(components=FEATURES))
        self.call("fit-over-budget", lambda: _ending_of_flow(epsilon=9.0))

    @contextmanager
    def _observed(self, address: str) -> Iterator[Client | None]:
        with connect(address) as client:
            try:
                yield client
            finally:
                if client is not None:
                    number = len([*(self.folder / "dask").iterdir()])
                    seen = client.run_on_scheduler(_all_that_is_known)
                    (self.folder / "dask" / f"{number}.txt").write_text(seen)


def _all_that_is_known(dask_scheduler: Scheduler) -> str:
    """Return everything that a Dask scheduler stores and its dashboard would show, as text."""
    return "\n".join(
        (
            repr([*dask_scheduler.transition_log]),
            repr([(key, task.exception_text, task.traceback_text) for key, task in dask_scheduler.tasks.items()]),
            repr({name: prefix.states for name, prefix in dask_scheduler.task_prefixes.items()}),
            repr([*dask_scheduler.task_groups]),
            repr(dask_scheduler.get_events()),
            repr(dask_scheduler.get_logs()),
        )
    )


@contextmanager
def _damaged_block() -> Iterator[None]:
    chunk = next(path for path in home().glob("datasets/people/*/values/c/**/*") if path.is_file())
    content = chunk.read_bytes()
    chunk.write_bytes(content[: len(content) // 2])
    try:
        yield
    finally:
        chunk.write_bytes(content)


def _failing_after(answers: int) -> Callable[..., Any]:
    """Return a replacement for `exact_sum` that fails after some calls.

    The error message and the variables of the failing function contain exact sums.
    """
    seen: list[int] = []

    def summed(*arguments: Any, **named: Any) -> Any:
        total = exact_sum.exact_sum(*arguments, **named)
        seen.append(1)
        if len(seen) > answers:
            raise RuntimeError(f"sums {total.tolist()} of {RECORD}", total, total.tobytes())
        return total

    return summed


def _ending_of_flow(**changes: Any) -> int:
    """Run a fit as a flow, without the command's checks, so that the flow itself must refuse it."""
    requested = {"epsilon": 1.0, "components": COMPONENTS, **changes}
    request = SubspaceRequest(dataset="people", delta=1e-6, clip_norm=CLIP_NORM, publish="sub", **requested)
    try:
        run_release(request)
    except Exception as error:  # noqa: BLE001 - the text of every error is searched
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    Scenario(Path(sys.argv[1])).play()
