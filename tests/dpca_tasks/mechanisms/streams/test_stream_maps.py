"""Maps of a stream's ticks: conversion between maps, estimates from several maps, and the privacy of random histories.

All draws are fixed.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.kernels import mapped_records
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients
from dpca_tasks.mechanisms.streams.stream_maps import TickAnswer, TickMap, combined_answer, mapped_query, next_map
from dpca_tasks.queries import mapped_moment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.rounds import begun
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.refinement.rows_in_rounds import isometric_noise

D, TICKS = 6, 5
RELATIONS = ("add_remove", "zero_out", "replace_one")
WEIGHTS = choose_weights("sqrt", ticks=TICKS)
RNG = np.random.default_rng(4)
NIGHTS = [0.1 + RNG.standard_normal((300, D)) * np.geomspace(0.2, 0.02, D) for _ in range(TICKS)]


def problem(center="none", relation="add_remove"):
    return Problem(n_features=D, clip_norm=1.0, center=center, relation=relation, records_at_most=4_000)


def tick_map(seed, *, norm=1.0, centred=False):
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((D, D)))[0][:, : 1 + seed % 3]
    return TickMap(
        map=PublicMap.on_grid(directions, np.asarray(rng.uniform(0.2, 0.9, directions.shape[1]))),
        norm=norm,
        shift=mapped_moment_shift(rng) if centred else None,
    )


def mapped_moment_shift(rng):
    return np.rint(rng.uniform(-0.1, 0.1, D) * 2.0**16).astype(np.int64)


def answer_of(inputs, tick, *, center="none"):
    """Return the exact answer of a tick of the nights so far, in squared clip norms."""
    moment = mapped_query(problem(center), bits=12, tick=inputs)
    query = StreamedMoment.of_moment(
        moment, weights=WEIGHTS, horizon=TICKS, tick=tick, arrivals=tuple(range(1, tick + 1))
    )
    nights = NIGHTS[:tick]
    seen = np.repeat(np.arange(1, tick + 1), [len(rows) for rows in nights])
    packed = exact_sum(ArrayBlocks(np.vstack(nights), first_seen=seen), query)
    return unpack_symmetric(np.asarray(packed * (query.unit / query.steps_per_unit), np.float64), query.layout.order)


@pytest.mark.parametrize("center", ["none", "private"])
def test_answers_of_different_maps_add_up_to_the_moment_of_all_records(center):
    """Release each tick under another map, with norms at which no record is clipped, and compare with the rows."""
    centred, answers = center == "private", []
    for tick in range(1, TICKS + 1):
        inputs = tick_map(tick, norm=2.0, centred=centred)
        answers.append(TickAnswer(tick=inputs, released=answer_of(inputs, tick, center=center), noise_std=1.0))
    multipliers = coefficients(WEIGHTS, kept=range(1, TICKS + 1))
    found = begun(combined_answer(answers, multipliers, last=answers[-1], step=0.0), centred=centred)
    rows = np.vstack(NIGHTS)
    expected = rows - rows.mean(axis=0) * centred
    np.testing.assert_allclose(found.matrix, expected.T @ expected, rtol=0, atol=2e-3 * np.trace(rows.T @ rows))
    assert found.n_records == pytest.approx(len(rows), rel=1e-3)
    if centred:
        assert found.mean is not None
        assert answers[-1].tick.mean is not None
        mean = found.mean + answers[-1].tick.mean
        np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=0, atol=1e-3)


def test_converted_noise_has_the_stated_standard_deviation():
    """Convert the noise of 60 answers of one map to another: the root mean square of entries is within 3 %."""
    first, last = tick_map(1, norm=0.7), tick_map(2, norm=0.4)
    squares = []
    for seed in range(60):
        answer = TickAnswer(tick=first, released=isometric_noise(D + 1, seed=seed), noise_std=1.0)
        other = TickAnswer(tick=last, released=np.zeros((D + 1, D + 1)), noise_std=0.0)
        found = combined_answer([answer, other], np.ones(2), last=other, step=0.0)
        squares.append(np.square(found.released[:D, :D]).sum() / (D * (D + 1)))
    assert found.noise_std == pytest.approx(math.sqrt(np.mean(squares)), rel=0.03)


def test_clipped_answers_are_raised_to_the_part_that_the_last_one_keeps():
    """Two answers of equal rows keep half and all of the energy: the first counts twice as much."""
    inputs = TickMap(map=PublicMap.identity(2), energy=0.1)
    corner = 100.0 * inputs.constant**2
    halves, whole = (
        TickAnswer(tick=inputs, released=np.diag([part * 5.0, part * 5.0, corner]), noise_std=1.0)
        for part in (0.5, 1.0)
    )
    assert (halves.kept, whole.kept) == (0.5, 1.0)
    found = combined_answer([halves, whole], np.array([1.0, 1.0]), last=whole, step=0.0)
    np.testing.assert_allclose(np.diag(found.released), [10.0, 10.0, 2 * corner])
    assert found.noise_std == math.sqrt(5.0)


def test_the_next_map_shrinks_the_strong_direction_and_clips_at_less():
    inputs = TickMap.none(problem())
    moment = np.diag([2_000.0, 30.0, 30.0, 30.0, 30.0, 30.0, 4_000.0 * inputs.constant**2])
    answer = TickAnswer(tick=inputs, released=moment + isometric_noise(D + 1, seed=0), noise_std=1.0)
    combined = combined_answer([answer], np.ones(1), last=answer, step=0.0)
    found = next_map(combined, answer, n_components=1, noise_std=1.0)
    assert found.map.width >= 1
    assert abs(found.map.basis[0, 0]) > 0.99
    assert found.norm < 1.0
    assert found.energy is not None
    assert found.energy < 2_150.0 / 4_000.0


RECORDS = (
    None,
    np.array([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]),
    np.array([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]]),
    np.array([[0.1, 0.1, 0.1, -9.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.0, 2.0]]),
)


def squared_loss(center, relation, mine, others):
    """Return mu^2 of two histories, for noise of size 1: the squared changes of all ticks in units of each tick."""
    total = Fraction(0)
    for tick in range(1, TICKS + 1):
        inputs = tick_map(tick, norm=0.3 + 0.1 * tick, centred=center == "private")
        moment = mapped_query(problem(center, relation), bits=8, tick=inputs)
        query = StreamedMoment.of_moment(
            moment, weights=WEIGHTS, horizon=TICKS, tick=tick, arrivals=tuple(range(1, tick + 1))
        )
        sums = []
        for seen, rows in (mine, others):
            record = None if rows is None else rows[tick - 1]
            if rows is not None and relation == "zero_out" and record is None:
                record = np.zeros((1, D))
            source = None if record is None else ArrayBlocks(record, record_rows=[len(record)], first_seen=[seen])
            sums.append(np.zeros(query.layout.size, np.int64) if source is None else exact_sum(source, query))
        change = unpack_symmetric((sums[0] - sums[1]).astype(float), query.layout.order)
        total += Fraction(sum(int(entry) ** 2 for entry in change.ravel()), query.steps_per_unit**2)
    return float(total)


def histories(relation, *, draws):
    """Yield pairs of random histories of one record, and the worst known pair."""
    rng = np.random.default_rng(7)
    for _ in range(draws):
        seen = int(rng.integers(1, TICKS + 1))
        mine = [RECORDS[at] for at in rng.integers(0, len(RECORDS), TICKS)]
        if relation == "add_remove":
            yield (seen, mine), (seen, None)
        elif relation == "zero_out":
            rows = [np.zeros((1, D)) if each is None else each for each in mine]
            yield (seen, rows), (seen, [np.zeros_like(each) for each in rows])
        else:
            other = [RECORDS[at] for at in rng.integers(0, len(RECORDS), TICKS)]
            yield (seen, mine), (int(rng.integers(1, TICKS + 1)), other)
    always = [RECORDS[1]] * TICKS
    yield (
        (1, always),
        {
            "add_remove": (1, None),
            "zero_out": (1, [np.zeros((1, D))] * TICKS),
            "replace_one": (1, [RECORDS[2]] * TICKS),
        }[relation],
    )


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("center", ["none", "private"])
def test_no_history_has_a_larger_loss_than_the_charge_while_maps_change(center, relation):
    """Compute mu of the whole life of 40 random histories, with another map, mean and norm at each tick."""
    first = tick_map(1, centred=center == "private")
    query = StreamedMoment.of_moment(
        mapped_query(problem(center, relation), bits=8, tick=first),
        weights=WEIGHTS,
        horizon=TICKS,
        tick=1,
        arrivals=(1,),
    )
    charged = query.sensitivity("l2") ** 2
    losses = [squared_loss(center, relation, *pair) for pair in histories(relation, draws=40)]
    assert max(losses) <= charged * (1 + 1e-9)
    assert max(losses) > 0.3 * charged


def test_records_that_are_longer_than_their_norm_would_be_noticed(monkeypatch):
    """Plant a bug: mapped records have twice the norm for which the noise is stated."""
    found = mapped_records.mapped_strips
    monkeypatch.setattr(mapped_moment, "mapped_strips", lambda *words: (2 * strip for strip in found(*words)))
    charged = WEIGHTS.zeta(TICKS) ** 2
    *_, worst = histories("add_remove", draws=0)
    assert squared_loss("none", "add_remove", *worst) > charged


@pytest.mark.parametrize("name", ["none", "of"])
def test_inputs_are_restored_from_the_arrays_of_their_query(name):
    inputs = tick_map(2, norm=0.5, centred=True) if name == "of" else TickMap.none(problem("private"))
    arrays = mapped_query(problem("private"), bits=8, tick=inputs).public_inputs()
    assert TickMap.of(arrays).same_as(inputs)
    changed = {**arrays, "norm": arrays["norm"] / 2}
    assert not TickMap.of(changed).same_as(inputs)
