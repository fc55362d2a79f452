"""Drift test of a stream: only noise determines its null distribution, and it detects a change.

The test also corrects for rows that are drawn anew in each tick. Seeds are fixed. Over all seeds, the mean under the
null hypothesis violates its bounds here in fewer than one case in a thousand.
"""

import numpy as np
import pytest

from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients, combined, contrast_of, measure_drift

D, K, TICKS, BEFORE, CHANGE = 12, 3, 24, 8, 16
WEIGHTS = choose_weights("sqrt", ticks=TICKS)
NOISE = 3.0
KEPT = tuple(range(1, TICKS + 1))


def symmetric_noise(rng, std):
    noise = rng.normal(scale=std, size=(D, D))
    return np.triu(noise) + np.triu(noise, 1).T + np.diag(rng.normal(scale=std, size=D) * (np.sqrt(2) - 1))


def outcome(arrived, *, seed, counts, kept=KEPT):
    """Release noisy sums of a stream's arrivals at each tick, and return the result of the drift test."""
    rng = np.random.default_rng(seed)
    answers = {
        tick: sum(WEIGHTS.weight(tick - at) / 2**WEIGHTS.bits * arrived[at - 1] for at in range(1, tick + 1))
        + symmetric_noise(rng, NOISE)
        for tick in kept
    }
    early = [tick for tick in kept if tick <= BEFORE]
    estimate = combined([answers[tick] for tick in early], coefficients(WEIGHTS, kept=early))
    components = np.linalg.eigh(estimate)[1][:, -K:].T
    contrast = contrast_of(WEIGHTS, kept=kept, before=BEFORE, change=CHANGE, counts=counts)
    difference = combined([answers[tick] for tick in contrast.ticks], contrast.multipliers)
    return measure_drift(difference, components, contrast, noise_std=NOISE, clip_norm=1.0)


FIXED = 40.0 * np.diag(np.linspace(1, 0, D))


def test_the_null_of_equal_moments_is_chi_squared():
    found = [outcome([FIXED] * TICKS, seed=seed, counts=[40.0] * TICKS) for seed in range(120)]
    ratios = np.array([one.statistic / one.degrees for one in found])
    degrees = K * (D - K)
    assert {one.degrees for one in found} == {degrees}
    assert ratios.mean() == pytest.approx(1.0, abs=3.3 * np.sqrt(2 / degrees / 120))
    assert ratios.var() == pytest.approx(2 / degrees, rel=0.5)


def test_lost_answers_do_not_change_the_null_distribution():
    kept = tuple(tick for tick in KEPT if tick not in (5, 12, 20))
    contrast = contrast_of(WEIGHTS, kept=kept, before=BEFORE, change=CHANGE, counts=[40.0] * TICKS)
    assert contrast.ticks == tuple(tick for tick in kept if tick > BEFORE)
    ratios = [
        outcome([FIXED] * TICKS, seed=seed, counts=[40.0] * TICKS, kept=kept).statistic / (K * (D - K))
        for seed in range(60)
    ]
    assert np.mean(ratios) == pytest.approx(1.0, abs=3.3 * np.sqrt(2 / (K * (D - K)) / 200))


TURN = np.eye(D)
TURN[np.ix_([0, D - 1], [0, D - 1])] = np.sqrt(0.5) * np.array([[1.0, 1.0], [-1.0, 1.0]])
"""A rotation by 45 degrees in a plane; a mere exchange of variances between fixed axes would not be detected."""


def arrivals(rng, *, turned):
    rows = rng.normal(size=(200, D)) * np.linspace(1.0, 0.05, D) ** 2
    rows /= np.maximum(np.linalg.norm(rows, axis=1), 1.0)[:, None]
    rows = rows @ TURN if turned else rows
    return rows.T @ rows


def test_the_correction_covers_rows_drawn_again_in_each_tick():
    found = []
    for seed in range(40):
        rng = np.random.default_rng((seed, 1))
        found.append(outcome([arrivals(rng, turned=False) for _ in KEPT], seed=seed, counts=[200.0] * TICKS))
    mean = np.mean([one.statistic / one.degrees for one in found])
    assert mean <= 1.0 + found[0].rho + 3.3 * np.sqrt(2 / found[0].degrees / len(found))
    assert np.mean([one.p < 0.05 for one in found]) <= 0.13


def test_a_change_of_directions_is_detected():
    for seed in range(3):
        rng = np.random.default_rng((seed, 2))
        moments = [arrivals(rng, turned=tick > CHANGE) for tick in KEPT]
        assert outcome(moments, seed=seed, counts=[200.0] * TICKS).p < 1e-3


@pytest.mark.parametrize(
    "change",
    [
        {"change": BEFORE},
        {"change": TICKS},
        {"counts": [1.0] * (TICKS - 1)},
        {"counts": [0.0] * TICKS},
        {"counts": [-5.0] * TICKS},
        {"kept": (*KEPT[:BEFORE], TICKS)},
    ],
    ids=["no tick before it", "no tick after it", "few counts", "no records", "negative counts", "one answer"],
)
def test_invalid_inputs_of_a_drift_test_are_refused(change):
    requested = {"kept": KEPT, "before": BEFORE, "change": CHANGE, "counts": [10.0] * TICKS}
    with pytest.raises(InvalidInput):
        contrast_of(WEIGHTS, **{**requested, **change})
