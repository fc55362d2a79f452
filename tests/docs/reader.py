"""Runner for the shell blocks of a documentation page, which executes statement after statement in a test home."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from flows.cli import PREFECT_DEFAULTS, main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^```sh\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
STATEMENT = re.compile(r"^(?:[^\n]*<<'(\w+)'\n.*?^\1|(?:[^\n]*\\\n)*[^\n]+)\n", flags=re.MULTILINE | re.DOTALL)
"""A line of a script, with its continuation lines or its here-document."""
FAILS = "# exits with 1"
"""The comment on a command that is expected to fail."""
HURRY: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("dataset", "ingest"): ("--direct",),
    ("budget", "accept-restored"): ("--yes",),
    **{(noun, "fit"): ("--direct", "--yes") for noun in ("subspace", "completion", "tensor", "moment", "sites")},
    ("subspace", "refresh"): ("--direct", "--yes"),
    **{(noun, "evaluate"): ("--direct", "--yes") for noun in ("subspace", "completion")},
}


def shell_blocks(page: Path) -> list[str]:
    """Return the text of each shell block of a page."""
    return FENCED.findall(page.read_text(encoding="utf-8"))


def python_blocks(page: Path) -> list[str]:
    """Return the text of each Python block of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


class Reader:
    """A simulated new user with an empty home, who runs the shell blocks of a page.

    ``dpca`` commands run in this process, whose libraries are already loaded; all other commands run in a shell. With
    ``hurried``, confirmation prompts are answered, and sums are computed in this process without Prefect and Dask.
    """

    def __init__(
        self,
        home: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        *,
        hurried: bool = False,
    ) -> None:
        self._capsys, self._hurried = capsys, hurried
        for name in [name for name in os.environ if name.startswith(("DPCA_", "PREFECT_", "XDG_"))]:
            monkeypatch.delenv(name)
        for name, value in {"HOME": str(home), **PREFECT_DEFAULTS}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        if hurried:
            monkeypatch.setenv("DPCA_CLUSTER", "none")

    def types(self, script: str) -> str:
        """Run each statement of a script, and return the standard output of all."""
        shown = ""
        for statement in (found.group() for found in STATEMENT.finditer(script)):
            command, *words = shlex.split(statement.replace("\\\n", " "), comments=True)
            if command == "dpca":
                status = main(self._hurry(words) if self._hurried else words)
                printed = self._capsys.readouterr()
                assert status == (1 if FAILS in statement else 0), f"{statement}{printed.err}"
                shown += printed.out
            else:
                shown += self.shell(statement)
        return shown

    @staticmethod
    def shell(script: str) -> str:
        """Run a script in a single shell, which keeps variables between lines, and return its standard output."""
        run = subprocess.run(
            ["bash", "-euo", "pipefail"], input=script, capture_output=True, text=True, check=False, timeout=300
        )
        assert run.returncode == 0, f"{script}{run.stderr}"
        return run.stdout

    @staticmethod
    def _hurry(words: list[str]) -> list[str]:
        return [*words, *(word for word in HURRY.get(tuple(words[:2]), ()) if word not in words)]
