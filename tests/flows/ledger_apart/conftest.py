"""A home with data and budget, whose ledger is apart."""

from pathlib import Path

import pytest

from tests.flows.ledger_apart.apart import SECRET, Apart


@pytest.fixture
def apart(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apart:
    """The ledger of a home, behind the doors of its service."""
    return Apart(ready, tmp_path / SECRET, monkeypatch)
