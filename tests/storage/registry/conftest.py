"""A separate state folder for each test, and a signed registry."""

from pathlib import Path

import pytest

from dpca.backends.local import LocalPlace
from tests.storage.registry.signed_registries import Publication, publication


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a separate state folder for the separate witness and the consumer's memory."""
    folder = tmp_path / "state"
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(folder))
    return folder


@pytest.fixture
def publishers_home(tmp_path: Path, state: Path) -> Path:
    """Return the empty home of a publisher, which is not the home of this process."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def made(publishers_home: Path) -> Publication:
    """Publish one signed version of ``news``, under a root."""
    return publication(publishers_home, LocalPlace(publishers_home))
