"""Environment of programs that tests run, built from the lock in this folder by ``make .venv-tools``.

These programs have dependencies that would change what the product's packages import, so no test imports them.
"""

import subprocess
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / ".venv-tools"


def python() -> Path:
    """Return the path of the Python interpreter of `.venv-tools`.

    Raises
    ------
    FileNotFoundError
        If the environment is not built.
    """
    found = _FOLDER / "bin" / "python"
    if not found.exists():
        raise FileNotFoundError(f"{found} is missing; run `make .venv-tools` and try again.")
    return found


def output(program: str, *words: str | Path, given: str = "") -> str:
    """Run Python code in `.venv-tools` with a given standard input, and return its output."""
    done = subprocess.run([python(), "-c", program, *words], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
