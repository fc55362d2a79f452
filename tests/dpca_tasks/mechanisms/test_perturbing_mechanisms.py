"""Smooth sensitivity and propose-test-release: results, refusals, outcomes, and planted bugs."""

import json
import math

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.audit.neighbours import Neighbours
from dpca_tasks.audit.trials import TARGET
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.prior_releases import QuantileClip
from dpca_tasks.mechanisms.subspace.propose_test_release import ProposeTestRelease
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity
from dpca_tasks.privacy import eigensolver, noised_directions
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.noised_directions import ProposedGap, SmoothNoise
from dpca_tasks.records.sources import ArrayBlocks
from tests.mechanism_table import RELATIONS

D, K = 7, 2
COUNTS = (9000, 6000, 500, 400, 300, 200, 100)
CLEAR = np.repeat(np.eye(D), COUNTS, axis=0)
FLAT = np.repeat(np.eye(D), [3] * D, axis=0)
CLAIM = PrivacyTarget(epsilon=2.0, delta=1e-6)
EVERY = [
    SmoothSensitivity(n_components=K),
    SmoothSensitivity(n_components=K, noise="spherical_t"),
    SmoothSensitivity(n_components=K, noise="cauchy"),
    ProposeTestRelease(n_components=K),
]


def run(mechanism, rows, *, key=bytes(32), claim=CLAIM, **facts):
    plan = mechanism.plan(Problem(n_features=D, clip_norm=1.0, **facts), claim)
    reservation = InMemoryReservation(event=json.loads(json.dumps(plan.event)), relation=plan.problem.relation, key=key)
    return mechanism.run(Curator(ArrayBlocks(rows), reservation), plan)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("mechanism", EVERY, ids=repr)
def test_a_clear_plane_is_found_and_a_flat_spectrum_is_noise(mechanism, relation):
    found = run(mechanism, CLEAR, relation=relation).components
    assert np.linalg.norm(found[:, :K]) ** 2 > 1.98
    noise = [run(mechanism, FLAT, relation=relation, key=bytes([i] * 32)).components for i in range(20)]
    assert np.mean([np.linalg.norm(one[:, :K]) ** 2 for one in noise]) < 1.2


@pytest.mark.parametrize("noise", ["spherical_t", "cauchy"])
def test_pure_noise_costs_no_delta(noise):
    mechanism = SmoothSensitivity(n_components=K, noise=noise)
    for delta in (0.0, 1e-6):
        plan = mechanism.plan(Problem(n_features=D, clip_norm=1.0), PrivacyTarget(epsilon=2.0, delta=delta))
        assert plan.event == events.approximate(2.0, 0.0)
        assert plan.noise_multiplier == pytest.approx(2 * math.sqrt(D * K) / 2.0)


def test_the_noise_of_the_paper_is_offered_below_one_with_its_real_epsilon():
    mechanism = SmoothSensitivity(n_components=K, calibration="paper")
    problem = Problem(n_features=D, clip_norm=1.0)
    plan = mechanism.plan(problem, PrivacyTarget(epsilon=0.5, delta=1e-6))
    tight = SmoothSensitivity(n_components=K).plan(problem, PrivacyTarget(epsilon=0.5, delta=1e-6))
    assert plan.real_epsilon is not None
    assert plan.real_epsilon < 0.25
    assert plan.noise_multiplier > 2 * tight.noise_multiplier
    assert tight.real_epsilon is None
    with pytest.raises(Refused, match="below 1"):
        mechanism.plan(problem, CLAIM)
    with pytest.raises(InvalidInput, match="one calibration"):
        SmoothSensitivity(n_components=K, noise="spherical_t", calibration="paper").plan(problem, CLAIM)


@pytest.mark.parametrize("mechanism", [EVERY[0], EVERY[3]], ids=lambda mechanism: mechanism.name)
class TestRefusals:
    def test_a_solver_that_may_not_converge_is_refused_unless_insisted_on(self, mechanism, monkeypatch):
        wide = Problem(n_features=eigensolver.COMPLETE_UP_TO + 1, clip_norm=1.0)
        with pytest.raises(Refused, match="allow_uncertified"):
            mechanism.plan(wide, CLAIM)
        insisted = type(mechanism)(n_components=K, allow_uncertified=True)
        plan = insisted.plan(wide, CLAIM)
        assert not plan.certified
        assert any("converges" in warning for warning in plan.warnings)
        monkeypatch.setattr(eigensolver, "COMPLETE_UP_TO", 0)
        assert not insisted.plan(Problem(n_features=900, clip_norm=1.0), CLAIM).certified
        assert mechanism.plan(Problem(n_features=200, clip_norm=1.0), CLAIM).certified

    def test_a_plan_says_what_gap_it_needs(self, mechanism):
        assert "eigengap behind component 2" in mechanism.plan(Problem(n_features=D, clip_norm=1.0), CLAIM).warnings[0]


def test_a_quantile_clip_takes_its_part_first():
    mechanism = QuantileClip(mechanism=ProposeTestRelease(n_components=K), quantile=0.9)
    found = run(mechanism, 3.0 * CLEAR)
    assert found.clip_norm == pytest.approx(3.0, rel=0.3)
    assert found.outcome["failed"] is False
    assert np.linalg.norm(found.components[:, :K]) ** 2 > 1.98


def test_the_outcome_of_a_test_is_public_and_consistent():
    passed, failed = (run(EVERY[3], rows).outcome for rows in (CLEAR, FLAT))
    assert set(passed) == {"failed", "eigengap_bound", "noise_std"}
    assert passed["failed"] is False
    assert 5300 < passed["eigengap_bound"] < 5500
    assert 0 < passed["noise_std"] < 1e-3
    assert failed["failed"] is True
    assert set(failed) == {"failed", "eigengap_bound"}
    assert run(EVERY[0], CLEAR).outcome is None


@pytest.mark.audit
@pytest.mark.parametrize("noise", ["spherical_t", pytest.param("cauchy", marks=pytest.mark.audit_only)])
def test_pure_claims_stand(attack, noise):
    finding = attack(SmoothSensitivity(n_components=1, noise=noise), relation="add_remove", trials=300)
    assert finding.passed
    assert finding.delta == 0.0


@pytest.mark.audit
@pytest.mark.parametrize(
    ("mechanism", "law", "method", "factor"),
    [
        (SmoothSensitivity(n_components=1), SmoothNoise, "scale", 6),
        (SmoothSensitivity(n_components=1, noise="spherical_t"), SmoothNoise, "scale", 16),
        (ProposeTestRelease(n_components=1), ProposedGap, "noise_std", 6),
    ],
    ids=["smooth", "pure", "tested"],
)
def test_noise_that_is_too_small_is_found(attack, monkeypatch, mechanism, law, method, factor):
    real = getattr(law, method)
    monkeypatch.setattr(law, method, lambda self, *given: real(self, *given) / factor)
    finding = attack(mechanism, relation="add_remove", trials=300)
    assert finding.bound > TARGET.epsilon


@pytest.mark.audit
def test_a_gap_that_is_published_with_little_noise_is_found(attack, monkeypatch):
    """On neighbours whose gaps differ by one, and whose directions do not."""
    monkeypatch.setattr(noised_directions, "laplace_noise_multiplier", lambda *, epsilon: 0.1)
    rows = np.repeat(np.eye(2), [201, 20], axis=0)
    pair = Neighbours(name="widened", left=ArrayBlocks(rows), right=ArrayBlocks(rows[1:]))
    finding = attack(ProposeTestRelease(n_components=1), relation="add_remove", pairs=[pair], trials=100)
    assert finding.bound > TARGET.epsilon


def test_a_replaced_record_takes_twice_the_noise():
    """In the squared distance a factor of 4; over keys the mean of thirty is within a fifth of its value."""
    claim = PrivacyTarget(epsilon=1.0, delta=1e-3, allow_large_delta=True)
    spread = {}
    for relation in ("add_remove", "replace_one"):
        found = [run(EVERY[0], CLEAR, key=bytes([i] * 32), relation=relation, claim=claim) for i in range(30)]
        spread[relation] = np.mean([K - np.linalg.norm(one.components[:, :K]) ** 2 for one in found])
    assert 3 < spread["replace_one"] / spread["add_remove"] < 5.5
