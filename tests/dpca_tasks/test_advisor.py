"""Advice from public facts. Its expectations are compared with runs by ``python -m papers advice``."""

import dataclasses
from itertools import pairwise

import pytest

from dpca_tasks import advisor
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.advisor import RANDOM, advise, cost_of, expect, public_problem, split_budget
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS

TARGET = PrivacyTarget(epsilon=1.0, delta=1e-9)
MANY = Problem(n_features=60, clip_norm=1.0, records_at_most=100_000, spectrum="0.3,0.1,0.05")
FEW = dataclasses.replace(MANY, records_at_most=100, n_features=400)
UNSAMPLED = sorted(set(MECHANISMS) - {"dp_spca", "dp_vrpca", "local_gaussian", "dps_pca"})


def test_many_records_get_a_ranking_and_few_are_told_to_expect_noise_with_what_would_do():
    ranked = advise(MANY, TARGET, n_components=3, only=UNSAMPLED)
    assert {advice.plan.mechanism for advice in ranked} <= set(UNSAMPLED)
    assert ranked[0].plan.mechanism == "analyze_gauss"
    assert not ranked[0].expects_noise
    assert ranked[0].expected.captured[0] > 0.95
    few = advise(FEW, TARGET, n_components=3, only=UNSAMPLED)
    assert few[0].forecast.above_noise == 0
    assert any(advice.expects_noise for advice in few)
    epsilon = few[0].epsilon_needed()
    assert epsilon is not None
    (enough,) = advise(FEW, dataclasses.replace(TARGET, epsilon=epsilon), n_components=3, only=[few[0].plan.mechanism])
    assert enough.forecast.above_noise == 3
    assert not enough.expects_noise


def test_without_a_delta_a_pure_mechanism_is_the_choice():
    ranked = advise(MANY, dataclasses.replace(TARGET, delta=0.0), n_components=3)
    assert {advice.plan.mechanism for advice in ranked} == {"wishart", "laplace", "exponential"}
    assert ranked[0].plan.mechanism == "wishart"


@pytest.mark.parametrize("name", UNSAMPLED)
def test_more_epsilon_and_more_records_never_lower_what_is_expected(name):
    lows = []
    for records, epsilon in ((1_000, 0.1), (1_000, 1.0), (30_000, 1.0), (3_000_000, 1.0)):
        problem = dataclasses.replace(MANY, records_at_most=records, n_features=12, spectrum="0.4,0.2,0.1")
        (advice,) = advise(problem, dataclasses.replace(TARGET, epsilon=epsilon), n_components=3, only=[name])
        lows.append(advice.expected.captured[0])
    assert all(after >= before - 0.02 for before, after in pairwise(lows))
    assert lows[-1] > 0.9


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_flat_spectrum_is_noise_for_every_mechanism_and_intervals_are_ordered(name):
    problem = dataclasses.replace(MANY, spectrum="flat", relation="zero_out", records_at_most=1_000_000)
    (advice,) = advise(problem, TARGET, n_components=3, only=[name])
    expected = advice.expected
    assert advice.expects_noise
    assert expected.random == pytest.approx(1.0)
    for low, high in (expected.captured, expected.beyond_first):
        assert 0.0 <= low <= high <= 1.0
    assert advice.cost.time in ("seconds", "minutes", "hours")
    assert advice.cost == cost_of(advice.mechanism, advice.plan)


def test_refined_releases_have_an_interval_and_a_number_only_where_it_is_narrow():
    plan = MECHANISMS["analyze_gauss"](n_components=3).plan(MANY, TARGET)
    good = expect(MECHANISMS["analyze_gauss"](n_components=3), plan)
    assert good.captured[0] < good.captured[1]
    assert good.likely == pytest.approx(sum(good.captured) / 2)
    doubtful = dataclasses.replace(good, captured=(0.4, 0.8))
    assert doubtful.likely is None


def test_hardly_more_than_random_directions_is_noise_where_no_component_is_above_it():
    wide = Problem(n_features=3_000, clip_norm=1.0, records_at_most=8_000, spectrum="0.1,0.01,0.009")
    (advice,) = advise(wide, dataclasses.replace(TARGET, epsilon=0.1, delta=1e-6), n_components=10, only=["wishart"])
    assert advice.forecast.above_noise == 0
    assert advice.expects_noise
    barely = dataclasses.replace(advice.expected, captured=(0.02, 0.02), random=0.005)
    assert barely.is_noise
    assert not dataclasses.replace(barely, seen=True).is_noise


def test_a_spectrum_that_is_none_is_refused_and_not_taken_for_a_refusal_of_each_mechanism():
    with pytest.raises(InvalidInput, match="spectrum="):
        advise(dataclasses.replace(MANY, n_features=6), TARGET, n_components=3)


def test_one_component_has_no_first_one_to_leave_out():
    (advice,) = advise(MANY, TARGET, n_components=1, only=["wishart"])
    assert advice.expected.beyond_first == advice.expected.captured


def test_a_budget_is_split_exactly_among_gaussian_releases():
    gaussian, others = split_budget(TARGET, releases=12)
    assert others == pytest.approx(1.0 / 12)
    assert gaussian > 3 * others
    assert gaussian_noise_multiplier(epsilon=gaussian, delta=1e-9) == pytest.approx(
        gaussian_noise_multiplier(epsilon=1.0, delta=1e-9, releases=12), rel=1e-6
    )
    (gauss,) = advise(MANY, TARGET, n_components=3, releases=12, only=["analyze_gauss"])
    assert gauss.plan.target.epsilon == pytest.approx(gaussian)
    (wishart,) = advise(MANY, TARGET, n_components=3, releases=12, only=["wishart"])
    assert wishart.plan.target.epsilon == pytest.approx(others)


@pytest.mark.parametrize("wrong", [{"relation": "swap"}, {"center": "mean"}, {"spectrum": "rising"}])
def test_words_that_are_none_are_refused(wrong):
    facts = {"records_at_most": 10, "n_features": 5, "relation": "zero_out"}
    with pytest.raises(InvalidInput):
        public_problem(**{**facts, **wrong})


def test_the_advisor_reads_no_rows():
    assert RANDOM > 1.0
    assert not any(hasattr(advisor, name) for name in ("Curator", "ArrayBlocks", "Reservation"))
