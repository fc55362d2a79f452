"""Helpers that run a command in a separate process, and return which modules it loaded."""

import json
import subprocess
import sys
from collections.abc import Iterable

_ALL = """
import json, sys
from flows.cli import main
status = main(sys.argv[1:])
print(json.dumps({name: str(getattr(sys.modules[name], "__file__", None)) for name in [*sys.modules]}), file=sys.stderr)
sys.exit(status)
"""
_CHILD = """
import json, sys
from flows.cli import main
heavy = sys.argv[1].split()
status = main(sys.argv[2:])
print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr)
sys.exit(status)
"""


def loaded_by(*words: str | float, heavy: Iterable[str]) -> tuple[str, list[str]]:
    """Run a command that must succeed; return its output, and which of the ``heavy`` modules it loaded."""
    command = [sys.executable, "-c", _CHILD, " ".join(heavy), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def all_loaded_by(*words: str | float) -> tuple[str, set[str], set[str]]:
    """Run a command that must succeed; return its output, the loaded modules, and packages of other distributions."""
    command = [sys.executable, "-c", _ALL, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stderr.splitlines()[-1])
    tops = {name.partition(".")[0] for name, file in files.items() if "site-packages" in file}
    return done.stdout, set(files), {top for top in tops if not top.startswith("_")}
