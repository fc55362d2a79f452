"""Forecasts of releases in rounds agree with measured captured variance and with releases.

The measured values are the table of `papers.rounds`; a run of that paper checks them.
"""

import dataclasses

import numpy as np
import pytest

from dpca_tasks.advisor import expect
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from papers.lib.public_data import a9a_rows
from papers.rounds import cells

CELLS = [cell for cell in cells() if cell.data == "a9a" and cell.epsilon in (0.1, 0.3)]
PROBLEM = Problem(n_features=40, clip_norm=1.0, records_at_most=20_000, records_declared=True)
TARGET = PrivacyTarget(epsilon=0.1, delta=1e-6)


@pytest.fixture(scope="module")
def spectra() -> dict[str, str]:
    """Return the declared spectrum of the dataset a9a around the origin and around its mean."""
    rows = a9a_rows().toarray()
    found = {}
    for center, shift in (("none", 0.0), ("private", rows.mean(axis=0))):
        values = np.linalg.eigvalsh((rows - shift).T @ (rows - shift))[::-1]
        found[center] = ",".join(f"{max(value, 0.0):.4g}" for value in values[:60] / values.sum())
    return found


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_forecast_interval_contains_the_measured_mean(cell, spectra):
    """The forecast interval of the captured variance must contain the mean measured on a9a, up to .015."""
    mechanism = AnalyzeGauss(n_components=cell.n_components, rounds=cell.rounds)
    problem = Problem(
        n_features=123,
        clip_norm=1.0,
        center=cell.center,
        relation=cell.relation,
        records_at_most=32_561,
        records_declared=True,
        spectrum=spectra[cell.center],
    )
    low, high = expect(mechanism, mechanism.plan(problem, PrivacyTarget(epsilon=cell.epsilon, delta=1e-6))).captured
    assert low - 0.015 <= cell.expected <= high + 0.015


@pytest.mark.parametrize("center", ["none", "private"])
def test_rounds_reveal_weaker_components_than_one_round_if_the_declared_spectrum_decays(center):
    falling = dataclasses.replace(PROBLEM, spectrum="decay:2", center=center)
    flat = dataclasses.replace(PROBLEM, spectrum="flat", center=center)
    plans = [AnalyzeGauss(n_components=4, rounds=r).plan(p, TARGET) for p in (falling, flat) for r in (1, 3)]
    one, three, flat_one, flat_three = (plan.level or 0.0 for plan in plans)
    assert three < 0.75 * one
    assert flat_three > 0.75 * flat_one


def test_a_forecast_depends_only_on_the_declaration():
    """Two forecasts from equal public facts must be equal."""
    mechanism, problem = AnalyzeGauss(n_components=3, rounds=3), dataclasses.replace(PROBLEM, spectrum="decay:1")
    first, second = (expect(mechanism, mechanism.plan(problem, TARGET)) for _ in range(2))
    assert first == second
