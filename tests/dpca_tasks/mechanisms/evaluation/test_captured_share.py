"""Private estimates of captured variance and of prediction errors, and the curator's exact diagnostics.

Estimates must be as accurate as they state and reveal no more than they claim. The diagnostics are compared with dense
arithmetic on a small dataset.

Keys come from fixed seeds, so repeated runs draw the same noise. Over sets of 100 keys, correct estimates of captured
variance have a mean error of 0 with a standard error of 0.1 of their stated standard deviation. Of these 100, 95 are
within two standard deviations, give or take 2: the bounds below would fail in one set of about 1,000. Over sets of 60
keys, correct estimates of prediction errors have a mean error of 0 with a standard error of 0.13 of their stated
standard deviation. The bounds for prediction errors also fail in one set of about 1,000.
"""

import math

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.accounting import events
from dpca_tasks.audit.trials import audit_mechanism
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.evaluation.captured_share import CapturedShare, SubspaceTerms, diagnose, estimated_share
from dpca_tasks.mechanisms.evaluation.prediction_error import PredictionError, PredictionTerms, estimated_scores
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from flows.families.completion_evaluation import COMPLETION_EVALUATION
from flows.families.evaluation import SUBSPACE_EVALUATION

RELATIONS = ("add_remove", "zero_out", "replace_one")
SEEDS = 100
RNG = np.random.default_rng(11)


def clipped(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)


ROWS = clipped(RNG.standard_normal((2_000, 6)) * np.array([0.5, 0.3, 0.2, 0.1, 0.1, 0.1]))
COMPONENTS = np.eye(6)[:2]
MEAN = np.array([0.1, 0.0, 0.05, 0.0, 0.0, 0.0])
PURE, GAUSSIAN = PrivacyTarget(epsilon=0.3, delta=0.0), PrivacyTarget(epsilon=0.3, delta=1e-6)


def terms(relation="add_remove", *, n_components=2, centred=False):
    return SubspaceTerms(
        n_features=6,
        clip_norm=1.0,
        n_components=n_components,
        centred=centred,
        relation=relation,
        records_at_most=5_000,
    )


def estimate(mechanism, problem, target, *, seed):
    plan = mechanism.plan(problem, target)
    key = subkey(bytes(32), label="test", info=seed.to_bytes(4, "little")).secret
    reservation = InMemoryReservation(event=plan.event, relation=problem.relation, key=key)
    return mechanism.run(Curator(ArrayBlocks(ROWS), reservation), plan)


@pytest.mark.parametrize("mean", [None, MEAN], ids=["origin", "mean"])
@pytest.mark.parametrize("target", [PURE, GAUSSIAN], ids=["laplace", "gaussian"])
def test_estimates_have_the_stated_standard_deviation(target, mean):
    mechanism, problem = CapturedShare(components=COMPONENTS, mean=mean), terms(centred=mean is not None)
    around = ROWS if mean is None else clipped(ROWS - mean)
    first, others = (around[:, :2] ** 2).sum(axis=0)
    total = (around**2).sum()
    truth = {"share": (first + others) / total, "share_beyond_first": others / (total - first)}
    truth |= {"reconstruction_error": total - first - others, "total_variance": total}
    found = [estimate(mechanism, problem, target, seed=seed).outcome for seed in range(SEEDS)]
    for name, value in truth.items():
        off = np.array([(each[name] - value) / each[f"{name}_std"] for each in found])
        assert abs(off.mean()) < 0.4, name
        assert 0.7 < off.std() < 1.4, name
        assert np.mean(np.abs(off) < 2.0) >= 0.88, name


def test_the_same_key_gives_the_same_estimate_and_a_stored_answer_is_read_back():
    mechanism, problem = CapturedShare(components=COMPONENTS), terms()
    one, two = (estimate(mechanism, problem, GAUSSIAN, seed=5) for _ in range(2))
    assert np.array_equal(one.sums, two.sums)
    plan = mechanism.plan(problem, GAUSSIAN)
    reservation = InMemoryReservation(event=plan.event)
    first = mechanism.run(Curator(ArrayBlocks(ROWS), reservation), plan)
    again = mechanism.run(Curator(ArrayBlocks(ROWS), reservation), plan)
    assert np.array_equal(first.sums, again.sums)
    assert len(reservation.steps) == 1


def attacked(relation, *, trials, subject=SUBSPACE_EVALUATION.audit):
    return audit_mechanism(subject.build("captured_share"), relation=relation, subject=subject, trials=trials)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_sixteenth_of_the_trials_finds_no_epsilon_above_the_claim(relation):
    assert attacked(relation, trials=125).passed


@pytest.mark.audit_only
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_attack_finds_an_epsilon_near_the_claim_but_not_above_it(relation):
    finding = attacked(relation, trials=2000)
    assert finding.passed
    assert finding.bound >= 0.45


@pytest.mark.parametrize("relation", RELATIONS)
def test_noise_follows_the_relation_and_the_mean(relation):
    for mean in (None, MEAN):
        mechanism = CapturedShare(components=COMPONENTS, mean=mean)
        problem = terms(relation, centred=mean is not None)
        stds = {target: mechanism.noise_std(mechanism.plan(problem, target)) for target in (PURE, GAUSSIAN)}
        replaced = relation == "replace_one" or (mean is not None and relation == "zero_out")
        assert stds[PURE] == pytest.approx((2.0 if replaced else 1.0) * math.sqrt(2.0) / 0.3)
        multiplier = mechanism.plan(problem, GAUSSIAN).noise_multiplier
        assert stds[GAUSSIAN] == pytest.approx((math.sqrt(2.0) if replaced else 1.0) * multiplier)


def test_fractions_hidden_by_noise_are_not_stated_and_others_are_within_bounds():
    hidden = estimated_share(np.array([1.0, 1.0, 1.0]), std=10.0, n_components=2)
    assert hidden["share"] is hidden["share_std"] is hidden["share_beyond_first"] is None
    assert hidden["reconstruction_error"] == 1.0
    assert estimated_share(np.array([50.0, 1.0, -3.0]), std=1.0, n_components=2)["share"] == 1.0


def test_a_single_component_has_no_variance_beyond_the_first():
    found = estimate(CapturedShare(components=COMPONENTS[:1]), terms(n_components=1), GAUSSIAN, seed=1).outcome
    assert found["share_beyond_first"] is None
    assert found["share"] == pytest.approx((ROWS[:, 0] ** 2).sum() / (ROWS**2).sum(), abs=5 * found["share_std"])


def test_an_impossible_guarantee_is_refused():
    mechanism = CapturedShare(components=COMPONENTS)
    with pytest.raises(InvalidInput, match="epsilon=0"):
        mechanism.plan(terms(), PrivacyTarget(epsilon=0.0, delta=1e-6))
    with pytest.raises(Refused, match="smaller delta"):
        mechanism.plan(terms(), PrivacyTarget(epsilon=1.0, delta=1e-2))


SUBSPACE_DIAGNOSTICS_RNG = np.random.default_rng(5)
SUBSPACE_DIAGNOSTICS_ROWS = (SUBSPACE_DIAGNOSTICS_RNG.standard_normal((400, 7)) * np.arange(7, 0, -1) + 1.0) * 0.05
SUBSPACE_DIAGNOSTICS_ROWS /= np.maximum(np.linalg.norm(SUBSPACE_DIAGNOSTICS_ROWS, axis=1, keepdims=True), 1.0)
SUBSPACE_DIAGNOSTICS_COMPONENTS = np.linalg.qr(
    np.eye(7)[:, :3] + 0.2 * SUBSPACE_DIAGNOSTICS_RNG.standard_normal((7, 3))
)[0].T


def diagnosed(*, center="none", mean=None, components=SUBSPACE_DIAGNOSTICS_COMPONENTS):
    reservation = InMemoryReservation(event=events.non_private())
    curator = DisclosingCurator(ArrayBlocks(SUBSPACE_DIAGNOSTICS_ROWS), reservation, i_know_this_is_not_private=True)
    return diagnose(curator, Problem(n_features=7, clip_norm=1.0, center=center), components, mean=mean)


@pytest.mark.parametrize("centred", [False, True], ids=["origin", "mean"])
def test_every_diagnostic_equals_dense_arithmetic(centred):
    released = SUBSPACE_DIAGNOSTICS_ROWS.mean(axis=0) + 0.02
    found = diagnosed(center="private" if centred else "none", mean=released if centred else None)
    rows = SUBSPACE_DIAGNOSTICS_ROWS - SUBSPACE_DIAGNOSTICS_ROWS.mean(axis=0) if centred else SUBSPACE_DIAGNOSTICS_ROWS
    singular, right = np.linalg.svd(rows, full_matrices=False)[1:]
    values, best = singular**2, right[:3]
    off = rows - np.outer(rows @ best[0], best[0])
    beyond = np.linalg.svd(off @ SUBSPACE_DIAGNOSTICS_COMPONENTS.T, compute_uv=False)[:2] ** 2
    scores = rows @ SUBSPACE_DIAGNOSTICS_COMPONENTS.T
    held, total, along = (scores**2).sum(), (rows**2).sum(), (scores[:, 0] ** 2).sum()
    cosines = np.linalg.svd(SUBSPACE_DIAGNOSTICS_COMPONENTS @ best.T, compute_uv=False)
    away = SUBSPACE_DIAGNOSTICS_ROWS - released if centred else SUBSPACE_DIAGNOSTICS_ROWS
    expected = {
        "captured_variance": held / values[:3].sum(),
        "captured_beyond_first": beyond.sum() / values[1:3].sum(),
        "share": held / total,
        "share_beyond_first": (held - along) / (total - along),
        "principal_angles": np.degrees(np.arccos(cosines)),
        "subspace_distance": np.sqrt(3 - (cosines**2).sum()),
        "reconstruction_error": (
            (away - away @ SUBSPACE_DIAGNOSTICS_COMPONENTS.T @ SUBSPACE_DIAGNOSTICS_COMPONENTS) ** 2
        ).sum(),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, err_msg=name)


def test_the_best_directions_are_at_angle_zero_and_one_has_nothing_beyond():
    best = np.linalg.svd(SUBSPACE_DIAGNOSTICS_ROWS, full_matrices=False)[2][:1]
    found = diagnosed(components=best)
    assert found["captured_variance"] == pytest.approx(1.0, abs=1e-6)
    assert found["principal_angles"] == pytest.approx([0.0], abs=0.1)
    assert found["captured_beyond_first"] is found["share_beyond_first"] is None


PREDICTION_ERROR_SEEDS = 60
PREDICTION_ERROR_RNG = np.random.default_rng(4)
PREDICTION_ERROR_ROWS = sparse.csr_array(
    PREDICTION_ERROR_RNG.integers(1, 6, (1_500, 8)) * (PREDICTION_ERROR_RNG.random((1_500, 8)) < 0.7).astype(float)
)
STEP = {"centre": 3.0, "prior": 2.0, "ridge": 1.0, "rating_bound": 4.0}
MECHANISM = PredictionError(offsets=np.zeros(8), factors=PREDICTION_ERROR_RNG.standard_normal((8, 2)), user_step=STEP)
TARGET = PrivacyTarget(epsilon=0.5, delta=1e-6)
SOURCE = ArrayBlocks(PREDICTION_ERROR_ROWS)


def terms_of_prediction_error(relation="add_remove"):
    return PredictionTerms(n_features=8, low=1.0, high=5.0, count=3, relation=relation, records_at_most=5_000)


def exact():
    reservation = InMemoryReservation(event=events.non_private())
    curator = DisclosingCurator(SOURCE, reservation, i_know_this_is_not_private=True)
    return MECHANISM.diagnose(curator, terms_of_prediction_error())


def test_estimates_differ_from_the_diagnostics_by_the_stated_standard_deviation():
    truth, plan, found = exact(), MECHANISM.plan(terms_of_prediction_error(), TARGET), []
    for seed in range(PREDICTION_ERROR_SEEDS):
        key = subkey(bytes(32), label="test", info=seed.to_bytes(4, "little")).secret
        found.append(MECHANISM.run(Curator(SOURCE, InMemoryReservation(event=plan.event, key=key)), plan).outcome)
    assert truth.keys() == {"rmse", "recall", "ndcg", "users"}
    for name, value in truth.items():
        off = np.array([(each[name] - value) / each[f"{name}_std"] for each in found])
        assert abs(off.mean()) < 0.5, name
        assert 0.65 < off.std() < 1.45, name


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_attack_finds_no_epsilon_above_the_claim(relation):
    subject = COMPLETION_EVALUATION.audit
    mechanism = subject.build("prediction_error")
    assert audit_mechanism(mechanism, relation=relation, subject=subject, trials=125).passed


@pytest.mark.audit_only
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_attack_on_prediction_errors_finds_an_epsilon_near_the_claim_but_not_above_it(relation):
    subject = COMPLETION_EVALUATION.audit
    mechanism = subject.build("prediction_error")
    finding = audit_mechanism(mechanism, relation=relation, subject=subject, trials=2000)
    assert finding.passed
    assert finding.bound >= 0.3


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_noise_covers_two_units_in_every_relation(relation):
    plan = MECHANISM.plan(terms_of_prediction_error(relation), TARGET)
    assert MECHANISM.noise_std(plan) == pytest.approx(2.0 * plan.noise_multiplier)


def test_estimates_hidden_by_noise_are_not_stated():
    found = estimated_scores(np.array([1.0, 2.0, 2.0, 5.0]), std=10.0, width=4.0)
    assert found["rmse"] is found["recall"] is found["ndcg"] is None
    assert estimated_scores(np.array([-1.0, 2.0, 2.0, 50.0]), std=1.0, width=4.0)["rmse_std"] is None


def test_an_impossible_guarantee_for_prediction_errors_is_refused():
    with pytest.raises(InvalidInput, match="epsilon"):
        MECHANISM.plan(terms_of_prediction_error(), PrivacyTarget(epsilon=0.0, delta=1e-6))
    with pytest.raises(InvalidInput, match="delta"):
        MECHANISM.plan(terms_of_prediction_error(), PrivacyTarget(epsilon=1.0, delta=0.0))
