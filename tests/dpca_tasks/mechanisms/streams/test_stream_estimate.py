"""Estimates of a stream: exact without noise, of the stated noise with it, and right where answers are missing."""

import numpy as np
import pytest

from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients, combined, streamed_subspace
from dpca_tasks.queries.augmented_moment import CONSTANT, CentredMoment
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.records.sources import ArrayBlocks
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
    """The sums of all ticks without noise, packed, in grid steps, and the plain sums of every tick's arrivals."""
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


def test_arrivals_of_a_closed_tick_are_counted_by_and_by():
    """The published shares of what arrived at a closed tick, 1, 7 and 30 ticks later."""
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
    """The published growth of the error: 1.024 at most for one, 1.08 for ten in a row."""
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
def test_what_are_no_ticks_is_refused(kept):
    with pytest.raises(InvalidInput):
        coefficients(WEIGHTS["sqrt"], kept=kept)
    with pytest.raises(InvalidInput):
        combined([], [])
