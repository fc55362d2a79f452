"""Progress reports of a running command.

A report states the current step, its progress, and the time since the step began. At a terminal, a separate process
(`flows.reports.heartbeat`) redraws one line, also while the command computes. The line disappears when the command is
done. Without a terminal, such as in a scheduled job, one plain line is written every ten seconds. No progress is
written if ``DPCA_LOG`` enables a log of events. Counts of partitions are public. Counts of rows and bytes are reported
only to the curator who ingests, or to a user about the user's own file.

>>> with activity("summing partitions") as seen:
...     seen.parts(1, 8)
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path

from flows.reports import heartbeat
from flows.reports.heartbeat import clock

PLAIN_EVERY = 10.0
"""Seconds between two lines if there is no terminal."""

_now: ContextVar["Activity | None"] = ContextVar("now", default=None)


class Activity:
    """The current step of a command, and its progress.

    Parameters
    ----------
    doing : str
        The step in a few words, such as ``summing partitions``.
    notify : callable
        Called with the step and its progress whenever either changes.
    monotonic : callable
        The clock, in seconds.
    """

    def __init__(
        self, doing: str, notify: Callable[[str, str], None], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._notify, self._monotonic = notify, monotonic
        self.doing, self._began = doing, monotonic()

    def step(self, doing: str, far: str = "") -> None:
        """Begin a step, unless it is the current one."""
        if doing == self.doing:
            return
        self.doing, self._began = doing, self._monotonic()
        self._notify(doing, far)

    def parts(self, done: int, total: int | None) -> None:
        """Report how many parts are done, of how many; ``total`` is None if unknown."""
        if total is None:
            self._notify(self.doing, str(done))
            return
        self._notify(self.doing, f"{done} of {total}{self._left(done, total)}")

    def rows(self, done: int) -> None:
        """Report how many rows are done, when their total is unknown."""
        self._notify(self.doing, f"{done:,} rows")

    def transfer(self, phase: str, done: int, total: int, rows: int) -> None:
        """Report how many bytes and rows a phase has processed."""
        if phase != self.doing:
            self.step(phase)
        seconds = self._monotonic() - self._began
        rate = (
            f", {_bytes(done / seconds)}/s" if seconds >= 1.0 else ""
        )  # in the first second, the rate mostly measures buffering
        self._notify(phase, f"{rows:,} rows, {_bytes(done)} of {_bytes(total)}{rate}{self._left(done, total)}")

    def _left(self, done: int, total: int) -> str:
        seconds = self._monotonic() - self._began
        return f", about {clock(seconds * (total - done) / done)} left" if 0 < done < total and seconds >= 1.0 else ""


@contextmanager
def activity(doing: str) -> Iterator[Activity]:
    """Report progress of the code inside the context; inside another activity, as a step of that activity."""
    outer = _now.get()
    if outer is not None:
        outer.step(doing)
        yield outer
        return
    with _reporting(doing) as notify:
        seen = Activity(doing, notify)
        token = _now.set(seen)
        try:
            yield seen
        finally:
            _now.reset(token)


def begin_step(doing: str) -> None:
    """Report a new step to the surrounding activity, if there is one; ``doing`` must be public."""
    seen = _now.get()
    if seen is not None:
        seen.step(doing)


def report_parts(done: int, total: int) -> None:
    """Report how many parts are done to the surrounding activity, if there is one; both numbers must be public."""
    seen = _now.get()
    if seen is not None:
        seen.parts(done, total)


def _reporting(doing: str) -> AbstractContextManager[Callable[[str, str], None]]:
    """Return a context whose value is a function that reports a step and its progress.

    At a terminal it redraws one line, elsewhere it writes plain lines. It does nothing if ``DPCA_LOG`` enables a log.
    """
    if os.environ.get("DPCA_LOG", "off") != "off":
        return nullcontext(lambda doing, far: None)
    return (_moving_line if _is_terminal() else _plain_lines)(doing)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.isatty(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False


@contextmanager
def _moving_line(doing: str) -> Iterator[Callable[[str, str], None]]:
    """Redraw one line on the terminal from a separate process, which computations of this process cannot block."""
    words = [sys.executable, "-I", "-S", str(Path(heartbeat.__file__))]
    masked = signal.pthread_sigmask(
        signal.SIG_BLOCK, [signal.SIGINT]
    )  # the child inherits the blocked signal, so Ctrl-C ends only this process
    try:
        drawing = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=sys.stderr.fileno())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    pipe, one_at_a_time = drawing.stdin, threading.Lock()
    assert pipe is not None

    def notify(now: str, far: str) -> None:
        with one_at_a_time, suppress(OSError, ValueError):  # the command continues without the progress line
            pipe.write(f"{now}\t{far}\n".encode())
            pipe.flush()

    try:
        notify(doing, "")
        yield notify
    finally:
        with suppress(OSError):
            pipe.close()
        with suppress(subprocess.TimeoutExpired):
            drawing.wait(timeout=2.0)


@contextmanager
def _plain_lines(doing: str) -> Iterator[Callable[[str, str], None]]:
    """Write a line every `PLAIN_EVERY` seconds; shorter work writes no line."""
    text, began, over, every = [doing, ""], time.monotonic(), threading.Event(), PLAIN_EVERY

    def write() -> None:
        while not over.wait(every):
            print(plain_line(text[0], text[1], seconds=time.monotonic() - began), file=sys.stderr, flush=True)

    def notify(now: str, far: str) -> None:
        text[:] = now, far

    thread = threading.Thread(target=write, name="dpca-activity", daemon=True)
    with suppress(RuntimeError):  # a process that is shutting down cannot start a thread
        thread.start()
    try:
        yield notify
    finally:
        over.set()
        if thread.is_alive():
            thread.join()


def plain_line(doing: str, far: str, *, seconds: float) -> str:
    """Return one line with a step, its progress ``far``, and a duration."""
    return f"{doing}: {far} ({clock(seconds)})" if far else f"{doing} ({clock(seconds)})"


def _bytes(count: float) -> str:
    """Write a number of bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000.0:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000.0
    return f"{count:.1f} TB"
