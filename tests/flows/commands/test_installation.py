"""Command ``dpca backup``: its terminal output."""

from pathlib import Path

import pytest

from tests.flows.conftest import FIT, Command


@pytest.mark.parametrize(("releases", "text"), [(1, " is lost or damaged"), (2, " and 1 more are lost or damaged")])
def test_a_backup_names_the_first_file_that_is_lost_and_counts_the_others(
    released: Path, dpca: Command, tmp_path: Path, releases: int, text: str
) -> None:
    for number in range(1, releases):
        assert dpca(*FIT, "--run-key", f"again {number}", "--direct", "--yes").status == 0
    artifacts = sorted((released / "registry" / "artifacts").iterdir())
    assert len(artifacts) == releases
    for artifact in artifacts:
        (artifact / "manifest.json").unlink()
    made = dpca("backup", "create", tmp_path / "backup")
    assert made.err.endswith(f"warning: registry/artifacts/{artifacts[0].name}{text}\n")
