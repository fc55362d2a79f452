"""The process that moves one line on a terminal."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from flows.reports import heartbeat
from flows.reports.heartbeat import clock, line_of


def started(terminal: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-I", "-S", str(Path(heartbeat.__file__))]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stderr=terminal)


def read_until(terminal: int, text: str) -> str:
    shown = b""
    while text.encode() not in shown:
        shown += os.read(terminal, 4096)
    return shown.decode()


def test_a_line_says_what_how_far_and_since_when_and_is_cut_to_the_terminal() -> None:
    assert line_of("summing", "3 of 8", seconds=3675.0, turn=1, width=80) == "⠙ summing: 3 of 8, 1:01:15"
    assert line_of("publishing", "", seconds=0.2, turn=10, width=80) == "⠋ publishing, 0:00:00"
    assert len(line_of("summing", "x" * 200, seconds=0.0, turn=0, width=40)) == 40
    assert clock(59.9) == "0:00:59"


def test_the_line_moves_while_nobody_writes_and_is_gone_when_the_input_ends() -> None:
    ours, theirs = pty.openpty()
    drawing = started(theirs)
    assert drawing.stdin is not None
    drawing.stdin.write(b"summing\t1 of 4\n")
    drawing.stdin.flush()
    assert "⠋ summing: 1 of 4, 0:00:0" in read_until(ours, "summing: 1 of 4")
    read_until(ours, "⠙ summing: 1 of 4")
    drawing.stdin.write(b"publi")
    drawing.stdin.write(b"shing\t\n")
    drawing.stdin.flush()
    assert "1 of 4, " not in read_until(ours, " publishing, 0:00:00").rpartition("\r\x1b[K")[2]
    drawing.send_signal(signal.SIGINT)  # Ctrl-C reaches all processes of a terminal
    read_until(ours, " publishing, ")
    drawing.stdin.close()
    assert drawing.wait(timeout=30) == 0
    os.close(theirs)
    assert os.read(ours, 4096).endswith(b"\r\x1b[K")
    os.close(ours)
