"""Progress line on a terminal, drawn by a separate process.

The process is separate because linear algebra blocks the Python interpreter of the command. `flows.reports.activity`
starts the process as a script, and writes lines to its standard input: the current step, a tab, and the progress. The
process draws step, progress and the time since the step began, twice a second and whenever step or progress changes. It
clears the line when the input ends, even if the writing process was killed.

>>> line_of("summing", "3 of 8", seconds=75.0, turn=0, width=60)
'⠋ summing: 3 of 8, 0:01:15'
"""

import os
import select
import signal
import sys
import time

EVERY = 0.5  # seconds between two drawings of the same step and progress
_SOON = 0.1  # least seconds between any two drawings
_FIRST = 0.3  # seconds before the first drawing; shorter work gets no line
_TURNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_WIPE = "\r\x1b[K"


def line_of(doing: str, far: str, *, seconds: float, turn: int, width: int) -> str:
    """Return the progress line, cut to a width; ``turn`` selects the picture of the spinner."""
    message = f"{doing}: {far}" if far else doing
    return f"{_TURNS[turn % len(_TURNS)]} {message}, {clock(seconds)}"[:width]


def clock(seconds: float) -> str:
    """Write a duration as hours, minutes and seconds."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"


def main() -> None:
    """Read steps from standard input and draw the progress line on stderr until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the writing process, and with it the input
    doing, far, rest, turn = "", "", b"", 0
    began = time.monotonic()
    due, drawn = began + _FIRST, began
    while True:
        if select.select([0], [], [], max(due - time.monotonic(), 0.0))[0]:
            read = os.read(0, 65536)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                now, _, far = line.decode(errors="replace").partition("\t")
                if now != doing:
                    doing, began = now, time.monotonic()
            if turn:  # draw a change before the next regular drawing is due
                due = min(due, drawn + _SOON)
        if time.monotonic() >= due:
            _draw(line_of(doing, far, seconds=time.monotonic() - began, turn=turn, width=_width()))
            turn, drawn = turn + 1, time.monotonic()
            due = drawn + EVERY
    if turn:
        _write(_WIPE)


def _draw(line: str) -> None:
    _write(f"{_WIPE}{line}\r")


def _width() -> int:
    try:
        return (os.get_terminal_size(2).columns or 80) - 1  # some terminals report no size
    except OSError:
        return 79


def _write(text: str) -> None:
    try:
        os.write(2, text.encode("utf8", "replace"))
    except OSError:
        sys.exit()


if __name__ == "__main__":
    main()
