"""A home with versions of every family, and a copy of it for each test."""

import shutil
from pathlib import Path

import pytest

from flows.web.pages import Site
from tests.flows.conftest import isolate
from tests.flows.web.sample_home import make_sample


@pytest.fixture(scope="session")
def sample_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the home once."""
    place = tmp_path_factory.mktemp("sample") / "home"
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        make_sample()
    return place


@pytest.fixture
def sample(sample_home: Path, home: Path) -> Path:
    """A copy of the home that this test may modify."""
    shutil.copytree(sample_home, home)
    shutil.copytree(f"{sample_home}-state", f"{home}-state")
    return home


@pytest.fixture
def shared(sample_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home itself, for tests that only read."""
    isolate(monkeypatch, home=sample_home)
    return sample_home


@pytest.fixture
def site(shared: Path) -> Site:
    """The pages of that home, as served."""
    return Site(live=True)
