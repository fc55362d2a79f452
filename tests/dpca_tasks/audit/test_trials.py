"""Which trials of an audit choose, and which are counted."""

import dataclasses
from typing import Any

import pytest

from dpca_tasks.audit.neighbours import worst_neighbours
from dpca_tasks.audit.subspace import SUBSPACE_AUDIT
from dpca_tasks.audit.trials import audit_mechanism
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss

PAIRS = worst_neighbours("add_remove", n_features=2, clip_norm=1.0)
HALF, TRIALS = 200, 400
CHOOSING = 2 * HALF * len(PAIRS)


class Scripted:
    """A mechanism whose result says whether a script gives a sign in that run; every run is on the next dataset due."""

    name = "scripted"

    def __init__(self, signs):
        self.signs, self.runs = signs, 0

    def plan(self, problem, target):
        return AnalyzeGauss(n_components=1).plan(problem, target)

    def run(self, curator, plan):
        self.runs += 1
        return float(self.runs - 1 in self.signs)


def left_runs(pair):
    """Return the runs on the left dataset, if this pair is the chosen one: those that choose, those counted."""
    return {*range(2 * HALF * pair, 2 * HALF * pair + HALF)}, {*range(CHOOSING, CHOOSING + TRIALS - HALF)}


def audit(mechanism, **settings):
    subject = dataclasses.replace(SUBSPACE_AUDIT, published=lambda pair, problem: float)
    asked: dict[str, Any] = {"relation": "add_remove", "pairs": PAIRS, "trials": TRIALS}
    return audit_mechanism(mechanism, subject=subject, **asked | settings)


@pytest.mark.parametrize("pair", [0, 1])
def test_only_the_pair_that_the_first_half_tells_apart_is_run_further(pair):
    choosing, counted = left_runs(pair)
    seen = []
    finding = audit(Scripted(choosing | counted), progress=lambda *done: seen.append(done))
    assert finding.attack == f"published, {PAIRS[pair].name}"
    assert finding.bound > 3.0
    runs = 2 * (HALF * len(PAIRS) + TRIALS - HALF)
    assert seen == [(done, runs) for done in range(1, runs + 1)]


@pytest.mark.parametrize("pair", [0, 1])
def test_a_sign_in_the_trials_that_choose_proves_nothing(pair):
    """However sure they are: what chose a pair or an event is never counted."""
    choosing, _ = left_runs(pair)
    assert audit(Scripted(choosing)).bound == 0.0


def test_a_single_pair_is_not_chosen():
    mechanism = Scripted(set())
    audit(mechanism, pairs=PAIRS[:1])
    assert mechanism.runs == 2 * TRIALS
