"""Exponential mechanism: its distribution, cost, single answer and refusals."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import largest_range
from dpca_tasks.errors import InvalidInput, Refused, StepMismatch
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.prior_releases import QuantileClip
from dpca_tasks.mechanisms.subspace.exponential import Exponential
from dpca_tasks.noise import bingham
from dpca_tasks.noise.bingham import STEPS_PER_UNIT, Peeling, complement
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.counts import NormHistogram
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.strategies import rows

PURE = PrivacyTarget(epsilon=2.0, delta=0.0)
ROWS = np.random.default_rng(5).standard_normal((60, 5)) * np.array([0.9, 0.5, 0.3, 0.1, 0.1])


def problem(**changes):
    return Problem(**{"n_features": 5, "clip_norm": 1.0, **changes})


def run(mechanism, requested, target, source, *, key=bytes(range(32)), steps=None):
    plan = mechanism.plan(requested, target)
    reservation = InMemoryReservation(
        event=plan.event, relation=plan.problem.relation, key=key, steps={} if steps is None else steps
    )
    return mechanism.run(Curator(source, reservation), plan)


# Tests of the distribution of a draw, from rows to components.


@pytest.mark.parametrize(
    ("relation", "slope"),
    [("add_remove", 1.0), pytest.param("zero_out", 1.0, marks=pytest.mark.audit_only), ("replace_one", 0.5)],
)
def test_components_have_the_density_of_their_scores(relation, slope):
    """Compare 1500 drawn directions with the density proportional to ``exp(slope * score)``.

    There are 12 rows along one axis and 4 along the other, of norm 4 under a clip norm of 2. So the second moment S is
    diag(12, 4) in squared clip norms, and the density is proportional to ``exp(slope * 0.5 * 8 cos^2)``. Total
    variation is measured over 16 arcs of the half circle: 1500 draws exceed 0.120 with probability below 1e-6. Twice or
    half the slope of 1 is at a distance of 0.18, as is twice the slope of 1/2.
    """
    made = np.repeat([[4.0, 0.0], [0.0, 4.0]], [12, 4], axis=0)
    requested = problem(n_features=2, clip_norm=2.0, relation=relation)
    target, source = PrivacyTarget(epsilon=0.5, delta=0.0), ArrayBlocks(made)
    keys = [number.to_bytes(32, "little") for number in range(1500)]
    found = np.array(
        [run(Exponential(n_components=1), requested, target, source, key=key).components[0] for key in keys]
    )
    counts = np.histogram(np.arctan2(found[:, 1], found[:, 0]) % np.pi, bins=16, range=(0, np.pi))[0]
    angles = (np.arange(1600) + 0.5) / 1600 * np.pi
    weights = np.exp(slope * 0.5 * 8 * np.cos(angles) ** 2).reshape(16, 100).sum(axis=1)
    assert np.abs(counts / 1500 - weights / weights.sum()).sum() / 2 < 0.120


def test_an_added_record_raises_every_score_by_at_most_one():
    """A record at its bound raises the largest eigenvalue by 1, so the bound on scores is attained.

    This record attains the bound for every number of directions.
    """
    query = SecondMoment(n_features=5, clip_norm=1.0, relation="add_remove", bits=14)
    moved = unpack_symmetric(exact_sum(ArrayBlocks(7.0 * np.eye(5)[:1]), query) / query.steps_per_unit, 5)
    assert np.linalg.eigvalsh(moved)[-1] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@given(common=rows(n_features=3, max_rows=2), mine=rows(n_features=3, min_rows=1, max_rows=1), data=st.data())
def test_no_neighbor_changes_the_scores_by_more_than_the_sensitivity(relation, common, mine, data):
    """Compare the change of scores between neighbors with the sensitivity.

    The scores of all orthonormal V change within the sums of the k smallest and the k largest eigenvalues of the
    difference.
    """
    query = SecondMoment(n_features=3, clip_norm=1.0, relation=relation, bits=14)
    other = {
        "add_remove": np.empty((0, 3)),
        "zero_out": np.zeros((1, 3)),
        "replace_one": data.draw(rows(n_features=3, min_rows=1, max_rows=1)),
    }[relation]
    sums = [exact_sum(ArrayBlocks(np.vstack([common, part])), query) for part in (mine, other)]
    values = np.linalg.eigvalsh(unpack_symmetric((sums[0] - sums[1]) / query.steps_per_unit, 3))
    for k in (1, 2):
        least, most = values[:k].sum(), values[-k:].sum()
        assert max(most, 0.0) - min(least, 0.0) <= query.sensitivity(Peeling.norm) + 1e-9
        if relation != "replace_one":
            assert -1e-9 <= least <= most <= 1.0 + 1e-9


@pytest.mark.audit_only
def test_an_audit_finds_a_law_that_is_four_times_too_steep(attack, monkeypatch):
    """Multiply the slope of the scores by 4, as if the square of a clip norm of 2 were forgotten.

    `tests.audits` runs the same audit without this mistake.
    """
    monkeypatch.setattr(bingham, "largest_range", lambda **requested: 4.0 * largest_range(**requested))
    finding = attack(Exponential(n_components=1), relation="add_remove", trials=700)
    assert finding.bound > finding.epsilon


# The cost.


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_requested_epsilon_is_charged_and_used(components, delta):
    target = PrivacyTarget(epsilon=0.7, delta=delta)
    plan = Exponential(n_components=components).plan(problem(), target)
    assert plan.event == events.approximate(0.7, delta)
    allowed = largest_range(epsilon=0.7, delta=delta, draws=components)
    assert allowed * (1 - 1e-12) <= 1.0 / plan.noise_multiplier <= allowed
    assert plan.certified
    assert plan.warnings == ()


def test_a_private_clip_norm_leaves_the_rest_of_epsilon_for_the_draws():
    wrapped = QuantileClip(mechanism=Exponential(n_components=2), quantile=0.9)
    found = run(wrapped, problem(), PURE, ArrayBlocks(np.repeat(ROWS, 50, axis=0)))
    assert found.components.shape == (2, 5)
    histogram, draws = wrapped.plan(problem(), PURE).event["events"]
    assert 1 / histogram["noise_multiplier"] + draws["epsilon"] <= PURE.epsilon


# Tests that a repeated release returns the stored answer and draws no new one.


def test_a_stored_draw_is_read_back_without_the_rows():
    class NoRows(ArrayBlocks):
        def read(self, block, /):
            raise AssertionError("the rows were read again")

    steps: dict = {}  # type: ignore[type-arg]
    first = run(Exponential(n_components=3), problem(), PURE, ArrayBlocks(ROWS), steps=steps)
    again = run(Exponential(n_components=3), problem(), PURE, NoRows(ROWS), steps=steps)
    np.testing.assert_array_equal(again.components, first.components)
    kept = steps[0]["answer"]
    assert (kept.shape, kept.dtype) == ((3, 5), np.int64)
    np.testing.assert_allclose(kept @ kept.T / STEPS_PER_UNIT**2, np.eye(3), atol=1e-6)


@pytest.mark.parametrize(
    ("mechanism", "requested", "made"),
    [
        (Exponential(n_components=1), problem(), ROWS),
        (Exponential(n_components=2, sampler="gibbs", allow_uncertified=True), problem(), ROWS),
        (Exponential(n_components=2), problem(clip_norm=2.0), ROWS),
        (Exponential(n_components=2), problem(relation="replace_one"), ROWS),
        (Exponential(n_components=2), problem(), ROWS[:-1]),
    ],
    ids=["components", "sampler", "clip_norm", "relation", "rows"],
)
def test_a_second_request_in_an_answered_step_is_refused(mechanism, requested, made):
    steps: dict = {}  # type: ignore[type-arg]
    run(Exponential(n_components=2), problem(), PURE, ArrayBlocks(ROWS), steps=steps)
    with pytest.raises(StepMismatch, match="another request"):
        run(mechanism, requested, PURE, ArrayBlocks(made), steps=steps)


def test_a_steeper_law_than_reserved_is_refused():
    mechanism = Exponential(n_components=1)
    plan = mechanism.plan(problem(), PURE)
    steeper = dataclasses.replace(plan, target=dataclasses.replace(PURE, epsilon=2.1))
    with pytest.raises(StepMismatch, match="a different event"):
        mechanism.run(
            Curator(ArrayBlocks(ROWS), InMemoryReservation(event=plan.event, relation=plan.problem.relation)), steeper
        )


def test_only_a_symmetric_statistic_has_scores():
    law = Peeling(n_components=1, epsilon=1.0, delta=0.0)
    query = NormHistogram(n_features=5, clip_norm=1.0, relation="add_remove", bits=4, edges=np.array([1.0, 2.0]))
    product = MomentProduct(
        n_features=5,
        clip_norm=1.0,
        relation="add_remove",
        bits=4,
        directions=on_direction_grid(complement(np.eye(1, 5))),
    )
    for score in (query, product):
        with pytest.raises(InvalidInput, match="statistic"):
            Curator(ArrayBlocks(ROWS), InMemoryReservation(event=law.event)).sample(score, law)


def test_a_large_epsilon_finds_the_leading_directions():
    """Draw at epsilon 1e5: the components must be the leading directions.

    The angle to the truth has a std below ``sqrt(5 / (2e5 / 3 * gap))``, here 0.006.
    """
    made = np.repeat(ROWS, 4, axis=0)
    found = run(Exponential(n_components=3), problem(), PrivacyTarget(epsilon=1e5, delta=0.0), ArrayBlocks(made))
    clipped = made / np.maximum(1.0, np.linalg.norm(made, axis=1, keepdims=True))
    leading = np.linalg.eigh(clipped.T @ clipped)[1][:, ::-1][:, :3].T
    np.testing.assert_allclose(np.abs(np.sum(found.components * leading, axis=1)), 1.0, atol=1e-2)


# Refusals.


def test_a_chain_requires_an_explicit_option_and_is_marked():
    chain = Exponential(n_components=2, sampler="gibbs")
    with pytest.raises(Refused, match="no certificate"):
        chain.plan(problem(), PURE)
    insisted = dataclasses.replace(chain, allow_uncertified=True)
    plan = insisted.plan(problem(), PURE)
    assert not plan.certified
    assert any("not certified" in warning for warning in plan.warnings)
    assert plan.event == events.approximate(2.0, 0.0)
    assert plan.noise_multiplier == math.nextafter(0.5, 1.0)
    found = run(insisted, problem(), PURE, ArrayBlocks(ROWS))
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(2), atol=1e-12)
