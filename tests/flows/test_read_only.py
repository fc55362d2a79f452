"""Commands that only read work on a home folder that is read-only, and on a full disk; others say what is wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.conftest import facts_of

# A full disk takes no byte more; a read-only folder binds root too, once it lacks the capabilities to pass over modes.
FULL = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
FULL += "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
READ_ONLY = """
import ctypes, os, sys
if os.getuid() == 0 and len(sys.argv) > 1:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[-2]])
"""
COMMANDS = """
import contextlib, io, json
from flows.cli import main
told = {}
for words in (
    "budget show people", "budget history people", "registry list", "registry show sub", "registry verify sub",
    "dataset list", "dataset show people", "budget open others --epsilon 1 --delta 1e-6",
):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*words.split(), "--json"])
    told[words] = [status, out.getvalue()]
os.write(1, json.dumps(told).encode())
"""


def run(script: str) -> dict[str, tuple[int, str]]:
    found = subprocess.run([sys.executable, "-c", "import os\n" + script, "drop"], capture_output=True, check=False)
    assert found.returncode == 0, found.stderr.decode()
    return {words: (status, out) for words, (status, out) in json.loads(found.stdout).items()}


def made_read_only(home: Path) -> Callable[[], None]:
    paths = [home, *home.rglob("*")]
    modes = [path.stat().st_mode for path in paths]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)

    def undo() -> None:
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)

    return undo


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_reading_commands_need_no_room_and_no_permission_to_write(released: Path, trouble: str) -> None:
    before = facts_of(released)
    undo = made_read_only(released) if trouble == "read-only" else (lambda: None)
    try:
        told = run((FULL if trouble == "full" else READ_ONLY) + COMMANDS)
    finally:
        undo()
    *reading, writing = told
    assert {words: told[words][0] for words in reading} == dict.fromkeys(reading, 0)
    assert told[writing] == (1, "")
    assert json.loads(told["budget show people"][1])["spent"] == 1.0
    assert [row["spent"] for row in json.loads(told["budget history people"][1])] == [1.0]
    assert [row["artifact"] for row in json.loads(told["registry list"][1])] == ["sub@1"]
    assert json.loads(told["registry verify sub"][1])["verified"] is True
    assert [row["dataset"] for row in json.loads(told["dataset list"][1])] == ["people"]
    assert json.loads(told["dataset show people"][1])["records"] == 60
    assert facts_of(released) == before
    assert os.access(released, os.W_OK)
