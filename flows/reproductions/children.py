"""Ask a child process for directions: a line of JSON each way, within a limit of processor time.

A method that does not come to an end cannot be interrupted in its own process, and a busy machine must not make a fast
one look slow; so each runs in a child that the operating system ends once it has used up its processor time.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """Directions (k, d), and the processor time in seconds that they took."""

    directions: NDArray[np.float64]
    seconds: float


class OutOfTime(Exception):
    """A method used up its processor time."""


class Failed(Exception):
    """A method ended in an error, or its process did."""


class Child:
    """A process that serves `flows.reproductions.peers.serving`, started when asked and again after it was ended.

    Parameters
    ----------
    command : sequence of str
        What starts it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Hand out the child."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
        self._stop()

    def ask(self, *, seconds: float, **request: Any) -> Answer:
        """Run a method for at most some seconds of processor time.

        Raises
        ------
        OutOfTime
            When it was ended for its time.
        Failed
            When it raised an error, or the process ended otherwise.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "directions.npy"
            line = json.dumps(request | {"output": str(output), "seconds": seconds})
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(line + "\n")
                process.stdin.flush()
            reply = process.stdout.readline()
            if not reply:
                status = self._stop()
                if status == -signal.SIGPROF:
                    raise OutOfTime(f"more than {seconds:g} s of processor time")
                raise Failed(f"its process ended with status {status}")
            answer = json.loads(reply)
            if answer["refusal"] is not None:
                raise Failed(answer["refusal"])
            return Answer(directions=np.load(output), seconds=answer["seconds"])

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | _THREADS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self._process

    def _stop(self) -> int:
        """Close the pipes, wait for the process to end, and return its status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()
