"""Methods that run on request in a child process, with a limit on processor time.

A method that does not terminate cannot be interrupted within its process. So each method runs in a child process, which
the operating system ends when the processor time is used up. The limit is on processor time, so that a fast method does
not fail on a busy machine.

Requests and answers are JSON objects, one per line. A request contains the method, a file of rows, the number of
components, epsilon, delta, the file for the directions, and the limit in seconds. As a script, this module runs
diffprivlib and OpenDP in a Python environment with these libraries, which need not contain dpca.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

type Directions = Any  # a float array of shape (k, d); `Any`, because the libraries have no type hints
type Method = Callable[[dict[str, Any]], Directions]

_THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}


@lru_cache(maxsize=1)
def rows_of(path: str) -> sp.csr_array:
    """Return the rows in a file; they are loaded only once."""
    return sp.csr_array(sp.load_npz(path))


def diffprivlib_directions(rows: Any, *, n_components: int, epsilon: float, clip_norm: float) -> Directions:
    """Fit diffprivlib's PCA to dense rows without centering, and return the directions."""
    from diffprivlib.models import PCA

    return PCA(n_components, epsilon=epsilon, centered=True, data_norm=clip_norm).fit(rows).components_


def opendp_directions(rows: Any, *, n_components: int, epsilon: float, clip_norm: float) -> Directions:
    """Fit OpenDP's PCA to dense rows and return the directions; OpenDP spends a third of epsilon on a mean."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "floating-point", "honest-but-curious", "idealized-numerics")
    model = dp.sklearn.decomposition.PCA(
        epsilon=epsilon,
        row_norm=clip_norm,
        n_samples=rows.shape[0],
        n_features=rows.shape[1],
        n_components=n_components,
    )
    return model.fit(rows).components_


def _on_unit_rows(fit: Callable[..., Directions]) -> Method:
    """Return a method for requests that calls a library on the requested rows, which have norm 1."""

    def method(request: dict[str, Any]) -> Directions:
        rows = rows_of(request["rows"]).toarray()
        return fit(rows, n_components=request["k"], epsilon=request["epsilon"], clip_norm=1.0)

    return method


LIBRARIES: dict[str, Method] = {
    "diffprivlib": _on_unit_rows(diffprivlib_directions),
    "opendp": _on_unit_rows(opendp_directions),
}


def serve(methods: Mapping[str, Method]) -> None:
    """Answer requests from standard input until it is closed; a method that exceeds its time ends the process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr  # keep stdout for answers, since libraries print to `sys.stdout`
    for line in sys.stdin:
        request = json.loads(line)
        rows_of(request["rows"])
        signal.setitimer(
            signal.ITIMER_PROF, request["seconds"]
        )  # when the time is used up, the default action of SIGPROF ends the process
        start = time.process_time()
        try:
            directions, refusal = methods[request["method"]](request), None
        except Exception as error:  # noqa: BLE001 - a library may raise any error; the parent reports it
            directions, refusal = None, f"{type(error).__name__}: {error}"
        seconds = time.process_time() - start
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if refusal is None:
            np.save(request["output"], np.asarray(directions, np.float64))
        print(json.dumps({"seconds": seconds, "refusal": refusal}), file=answers, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The directions of shape (k, d) that a method found, and its processor time in seconds."""

    directions: NDArray[np.float64]
    seconds: float


class OutOfTime(Exception):
    """A method used up its processor time."""


class Failed(Exception):
    """A method, or its process, ended with an error."""


class Child:
    """A child process that answers requests; it is started at a request if it is not running.

    Parameters
    ----------
    command : sequence of str
        The command that starts the process.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the child process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
        self._stop()

    def call(self, *, seconds: float, **request: Any) -> Answer:
        """Run a method in the child process for at most ``seconds`` of processor time, and return its answer.

        Raises
        ------
        OutOfTime
            If the method exceeded its time.
        Failed
            If the method raised an error, or the process ended otherwise.
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
                raise Failed(f"the process of the method ended with status {status}")
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
        """Close the pipes to the child process, wait for its end, and return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()


if __name__ == "__main__":
    serve(LIBRARIES)
