"""What refining is reproduced on, and how its checks are made; the table itself takes minutes: the command makes it."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from papers import denoise
from papers.lib.public_data import a9a_rows, second_moment
from tests.papers.conftest import Papers

A9A = second_moment(a9a_rows())


@pytest.mark.parametrize(
    ("name", "n_components"), [("flat", 3), ("giant", 3), ("low rank", 4), ("sparse", 5), ("anti", 4)]
)
def test_signals_have_the_components_that_they_state(name: str, n_components: int) -> None:
    spectrum = np.linalg.eigvalsh(denoise.SIGNALS[name]())[::-1]
    assert spectrum[n_components - 1] >= 699.9
    assert abs(spectrum[n_components]) < 1e-8


def test_the_command_checks_what_is_there_and_names_the_rest(
    papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cell of the table; the whole takes minutes."""
    monkeypatch.setattr(denoise, "_checks", lambda runs, _fetched: denoise._check_cell(denoise.CELLS[0], A9A, runs))
    ending = papers("denoise", "--runs", "2", "--data", tmp_path, "--json")
    report = json.loads(ending.out)
    assert ending.status == 0, report
    names = [check["name"].removeprefix("a9a k=10 epsilon=0.1 ") for check in report["checks"]]
    assert names == ["none", "eb", "spikes", "all", "auto", "auto, at least", "best less auto, at most"]
    assert [each.split(":")[0] for each in report["left_out"]] == ["mnist", "reuters"]


def test_noise_is_isometric_of_the_stated_size() -> None:
    """A chi-square of 20,100 degrees of freedom over its mean: 5 standard deviations are 0.05."""
    (draw,) = denoise._draws(np.zeros((200, 200)), 2, 1)
    weighed = draw.moment.matrix**2 / (2 * draw.moment.noise_std**2)
    assert weighed.sum() / (200 * 201 / 2) == pytest.approx(1.0, abs=0.05)
    assert draw.moment.noise_std == pytest.approx(36.305 / math.sqrt(2), abs=1e-3)


def test_a_cell_is_checked_method_by_method() -> None:
    cell = denoise.CELLS[0]
    checks = list(denoise._check_cell(cell, A9A, 1))
    names = [check["name"].removeprefix("a9a k=10 epsilon=0.1 ") for check in checks]
    assert names == ["none", "eb", "spikes", "all", "auto", "auto, at least", "best less auto, at most"]
    assert checks[4]["got"] > checks[0]["got"] + 0.01
    assert checks[5] | {"name": "", "holds": True} == checks[4] | {
        "name": "",
        "expected": 0.977,
        "tolerance": 0.0,
        "holds": True,
    }


def test_auto_is_compared_with_the_best_where_two_components_stand_above_the_noise() -> None:
    cell = dataclasses.replace(denoise.CELLS[0], epsilon=0.003)
    names = [check["name"] for check in denoise._check_cell(cell, A9A, 1)]
    assert not [name for name in names if "best" in name]
