"""Fixtures: a home with versions of every family, and a copy of it for each test."""

import shutil
from pathlib import Path

import pytest

from flows.web.pages import Site
from tests.flows.conftest import isolate
from tests.flows.web.sample_home import make_sample


@pytest.fixture(scope="session")
def sample_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the sample home once for all tests."""
    place = tmp_path_factory.mktemp("sample") / "home"
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        make_sample()
    return place


@pytest.fixture
def sample(sample_home: Path, home: Path) -> Path:
    """Return a copy of the sample home that this test may modify."""
    shutil.copytree(sample_home, home)
    shutil.copytree(f"{sample_home}-state", f"{home}-state")
    return home


@pytest.fixture
def shared(sample_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the sample home itself, for tests that only read."""
    isolate(monkeypatch, home=sample_home)
    return sample_home


@pytest.fixture
def site(shared: Path) -> Site:
    """Return the web pages of the sample home, as the server generates them."""
    return Site(live=True)
