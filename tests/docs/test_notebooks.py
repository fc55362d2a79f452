"""Notebooks run from the first cell to the last, in a process of their own, and hold no stale output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.reader import DOCS, ROOT

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
SHOWS = {
    "components": ("census-map@1", "census-map-small@1", "(2, 10)"),
    "ratings": ("taste@1", "\nfilm"),
    "topics": ("report-topics@1", "bank, rate, loan, credit"),
    "sites": ("joint-cape-pca@1", "joint-conv@1"),
}


def test_each_family_has_a_notebook() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == set(SHOWS)


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(
            notebook, id=notebook.stem, marks=[] if notebook.stem == "components" else [pytest.mark.audit_only]
        )
        for notebook in NOTEBOOKS
    ],
)
def test_a_notebook_runs_from_the_first_cell_to_the_last(notebook: Path, tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    script = "\n".join("".join(cell["source"]) for cell in cells)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DPCA_", "PREFECT_", "XDG_"))}
    told = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**plain, **told},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    for shown in SHOWS[notebook.stem]:
        assert shown in ended.stdout
