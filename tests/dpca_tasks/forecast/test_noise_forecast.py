"""Declared spectra: parts of all variance, descending, 1 in sum.

Forecasts from public facts.
"""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput
from dpca_tasks.forecast.noise_forecast import epsilon_needed, forecast, forecast_of, spectrum_shares
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.noise_level import edge_quantile
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from tests.dpca_tasks.refinement.noisy import isometric_noise


@given(
    shares=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12),
    n_features=st.integers(1, 300),
    left_out=st.floats(0.0, 1.0),
)
def test_any_leading_parts_of_a_spectrum_are_kept_and_continued(shares, n_features, left_out):
    whole = np.sort(np.resize(shares, n_features))[::-1]
    whole = whole / whole.sum()
    stated = whole[: max(1, int(len(whole) * (1.0 - left_out)))]
    found = spectrum_shares(",".join(map(repr, stated.tolist())), n_features=n_features)
    assert len(found) == n_features
    assert found.sum() == pytest.approx(1.0)
    assert (np.diff(found) <= 1e-12).all()
    assert (found >= 0).all()
    assert found[: len(stated)] == pytest.approx(stated, abs=1e-6)


def test_more_parts_than_features_are_refused():
    assert spectrum_shares("0.625,0.375", n_features=2) == pytest.approx([0.625, 0.375])
    with pytest.raises(InvalidInput, match="one a feature at most"):
        spectrum_shares("0.5,0.3,0.2", n_features=2)


@pytest.mark.parametrize(("declared", "first"), [("decay:0", 0.01), ("flat", 0.01), ("decay:200", 1.0), ("1", 1.0)])
def test_the_ends_of_each_kind(declared, first):
    assert spectrum_shares(declared, n_features=100)[0] == pytest.approx(first)


@pytest.mark.parametrize(
    "wrong",
    ["0.2,0.3", "0.9,0.2", "", "0", "-0.1", "nan", "decay:", "decay:-1", "decay:1e9", "falling", "0.5;0.2", "inf"],
)
def test_what_is_no_spectrum_is_refused_in_one_line(wrong):
    with pytest.raises(InvalidInput, match=r"^spectrum='[^\n]*correct it, or leave it out\.$"):
        spectrum_shares(wrong, n_features=50)


def test_parts_too_small_for_what_they_leave_are_refused():
    with pytest.raises(InvalidInput, match=r"leaves 0\.99 of all variance to 1 components"):
        spectrum_shares("0.01", n_features=2)


FEW = Problem(n_features=300, clip_norm=1.0, records_at_most=500, relation="zero_out")
TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
SPECTRA = ["", "0.3,0.02,0.02", "decay:1"]
UNSAMPLED = sorted(set(MECHANISMS) - {"dp_spca", "dp_vrpca", "local_gaussian", "dps_pca"})


def planned(mechanism, problem=FEW, *, epsilon=1.0):
    return mechanism.plan(problem, dataclasses.replace(TARGET, epsilon=epsilon))


def found(mechanism, problem=FEW, *, epsilon=1.0):
    seen = forecast_of(planned(mechanism, problem, epsilon=epsilon), n_components=mechanism.n_components)
    assert seen is not None
    return seen


def test_few_records_can_show_no_more_components_than_they_hold_the_level():
    seen = found(AnalyzeGauss(n_components=10))
    assert seen.above_noise == int(500 / seen.level)
    assert 0 < seen.above_noise < 10


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("name", UNSAMPLED)
def test_with_the_epsilon_or_the_records_that_it_names_the_kth_component_stands_above_the_noise(name, spectrum):
    """Without local noise, which grows with the records, and without samples, whose plans take seconds."""
    mechanism, problem = MECHANISMS[name](n_components=4), dataclasses.replace(FEW, spectrum=spectrum)
    seen = found(mechanism, problem, epsilon=0.3)
    assert seen.above_noise < 4
    for factor, stands in ((1.01, True), (0.98, False)):
        records = dataclasses.replace(problem, records_at_most=math.ceil(seen.records_needed * factor))
        enough = forecast(records, n_components=4, level=seen.level, together=planned(mechanism).together)
        assert (enough.above_noise == 4) == stands
    epsilon = epsilon_needed(mechanism, planned(mechanism, problem, epsilon=0.3), strength=seen.strength)
    assert epsilon is not None
    assert epsilon > 0.3
    if math.isfinite(epsilon):
        assert found(mechanism, problem, epsilon=epsilon).above_noise == 4
        assert found(mechanism, problem, epsilon=0.97 * epsilon).above_noise < 4


def test_a_component_of_the_stated_level_is_seen_in_about_half_of_all_releases():
    """Between a quarter and nine tenths of 60; a right level leaves that with probability 1e-3 at the most."""
    plan = planned(AnalyzeGauss(n_components=1), Problem(n_features=200, clip_norm=1.0, records_at_most=1_000))
    signal = np.zeros((200, 200))
    signal[0, 0] = plan.level / plan.moment_std
    seen = [np.linalg.eigvalsh(signal + isometric_noise(200, seed=seed))[-1] > edge_quantile(200) for seed in range(60)]
    assert 0.25 < np.mean(seen) < 0.9


def test_the_unit_of_the_rows_changes_no_forecast():
    one, two = (found(AnalyzeGauss(n_components=10), dataclasses.replace(FEW, clip_norm=c)) for c in (1.0, 2.0))
    assert (one.above_noise, one.level) == (two.above_noise, pytest.approx(two.level))


def test_a_component_that_is_declared_to_hold_nothing_cannot_be_bought():
    mechanism, problem = AnalyzeGauss(n_components=10), dataclasses.replace(FEW, spectrum="1")
    seen = found(mechanism, problem)
    assert seen.above_noise == 1
    assert seen.records_needed == math.inf
    assert epsilon_needed(mechanism, planned(mechanism, problem), strength=seen.strength) == math.inf


def test_without_a_number_of_records_none_are_counted():
    undeclared = dataclasses.replace(FEW, records_declared=False)
    seen = found(AnalyzeGauss(n_components=10), undeclared)
    assert seen.above_noise is None
    assert not seen.expects_noise
    assert "no number of records is declared" in seen.warnings()[0]


def test_a_gap_that_is_declared_to_be_none_is_noise_where_directions_need_one():
    flat = dataclasses.replace(FEW, spectrum="flat", records_at_most=10_000_000)
    assert forecast(flat, n_components=4, level=100.0).above_noise == 4
    assert forecast(flat, n_components=4, level=100.0, together=True).expects_noise


def test_a_plan_without_a_level_has_no_forecast():
    unlevelled = dataclasses.replace(planned(AnalyzeGauss(n_components=2)), level=None)
    assert forecast_of(unlevelled, n_components=2) is None
