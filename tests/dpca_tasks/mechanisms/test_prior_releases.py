"""A clip norm chosen privately, then a mechanism at it: two steps, one epsilon."""

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_epsilon
from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.prior_releases import QuantileClip, norm_quantile
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.wishart import Wishart
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks

PROBLEM = Problem(n_features=4, clip_norm=1.0)
TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
MECHANISM = QuantileClip(mechanism=AnalyzeGauss(n_components=2), quantile=0.9)


def test_the_quantile_is_the_first_edge_that_covers_it():
    counts, edges = np.array([1.0, 8.0, 1.0]), np.array([1.0, 2.0, 4.0])
    assert [norm_quantile(counts, edges, quantile=q) for q in (0.05, 0.1, 0.5, 0.9, 0.95)] == [1, 1, 2, 2, 4]


def test_epsilons_of_both_parts_add_up_to_the_target():
    histogram, moment = events.steps(MECHANISM.plan(PROBLEM, TARGET).event)
    spent = 1 / histogram["noise_multiplier"] + gaussian_epsilon(
        noise_multiplier=moment["noise_multiplier"], delta=TARGET.delta
    )
    assert spent == pytest.approx(TARGET.epsilon, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0])
def test_a_budget_of_the_target_admits_the_release(epsilon):
    plan = MECHANISM.plan(PROBLEM, PrivacyTarget(epsilon=epsilon, delta=1e-6))
    budget = build_filter("gdp", epsilon=epsilon, delta=1e-6)
    assert budget.admits(budget.charge(plan.event, delta=1e-6))


@pytest.mark.parametrize("mechanism", [AnalyzeGauss(n_components=2), Wishart(n_components=2)])
def test_the_clip_norm_is_the_quantile_and_the_components_follow(mechanism):
    """Norms 4 for 95 % of the records along the first axis, 1000 for the rest along the second."""
    rows = np.zeros((20_000, 4))
    rows[:19_000, 0], rows[19_000:, 1] = 4.0, 1000.0
    wrapped = QuantileClip(mechanism=mechanism, quantile=0.9)
    plan = wrapped.plan(PROBLEM, TARGET)
    source = ArrayBlocks(rows)
    found = wrapped.run(
        Curator(source, InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=bytes(32))), plan
    )
    assert found.clip_norm == 4.0
    assert abs(found.components[0, 0]) > 0.99
    assert found.eigenvalues is not None
    assert found.eigenvalues[0] == pytest.approx(19_000 * 16, rel=0.01)
    again = wrapped.run(
        Curator(source, InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=bytes(32))), plan
    )
    np.testing.assert_array_equal(again.components, found.components)


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1.0, np.nan])
def test_a_quantile_without_meaning_is_refused(quantile):
    with pytest.raises(InvalidInput, match="quantile"):
        QuantileClip(mechanism=AnalyzeGauss(n_components=2), quantile=quantile).plan(PROBLEM, TARGET)
