"""Two forms of one release: what the operator finds is what the formed matrix holds."""

import dataclasses

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace.analyze_gauss import WIDE, AnalyzeGauss
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from flows.families.base import build_mechanism
from flows.families.subspace import SUBSPACE

D, K = 300, 6
TARGET = PrivacyTarget(epsilon=4.0, delta=1e-6)
ROWS = np.random.default_rng(5).standard_normal((1200, D)) / np.arange(1, D + 1) + 0.1 * (np.arange(D) < 40)


def problem(**changes):
    return Problem(**{"n_features": D, "clip_norm": 1.0, **changes})


def run(mechanism, asked=None, *, client=None, reservation=None, block_records=700):
    asked = asked or problem()
    plan = mechanism.plan(asked, TARGET)
    reservation = reservation or InMemoryReservation(
        event=plan.event, relation=plan.problem.relation, key=bytes(range(32))
    )
    return mechanism.run(Curator(ArrayBlocks(ROWS, block_records=block_records), reservation, client=client), plan)


@pytest.mark.parametrize("center", ["none", "private"])
@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_both_forms_find_the_same(center, calibration):
    target = PrivacyTarget(epsilon=0.9, delta=1e-6)
    dense, operator = (
        AnalyzeGauss(n_components=K, calibration=calibration, form=form) for form in ("dense", "operator")
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
def test_a_run_that_died_gives_the_same_bits_when_resumed(passes):
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


def test_wide_problems_are_not_formed_unless_asked_for():
    asked = []

    class Stop(Exception):
        pass

    class Watched(Curator):
        def release(self, *_):
            asked.append("dense")
            raise Stop

        def release_operator(self, *_):
            asked.append("operator")
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
    assert asked == ["dense", "dense", "operator", "operator", "dense", "operator"]


def build(**settings):
    return build_mechanism(SUBSPACE, "analyze_gauss", settings, n_components=3)


def test_the_form_is_a_setting_of_the_command():
    assert build(form="operator") == AnalyzeGauss(n_components=3, form="operator")
    with pytest.raises(InvalidInput, match="form"):
        build(form="sparse")
