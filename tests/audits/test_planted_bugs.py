"""An audit that cannot fail shows nothing: each classic mistake, planted in the real path, must be found.

Every bug below is one patched name on the way from rows to answers; everything around it runs as shipped. The audit
must report a bound above the claim. Keys come from a fixed seed, so what is found once is found always. The number of
trials is chosen so that at least 99 of 100 seeds would find it; `test_mechanisms` runs the same audit without bugs.

The smallest mistakes, a forgotten ``sqrt 2`` in either place, make the true epsilon 1.84 at a claim of 1.
"""

import dataclasses
import hashlib
import math
from dataclasses import dataclass

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.audit.neighbours import worst_neighbours
from dpca_tasks.audit.subspace import audited_problem
from dpca_tasks.audit.trials import TARGET
from dpca_tasks.kernels import gridding
from dpca_tasks.mechanisms.base import Plan, Subspace
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.subspace.dp_spca import DpSpca
from dpca_tasks.noise import distributions
from dpca_tasks.noise.distributions import Gaussian, Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.noise.symmetric_weights import symmetric_weights
from dpca_tasks.privacy import gate, request
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records import gridding as record_gridding
from dpca_tasks.records import sources
from tests.mechanism_table import RELATIONS, TABLE

SUM, POWER = (TABLE[name].audited for name in ("analyze_gauss", "noisy_power"))

pytestmark = pytest.mark.audit
left_to_audits = pytest.mark.audit_only
"""The same mistakes elsewhere, and those that take thousands of trials."""
each_mechanism = pytest.mark.parametrize(
    "mechanism", [SUM, pytest.param(POWER, marks=left_to_audits)], ids=lambda mechanism: mechanism.name
)


def pair(relation, name):
    return [pair for pair in worst_neighbours(relation, n_features=2, clip_norm=1.0) if pair.name == name]


def assert_found(finding):
    assert not finding.passed
    assert finding.bound > TARGET.epsilon


@each_mechanism
def test_halved_noise(attack, monkeypatch, mechanism):
    draw = Gaussian.draw

    def half(self, key, order, *, scale_in_steps, **piece):
        return draw(self, key, order, scale_in_steps=scale_in_steps / 2, **piece)

    monkeypatch.setattr(Gaussian, "draw", half)
    assert_found(attack(mechanism, relation="add_remove", trials=700))


@left_to_audits
def test_halved_noise_in_a_fused_run(attack, monkeypatch):
    draw = Gaussian.draw

    def half(self, key, order, *, scale_in_steps, **piece):
        return draw(self, key, order, scale_in_steps=scale_in_steps / 2, **piece)

    monkeypatch.setattr(Gaussian, "draw", half)
    fused = DpSpca(n_components=1, form="one_row", integrated_time=2.0)
    pairs = pair("add_remove", "along axes")
    alone = dataclasses.replace(audited_problem("add_remove"), records_at_most=1)
    assert_found(attack(fused, relation="add_remove", pairs=pairs, problem=alone, trials=1000))


@pytest.mark.parametrize(
    "relation", [RELATIONS[0], *(pytest.param(other, marks=left_to_audits) for other in RELATIONS[1:])]
)
@each_mechanism
def test_no_clip(attack, monkeypatch, mechanism, relation):
    def unclipped(values, row_ptr, record_ptr, clip_norm, bound):
        return np.rint(values / clip_norm * np.sqrt(bound)).astype(np.int32)

    monkeypatch.setattr(gridding, "grid_records", unclipped)
    assert_found(attack(mechanism, relation=relation, trials=300))


def test_the_clip_norm_is_not_divided_out(attack, monkeypatch):
    """Records on the unit grid, noise for them, and an answer in data units: only the clip itself forgets C."""
    real = gridding.grid_records

    def forgets(values, row_ptr, record_ptr, clip_norm, bound):
        return real(values, row_ptr, record_ptr, 2 * clip_norm, bound) * 2

    monkeypatch.setattr(gridding, "grid_records", forgets)
    assert_found(attack(SUM, relation="add_remove", trials=300))


def test_a_record_is_clipped_row_by_row(attack, monkeypatch):
    real = gridding.grid_records

    def by_row(values, row_ptr, record_ptr, clip_norm, bound):
        return real(values, row_ptr, np.arange(row_ptr.size), clip_norm, bound)

    monkeypatch.setattr(gridding, "grid_records", by_row)
    assert_found(attack(SUM, relation="add_remove", trials=700))


@each_mechanism
def test_duplicate_columns_are_not_merged(attack, monkeypatch, mechanism):
    for module in (record_gridding, sources):
        monkeypatch.setattr(module, "canonical", lambda block, *, n_features: block)
    assert_found(attack(mechanism, relation="add_remove", trials=700))


@left_to_audits
def test_the_factor_of_replaced_records_is_dropped(attack, monkeypatch):
    monkeypatch.setattr(SecondMoment, "sensitivity", lambda self, norm: 1.0)
    pairs = pair("replace_one", "along axes")
    assert_found(attack(SUM, relation="replace_one", pairs=pairs, trials=4000))


@left_to_audits
def test_off_diagonal_noise_is_averaged_away(attack, monkeypatch):
    """Both halves of the symmetric matrix with noise of their own: whoever averages them has sqrt 2 less."""

    def averaged(order, *, start, stop):
        weights = symmetric_weights(order, start=start, stop=stop)
        return np.where(weights < 1, weights / math.sqrt(2), weights)

    monkeypatch.setattr(distributions, "symmetric_weights", averaged)
    pairs = pair("replace_one", "between axes")
    assert_found(attack(SUM, relation="replace_one", pairs=pairs, trials=4000))


def test_the_steps_of_a_release_share_their_noise(attack, monkeypatch):
    """The digest leaves out step and directions: the difference of two answers is exact."""

    def digest(content, *_, **__):
        return hashlib.sha256(content.encode()).digest()

    monkeypatch.setattr(request, "hash_request", digest)
    finding = attack(POWER, relation="add_remove", trials=100)
    assert_found(finding)
    assert "reuse" in finding.attack


def test_the_key_is_no_secret(attack, monkeypatch):
    """Every release has the same key: who knows it can subtract the noise."""
    monkeypatch.setattr(gate, "subkey", lambda key, *, label, info: subkey(bytes(32), label=label, info=info))
    assert_found(attack(SUM, relation="zero_out", trials=100))


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLevels:
    """One question at two noise levels, which together cost the target."""

    n_components: int = 1
    name = "two_levels"

    def plan(self, problem, target):
        multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=multiplier,
            bits=12,
            event=events.composed(*(law.event for law in self.laws(multiplier))),
        )

    def run(self, curator, plan):
        problem = plan.problem
        query = SecondMoment(
            n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=plan.bits
        )
        _, noisy = [curator.release(query, law) for law in self.laws(plan.noise_multiplier)]
        values, rows = leading_eigenpairs(noisy, problem.n_features)
        return Subspace(components=rows[:1], eigenvalues=values[:1], spectrum=values)

    @staticmethod
    def laws(multiplier):
        return [Symmetric(noise_multiplier=multiplier * math.sqrt(share)) for share in (3.0, 1.5)]


@pytest.mark.parametrize("planted", [False, True])
def test_two_noise_levels_share_their_noise(attack, monkeypatch, planted):
    """The digest leaves out step and noise level: ``(z2 y1 - z1 y2) / (z2 - z1)`` is exact."""

    def digest(content, step, query, *_, **__):
        return hashlib.sha256(content.encode() + query.digest()).digest()

    if planted:
        monkeypatch.setattr(request, "hash_request", digest)
    finding = attack(TwoLevels(), relation="add_remove", trials=300)
    assert finding.passed is not planted
    assert ("reuse" in finding.attack) is planted
