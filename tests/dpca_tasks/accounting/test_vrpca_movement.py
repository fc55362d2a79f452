"""Movement of DP-VRPCA's directions in an epoch: no adversarial rows exceed the proved bound, and some come close.

Simulated epochs have the printed steps and noise of 3,000 records of eight features. The bounds are at a failure
probability of 1e-6, so a search over sixty epochs breaks a correct bound with probability below 1e-4.
"""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest

from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.accounting.vrpca_movement import Epoch, corrections, movement_bracket

RECORDS, ORDER, FAILURE = 3_000, 8, 1e-6
# noise for a claimed epsilon of 0.1 at delta 1e-3
EPOCH = Epoch(n_features=ORDER, n_records=RECORDS, steps=RECORDS, noise_std=0.48)
PARTS = (0.25, 0.5, 0.75, 1.0)


def moved(rows, start, rng, *, noise_std=EPOCH.noise_std):
    """Run one epoch of DP-VRPCA as printed; return the distance from the start after each fraction in `PARTS`."""
    count = len(rows)
    full, directions, found = rows.T @ (rows @ start) / count, start.copy(), []
    noise = noise_std * rng.standard_normal((count, len(start)))
    for step, picked in enumerate(rng.integers(count, size=count)):
        row = rows[picked]
        gradient = row * (row @ (directions - start)) + full - noise[step]
        directions = directions + gradient / count
        directions /= np.linalg.norm(directions)
        if (step + 1) / count in PARTS:
            found.append(float(np.linalg.norm(directions - start)))
    return found


def in_plane(angle):
    start = np.zeros(ORDER)
    start[:2] = math.cos(angle), math.sin(angle)
    return start


def worst():
    """Return the rows and the start that move the direction the most: all rows e1, and one row e2."""
    rows = np.zeros((RECORDS, ORDER))
    rows[:, 0] = 1.0
    rows[0] = np.eye(ORDER)[1]
    return rows, in_plane(math.atan(math.exp(0.5)))


def test_the_worst_rows_attain_the_stated_movement_and_no_rows_exceed_the_bound():
    rows, start = worst()
    for seed in range(3):
        for part, distance in zip(PARTS, moved(rows, start, np.random.default_rng(seed)), strict=True):
            assert EPOCH.attained(part, failure=FAILURE) <= distance <= EPOCH.at_most(part, failure=FAILURE)


def test_without_noise_the_attained_movement_is_the_rotation_in_closed_form():
    quiet = dataclasses.replace(EPOCH, noise_std=0.0)
    rows, start = worst()
    distance = moved(rows, start, np.random.default_rng(0), noise_std=0.0)[-1]
    angle = math.asin(quiet.attained(1.0, failure=FAILURE))
    assert distance == pytest.approx(2.0 * math.sin(angle / 2.0), rel=2e-3)
    assert angle == pytest.approx(math.atan(math.exp(0.5)) - math.atan(math.exp(-0.5)))


def test_a_search_over_adversarial_rows_finds_nothing_beyond_the_bound():
    """Search random spectra, starts and mixtures of few directions: none exceeds the bound, the best reaches 70 %."""
    rng, furthest = np.random.default_rng(7), 0.0
    bound = [EPOCH.at_most(part, failure=FAILURE) for part in PARTS]
    for trial in range(12):
        count = int(rng.integers(1, 4))
        axes = np.linalg.qr(rng.standard_normal((ORDER, count)))[0].T
        rows = axes[rng.choice(count, size=RECORDS, p=rng.dirichlet(np.full(count, 0.3)))]
        start = rng.standard_normal(ORDER) + 2.0 * rng.standard_normal() * axes[0] if trial else worst()[1]
        rows = worst()[0] if trial == 0 else rows
        distances = moved(rows, start / np.linalg.norm(start), rng)
        assert all(distance <= most for distance, most in zip(distances, bound, strict=True))
        furthest = max(furthest, distances[-1])
    assert furthest > 0.7 * bound[-1]


def test_a_bound_without_drift_or_without_noise_would_be_broken():
    rows, start = worst()
    distance = moved(rows, start, np.random.default_rng(1))[-1]
    drift = 2.0 * math.sin(0.25)
    assert distance > EPOCH.at_most(1.0, failure=FAILURE) - drift
    loud = dataclasses.replace(EPOCH, noise_std=8.0)
    shaken = moved(np.zeros((RECORDS, ORDER)), start, np.random.default_rng(2), noise_std=8.0)[-1]
    assert shaken > dataclasses.replace(loud, noise_std=0.0).at_most(1.0, failure=FAILURE) - drift
    assert shaken <= loud.at_most(1.0, failure=FAILURE)


def test_the_bracket_contains_constant_movement_between_both_ends():
    a9a = Epoch(n_features=123, n_records=32_561, steps=32_561, noise_std=0.14565)
    found = movement_bracket(a9a, epochs=1, delta=1e-3)
    short, long = (corrections(a9a, partial(_constant, moved), epochs=1) for moved in (0.1, 0.6))
    assert short is not None
    assert long is not None
    least, most = (epsilon_bracket(event, delta=1e-3, within=0.1) for event in (short, long))
    assert least.upper < 0.1 < found.lower < found.upper < most.upper


def _constant(moved: float, _: float, __: float) -> float:
    return moved
