"""Terminal output during an ingest of a million rows, a fit and a transform: new output at least every three seconds.

Every byte that a user sees is timed, from the start of the command's process to its end. A concurrent idle thread
measures for how long the machine ran no process. That time is subtracted from each silence.

``python -m tests.integration.silence`` runs this test alone, in about a minute.
"""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from tests.integration.processes import BIN, PATIENCE, ROOT, Failure, Processes, check

SILENT_AT_MOST = 3.0  # seconds
ROWS, FEATURES, PER_ROW = 1_000_000, 120, 24

_PULSE = 0.05  # seconds between two wake-ups of the idle thread
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x20]")
_WORDS = {
    "ingest": re.compile(r"reading: [\d,]+ rows, [\d.]+ .?B of [\d.]+ MB, "),
    "fit": re.compile(r"summing partitions: [1-9]\d* of [1-9]\d*"),
    "transform": re.compile(r"reading and projecting rows: [\d,]+ rows"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A period in which a terminal showed nothing new, in seconds since the command started."""

    begin: float
    end: float
    before: str
    stalled: float  # seconds of the silence in which the machine could run no process

    @property
    def counted(self) -> float:
        """Seconds of the silence, without the time in which the machine could run no process."""
        return self.end - self.begin - self.stalled


@dataclass(slots=True)
class Pulse:
    """Periods in which an idle thread woke up too late, because the machine was stalled and ran no process."""

    late: list[tuple[float, float]] = field(default_factory=list)

    def within(self, begin: float, end: float) -> float:
        """Return the total time of late wake-ups between two moments of the monotonic clock."""
        return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self.late)


@contextmanager
def pulse() -> Iterator[Pulse]:
    """In this context, record when an idle thread wakes up too late."""
    seen, over = Pulse(), Event()

    def beat() -> None:
        due = time.monotonic() + _PULSE
        while not over.wait(max(0.0, due - time.monotonic())):
            if (now := time.monotonic()) > due + _PULSE:
                seen.late.append((due, now))
            due = now + _PULSE

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def watch(*command: str | Path, environment: Mapping[str, str]) -> tuple[str, list[Silence]]:
    """Run a command in a pseudo-terminal; return its output and its silences."""
    ours, theirs = pty.openpty()
    shown, silences, last = b"", [], time.monotonic()
    began = last

    def notices(now: float) -> None:
        nonlocal last
        before = shown[-400:].decode(errors="replace").replace("\r", "\n").strip().rpartition("\n")[2]
        silences.append(Silence(begin=last - began, end=now - began, before=before, stalled=machine.within(last, now)))
        last = now

    with pulse() as machine:
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        while (ended := process.poll()) is None or select.select([ours], [], [], 0)[0]:
            check(time.monotonic() < began + PATIENCE, f"{' '.join(map(str, command))} did not end")
            if not select.select([ours], [], [], 0.05)[0]:
                continue
            try:
                read = os.read(ours, 1 << 16)
            except OSError:  # reading fails when no process has the terminal open any more
                ended = process.wait()
                break
            if _CONTROL.sub(b"", read):
                notices(time.monotonic())
            shown += read
        notices(time.monotonic())
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    check(ended == 0, f"{' '.join(map(str, command))} ended with {ended}: {' '.join(text.split())[-600:]}")
    return text, silences


def break_every_silence(processes: Processes, announce: Callable[[str], None]) -> None:
    """Run the three commands as a user does, with Prefect, a cluster of processes, and a new home."""
    root = processes.root / "calm"
    root.mkdir(mode=0o700)
    places = {name: str(root / name.lower()) for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "PREFECT_HOME")}
    environment = processes.base | places
    rows, scores = _write_rows(root / "rows.svm"), root / "scores.npy"
    people = ("--population", "people", "--records-at-most", str(2 * ROWS))
    requested = ("--components", "5", "--epsilon", "1", "--delta", "1e-7", "--clip-norm", "40", "--publish", "map")
    commands: dict[str, tuple[str | Path, ...]] = {
        "ingest": ("dataset", "ingest", rows, "--name", "rows", "--features", str(FEATURES), *people),
        "budget": ("budget", "open", "people", "--epsilon", "2", "--delta", "1e-7"),
        "fit": ("subspace", "fit", "rows", *requested, "--yes"),
        "transform": ("transform", "map", rows, "--output", scores),
    }
    for name, words in commands.items():
        text, silences = watch(BIN / "dpca", *words, environment=environment)
        longest = max(silences, key=lambda silence: silence.counted)
        where = f"from second {longest.begin:.1f} on, after {longest.before!r}"
        if longest.counted > SILENT_AT_MOST:
            raise Failure(f"{name}: the terminal was silent for {longest.counted:.1f} s {where}")
        stalled = sum(silence.stalled for silence in silences)
        overloaded = f"; overloaded, nobody could run for {stalled:.1f} s" if stalled >= 1.0 else ""
        announce(
            f"{name}: {silences[-1].end:.1f} s, first sign after {silences[0].end:.1f} s, "
            f"silent for {longest.counted:.1f} s at most{overloaded}"
        )
        if name in _WORDS:
            check(_WORDS[name].search(text), f"{name} never said how far it was: no {_WORDS[name].pattern!r}")
    shutil.rmtree(root)


def main() -> int:
    """Run only this test of silences."""
    root = Path(tempfile.mkdtemp(prefix="dpca-silence-"))
    try:
        break_every_silence(Processes(root), lambda text: print(text, flush=True))
    except Failure as failure:
        print(f"silence: {failure}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def _write_rows(path: Path) -> Path:
    """Write a file of a million rows of counts; many rows are equal, which does not affect the run time."""
    lines = []
    for row in range(1000):
        columns = sorted({1 + (row * 31 + step * (7 + row % 11)) % FEATURES for step in range(PER_ROW)})
        lines.append("0 " + " ".join(f"{column}:{1 + (row + column) % 9}" for column in columns) + "\n")
    with path.open("w") as out:
        for _ in range(ROWS // len(lines)):
            out.writelines(lines)
    return path


if __name__ == "__main__":
    sys.exit(main())
