"""The mechanism of moments: its noise is that of Analyze Gauss in one round, and its result is the matrix itself."""

import numpy as np
import pytest

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Center, PrivacyTarget, Problem
from dpca_tasks.mechanisms.moments.gaussian_moment import GaussianMoment
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks

TARGET = PrivacyTarget(epsilon=0.7, delta=1e-6)
ROWS = np.random.default_rng(3).standard_normal((500, 4)) / 4.0 + 0.1


@pytest.mark.parametrize("center", ["none", "private"])
def test_the_plan_is_that_of_one_round_of_analyze_gauss(center: Center) -> None:
    problem = Problem(n_features=4, clip_norm=2.0, center=center, records_at_most=500)
    mine, other = GaussianMoment().plan(problem, TARGET), AnalyzeGauss(n_components=1, rounds=1).plan(problem, TARGET)
    assert (mine.event, mine.noise_multiplier, mine.moment_std) == (
        other.event,
        other.noise_multiplier,
        other.moment_std,
    )
    assert mine.noise_multiplier >= gaussian_noise_multiplier(epsilon=0.7, delta=1e-6)


@pytest.mark.parametrize("center", ["none", "private"])
def test_the_result_is_the_moment_with_its_planned_noise(center: Center) -> None:
    problem = Problem(n_features=4, clip_norm=2.0, center=center, records_at_most=500)
    plan = GaussianMoment().plan(problem, TARGET)
    constant = 2.0 / np.sqrt(3.0)
    rows = ROWS if center == "none" else np.column_stack([ROWS, np.full(500, constant)])
    residuals = []
    for draw in range(60):
        reservation = InMemoryReservation(event=plan.event, relation=problem.relation, key=bytes([draw]) * 32)
        found = GaussianMoment().run(Curator(ArrayBlocks(ROWS), reservation), plan)
        assert found.released is not None
        assert found.noise is not None
        residuals.append((found.released - rows.T @ rows)[np.triu_indices(len(rows.T), 1)] / found.noise["std"])
    # at least 360 normal numbers: five standard errors of their spread are .19
    assert np.std(residuals) == pytest.approx(1.0, abs=0.19)
    assert abs(np.mean(residuals)) < 0.27
    assert found.noise is not None
    assert (found.mean is None) == (center == "none")
    assert found.noise["constant"] == (None if center == "none" else pytest.approx(constant))


def test_a_delta_that_publishes_records_is_refused() -> None:
    with pytest.raises(Refused, match="delta"):
        GaussianMoment().plan(
            Problem(n_features=4, clip_norm=1.0, records_at_most=10), PrivacyTarget(epsilon=1.0, delta=0.2)
        )
