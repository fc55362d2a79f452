"""The reproduction of capeAGN on few records; the command runs it at the size of the paper, for minutes."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.mechanisms.tensors.tensor_releases import TensorReleases
from dpca_tasks.metrics import matched_errors
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from papers import cape_agn
from papers.cape_agn import CHARTS, EPSILONS, MAKERS, MOST, MOST_OVER_NON_PRIVATE, OF_MANY, STORED, recovery_error
from papers.lib.tensors import ARMS, NO_ROWS, RANDOM, VARIANCE, WORDS, Maker, SummedRows, components_by, sites_of
from tests.papers.conftest import Papers

SMALL = [maker for maker in MAKERS if maker.n_features == 10]
IDS = [maker.model for maker in SMALL]


def as_rows(maker: Maker, records: np.ndarray) -> ArrayBlocks:
    """Return records as a dataset holds them: documents by the counts of their words."""
    if maker.model == "mixture":
        return ArrayBlocks(records)
    places = np.repeat(np.arange(len(records)), WORDS), records.reshape(-1)
    counts = sparse.coo_array((np.ones(places[0].size), places), shape=(len(records), maker.n_features)).tocsr()
    return ArrayBlocks(counts)


@pytest.mark.parametrize("maker", SMALL, ids=IDS)
def test_records_are_of_the_papers_models(maker: Maker) -> None:
    """Means of 40,000 records are 5 stds from what is expected with a chance below 1e-5, for a fixed seed."""
    components, records = maker.components(draw=3), maker.records(40_000, draw=3)
    assert maker.weights[-1] / maker.weights[0] == pytest.approx(10 * maker.n_components)
    if maker.model == "topics":
        assert (components >= 0).all()
        np.testing.assert_allclose(components.sum(axis=1), 1.0)
        seen = np.bincount(records.reshape(-1).astype(np.int64), minlength=10) / records.size
        np.testing.assert_allclose(seen, maker.weights @ components, atol=5 * 0.5 / np.sqrt(records.size))
    else:
        np.testing.assert_allclose(components @ components.T, np.eye(5), atol=1e-12)
        np.testing.assert_allclose(records.mean(axis=0), maker.weights @ components, atol=0.02)
        squares = 1.0 + 10 * VARIANCE
        assert np.mean(np.sum(records**2, axis=1)) == pytest.approx(squares, rel=0.02)


def test_topics_are_the_means_of_a_mixture_with_negative_entries_cut() -> None:
    topics, means = (maker.components(draw=2) for maker in SMALL)
    cut = np.maximum(means, 0.0)
    np.testing.assert_allclose(topics, cut / cut.sum(axis=1, keepdims=True))
    assert (means < 0).any()


@pytest.mark.parametrize("maker", SMALL, ids=IDS)
def test_a_shorter_draw_is_a_part_of_a_longer_one_and_draws_differ(maker: Maker) -> None:
    longer = maker.records(60_000, draw=1)
    np.testing.assert_array_equal(maker.records(300, draw=1), longer[:300])
    assert (longer[:300] != maker.records(300, draw=2)).any()


@pytest.mark.parametrize("maker", SMALL, ids=IDS)
def test_sums_are_those_of_the_products_queries_but_for_the_rounding_of_each_record(maker: Maker) -> None:
    records = maker.records(400, draw=0)
    sites = sites_of(maker, records, draw=0, sites=1)
    releases = TensorReleases(problem=sites.problem(sites=1), components=5)
    rows, looked_up = as_rows(maker, records), SummedRows(source=NO_ROWS, sums=sites.parts[0])
    moment = releases.moment_query(bits=14)
    matrix = sites.parts[0].total(moment) * moment.unit
    core = releases.core_query(releases.space(matrix, std=0.0), bits=22)
    of_entries = 2**14 if maker.model == "mixture" else 1
    for query, within in ((moment, 400 * of_entries), (core, 400 * 80)):
        exact, found = exact_sum(rows, query), looked_up.sum(query, stay=False)
        assert np.abs(exact).max() > 10 * within
        np.testing.assert_allclose(found, exact, rtol=0, atol=within)


@pytest.mark.parametrize("maker", SMALL, ids=IDS)
def test_every_arm_finds_components_where_there_is_hardly_any_noise_and_local_none_where_there_is_much(
    maker: Maker,
) -> None:
    sites, truth = sites_of(maker, maker.records(40_000, draw=0), draw=0), maker.components(draw=0)

    def error(arm: str, epsilon: float) -> float:
        return float(
            matched_errors(components_by(arm, sites, epsilon=epsilon, delta=0.01, seed=1).components, truth).mean()
        )

    found = {arm: error(arm, 1e4) for arm in ARMS}
    assert max(found[arm] for arm in ARMS if arm not in (RANDOM, "local")) < 0.1
    assert found[RANDOM] > 3 * found["local"]
    assert error("local", 0.5) > 1.5 * error("cape", 0.5)


@pytest.mark.parametrize("maker", MAKERS, ids=[maker.name for maker in MAKERS])
def test_population_moments_are_recovered(maker: Maker) -> None:
    assert recovery_error(maker) < 1e-10


def test_the_command_prints_its_checks_and_draws_its_figures(
    papers: Papers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With few records errors are far from the paper's, so their checks may fail: that of the moments holds."""
    charts = ("error_by_epsilon", "weights_by_records")
    monkeypatch.setattr(cape_agn, "MAKERS", SMALL[:1])
    monkeypatch.setattr(cape_agn, "CHARTS", {name: CHARTS[name] for name in charts})
    for name, value in (("MANY", 4_000), ("USUAL", 2_000), ("RECORDS", (2_000, 4_000)), ("DELTAS", (1e-3,))):
        monkeypatch.setattr(cape_agn, name, value)
    ending = papers("cape-agn", "--runs", "1", "--json", "--out", tmp_path / "out")
    assert ending.out, ending.err
    found = json.loads(ending.out)
    held = {check["name"]: check["holds"] for check in found["checks"]}
    assert len(held) == len(found["checks"]) == 16
    assert all(held[name] for name in held if "population moments" in name), held
    assert ending.status == (0 if all(held.values()) else 1)
    assert found["charged"].startswith("nothing")
    rows = found["tables"]["errors"]
    assert {row["arm"] for row in rows} == set(ARMS)
    assert {"error", "nearest", "weights", "found"} <= set(rows[0])
    files = {f"{name}{end}" for name in charts for end in (".csv", ".svg", ".png")} | {"errors.csv"}
    assert {Path(file).name for file in found["files"]} == files


def test_errors_and_weights_are_drawn_against_epsilon_records_and_delta() -> None:
    assert {(chart.x, chart.y) for chart in CHARTS.values()} == {
        (x, y) for x in ("epsilon", "N_s", "delta") for y in ("error", "weights")
    }


def test_expected_errors_stand_for_every_model_at_every_epsilon() -> None:
    assert sorted([*MOST, *MOST_OVER_NON_PRIVATE]) == sorted(maker.name for maker in MAKERS)
    assert {len(most) for most in (*MOST.values(), *MOST_OVER_NON_PRIVATE.values())} == {len(EPSILONS)}
    assert {name for name, _ in STORED} == {maker.name for maker in MAKERS}
    assert {len(stored) for _, stored in STORED.values()} == {len(OF_MANY)}
