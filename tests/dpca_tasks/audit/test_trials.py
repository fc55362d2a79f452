"""Trials of an audit: trials that select an attack are not counted, and bounds keep their error rates.

Bounds are compared with scipy.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom

from dpca_tasks.audit.attacks import worst_neighbours
from dpca_tasks.audit.trials import SUBSPACE_AUDIT, audit_mechanism, choose_event, epsilon_bound, proportion_bounds
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss

PAIRS = worst_neighbours("add_remove", n_features=2, clip_norm=1.0)
HALF, TRIALS = 200, 400
CHOOSING = 2 * HALF * len(PAIRS)


class Scripted:
    """A mechanism whose result is 1 in the runs of ``signs``, counted from 0, and 0 in all other runs."""

    name = "scripted"

    def __init__(self, signs):
        self.signs, self.runs = signs, 0

    def plan(self, problem, target):
        return AnalyzeGauss(n_components=1).plan(problem, target)

    def run(self, curator, plan):
        self.runs += 1
        return float(self.runs - 1 in self.signs)


def left_runs(pair):
    """Return the runs on the left dataset if this pair is chosen: those of selection trials, and those counted."""
    return {*range(2 * HALF * pair, 2 * HALF * pair + HALF)}, {*range(CHOOSING, CHOOSING + TRIALS - HALF)}


def audit(mechanism, **settings):
    subject = dataclasses.replace(SUBSPACE_AUDIT, published=lambda pair, problem: float)
    requested: dict[str, Any] = {"relation": "add_remove", "pairs": PAIRS, "trials": TRIALS}
    return audit_mechanism(mechanism, subject=subject, **requested | settings)


@pytest.mark.parametrize("pair", [0, 1])
def test_only_the_most_distinguishable_pair_is_tested_in_the_second_half(pair):
    choosing, counted = left_runs(pair)
    seen = []
    finding = audit(Scripted(choosing | counted), progress=lambda *done: seen.append(done))
    assert finding.attack == f"published, {PAIRS[pair].name}"
    assert finding.bound > 3.0
    runs = 2 * (HALF * len(PAIRS) + TRIALS - HALF)
    assert seen == [(done, runs) for done in range(1, runs + 1)]


@pytest.mark.parametrize("pair", [0, 1])
def test_results_of_selection_trials_prove_no_epsilon(pair):
    """Return a certain sign in selection trials only: the bound must be 0, because those trials are not counted."""
    choosing, _ = left_runs(pair)
    assert audit(Scripted(choosing)).bound == 0.0


def test_a_single_pair_is_not_chosen():
    mechanism = Scripted(set())
    audit(mechanism, pairs=PAIRS[:1])
    assert mechanism.runs == 2 * TRIALS


@pytest.mark.parametrize("miss", [0.025, 0.001])
def test_the_bounds_are_those_of_clopper_and_pearson(miss):
    counts = np.array([0, 1, 7, 40])
    low, high = proportion_bounds(counts, trials=40, miss=miss)
    np.testing.assert_allclose(low[1:], beta.ppf(miss, counts[1:], 41 - counts[1:]))
    np.testing.assert_allclose(high[:-1], beta.ppf(1 - miss, counts[:-1] + 1, 40 - counts[:-1]))
    assert (low[0], high[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("chance", [0.0, 0.003, 0.2, 0.5, 0.999, 1.0])
def test_each_bound_has_at_most_the_stated_error_rate(chance):
    """Sum the exact probability, over all counts, that a bound is wrong: it must not exceed the stated rate."""
    counts = np.arange(201)
    low, high = proportion_bounds(counts, trials=200, miss=0.025)
    weights = binom.pmf(counts, 200, chance)
    assert weights[low > chance].sum() <= 0.025
    assert weights[high < chance].sum() <= 0.025


def test_trials_without_any_event_prove_no_epsilon():
    assert epsilon_bound(0, 0, trials=1000, delta=0.01, miss=0.025) == 0.0
    assert epsilon_bound(12, 0, trials=1000, delta=0.02, miss=0.025) == 0.0  # explained by delta


def test_certain_events_prove_as_much_as_their_number_allows():
    found = epsilon_bound(1000, 0, trials=1000, delta=0.01, miss=0.025)
    low = 0.025 ** (1 / 1000)
    assert found == pytest.approx(np.log((low - 0.01) / (1 - low)))


@pytest.mark.parametrize("upwards", [True, False])
def test_the_event_is_found_in_either_direction(upwards):
    """In one of ten trials on one side, the statistic has an extreme value; the chosen event must detect it.

    All other values have the same distribution on both sides.
    """
    rng = np.random.default_rng(5)
    alike = rng.uniform(-1.0, 1.0, (2, 1000))
    alike[0 if upwards else 1, :100] = 9.0 if upwards else -9.0
    dull = rng.uniform(-1.0, 1.0, (2, 1000))
    event = choose_event({"dull": (dull[0], dull[1]), "telling": (alike[0], alike[1])}, delta=0.001)
    assert (event.statistic, event.upwards) == ("telling", upwards)
    assert event.count((alike[0], alike[1])) == (100, 0)
