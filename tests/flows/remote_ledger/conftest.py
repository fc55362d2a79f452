"""Fixture: a home with data and budget whose ledger is remote."""

from pathlib import Path

import pytest

from tests.flows.remote_ledger.remote_home import SECRET, RemoteHome


@pytest.fixture
def remote(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteHome:
    """Return a home whose ledger is reached through the routes of its service."""
    return RemoteHome(ready, tmp_path / SECRET, monkeypatch)
