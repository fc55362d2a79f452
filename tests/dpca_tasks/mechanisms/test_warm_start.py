"""Releases in one round with a map from an earlier release: their cost, accuracy, resumption and public inputs."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms import warm_start
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.warm_start import Start, start_of
from dpca_tasks.metrics import captured_variance
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import Arrays, InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.refined_release import refine_release
from tests.dpca_tasks.mechanisms.test_released_rounds import RELATIONS, Recording, largest_shift

D, K = 20, 6
TARGET = PrivacyTarget(epsilon=0.5, delta=1e-6)
RNG = np.random.default_rng(5)
ROWS = 0.3 + RNG.standard_normal((6000, D)) * np.exp(-np.arange(D) / 3)
ROWS /= np.linalg.norm(ROWS, axis=1)[:, None]
OLD, NEW = ROWS[:3000], ROWS[3000:]
CENTERS = ("none", "private")


def problem(**changes: Any) -> Problem:
    return Problem(**{"n_features": D, "clip_norm": 1.0, "records_at_most": len(OLD), **changes})


def run(mechanism: AnalyzeGauss, plan: Plan, rows: np.ndarray, *, steps: dict[int, Arrays] | None = None) -> Subspace:
    reservation = InMemoryReservation(
        event=plan.event, relation=plan.problem.relation, key=bytes(32), steps={} if steps is None else steps
    )
    return mechanism.run(Curator(ArrayBlocks(rows), reservation), plan)


def parent(*, rounds: int = 1, **changes: Any) -> Start:
    """Return the start that a release of the old rows gives."""
    mechanism = AnalyzeGauss(n_components=K, rounds=rounds)
    plan = mechanism.plan(problem(**changes), TARGET)
    found = start_of(run(mechanism, plan, OLD), clip_norm=1.0, records_at_most=len(OLD))
    assert found is not None
    return found


def warm(start: Start | None, *, target: PrivacyTarget = TARGET, **changes: Any) -> tuple[AnalyzeGauss, Plan]:
    """Return the mechanism with a start, and its plan; None stands for a release that no longer exists."""

    def read() -> Start:
        if start is None:
            raise LookupError("the earlier release is gone")
        return start

    mechanism = AnalyzeGauss(n_components=K, warm=True, start=read)
    facts = {"artifact": "map@1", "digest": "0", "mean_square": 1.0 if start is None else start.mean_square}
    return mechanism, replace(mechanism.plan(problem(**changes), target), start=facts)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_a_warm_start_costs_what_one_gaussian_release_costs(epsilon):
    """The squares of 1 / z differ by rounding only, for the noise multiplier z."""
    _, plan = warm(None, target=PrivacyTarget(epsilon=epsilon, delta=1e-6))
    (step,) = events.steps(plan.event)
    one = gaussian_noise_multiplier(epsilon=epsilon, delta=1e-6)
    assert (step["name"], Fraction(step["noise_multiplier"])) == ("gaussian", Fraction(one))
    assert epsilon * (1 - 1e-9) < plan.epsilon_at_most <= epsilon


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("center", CENTERS)
def test_no_record_changes_the_answer_by_more_than_the_noise_was_planned_for(relation, center):
    """Try records along and across the map, at and above the clip norm."""
    mechanism, plan = warm(parent(center=center), relation=relation, center=center)
    reservation = InMemoryReservation(event=plan.event, relation=relation, key=bytes(32))
    curator: Any = Recording(Curator(ArrayBlocks(NEW), reservation))
    mechanism.run(curator, plan)
    ((query, noise),) = curator.requests
    tried = 5.0 * np.vstack([np.eye(D)[::2], -np.eye(D)[:1], NEW[:10], np.linalg.qr(query.directions + 0.0)[0].T])
    attained = 0.8 if relation == "zero_out" and center == "private" else 0.98  # few records are orthogonal to the mean
    assert attained < largest_shift(query, noise, tried) * noise.noise_multiplier <= 1 + 1e-9


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_start_captures_more_than_a_release_without_one(rounds, center):
    """Compare means of captured variance over eight draws; the difference is more than four standard errors."""
    centred = NEW - NEW.mean(axis=0) * (center == "private")
    moment = centred.T @ centred
    gains = []
    for seed in range(8):
        captured = []
        for mechanism, plan in (warm(parent(center=center, rounds=rounds), center=center), plain(center=center)):
            reservation = InMemoryReservation(event=plan.event, key=bytes([seed]) * 32)
            found = mechanism.run(Curator(ArrayBlocks(NEW), reservation), plan)
            refined = refine_release(found, n_components=K, method="auto")
            captured.append(captured_variance(moment, refined.subspace.components))
        gains.append(captured[0] - captured[1])
    assert np.mean(gains) > 4 * np.std(gains) / np.sqrt(len(gains))


def plain(**changes: Any) -> tuple[AnalyzeGauss, Plan]:
    mechanism = AnalyzeGauss(n_components=K, rounds=1)
    return mechanism, mechanism.plan(problem(**changes), TARGET)


def test_a_resumed_release_does_not_need_the_earlier_one():
    """Release, then resume from the stored step after the earlier release has disappeared: the bits are the same."""
    steps = dict[int, Arrays]()
    mechanism, plan = warm(parent(center="private"), center="private")
    first = run(mechanism, plan, NEW, steps=steps)
    gone, _ = warm(None, center="private")
    again = run(gone, plan, NEW, steps=steps)
    assert first.components.tobytes() == again.components.tobytes()
    assert first.outcome == again.outcome
    with pytest.raises(LookupError):
        run(gone, plan, NEW)


@pytest.mark.parametrize("center", CENTERS)
def test_the_clip_norms_of_both_releases_may_differ(center):
    """A start in other data units gives the same estimate in units of the clip norm, to the bit."""
    start, centred = parent(center=center), center == "private"
    mean = None if start.mean is None else 4.0 * start.mean
    scaled = replace(start, matrix=16.0 * start.matrix, noise_std=16.0 * start.noise_std, mean=mean)
    one, two = start.estimate(clip_norm=1.0, centred=centred), scaled.estimate(clip_norm=4.0, centred=centred)
    assert np.array_equal(one.matrix, two.matrix)
    assert (one.noise_std, one.n_records) == (two.noise_std, two.n_records)
    assert (one.mean is not None) is (two.mean is not None) is centred
    if one.mean is not None and two.mean is not None:
        assert np.array_equal(one.mean, two.mean)


def test_the_number_of_records_is_released_or_declared_but_never_exact():
    counted, declared = parent(center="private"), parent()
    assert counted.n_records != len(OLD)
    assert counted.n_records == pytest.approx(len(OLD), rel=0.05)
    assert declared.n_records == len(OLD)  # the declared bound
    mechanism, plan = warm(declared, records_at_most=len(OLD))
    found = run(mechanism, plan, NEW[:1500])
    assert found.outcome is not None
    assert found.outcome["rounds"]["noised_records"] == pytest.approx(1500, rel=0.1)


def public_inputs(start: Start, rows: np.ndarray, **changes: Any) -> tuple[bytes, bytes, float]:
    """Return the map and the clip norm of a release of rows."""
    mechanism, plan = warm(start, **changes)
    reservation = InMemoryReservation(event=plan.event, key=bytes(32))
    curator: Any = Recording(Curator(ArrayBlocks(rows), reservation))
    mechanism.run(curator, plan)
    ((query, _),) = curator.requests
    return query.directions.tobytes(), query.reductions.tobytes(), float(query.norm[0])


def test_the_map_depends_on_the_earlier_release_alone():
    """Release two tables with the same start: the public inputs are equal."""
    start = parent()
    assert public_inputs(start, NEW) == public_inputs(start, NEW[::-1] * 0.5)


def test_energies_of_the_new_rows_would_change_the_map(monkeypatch):
    """Plant a bug: take the energies from the new rows. The comparison above notices it."""
    seen = []
    for rows in (NEW, NEW * 0.5):
        moment = rows.T @ rows
        changed = replace(parent().estimate(clip_norm=1.0, centred=False), matrix=moment)
        monkeypatch.setattr(Start, "estimate", lambda *_, changed=changed, **__: changed)
        seen.append(public_inputs(parent(), rows))
        monkeypatch.undo()
    assert seen[0] != seen[1]


def test_the_number_of_records_of_a_start_is_as_noisy_as_it_was_released():
    """Compare the spread of 12 numbers with the stated noise; an exact number, a planted bug, has no spread."""
    mechanism = AnalyzeGauss(n_components=K, rounds=1)
    plan, numbers = mechanism.plan(problem(center="private"), TARGET), []
    for seed in range(12):
        reservation = InMemoryReservation(event=plan.event, key=bytes([seed]) * 32)
        found = mechanism.run(Curator(ArrayBlocks(OLD), reservation), plan)
        start = start_of(found, clip_norm=1.0, records_at_most=None)
        assert start is not None
        numbers.append(start.n_records)
    noise = found.noise or {}
    stated = math.sqrt(2.0) * noise["std"] / noise["constant"] ** 2
    assert 0.4 * stated < np.std(numbers) < 2.0 * stated
    assert np.mean(numbers) == pytest.approx(len(OLD), abs=4 * stated / math.sqrt(12))


def test_a_map_of_columns_in_another_order_captures_less():
    """Plant a bug: reverse the columns of the start. The mean loss of four draws is more than ten times as large."""
    start, moment = parent(), NEW.T @ NEW
    turned = replace(
        start,
        matrix=start.matrix[::-1, ::-1].copy(),
        map=PublicMap(directions=start.map.directions[::-1], reductions=start.map.reductions[::-1]),
    )
    means = []
    for each in (start, turned):
        mechanism, plan = warm(each)
        captured = []
        for seed in range(4):
            reservation = InMemoryReservation(event=plan.event, key=bytes([seed]) * 32)
            found = mechanism.run(Curator(ArrayBlocks(NEW), reservation), plan)
            captured.append(captured_variance(moment, found.components))
        means.append(np.mean(captured))
    assert 1.0 - means[1] > 10.0 * (1.0 - means[0])


def test_a_release_around_a_mean_needs_a_start_with_a_mean():
    mechanism, plan = warm(parent(), center="private")
    with pytest.raises(Refused, match="center=private"):
        run(mechanism, plan, NEW)


def test_a_start_around_a_mean_serves_a_release_around_the_origin():
    mechanism, plan = warm(parent(center="private"))
    found = run(mechanism, plan, NEW)
    assert captured_variance(NEW.T @ NEW, found.components) > 0.95


@pytest.mark.parametrize("rounds", [1, 3])
def test_noise_along_directions_that_the_new_rows_lack_is_no_component(rounds):
    """Try ten draws of rows that have most of their variance in two columns, and then in two others."""
    target, terms = PrivacyTarget(epsilon=4.0, delta=1e-6), problem(n_features=8)
    for seed in range(10):
        rng, scales = np.random.default_rng(seed), np.array([0.5, 0.35, *6 * (0.01,)])
        old, new = (rng.standard_normal((2000, 8)) * np.roll(scales, turned) for turned in (0, 3))
        first = AnalyzeGauss(n_components=2, rounds=rounds)
        start = start_of(run(first, first.plan(terms, target), old), clip_norm=1.0, records_at_most=2000)
        mechanism, plan = warm(start, target=target, n_features=8)
        found = refine_release(run(replace(mechanism, n_components=2), plan, new), n_components=2, method="auto")
        assert captured_variance(new.T @ new, found.subspace.components) > 0.9


@pytest.mark.parametrize("changes", [{"calibration": "paper"}, {"form": "operator"}, {"rounds": 3}])
def test_settings_that_exclude_a_map_are_refused(changes):
    with pytest.raises(Refused, match="leave out like"):
        AnalyzeGauss(n_components=K, warm=True, **changes).plan(problem(), TARGET)


def test_rows_that_are_too_large_to_be_made_dense_are_refused():
    with pytest.raises(Refused, match="like makes rows dense"):
        warm_start.plan_warm(
            "analyze_gauss",
            problem(n_features=4000, records_at_most=2**33),
            TARGET,
            Symmetric(noise_multiplier=4.0),
            n_components=2,
        )
