"""A stream's plan: one event, noise for all ticks, a grid for both factors; and ticks as ordinary releases."""

import math

import numpy as np
import pytest

from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.errors import DpcaError, StepMismatch
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients, combined, streamed_subspace
from dpca_tasks.mechanisms.streams.stream_ticks import plan_stream, release_tick, tick_noise, tick_query
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release

TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
D, TICKS = 6, 8
WEIGHTS = choose_weights("sqrt", ticks=TICKS)


def planned(*, weights=WEIGHTS, ticks=TICKS, target=TARGET, **facts):
    problem = Problem(**{"n_features": D, "clip_norm": 2.0, **facts})
    return plan_stream(problem, target, weights=weights, ticks=ticks, n_components=2)


def released(plan, tick, source, *, key=0):
    query = tick_query(plan, weights=WEIGHTS, horizon=TICKS, tick=tick, arrivals=tuple(range(1, tick + 1)))
    reservation = InMemoryReservation(
        event=plan.event, relation=plan.problem.relation, key=bytes([key, tick]) + bytes(30)
    )
    return release_tick(Curator(source, reservation), plan, query), tick_noise(plan, query)


def test_a_year_has_the_event_of_one_release_and_the_published_grid():
    year = choose_weights("sqrt", ticks=365)
    plan = planned(weights=year, ticks=365, n_features=123)
    assert plan.event == {"name": "gaussian", "noise_multiplier": plan.noise_multiplier}
    assert plan.noise_multiplier == pytest.approx(4.224679, abs=5e-7)
    assert plan.bits == 9
    query = tick_query(plan, weights=year, horizon=365, tick=1, arrivals=(1,))
    assert plan.noise_multiplier * query.sensitivity("l2") == pytest.approx(4.224679 * 2.941162**0.5, rel=1e-6)
    assert query.steps_per_unit * plan.noise_multiplier * query.zeta <= 2**28 < 4 * query.steps_per_unit * 7.3


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 1e4])
@pytest.mark.parametrize("strategy", [("sqrt", {}), ("power", {}), ("window", {"window": 30})])
def test_every_grid_holds_the_noise_and_the_weights(epsilon, strategy):
    name, settings = strategy
    weights = choose_weights(name, ticks=TICKS, longest=30, **settings)
    plan = planned(weights=weights, target=PrivacyTarget(epsilon=epsilon, delta=1e-6), relation="replace_one")
    query = tick_query(plan, weights=weights, horizon=TICKS, tick=1, arrivals=(1,))
    assert query.steps_per_unit <= 2**28
    assert plan.noise_multiplier * query.sensitivity("l2") * query.steps_per_unit <= 2**28


def test_the_forecast_is_that_of_the_last_estimate():
    plan = planned()
    factor = WEIGHTS.factors(TICKS)[-1]
    alone = planned(weights=choose_weights("sqrt", ticks=1), ticks=1)
    assert plan.level is not None
    assert alone.level is not None
    assert plan.level / alone.level == pytest.approx(factor, rel=1e-6)
    assert planned(records_at_most=5).warnings


def test_the_same_key_gives_the_same_bits_whatever_the_blocks():
    rows, seen = np.random.default_rng(0).normal(size=(50, D)), np.repeat(range(1, 6), 10)
    plan = planned()
    first, _ = released(plan, 5, ArrayBlocks(rows, first_seen=seen))
    again, _ = released(plan, 5, ArrayBlocks(rows, first_seen=seen, block_records=3))
    other, _ = released(plan, 5, ArrayBlocks(rows, first_seen=seen), key=1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_newer_snapshot_gives_other_noise_for_another_answer():
    """Content is part of the digest, so unlike sums never have equal noise."""
    rows, seen = np.random.default_rng(0).normal(size=(50, D)), np.repeat(range(1, 6), 10)
    plan = planned()
    bound, _ = released(plan, 4, ArrayBlocks(rows[:40], first_seen=seen[:40]))
    newer, _ = released(plan, 4, ArrayBlocks(rows, first_seen=seen))
    assert np.abs(bound - newer).max() > 0.1


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("center", ["none", "private"])
def test_estimates_are_assessed_as_releases_are(relation, center):
    """Strong signals, refined or not: the noise that is stated is that of the estimate."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(8000, D)) * np.array([1.0, 0.7, 0.1, 0.1, 0.1, 0.1])
    seen = np.repeat(range(1, TICKS + 1), 1000)
    plan = planned(relation=relation, center=center, records_at_most=8000)
    made = [released(plan, tick, ArrayBlocks(rows[seen <= tick], first_seen=seen[seen <= tick])) for tick in (1, 2, 3)]
    multipliers = coefficients(WEIGHTS, kept=[1, 2, 3])
    estimate = combined((answer for answer, _ in made), multipliers)
    subspace = streamed_subspace(estimate, plan.problem, noise=made[-1][1], multipliers=multipliers, n_components=2)
    found = refine_release(subspace, n_components=2, method="auto")
    assert found.assessment.above_noise == 2
    assert np.abs(found.subspace.components[:, :2]).min(axis=0).max() < 0.3
    assert (subspace.mean is None) == (center == "none")
    expected = made[-1][1]["std"] * math.sqrt(float(multipliers @ multipliers))
    assert found.assessment.noise_std == pytest.approx(expected, rel=1e-12)


def test_a_step_of_another_event_is_refused():
    plan = planned()
    query = tick_query(plan, weights=WEIGHTS, horizon=TICKS, tick=1, arrivals=(1,))
    other = planned(target=PrivacyTarget(epsilon=2.0, delta=1e-6))
    with pytest.raises(StepMismatch):
        release_tick(Curator(ArrayBlocks(np.eye(D)), InMemoryReservation(event=other.event)), plan, query)
    with pytest.raises(DpcaError):
        planned(ticks=10**6)
