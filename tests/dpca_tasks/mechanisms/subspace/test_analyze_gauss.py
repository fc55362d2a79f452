"""Analyze Gauss, DPS-PCA, and the reference without privacy.

Analyze Gauss with products alone must find the same components as with the formed matrix. DPS-PCA must find sparse
directions with less noise than unsparsified messages need, and state the true cost of the printed noise. The reference
without noise must be exact, require an acknowledgment, and not be listed among the private mechanisms.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.audit.attacks import RecordingCurator
from dpca_tasks.errors import InvalidInput, Refused, StepMismatch
from dpca_tasks.mechanisms.base import NO_GUARANTEE, PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.subspace.analyze_gauss import WIDE, AnalyzeGauss
from dpca_tasks.mechanisms.subspace.dps_pca import DpsPca
from dpca_tasks.mechanisms.subspace.non_private import NonPrivate
from dpca_tasks.metrics import subspace_distance
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums import partial_sums
from flows.families.base import build_mechanism
from flows.families.subspace import SUBSPACE
from papers.lib.sparse_model import Model

D, K = 300, 6
TARGET = PrivacyTarget(epsilon=4.0, delta=1e-6)
ROWS = np.random.default_rng(5).standard_normal((1200, D)) / np.arange(1, D + 1) + 0.1 * (np.arange(D) < 40)


def problem(**changes):
    return Problem(**{"n_features": D, "clip_norm": 1.0, **changes})


def run(mechanism, requested=None, *, client=None, reservation=None, block_records=700):
    requested = requested or problem()
    plan = mechanism.plan(requested, TARGET)
    reservation = reservation or InMemoryReservation(
        event=plan.event, relation=plan.problem.relation, key=bytes(range(32))
    )
    return mechanism.run(Curator(ArrayBlocks(ROWS, block_records=block_records), reservation, client=client), plan)


@pytest.mark.parametrize("center", ["none", "private"])
@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_both_forms_find_the_same_components(center, calibration):
    target = PrivacyTarget(epsilon=0.9, delta=1e-6)
    dense, operator = (
        AnalyzeGauss(n_components=K, calibration=calibration, form=form, rounds=1) for form in ("dense", "operator")
    )
    plan = dense.plan(problem(center=center), target)
    assert dataclasses.replace(plan, moment_formed=False) == operator.plan(problem(center=center), target)
    formed, applied = (
        mechanism.run(
            Curator(
                ArrayBlocks(ROWS), InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=bytes(32))
            ),
            plan,
        )
        for mechanism in (dense, operator)
    )
    assert applied.eigenvalues is not None
    assert formed.eigenvalues is not None
    np.testing.assert_allclose(applied.eigenvalues, formed.eigenvalues, rtol=1e-3)
    assert np.square(applied.components[:1] @ formed.components[:1].T).sum() > 1 - 1e-3
    assert applied.spectrum is not None
    assert applied.further is not None
    np.testing.assert_array_equal(applied.spectrum[:K], applied.eigenvalues)
    assert applied.further.shape == (8, D)
    np.testing.assert_allclose(applied.further @ applied.components.T, 0.0, atol=1e-9)
    assert applied.total_variance is None
    if center == "private":
        np.testing.assert_array_equal(applied.mean, formed.mean)


def test_a_cluster_gives_the_bits_of_one_process(client):
    here, there = (run(AnalyzeGauss(n_components=K, form="operator"), client=where) for where in (None, client))
    np.testing.assert_array_equal(there.components, here.components)
    np.testing.assert_array_equal(there.eigenvalues, here.eigenvalues)


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_a_resumed_run_gives_the_same_bits(passes, monkeypatch):
    """Every product reads the rows, because this process has no room to keep them."""
    monkeypatch.setattr(partial_sums, "OWN_MEMORY", 0)
    mechanism = AnalyzeGauss(n_components=K, form="operator")
    whole = run(mechanism)
    plan = mechanism.plan(problem(), TARGET)
    reservation = InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=bytes(range(32)))
    left = passes

    class Dying(ArrayBlocks):
        def read(self, block, /):
            nonlocal left
            if block == 0:
                left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return super().read(block)

    with pytest.raises(KeyboardInterrupt):
        mechanism.run(Curator(Dying(ROWS), reservation), plan)
    assert len(reservation.steps) == min(passes, 1)
    resumed = run(mechanism, reservation=reservation)
    np.testing.assert_array_equal(resumed.components, whole.components)
    np.testing.assert_array_equal(resumed.eigenvalues, whole.eigenvalues)


def test_wide_problems_are_not_formed_unless_requested():
    requested = []

    class Stop(Exception):
        pass

    class Watched(Curator):
        def release(self, *_):
            requested.append("dense")
            raise Stop

        def release_operator(self, *_):
            requested.append("operator")
            raise Stop

    for features in (WIDE, WIDE + 1):
        for form in ("auto", "dense", "operator"):
            mechanism = AnalyzeGauss(n_components=2, form=form)
            plan = mechanism.plan(problem(n_features=features), TARGET)
            with pytest.raises(Stop):
                mechanism.run(
                    Watched(ArrayBlocks(ROWS), InMemoryReservation(event=plan.event, relation=plan.problem.relation)),
                    plan,
                )
    assert requested == ["dense", "dense", "operator", "operator", "dense", "operator"]


def build(**settings):
    return build_mechanism(SUBSPACE, "analyze_gauss", settings, n_components=3)


def test_the_form_is_a_setting_of_the_command():
    assert build(form="operator") == AnalyzeGauss(n_components=3, form="operator")
    with pytest.raises(InvalidInput, match="form"):
        build(form="sparse")


MODEL = Model(n_features=80, n_records=4_000, n_components=2, n_relevant=5)
DPS_PCA_ROWS, TRUTH = MODEL.draw(0)
SOURCE = ArrayBlocks(DPS_PCA_ROWS)
DPS_PCA_TARGET = PrivacyTarget(epsilon=2.0, delta=1e-5)
USUAL = DpsPca(n_components=2, rows_kept=12)
AS_PRINTED = dataclasses.replace(USUAL, calibration="paper", iterations=10, burn_in=9, message_clip=1.0)


def problem_of_dps_pca(relation="replace_one", **changes):
    facts = {"n_features": 80, "clip_norm": 1.0, "records_at_most": 4_000} | changes
    return Problem(relation=relation, **facts)


def run_of_dps_pca(mechanism, *, requested=None, key=bytes(range(32)), kept=None):
    requested = requested or problem_of_dps_pca()
    plan = mechanism.plan(requested, DPS_PCA_TARGET)
    reservation = InMemoryReservation(event=plan.event, relation=requested.relation, key=key)
    if kept is not None:
        reservation.steps.update(kept)
    curator = RecordingCurator(SOURCE, reservation)
    return mechanism.run(curator, plan), curator.recorded, reservation


def test_the_directions_are_sparse_and_near_the_truth_in_either_form():
    """Compare directions of both forms of DPS-PCA with the true sparse ones, under fixed keys.

    Over 24 other keys, distances were .04 to .05, and .59 to 1.12 with the printed noise.
    """
    for mechanism in (USUAL, dataclasses.replace(USUAL, form="one_round")):
        rows = run_of_dps_pca(mechanism)[0].components
        assert np.count_nonzero(rows.any(axis=0)) <= 12
        np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-12)
        assert subspace_distance(rows, TRUTH.T) < 0.35
    assert subspace_distance(run_of_dps_pca(AS_PRINTED)[0].components, TRUTH.T) > 0.35, "the printed noise drowns them"


def test_each_round_uses_truncated_directions_after_an_untruncated_start():
    _, recorded, _ = run_of_dps_pca(USUAL)
    rows = [np.count_nonzero(query.directions.any(axis=1)) for query, _, _ in recorded]
    assert rows == [80] + [12] * 7, "a random start that is cut misses the relevant features"
    assert {query.kind for query, _, _ in recorded} == {"clipped_product 1"}
    assert recorded[0][0].sensitivity("l2") < 0.5


def test_the_start_is_the_same_for_all_data():
    first: Any = run_of_dps_pca(USUAL)[1][0][0]
    plan = USUAL.plan(problem_of_dps_pca(), DPS_PCA_TARGET)
    curator = RecordingCurator(
        ArrayBlocks(-DPS_PCA_ROWS[:5] * 3), InMemoryReservation(event=plan.event, relation="replace_one")
    )
    USUAL.run(curator, plan)
    start: Any = curator.recorded[0][0]
    np.testing.assert_array_equal(start.directions, first.directions)


def test_a_resumed_release_continues_from_its_stored_products():
    whole, _, reservation = run_of_dps_pca(USUAL)
    resumed, _, _ = run_of_dps_pca(USUAL, kept={step: reservation.steps[step] for step in range(5)})
    np.testing.assert_array_equal(resumed.components, whole.components)


def test_a_burn_in_up_to_the_last_product_averages_the_last_product_alone():
    last = run_of_dps_pca(dataclasses.replace(USUAL, burn_in=7))[0].components
    np.testing.assert_array_equal(run_of_dps_pca(dataclasses.replace(USUAL, burn_in=70))[0].components, last)
    assert np.abs(last - run_of_dps_pca(USUAL)[0].components).max() > 0


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
def test_the_printed_formula_states_its_real_cost(relation):
    plan = AS_PRINTED.plan(problem_of_dps_pca(relation), DPS_PCA_TARGET)
    requested = Settings(epsilon=2.0, delta=1e-5, relation=relation, n_components=2, steps=10)
    assert FORMULAS["dps_pca_of_one_owner"].noise(requested) == pytest.approx(2 * 10 * np.sqrt(2 * np.log(2e6)) / 2.0)
    assert plan.real_epsilon == pytest.approx(epsilon_bracket(plan.event, delta=1e-5).upper, rel=1e-6)
    assert plan.real_epsilon is not None
    assert plan.real_epsilon < 0.5
    assert epsilon_bracket(FORMULAS["dps_pca_of_one_owner"].event(requested), delta=1e-5).upper == pytest.approx(
        plan.real_epsilon
    )


def test_the_printed_formula_is_refused_where_its_theorem_ends():
    with pytest.raises(Refused, match=r"epsilon / T = 1 breaks"):
        AS_PRINTED.plan(problem_of_dps_pca(), PrivacyTarget(epsilon=10.0, delta=1e-5))
    for changes in ({"message_clip": 0.25}, {"form": "one_round"}):
        with pytest.raises(InvalidInput, match="message_clip=1"):
            dataclasses.replace(AS_PRINTED, **changes).plan(problem_of_dps_pca(), DPS_PCA_TARGET)
    with pytest.raises(InvalidInput, match="center=none"):
        AS_PRINTED.plan(problem_of_dps_pca(center="private"), DPS_PCA_TARGET)


@pytest.mark.parametrize("changes", [{"rows_kept": 1}, {"iterations": 0}, {"burn_in": -1}, {"message_clip": 0.0}])
def test_invalid_settings_are_refused(changes):
    with pytest.raises(InvalidInput, match=next(iter(changes))):
        dataclasses.replace(USUAL, **changes).plan(problem_of_dps_pca(), DPS_PCA_TARGET)


def test_around_a_mean_messages_are_not_sparsified():
    result, recorded, _ = run_of_dps_pca(USUAL, requested=problem_of_dps_pca(center="private"))
    assert {query.kind for query, _, _ in recorded[1:]} == {"replaced_product 1"}
    assert result.mean.shape == (80,)


NON_PRIVATE_D = 5
NON_PRIVATE_ROWS = np.random.default_rng(3).standard_normal((200, NON_PRIVATE_D)) * np.array([0.5, 0.3, 0.1, 0.1, 0.1])
NON_PRIVATE_ROWS /= np.maximum(1.0, np.linalg.norm(NON_PRIVATE_ROWS, axis=1, keepdims=True))
PROBLEM = Problem(n_features=NON_PRIVATE_D, clip_norm=1.0)
QUERY = SecondMoment(n_features=NON_PRIVATE_D, clip_norm=1.0, relation="add_remove", bits=12)


def disclosing(event=None):
    reservation = InMemoryReservation(event=events.non_private() if event is None else event)
    return DisclosingCurator(ArrayBlocks(NON_PRIVATE_ROWS), reservation, i_know_this_is_not_private=True)


def test_the_reference_is_not_listed_as_a_private_mechanism():
    assert {"non_private": NonPrivate} == REFERENCES
    assert REFERENCES.keys().isdisjoint(MECHANISMS)


@pytest.mark.parametrize("center", ["none", "private"])
def test_the_reference_finds_the_leading_directions_up_to_the_grid(center):
    rows = NON_PRIVATE_ROWS - NON_PRIVATE_ROWS.mean(axis=0) if center == "private" else NON_PRIVATE_ROWS
    mechanism, problem = NonPrivate(n_components=2), Problem(n_features=NON_PRIVATE_D, clip_norm=1.0, center=center)
    plan = mechanism.plan(problem, NO_GUARANTEE)
    found = mechanism.run(disclosing(), plan)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    assert found.eigenvalues is not None
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:2], rtol=2e-3)
    np.testing.assert_allclose(np.abs(found.components @ vectors[:, ::-1][:, :2]), np.eye(2), atol=5e-3)
    assert (plan.event, plan.noise_multiplier, plan.certified) == (events.non_private(), 0.0, False)


@pytest.mark.parametrize(
    "target",
    [
        PrivacyTarget(epsilon=1.0, delta=1e-6),
        PrivacyTarget(epsilon=np.inf, delta=0.0),
        PrivacyTarget(epsilon=1.0, delta=1e-6, i_know_this_is_not_private=True),
    ],
)
def test_the_reference_requires_an_explicit_acknowledgment(target):
    with pytest.raises(Refused, match="i-know-this-is-not-private"):
        NonPrivate(n_components=2).plan(PROBLEM, target)


@pytest.mark.parametrize("components", [0, NON_PRIVATE_D])
def test_an_invalid_number_of_components_is_refused(components):
    with pytest.raises(InvalidInput, match="n_components"):
        NonPrivate(n_components=components).plan(PROBLEM, NO_GUARANTEE)


def test_an_ordinary_curator_releases_nothing_without_noise():
    reservation = InMemoryReservation(event=events.non_private())
    plan = NonPrivate(n_components=2).plan(PROBLEM, NO_GUARANTEE)
    with pytest.raises(Refused, match="DisclosingCurator"):
        NonPrivate(n_components=2).run(Curator(ArrayBlocks(NON_PRIVATE_ROWS), reservation), plan)
    with pytest.raises(StepMismatch):
        Curator(ArrayBlocks(NON_PRIVATE_ROWS), reservation).release(QUERY, Symmetric(noise_multiplier=1e-9))
    assert not hasattr(Curator, "disclose")
    assert reservation.steps == {}


@pytest.mark.parametrize("word", [False, 1, "yes", None])
def test_the_disclosing_curator_requires_an_explicit_acknowledgment(word):
    reservation = InMemoryReservation(event=events.non_private())
    with pytest.raises(Refused, match="not private"):
        DisclosingCurator(ArrayBlocks(NON_PRIVATE_ROWS), reservation, i_know_this_is_not_private=word)


def test_a_step_reserved_for_noise_is_never_disclosed():
    with pytest.raises(StepMismatch, match="a different event"):
        disclosing(events.gaussian(4.0)).disclose(QUERY)
    once = disclosing()
    once.disclose(QUERY)
    with pytest.raises(StepMismatch, match="not reserved"):
        once.disclose(QUERY)
