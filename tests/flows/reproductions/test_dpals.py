"""The reproduction of DPALS at a hundredth of its size: all checks and tables are made; the numbers take minutes."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpca_tasks.mechanisms.results import ItemFactors
from flows.reports.line_charts import LineChart, write_line_charts
from flows.reproductions import dpals
from flows.reproductions.completion_arms import Arm, Asked, Seen, held_out_error, popularity, recall, user_means
from flows.reproductions.dpals_scale import Scale
from flows.reproductions.movielens import FETCHED, FORMATS, write_movielens
from flows.reproductions.rating_makers import SplitRatings, low_rank, skewed
from tests.flows.conftest import Command


@pytest.fixture(scope="module")
def few() -> SplitRatings:
    return skewed(n_users=300, n_items=60, seed=1)


def test_exact_factors_predict_without_an_error_and_user_means_by_the_mean() -> None:
    made = low_rank(n_users=60, n_items=20, seed=1)
    known = made.train.toarray() + made.held.toarray()
    exact = ItemFactors(
        factors=np.linalg.svd(known)[2][:5].T,
        offsets=np.zeros(20),
        user_step={"centre": 0.0, "prior": None, "ridge": 1e-9, "rating_bound": 20.0},
    )
    enough = SplitRatings(train=made.train, held=made.held, low=-10.0, high=10.0)
    assert np.diff(made.train.indptr)[:30].min() >= 5
    assert held_out_error(exact, enough, users=30) < 1e-3
    spread = np.sqrt(np.mean(made.held[:30].data ** 2))
    assert held_out_error(user_means(made, centre=0.0, prior=1e9), made, users=30) == pytest.approx(spread, abs=1e-6)


def test_recall_of_held_out_popularity_is_one_and_of_rated_items_nothing(few: SplitRatings) -> None:
    best = np.where(few.held.toarray()[:1].ravel() > 0, 1.0, 0.0)
    one = SplitRatings(train=few.train[:1], held=few.held[:1], low=0.5, high=5.0)
    assert recall(best, one, users=1) == 1.0
    assert 0.0 <= recall(popularity(few), few, users=100) <= 1.0


def test_a_run_shows_its_rounds_and_comes_again_from_its_seed(few: SplitRatings) -> None:
    arm = Arm(name="dpals", mechanism="dpals", settings={"rounds": 3, "offsets": False, "sampling": "uniform"})
    seen, others, asked = Seen(), Seen(), Asked(rank=2, per_user=60, epsilon=5.0)
    found = arm.run(few, asked, seed=1, seen=seen)
    again, other = (arm.run(few, asked, seed=seed) for seed in (1, 2))
    assert [each.factors.shape for each in seen.rounds] == [(60, 2)] * 3
    assert found.factors is not None
    np.testing.assert_array_equal(found.factors, again.factors)
    assert (found.factors != other.factors).any()
    # All ratings count, so the first statistics differ by two draws of noise alone: 120 entries, four deviations.
    arm.run(few, asked, seed=2, seen=others)
    (one, two) = (each.rounds[0] for each in (seen, others))
    drawn = np.diagonal(one.outer - two.outer, axis1=1, axis2=2).ravel() / (np.sqrt(2.0) * one.outer_std)
    assert drawn.std() == pytest.approx(1.0, abs=4.0 / np.sqrt(2 * 120))


def test_a_chart_is_written_with_its_table(tmp_path: Path) -> None:
    rows = [
        {"data": "made", "arm": "a", "x": 1.0, "y": 2.0, "draws": 3},
        {"data": "made", "arm": "a", "x": 2.0, "y": 1.0, "draws": 3},
        {"data": "made", "arm": "level", "y": 1.5},
    ]
    charts = {"one": LineChart(title="One", x="x", y="y"), "none": LineChart(title="None", x="x", y="y")}
    paths = write_line_charts({"one": rows, "none": [], "other": rows}, charts, tmp_path / "new")
    assert [path.name for path in paths] == ["one.csv", "one.svg", "one.png", "other.csv"]
    assert paths[0].read_text().splitlines()[0] == "data,arm,x,y,draws"
    assert "level" in paths[0].read_text()
    assert all(path.stat().st_size > 1_000 for path in paths[1:3])


def test_the_command_makes_every_check_and_table(dpca: Command, tmp_path: Path) -> None:
    """A hundredth of the users, and a thin ml-100k: all runs, few numbers are as expected, and the status says so."""
    write_movielens(skewed(n_users=60, n_items=60, seed=2).train, tmp_path / FETCHED, size="100K, fetched")
    ending = dpca("reproduce", "dpals", "--direct", "--runs", "1", "--share", "0.01", "--data", tmp_path, "--json")
    found = json.loads(ending.out)
    names = [check["name"] for check in found["checks"]]
    assert len(names) == len(set(names)) >= 16
    assert all(set(check) == {"name", "expected", "tolerance", "got", "holds"} for check in found["checks"])
    assert ending.status == (0 if all(check["holds"] for check in found["checks"]) else 1)
    assert set(found["tables"]) == {*dpals.CHARTS, "films"}
    assert {row["data"] for row in found["tables"]["films"]} == {f"made folder like {size}" for size in FORMATS}
    for name, chart in dpals.CHARTS.items():
        assert found["tables"][name], name
        assert all(np.isfinite(row[chart.y]) for row in found["tables"][name]), name
        assert any(chart.x in row for row in found["tables"][name]), name
    costs = [row for row in found["tables"]["figure4"] if row["arm"] == "dpals"]
    assert all(row["true epsilon"] == pytest.approx(row["asked epsilon"], rel=0.02) for row in costs)
    assert found["charged"].startswith("nothing")


def test_a_share_of_nothing_is_refused_in_one_line(dpca: Command) -> None:
    ending = dpca("reproduce", "dpals", "--direct", "--share", "0")
    assert ending.status == 1
    assert "share=0.0 must be in (0, 1]" in ending.err


def test_a_scale_keeps_the_stated_size() -> None:
    assert (Scale().users(20_000), Scale().items(1_000), Scale().few) == (20_000, 1_000, 3)
    assert (Scale(share=0.01, runs=1).users(20_000), Scale(share=0.01, runs=1).items(1_000)) == (200, 40)
