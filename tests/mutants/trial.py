"""A trial of one mutation: a forked process that runs tests on the mutated module."""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.compiled import copy_unchanged
from tests.mutants.operators import Mutation
from tests.mutants.targets import PRODUCT, ROOT, SHORT, compiled_modules, describe, install

LIBRARIES = (
    *("numpy", "scipy.stats", "hypothesis", "sqlalchemy", "zarr", "mpmath", "distributed", "dp_accounting"),
    *("cryptography", "alembic", "pyarrow"),
)
"""Libraries imported once, before all forks. Numba is absent: each process must read its own cache folder."""
PASSED, FAILED = 0, 1
INTERRUPTED = 2
"""The exit codes of pytest that a trial accepts. An import that fails interrupts the collection."""
NOT_IMPORTED = "found no collectors for"
"""A part of pytest's message if some requested tests are in a module whose import fails."""


def warm_up() -> None:
    """Import the libraries of most tests, so that a forked trial starts at once."""
    for library in LIBRARIES:
        importlib.import_module(library)
    loaded = [name for name in sys.modules if name.split(".")[0] in PRODUCT]
    assert not loaded, f"these modules cannot be mutated, because they are imported: {loaded}"


@dataclass(frozen=True)
class Outcome:
    """The result of a trial: whether all tests passed, which test failed, and whether the time was up."""

    passed: bool
    failed: str = ""
    late: bool = False


def run(tests: Sequence[str], mutation: Mutation | None, seconds: float) -> Outcome:
    """Run tests with a mutation, or without one, until the first fails or the time is up.

    Raises
    ------
    RuntimeError
        If pytest neither passed nor failed, for instance because a test does not exist.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        child = os.fork()
        if child == 0:
            _run(tests, mutation, Path(folder))
        code = _wait(child, seconds)
        output = (Path(folder) / "output").read_text(errors="replace")
        named = Path(folder) / "failed"
        failed = named.read_text() if named.exists() else ""
    known = code is None or code < 0 or code in (PASSED, FAILED, INTERRUPTED)
    if not known and NOT_IMPORTED not in output:
        raise RuntimeError(f"pytest ended with code {code}:\n{output[-2000:]}")
    return Outcome(code == PASSED, failed, late=code is None)


class _FirstFailure:
    """Writes the name of the first test that fails."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failed test."""
        if report.failed and not self.file.exists():
            self.file.write_text(report.nodeid)


def _run(tests: Sequence[str], mutation: Mutation | None, folder: Path) -> None:
    """Run the tests in this forked process, and end it with pytest's exit code."""
    code = pytest.ExitCode.INTERNAL_ERROR.value
    try:
        os.setsid()
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(ROOT)
        temporary = folder / "files"
        temporary.mkdir()
        folder.chmod(0o711)  # PostgreSQL runs as another user
        tempfile.tempdir = None
        os.environ["TMPDIR"] = str(temporary)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent / "start"), str(ROOT)])
        if mutation is not None:
            if mutation.module in compiled_modules():  # the tree's cache must not receive a mutated function
                os.environ["NUMBA_CACHE_DIR"] = str(folder / "numba")
                copy_unchanged(mutation.module, folder / "numba")
            os.environ["DPCA_MUTATION"] = describe(mutation)
            install(describe(mutation))
        early = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Hypothesis and Zarr are plug-ins of pytest
        words = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *early, "-m", SHORT, *tests]
        code = int(pytest.main(words, plugins=[_FirstFailure(folder / "failed")]))
    except BaseException:  # noqa: BLE001 - the parent reads the output, and reports the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, seconds: float) -> int | None:
    """Return the exit code of the child, or None when the time is up, and end its process group."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
