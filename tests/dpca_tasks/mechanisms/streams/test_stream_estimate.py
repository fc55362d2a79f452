"""Estimates, alignment and planning of streams: exact without noise, and with the stated noise otherwise.

Estimates must be correct when answers of some ticks are missing. An aligned subspace is the same subspace, in
coordinates as close as possible to the earlier one. A stream's plan has one event, noise for all ticks and a grid for
both factors, and each tick is an ordinary release.
"""

import math

import numpy as np
import pytest

from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.errors import DpcaError, InvalidInput, StepMismatch
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.streams.stream_estimate import align, coefficients, combined, streamed_subspace
from dpca_tasks.mechanisms.streams.stream_ticks import plan_stream, release_tick, tick_noise, tick_query
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.second_moment import CONSTANT, CentredMoment, SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release
from dpca_tasks.sums.exact_sum import exact_sum

D, NIGHTS, TICKS = 3, 4, 12
FACTS = {"n_features": D, "clip_norm": 1.0, "relation": "add_remove", "bits": 6}
WEIGHTS = {
    "sqrt": choose_weights("sqrt", ticks=TICKS),
    "power": choose_weights("power", longest=TICKS),
    "window": choose_weights("window", window=4, longest=TICKS),
    "decay": choose_weights("decay", half_life=3, longest=TICKS),
}
each_strategy = pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
ROWS = np.random.default_rng(3).normal(size=(NIGHTS * TICKS, D))
SEEN = np.repeat(np.arange(1, TICKS + 1), NIGHTS)


def sums_of(kind, weights, *, bound=range(1, TICKS + 1)):
    """Return the noiseless weighted sums of all ticks, and the unweighted sums of each tick's arrivals.

    All sums are packed matrices.
    """
    moment = kind(**FACTS)
    made = []
    for tick, number in enumerate(bound, start=1):
        present = number >= SEEN
        source = ArrayBlocks(ROWS[present], first_seen=SEEN[present])
        arrivals = tuple(bound)[:tick]
        query = StreamedMoment.of_moment(moment, weights=weights, horizon=TICKS, tick=tick, arrivals=arrivals)
        made.append(exact_sum(source, query) / query.steps_per_unit)
    arrived = [
        exact_sum(ArrayBlocks(ROWS[tick == SEEN]), moment) / moment.steps_per_unit for tick in range(1, TICKS + 1)
    ]
    return made, arrived


@each_strategy
@pytest.mark.parametrize("answer", ["prefix", "window", "decay"])
def test_without_noise_an_estimate_is_the_sum_that_it_estimates(weights, answer):
    answers, arrived = sums_of(SecondMoment, weights)
    for tick in (1, 2, 7, TICKS):
        multipliers = coefficients(weights, kept=range(1, tick + 1), answer=answer, window=5, half_life=2.0)
        found = combined(answers[:tick], multipliers)
        wanted = weights.wanted(tick, answer, window=5, half_life=2.0)[::-1] @ np.array(arrived[:tick])
        assert found == pytest.approx(wanted, abs=1e-12 * tick)


@each_strategy
def test_the_norm_of_the_coefficients_is_the_factor_over_the_joint_sensitivity(weights):
    factors = weights.factors(TICKS, weights.answer)
    for tick in (1, 5, TICKS):
        norm = np.linalg.norm(coefficients(weights, kept=range(1, tick + 1)))
        assert norm * weights.zeta(TICKS) == pytest.approx(factors[tick - 1], rel=1e-12)


def test_arrivals_of_a_closed_tick_are_counted_gradually_by_later_ticks():
    """Compare the counted fraction of a missing tick's arrivals with the published one, 1, 7 and 30 ticks later."""
    weights = choose_weights("sqrt", ticks=365)
    closed = 40
    for later, share in {1: 0.500, 7: 0.784, 30: 0.904}.items():
        tick = closed + later
        kept = [at for at in range(1, tick + 1) if at != closed]
        multipliers = coefficients(weights, kept=kept)
        seen = [weights.weight(at - closed) / 2**weights.bits for at in kept]
        assert multipliers @ seen == pytest.approx(share, abs=6e-3)
        for arrival in (at for at in kept if at != closed):
            seen = [weights.weight(at - arrival) / 2**weights.bits for at in kept]
            assert multipliers @ seen == pytest.approx(1.0, abs=1e-12)


def test_lost_answers_cost_little():
    """Omit answers: the error grows by at most 1.024 for one, and by 1.08 for ten in a row, as published."""
    weights = choose_weights("sqrt", ticks=365)
    whole = np.linalg.norm(coefficients(weights, kept=range(1, 101)))
    for lost, growth in ((range(60, 61), 1.024), (range(60, 70), 1.08)):
        norm = np.linalg.norm(coefficients(weights, kept=[at for at in range(1, 101) if at not in lost]))
        assert norm <= growth * whole


def test_mean_and_count_come_from_the_same_answers():
    problem = Problem(n_features=D, clip_norm=1.0, center="private")
    weights = WEIGHTS["sqrt"]
    answers, _ = sums_of(CentredMoment, weights)
    full = []
    for packed in answers:
        matrix = np.zeros((D + 1, D + 1))
        matrix[np.triu_indices(D + 1)] = packed * (1 + CONSTANT**2)
        full.append(np.triu(matrix) + np.triu(matrix, 1).T)
    multipliers = coefficients(weights, kept=range(1, TICKS + 1))
    noise = {"law": "isometric", "std": 0.5, "step": 2.0**-12, "constant": CONSTANT}
    found = streamed_subspace(
        combined(full, multipliers), problem, noise=noise, multipliers=multipliers, n_components=1
    )
    clipped = ROWS / np.maximum(np.linalg.norm(ROWS, axis=1), 1.0)[:, None]
    assert found.mean == pytest.approx(clipped.mean(axis=0), abs=0.02)
    assert found.noise is not None
    assert found.noise["std"] == pytest.approx(0.5 * np.linalg.norm(multipliers), rel=1e-12)
    assert found.components.shape == (1, D)


def test_answers_are_read_one_at_a_time():
    held = []

    def one_at_a_time():
        for _ in range(5):
            held.append(1)
            yield np.ones((2, 2))

    assert combined(one_at_a_time(), [1.0, 2.0, 3.0, 4.0, 5.0]).tolist() == [[15.0, 15.0], [15.0, 15.0]]
    assert sum(held) == 5
    assert combined([np.array([3, -4])], [0.5]).tolist() == [1.5, -2.0]
    with pytest.raises(ValueError, match="argument"):
        combined([np.ones(2)], [1.0, 2.0])


@pytest.mark.parametrize("kept", [[], [0, 1], [2, 1], [1, 1]], ids=str)
def test_invalid_ticks_are_refused(kept):
    with pytest.raises(InvalidInput):
        coefficients(WEIGHTS["sqrt"], kept=kept)
    with pytest.raises(InvalidInput):
        combined([], [])


K, ALIGN_D = 4, 12


def orthonormal(seed, *, near=None, separate=0.2):
    rows = np.random.default_rng(seed).normal(size=(K, ALIGN_D))
    return np.linalg.qr((rows if near is None else near + separate * rows / np.sqrt(ALIGN_D)).T)[0].T


BEFORE = orthonormal(0)
TONIGHT = orthonormal(1, near=BEFORE)[[2, 0, 3, 1]] * np.array([[-1.0], [1.0], [1.0], [-1.0]])


@pytest.mark.parametrize("method", ["procrustes", "signs", "none"])
def test_the_subspace_is_unchanged(method):
    found = align(TONIGHT, BEFORE, method=method)
    assert np.abs(found.components.T @ found.components - TONIGHT.T @ TONIGHT).max() < 1e-12
    assert np.abs(found.components @ found.components.T - np.eye(K)).max() < 1e-12
    assert found.rotation @ TONIGHT == pytest.approx(found.components, abs=1e-15)
    assert found.cosines == pytest.approx(np.linalg.svd(TONIGHT @ BEFORE.T)[1], abs=1e-12)
    assert not found.broke


def test_procrustes_alignment_is_closer_than_sign_alignment_and_that_than_none():
    turned, flipped, as_it_is = (
        align(TONIGHT, BEFORE, method="procrustes"),
        align(TONIGHT, BEFORE, method="signs"),
        align(TONIGHT, BEFORE, method="none"),
    )
    nearest, near, far = (np.linalg.norm(found.components - BEFORE) for found in (turned, flipped, as_it_is))
    assert nearest < 0.6 < near <= far
    rng = np.random.default_rng(5)
    for _ in range(50):
        turn = np.linalg.qr(rng.normal(size=(K, K)))[0]
        assert np.linalg.norm(turn @ TONIGHT - BEFORE) >= nearest


def test_sign_alignment_follows_the_previous_version_and_keeps_components():
    found = align(-BEFORE, BEFORE, method="signs")
    assert found.components.tolist() == BEFORE.tolist()
    assert np.array_equal(np.abs(align(TONIGHT, BEFORE, method="signs").components), np.abs(TONIGHT))
    assert np.array_equal(align(TONIGHT, BEFORE, method="none").components, TONIGHT)


def test_a_direction_without_counterpart_is_reported():
    other = np.eye(K, ALIGN_D)
    other[-1] = np.eye(ALIGN_D)[-1]
    found = align(other, np.eye(K, ALIGN_D), method="procrustes")
    assert found.broke
    assert found.cosines == pytest.approx([1.0, 1.0, 1.0, 0.0])


def test_unequal_shapes_and_unknown_methods_are_refused():
    with pytest.raises(InvalidInput, match="shape"):
        align(TONIGHT, BEFORE[:2], method="procrustes")
    with pytest.raises(InvalidInput, match="must be one of"):
        align(TONIGHT, BEFORE, method="axes")  # type: ignore[arg-type]


TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
STREAM_TICKS_D, STREAM_TICKS_TICKS = 6, 8
STREAM_TICKS_WEIGHTS = choose_weights("sqrt", ticks=STREAM_TICKS_TICKS)


def planned(*, weights=STREAM_TICKS_WEIGHTS, ticks=STREAM_TICKS_TICKS, target=TARGET, **facts):
    problem = Problem(**{"n_features": STREAM_TICKS_D, "clip_norm": 2.0, **facts})
    return plan_stream(problem, target, weights=weights, ticks=ticks, n_components=2)


def released(plan, tick, source, *, key=0):
    query = tick_query(
        plan, weights=STREAM_TICKS_WEIGHTS, horizon=STREAM_TICKS_TICKS, tick=tick, arrivals=tuple(range(1, tick + 1))
    )
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
    weights = choose_weights(name, ticks=STREAM_TICKS_TICKS, longest=30, **settings)
    plan = planned(weights=weights, target=PrivacyTarget(epsilon=epsilon, delta=1e-6), relation="replace_one")
    query = tick_query(plan, weights=weights, horizon=STREAM_TICKS_TICKS, tick=1, arrivals=(1,))
    assert query.steps_per_unit <= 2**28
    assert plan.noise_multiplier * query.sensitivity("l2") * query.steps_per_unit <= 2**28


def test_the_forecast_of_a_stream_is_that_of_its_last_estimate():
    plan = planned()
    factor = STREAM_TICKS_WEIGHTS.factors(STREAM_TICKS_TICKS)[-1]
    alone = planned(weights=choose_weights("sqrt", ticks=1), ticks=1)
    assert plan.level is not None
    assert alone.level is not None
    assert plan.level / alone.level == pytest.approx(factor, rel=1e-6)
    assert planned(records_at_most=5).warnings


def test_the_same_key_gives_the_same_bits_for_any_blocks():
    rows, seen = np.random.default_rng(0).normal(size=(50, STREAM_TICKS_D)), np.repeat(range(1, 6), 10)
    plan = planned()
    first, _ = released(plan, 5, ArrayBlocks(rows, first_seen=seen))
    again, _ = released(plan, 5, ArrayBlocks(rows, first_seen=seen, block_records=3))
    other, _ = released(plan, 5, ArrayBlocks(rows, first_seen=seen), key=1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_newer_snapshot_gives_fresh_noise():
    """Release a tick from an older and from a newer snapshot: the two answers must not have equal noise.

    The content of a snapshot is part of the digest that determines the noise.
    """
    rows, seen = np.random.default_rng(0).normal(size=(50, STREAM_TICKS_D)), np.repeat(range(1, 6), 10)
    plan = planned()
    bound, _ = released(plan, 4, ArrayBlocks(rows[:40], first_seen=seen[:40]))
    newer, _ = released(plan, 4, ArrayBlocks(rows, first_seen=seen))
    assert np.abs(bound - newer).max() > 0.1


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("center", ["none", "private"])
def test_estimates_are_assessed_as_releases_are(relation, center):
    """Combine ticks of data with two strong directions: assessment and refinement find exactly these two."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(8000, STREAM_TICKS_D)) * np.array([1.0, 0.7, 0.1, 0.1, 0.1, 0.1])
    seen = np.repeat(range(1, STREAM_TICKS_TICKS + 1), 1000)
    plan = planned(relation=relation, center=center, records_at_most=8000)
    made = [released(plan, tick, ArrayBlocks(rows[seen <= tick], first_seen=seen[seen <= tick])) for tick in (1, 2, 3)]
    multipliers = coefficients(STREAM_TICKS_WEIGHTS, kept=[1, 2, 3])
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
    query = tick_query(plan, weights=STREAM_TICKS_WEIGHTS, horizon=STREAM_TICKS_TICKS, tick=1, arrivals=(1,))
    other = planned(target=PrivacyTarget(epsilon=2.0, delta=1e-6))
    with pytest.raises(StepMismatch):
        release_tick(Curator(ArrayBlocks(np.eye(STREAM_TICKS_D)), InMemoryReservation(event=other.event)), plan, query)
    with pytest.raises(DpcaError):
        planned(ticks=10**6)
