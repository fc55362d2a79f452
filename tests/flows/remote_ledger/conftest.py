"""A home with data and budget whose ledger is remote."""

from pathlib import Path

import pytest

from tests.flows.remote_ledger.apart import SECRET, Apart


@pytest.fixture
def apart(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apart:
    """The ledger of a home, behind the routes of its service."""
    return Apart(ready, tmp_path / SECRET, monkeypatch)
