"""A cluster that is missing is noticed before anything is charged."""

from pathlib import Path

import dask
import pytest

from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command

NOBODY = "tcp://127.0.0.1:1"


def test_a_missing_cluster_costs_nothing(ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_CLUSTER", NOBODY)
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        complaint = dpca(*FIT, "--direct", "--yes").complaint(1)
    assert f"no Dask scheduler answers at {NOBODY}" in complaint
    statement = Workspace.open().ledger.statement("people")
    assert (statement.spent, statement.releases) == (0.0, ())
    assert not list((ready / "keys").glob("*.key"))


def test_a_release_that_was_published_needs_no_cluster(
    released: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_CLUSTER", NOBODY)
    ending = dpca(*FIT, "--direct", "--yes")
    assert ending.status == 0, ending.err
    assert "was released before" in ending.err
    assert released.is_dir()
