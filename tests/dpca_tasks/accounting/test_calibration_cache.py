"""The cache of sampled calibrations: one search, always checked again, and never needed."""

import json
from typing import Any

import pytest

from dpca_tasks.accounting import calibration_cache
from dpca_tasks.accounting.calibration_cache import FOLDER_VARIABLE, cached_sampled_multiplier
from dpca_tasks.accounting.subsampled import sampled_gaussian_is_private, sampled_gaussian_noise_multiplier

TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "rate": 0.1, "steps": 10}
FORGED = [b"no json", b"{}", b'{"noise_multiplier": 0.3}', b'{"noise_multiplier": -1}', b"[]"]


@pytest.fixture(scope="module")
def found():
    """What the search finds."""
    return sampled_gaussian_noise_multiplier(**TERMS)


@pytest.fixture
def searches(found, monkeypatch):
    """Let a search find at once what it is known to find; what is kept is checked as ever. Return the searches made."""
    made: list[dict[str, Any]] = []

    def search(**asked: Any) -> Any:
        made.append(asked)
        return found

    monkeypatch.setattr(calibration_cache, "sampled_gaussian_noise_multiplier", search)
    return made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    cached_sampled_multiplier.cache_clear()
    yield tmp_path / "calibrations"
    cached_sampled_multiplier.cache_clear()


def test_a_second_call_searches_no_more(folder, searches, found):
    for _ in range(2):
        assert cached_sampled_multiplier(**TERMS) == found
        cached_sampled_multiplier.cache_clear()
    assert searches == [{**TERMS, "besides": 0}]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("forged", FORGED)
def test_a_file_that_fails_the_check_is_searched_anew(folder, searches, found, forged):
    cached_sampled_multiplier(**TERMS)
    (path,) = folder.iterdir()
    path.write_bytes(forged)
    cached_sampled_multiplier.cache_clear()
    assert cached_sampled_multiplier(**TERMS) == found
    assert len(searches) == 2
    assert json.loads(path.read_text())["noise_multiplier"] == found


@pytest.mark.usefixtures("searches")
def test_a_folder_that_cannot_be_written_is_done_without(folder):
    folder.write_text("a file in its place")
    assert sampled_gaussian_is_private(cached_sampled_multiplier(**TERMS), **TERMS)
