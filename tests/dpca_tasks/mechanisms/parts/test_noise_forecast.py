"""Forecasts from public facts."""

import math
from typing import Any

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.parts.noise_edge import edge_quantile
from dpca_tasks.mechanisms.parts.noise_forecast import forecast
from tests.dpca_tasks.mechanisms.parts.noisy import isometric_noise

FEW: dict[str, Any] = {"n_features": 300, "n_components": 10, "records": 500, "epsilon": 1.0, "delta": 1e-6}


def test_few_records_can_show_no_more_components_than_they_hold_the_level():
    told = forecast(**FEW)
    assert told.above_noise == int(500 / told.level)
    assert told.above_noise < 10


@pytest.mark.parametrize("spectrum", [None, [0.3] + [0.02] * 20])
def test_with_the_epsilon_or_the_records_that_it_names_the_kth_component_stands_above_the_noise(spectrum):
    told = forecast(**FEW, spectrum=spectrum)
    assert told.above_noise < 10
    assert told.epsilon_needed is not None
    enough = forecast(**{**FEW, "records": told.records_needed * 1.001}, spectrum=spectrum)
    assert enough.above_noise == 10
    less_noise = forecast(**{**FEW, "epsilon": told.epsilon_needed * 1.001}, spectrum=spectrum)
    assert less_noise.above_noise == 10
    for worse in (
        {**FEW, "records": told.records_needed * 0.99},
        {**FEW, "epsilon": told.epsilon_needed * 0.99},
    ):
        assert forecast(**worse, spectrum=spectrum).above_noise < 10


def test_a_component_of_the_stated_level_is_seen_in_about_half_of_all_releases():
    """Between a quarter and nine tenths of 60; a right level leaves that with probability 1e-3 at the most."""
    told = forecast(n_features=200, n_components=1, records=1_000, noise_multiplier=math.sqrt(2))
    assert told.noise_std == pytest.approx(1.0)
    signal = np.zeros((200, 200))
    signal[0, 0] = told.level
    seen = [np.linalg.eigvalsh(signal + isometric_noise(200, seed=seed))[-1] > edge_quantile(200) for seed in range(60)]
    assert 0.25 < np.mean(seen) < 0.9


def test_the_unit_of_the_rows_changes_the_noise_alone():
    one, two = (forecast(**FEW, clip_norm=clip_norm) for clip_norm in (1.0, 2.0))
    assert two.noise_std == pytest.approx(4 * one.noise_std)
    assert (two.above_noise, two.level) == (one.above_noise, one.level)


def test_a_component_that_is_declared_to_hold_nothing_cannot_be_bought():
    told = forecast(**FEW, spectrum=[0.9])
    assert told.above_noise == 1
    assert told.records_needed == told.epsilon_needed == math.inf
    assert told.noise_multiplier_needed == 0.0


def test_replacing_a_record_takes_more():
    assert forecast(**FEW, sensitivity=math.sqrt(2)).records_needed == pytest.approx(
        math.sqrt(2) * forecast(**FEW).records_needed
    )


def test_without_a_delta_no_epsilon_is_named():
    told = forecast(n_features=20, n_components=2, records=50, noise_multiplier=3.0)
    assert told.epsilon_needed is None
    assert told.noise_multiplier_needed > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": None},
        {"delta": None},
        {"noise_multiplier": 1.0},
        {"records": 0},
        {"n_components": 301},
        {"clip_norm": math.inf},
        {"spectrum": [0.2, 0.3]},
        {"spectrum": [0.9, 0.2]},
        {"spectrum": []},
        {"epsilon": None, "noise_multiplier": -1.0},
    ],
)
def test_what_is_outside_its_domain_is_refused(wrong):
    with pytest.raises(InvalidInput):
        forecast(**{**FEW, **wrong})
