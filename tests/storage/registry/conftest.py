"""Fixtures: a separate state folder for each test, and a signed registry."""

from pathlib import Path

import pytest

from dpca.backends.local import LocalPlace
from tests.storage.registry.signed_registries import Publication, publication


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a separate state folder for the test, which has the ledger's witness and the consumer's memory."""
    folder = tmp_path / "state"
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(folder))
    return folder


@pytest.fixture
def publishers_home(tmp_path: Path, state: Path) -> Path:
    """Return the empty home of a publisher, which is not the current home."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def made(publishers_home: Path) -> Publication:
    """Return a registry with one signed version of ``news``, under a root key."""
    return publication(publishers_home, LocalPlace(publishers_home))
