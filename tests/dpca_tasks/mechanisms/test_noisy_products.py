"""Mechanisms that first release a mean: cost, components around the mean, stored answers and refusals.

The truncation of components to the longest rows is also tested; it must not depend on the library's default.
"""

import dataclasses
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca_tasks.accounting import events
from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.audit.attacks import Neighbours
from dpca_tasks.audit.trials import TARGET, audited_problem
from dpca_tasks.errors import Refused, StepMismatch
from dpca_tasks.mechanisms import noisy_products
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.noisy_products import completed, mean_first, truncated, truncated_step
from dpca_tasks.mechanisms.prior_releases import QuantileClip
from dpca_tasks.mechanisms.subspace.dp_spca import DpSpca
from dpca_tasks.mechanisms.subspace.exponential import Exponential
from dpca_tasks.mechanisms.subspace.local_gaussian import LocalGaussian
from dpca_tasks.mechanisms.subspace.mod_sulq import ModSulq
from dpca_tasks.mechanisms.subspace.propose_test_release import ProposeTestRelease
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.noised_directions import SmoothNoise
from dpca_tasks.queries import recentred_moment
from dpca_tasks.records.blocks import ArrayBlocks

D, K = 7, 2
AROUND = np.array([0.0, 0.0, 0.6, 0.0, -0.2, 0.0, 0.0])
SPREAD = np.array([0.25, 0.2, 0.02, 0.02, 0.02, 0.02, 0.02])
ROWS = AROUND + np.clip(np.random.default_rng(7).standard_normal((20_000, D)), -1.5, 1.5) * SPREAD
CLAIM = PrivacyTarget(epsilon=8.0, delta=1e-6)
PURE = PrivacyTarget(epsilon=8.0, delta=0.0)
EVERY: list[tuple[Any, PrivacyTarget]] = [
    (Exponential(n_components=K), CLAIM),
    (Exponential(n_components=K), PURE),
    (Exponential(n_components=K, sampler="gibbs", allow_uncertified=True), PURE),
    (SmoothSensitivity(n_components=K), CLAIM),
    (SmoothSensitivity(n_components=K, noise="spherical_t"), PURE),
    (ProposeTestRelease(n_components=K), CLAIM),
    (LocalGaussian(n_components=K), PrivacyTarget(epsilon=40.0, delta=1e-6)),
]


def problem(**changes):
    return Problem(**{"n_features": D, "clip_norm": 1.0, "relation": "zero_out", "center": "private", **changes})


def run(mechanism, target, *, rows=ROWS, steps=None, key=bytes(32), **changes):
    plan = mechanism.plan(problem(**changes), target)
    reservation = InMemoryReservation(
        event=json.loads(json.dumps(plan.event)),
        relation=plan.problem.relation,
        key=key,
        steps={} if steps is None else steps,
    )
    return mechanism.run(Curator(rows if isinstance(rows, ArrayBlocks) else ArrayBlocks(rows), reservation), plan)


@pytest.mark.parametrize(("mechanism", "target"), EVERY, ids=lambda given: repr(given)[:60])
def test_components_are_those_of_the_covariance(mechanism, target):
    """Compare components around a private mean with those of the covariance.

    The largest second moment is along the mean, the largest variances are along the first two axes. Without centering,
    two directions capture at most 0.7 of the variance of the best two. Rescaled data give the same result.
    """
    covariance = np.cov(ROWS.T, bias=True)
    best = np.linalg.eigvalsh(covariance)[-K:].sum()
    for scale in (1.0, 1e-3):
        found = run(mechanism, target, rows=scale * ROWS, clip_norm=scale)
        assert np.trace(found.components @ covariance @ found.components.T) / best > 0.9
        np.testing.assert_allclose(found.mean / scale, ROWS.mean(axis=0), atol=0.05)
    plain = run(mechanism, target, center="none")
    assert np.trace(plain.components @ covariance @ plain.components.T) / best < 0.7
    assert plain.mean is None


@pytest.mark.parametrize("mechanism", [Exponential(n_components=K), SmoothSensitivity(n_components=K)])
def test_with_little_noise_components_are_those_of_records_clipped_around_the_mean(mechanism):
    """Compare components with numpy's for records centered and then clipped, with little noise.

    A sixth of the records exceed the clip norm after centering.
    """
    rows = np.where(np.arange(2000)[:, None] % 2, [0.9, 0.1, 0, 0, 0, 0, 0], [-0.8, 0, 0.5, 0, 0, 0, 0])
    rows = np.vstack([rows, [[0.95, 0, 0.05, 0, 0, 0, 0]] * 4000])
    found = run(mechanism, PrivacyTarget(epsilon=1e5, delta=1e-6), rows=rows, relation="add_remove")
    around = rows - rows.mean(axis=0)
    clipped = around / np.maximum(1.0, np.linalg.norm(around, axis=1, keepdims=True))
    leading = np.linalg.eigh(clipped.T @ clipped)[1][:, ::-1][:, :K]
    assert np.linalg.norm(found.components @ leading) ** 2 > K - 1e-2
    assert (np.linalg.norm(around, axis=1) > 1.2).mean() > 0.1


def test_a_mean_that_noise_makes_too_long_is_cut_to_the_clip_norm():
    """Release means of few records with much noise: a mean longer than the clip norm is scaled to the clip norm.

    Keys are fixed; under most of them the noisy mean is too long.
    """
    target = PrivacyTarget(epsilon=0.01, delta=0.0)
    found = [run(Exponential(n_components=1), target, rows=ROWS[:3], key=bytes([name] * 32)) for name in range(8)]
    lengths = np.array([np.linalg.norm(one.mean) for one in found])
    assert (lengths <= 1.0).all()
    assert (lengths > 0.99).sum() >= 4


# The cost.


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.floats(1e-3, 50.0),
    delta=st.one_of(st.just(0.0), st.floats(1e-12, 0.5)),
    pure=st.booleans(),
    kind=st.sampled_from(["gdp", "renyi"]),
)
def test_both_parts_together_never_exceed_the_target(epsilon, delta, pure, kind):
    """Compute the total cost of mean and rest in exact arithmetic: a new budget of the target must admit it."""
    target = PrivacyTarget(epsilon=epsilon, delta=delta, allow_large_delta=True)
    first = mean_first(problem(), target, pure=pure)
    without = pure or not delta
    assert first.noise is not None
    event = first.event(events.approximate(first.rest.epsilon, 0.0 if without else first.rest.delta))
    assert event["events"][0]["name"] == ("laplace" if without else "gaussian")
    if without:
        assert 1 / Fraction(first.noise.noise_multiplier) + Fraction(first.rest.epsilon) <= Fraction(epsilon)
        assert first.rest.delta == delta
    budget = build_filter(kind, epsilon=epsilon, delta=max(delta, 1e-12))
    charge = budget.charge_after(budget.zero, event, delta=delta)
    assert budget.admits(charge)
    assert budget.spent(charge) <= epsilon
    assert kind == "renyi" or budget.spent(charge) >= epsilon * (1 - 1e-6)


def test_no_mean_is_charged_unless_requested():
    first = mean_first(problem(center="none"), CLAIM)
    assert (first.noise, first.rest) == (None, CLAIM)
    assert first.event(events.gaussian(2.0)) == events.gaussian(2.0)


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
def test_an_emptied_record_counts_as_a_replaced_one_around_a_mean(relation):
    replaced = relation != "add_remove"
    solver = SmoothSensitivity(n_components=K).solver(problem(relation=relation))
    assert solver.effective_relation == ("replace_one" if replaced else "add_remove")
    tested = ProposeTestRelease(n_components=K).plan(problem(relation=relation), CLAIM)
    plain = ProposeTestRelease(n_components=K).plan(
        problem(relation="replace_one" if replaced else relation, center="none"),
        mean_first(problem(), CLAIM).rest,
    )
    assert tested.warnings == plain.warnings
    paper = SmoothSensitivity(n_components=K, calibration="paper")
    nominal = PrivacyTarget(epsilon=0.8, delta=1e-6)
    assert 0.1 < (paper.plan(problem(relation=relation), nominal).real_epsilon or 0.0) < 0.8


def test_a_private_clip_norm_and_a_mean_are_charged_in_sequence():
    wrapped = QuantileClip(mechanism=Exponential(n_components=K), quantile=0.9)
    found = run(wrapped, CLAIM, rows=5.0 * ROWS, clip_norm=1.0)
    assert [step["name"] for step in events.steps(wrapped.plan(problem(), CLAIM).event)] == [
        "laplace",
        "gaussian",
        "approximate",
    ]
    assert found.clip_norm is not None
    np.testing.assert_allclose(found.mean, 5.0 * ROWS.mean(axis=0), atol=0.3)


# Tests that each step of a release has one stored answer.


class NoRows(ArrayBlocks):
    def read(self, block, /):
        raise AssertionError("the rows were read again")


@pytest.mark.parametrize("mechanism", [Exponential(n_components=K), ProposeTestRelease(n_components=K)])
def test_a_resumed_release_continues_from_the_stored_mean(mechanism, monkeypatch):
    """Resume a release from its stored mean alone, and from all steps: the result is the same.

    In the second case the mean is rounded differently, as on another machine.
    """
    whole: dict[int, Any] = {}
    first = run(mechanism, CLAIM, steps=whole)
    again = run(mechanism, CLAIM, steps={0: whole[0]})
    np.testing.assert_array_equal(again.components, first.components)
    np.testing.assert_array_equal(whole[1]["public.shift"] / 2.0**16, first.mean)
    monkeypatch.setattr(noisy_products, "on_shift_grid", lambda mean: recentred_moment.on_shift_grid(mean * 0.999))
    resumed = run(mechanism, CLAIM, rows=NoRows(ROWS), steps=whole)
    np.testing.assert_array_equal(resumed.components, first.components)
    np.testing.assert_array_equal(resumed.mean, first.mean)


@pytest.mark.parametrize("mechanism", [Exponential(n_components=K), SmoothSensitivity(n_components=K)])
def test_a_request_with_another_mean_is_refused(mechanism):
    steps: dict[int, Any] = {}
    run(mechanism, CLAIM, steps=steps)
    steps[1] = steps[1] | {"public.shift": steps[1]["public.shift"] + np.eye(D, dtype=np.int64)[5]}
    with pytest.raises(StepMismatch, match="another request"):
        run(mechanism, CLAIM, steps=steps)


# Attacks.


def around_mean(relation):
    return dataclasses.replace(audited_problem(relation), center="private")


def opposite(relation):
    """Return neighbors with 400 records at one end of the first axis, and the differing record at the other end."""
    many, one = np.repeat([[-1.0, 0.0]], 400, axis=0), np.array([[1.0, 0.0]])
    instead = {"add_remove": one[:0], "zero_out": 0.0 * one, "replace_one": one[:, ::-1]}[relation]
    sources = (ArrayBlocks(np.vstack([many, last])) for last in (one, instead))
    return [Neighbours(name="opposite", left=next(sources), right=next(sources))]


@pytest.mark.audit
@pytest.mark.parametrize(
    "relation",
    ["add_remove", *(pytest.param(other, marks=pytest.mark.audit_only) for other in ("zero_out", "replace_one"))],
)
def test_no_epsilon_above_the_claim_is_found_where_the_mean_is_opposite_to_a_record(attack, relation):
    problem, pairs = around_mean(relation), opposite(relation)
    finding = attack(Exponential(n_components=1), relation=relation, problem=problem, pairs=pairs, trials=400)
    assert finding.passed


@pytest.mark.audit_only
def test_records_that_are_not_clipped_again_are_found(attack, monkeypatch):
    """Omit the clipping of records after centering: the audit must find the mistake.

    A record opposite to the mean is two clip norms from the mean, so its squared effect is four times too large.
    """

    def unclipped(values, indices, row_ptr, record_ptr, shift, clip_norm, bits):
        return np.rint(values / clip_norm * 2.0**bits).astype(np.int32)

    monkeypatch.setattr(recentred_moment, "grid_shifted_records", unclipped)
    problem, pairs = around_mean("add_remove"), opposite("add_remove")
    finding = attack(Exponential(n_components=1), relation="add_remove", problem=problem, pairs=pairs, trials=1000)
    assert finding.bound > TARGET.epsilon


@pytest.mark.audit_only
@pytest.mark.parametrize("planted", [False, True])
def test_noise_that_is_too_small_around_a_mean_is_found(attack, monkeypatch, planted):
    """Divide the noise around a mean by 6: the audit must find the mistake.

    The variance along the first axis is 196; the differing record is halfway to the second axis.
    """
    real = SmoothNoise.scale
    if planted:
        monkeypatch.setattr(SmoothNoise, "scale", lambda self, *given: real(self, *given) / 6)
    rows = np.repeat([[-0.9, 0.0], [0.5, 0.0], [0.507, 0.707]], [200, 200, 1], axis=0)
    pair = Neighbours(name="turned", left=ArrayBlocks(rows), right=ArrayBlocks(rows[:-1]))
    mechanism = SmoothSensitivity(n_components=1)
    problem = around_mean("add_remove")
    finding = attack(mechanism, relation="add_remove", problem=problem, pairs=[pair], trials=400)
    assert finding.passed is not planted


# Tests of refusals, with the reason and the suggested action.


@pytest.mark.parametrize(
    ("mechanism", "changes", "text"),
    [
        (ModSulq(n_components=K, calibration="paper"), {"relation": "replace_one"}, "use calibration=tight"),
        (DpSpca(n_components=K, form="one_row"), {}, "use form=batches"),
    ],
    ids=["mod_sulq", "dp_spca"],
)
def test_mechanisms_without_centering_state_the_reason(mechanism, changes, text):
    with pytest.raises(Refused, match=f"center=private .*; {text}, or center=none"):
        mechanism.plan(problem(**changes), CLAIM)


RNG = np.random.default_rng(2)


def is_orthonormal(columns):
    return np.allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-12)


def test_the_longest_rows_are_kept_and_their_span_with_them():
    matrix = RNG.standard_normal((30, 3))
    matrix[[4, 7, 9, 20]] *= 50
    basis = truncated(matrix, rows_kept=4)
    assert np.flatnonzero(basis.any(axis=1)).tolist() == [4, 7, 9, 20]
    assert is_orthonormal(basis)
    kept = np.where(basis.any(axis=1)[:, None], matrix, 0.0)
    np.testing.assert_allclose(basis @ (basis.T @ kept), kept, atol=1e-10)


def test_ties_go_to_the_smaller_index():
    matrix = np.tile([[1.0, 0.0], [0.0, 1.0]], (5, 1))
    assert np.flatnonzero(truncated(matrix, rows_kept=3).any(axis=1)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("missing", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_missing_directions_are_completed_and_the_others_kept(missing):
    matrix = RNG.standard_normal((12, 3))
    matrix[:, missing] = 0.0
    basis = completed(matrix)
    assert is_orthonormal(basis)
    np.testing.assert_allclose(basis @ (basis.T @ matrix), matrix, atol=1e-10)
    np.testing.assert_array_equal(basis, completed(matrix))


def test_a_repeated_direction_is_replaced_by_a_public_one_within_the_rows_kept():
    matrix = np.zeros((10, 3))
    matrix[[1, 2, 3, 4], :] = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0])
    basis = truncated(matrix, rows_kept=5)
    assert is_orthonormal(basis)
    assert set(np.flatnonzero(basis.any(axis=1))) <= {0, 1, 2, 3, 4}
    np.testing.assert_allclose(basis @ (basis.T @ matrix), matrix, atol=1e-10)


def test_steps_on_a_matrix_converge_to_its_sparse_directions():
    truth = np.zeros((60, 2))
    truth[[3, 30, 31, 59]] = np.linalg.qr(RNG.standard_normal((4, 2)))[0]
    moment = np.eye(60) + 9.0 * truth @ truth.T
    directions = np.linalg.qr(RNG.standard_normal((60, 2)))[0]
    for _ in range(30):
        directions = truncated_step(moment, directions, rows_kept=8)
    assert is_orthonormal(directions)
    assert np.sum((directions.T @ truth) ** 2) == pytest.approx(2.0, abs=1e-9)
