"""Guide for operators of sites: its commands work as typed, from keys and roster to a published version."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.demo import free_ports
from tests.docs.reader import DOCS, ROOT, shell_blocks

GUIDE = DOCS / "how-to" / "sites-as-parties.md"


@pytest.mark.audit_only
def test_the_guide_for_operators_works_as_it_is_typed(tmp_path: Path) -> None:
    script = "".join(shell_blocks(GUIDE))
    for written, free in zip(("8700", "8701", "8702"), free_ports(3), strict=True):
        assert written in script
        script = script.replace(written, str(free))
    command = tmp_path / "bin" / "dpca"
    command.parent.mkdir()
    start = "import sys; from flows.cli import main; sys.exit(main())"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    command.chmod(0o700)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DPCA_", "PREFECT_"))}
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    reported = {"HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(ROOT), "DPCA_ALLOW_SHARED_HOME": "true"}
    # files instead of pipes, because services that keep running would keep a pipe open
    out, errors = tmp_path / "out", tmp_path / "errors"
    try:
        with out.open("w") as to, errors.open("w") as wrong:
            ended = subprocess.run(
                ["bash", "-euo", "pipefail"],
                input=script,
                env={**plain, **reported, "DPCA_STATE_FOLDER": str(tmp_path / "state")},
                cwd=tmp_path,
                stdout=to,
                stderr=wrong,
                text=True,
                check=False,
                timeout=540,
            )
    finally:
        for process in (tmp_path / "running").read_text().split() if (tmp_path / "running").exists() else ():
            os.kill(int(process), signal.SIGTERM)
    assert ended.returncode == 0, errors.read_text()
    printed = out.read_text()
    assert re.search(r"^artifact +joint-map@1$", printed, re.MULTILINE), printed
    shown = json.loads(printed[printed.index("\n{") :].partition("\n}\n")[0] + "\n}")
    assert [site["site"] for site in shown["manifest"]["plan"]["sites"]] == ["north", "south"]
    assert re.search(r"^releases .*committed", printed, re.MULTILINE)
