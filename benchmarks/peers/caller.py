"""A client that runs methods of other libraries in a child process with a separate Python environment.

Requests and answers are lines of JSON.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYTHON = ROOT / ".venv-peers" / "bin" / "python"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The result of a peer's PCA: directions of shape (k, d), and the wall time of the call in seconds."""

    directions: NDArray[np.float64]
    seconds: float


class PeerTooSlow(Exception):
    """A peer did not answer in time and was killed."""


class PeerFailed(Exception):
    """A peer ended without an answer."""


class Peers:
    """A child process that runs the peers' methods and has a Dask cluster; use it in a ``with`` statement.

    Parameters
    ----------
    workers : int
        The number of processes of the Dask cluster. Peers without a cluster get this number of BLAS threads.
    """

    def __init__(self, *, workers: int) -> None:
        threads = {f"{library}_NUM_THREADS": str(workers) for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
        self._process = subprocess.Popen(
            [PYTHON, "-W", "ignore", HERE / "serve.py"],
            env=os.environ | threads | {"PEER_WORKERS": str(workers), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the process and its workers."""
        self.stop()

    def call(self, method: str, *, limit: float = 600.0, **request: Any) -> Answer:
        """Run a method of `benchmarks.peers.serve` in the child process, and return its answer.

        Raises
        ------
        PeerTooSlow
            If no answer came within ``limit`` seconds.
        PeerFailed
            If the process ended without an answer.
        """
        assert self._process.stdin is not None
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "directions.npy"
            line = json.dumps({"method": method, "output": str(output)} | request, default=str)
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            try:
                answer = self._answers.get(timeout=limit)
            except queue.Empty:
                self.stop()
                raise PeerTooSlow(f"{method} did not finish within {limit:g} s.") from None
            if not answer:
                raise PeerFailed(f"{method} ended its process; run {HERE / 'serve.py'} manually to see why.")
            return Answer(directions=np.load(output), seconds=json.loads(answer)["seconds"])

    def stop(self) -> None:
        """Kill the process and its workers."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put("")
