"""The search for settings: on made ratings alone, ranked by their error, and refused on private rows with its cost."""

import json

import pytest

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from flows.tune import GRIDS, Search, search
from tests.flows.conftest import Command

SIZE = ("--users", 300, "--items", 60, "--rank", 2, "--ratings-per-user", 20, "--epsilon", 5, "--delta", "1e-4")
TUNE = ("completion", "tune", *SIZE)


def test_settings_are_ranked_by_the_error_of_made_ratings(dpca: Command) -> None:
    words = (*TUNE, "--mechanism", "one_shot", "--try", "user_ridge=0.1,30", "--try", "scaling=normalise,clip")
    rows = json.loads(dpca(*words, "--json").out)
    assert len(rows) == 4
    assert [row["rmse"] for row in rows] == sorted(row["rmse"] for row in rows)
    assert rows[0]["settings"].startswith("user_ridge=30")  # with so few users, factors are best shrunk
    assert rows == json.loads(dpca(*words, "--json").out)


@pytest.mark.parametrize("mechanism", sorted(GRIDS))
def test_every_mechanism_has_a_grid_that_it_takes(mechanism: str) -> None:
    asked = Search(
        task="low-rank",
        users=120,
        items=40,
        rank=2,
        ratings_per_user=15,
        epsilon=5.0,
        delta=1e-4,
        mechanism=mechanism,
        tried={name: values[:1] for name, values in GRIDS[mechanism].items()},
    )
    (row,) = search(asked)
    assert row["rmse"] > 0.0
    assert row["settings"] == " ".join(f"{name}={values[0]}" for name, values in GRIDS[mechanism].items())


def test_private_rows_are_refused_with_the_real_cost(dpca: Command) -> None:
    """Twelve Gaussian releases: their squared losses add up."""
    words = ("--try", "user_ridge=1,2,3", "--draws", 4)
    complaint = dpca("completion", "tune", "films", *SIZE, *words).complaint(1)
    each = gaussian_noise_multiplier(epsilon=5.0, delta=1e-4)
    together = gaussian_epsilon(noise_multiplier=each / 12**0.5, delta=1e-4)
    assert f"12 runs at epsilon 5 are 12 releases and cost epsilon {together:.3g} together" in complaint
    assert together > 20


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--task", "films"), "task='films' is unknown"),
        (("--mechanism", "als"), "mechanism='als' is unknown"),
        (("--try", "speed=1"), "has no setting 'speed'"),
        (("--try", "user_ridge"), "write --try KEY=V1,V2"),
        (("--try", "user_ridge=1,2", "--draws", 150), "300 runs are more than 200"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(dpca: Command, words: tuple[object, ...], rule: str) -> None:
    assert rule in dpca(*TUNE, *words).complaint(1)
