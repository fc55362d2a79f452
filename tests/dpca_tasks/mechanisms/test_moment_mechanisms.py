"""Mechanisms on one noised second moment: what they charge, refuse, center and keep."""

import json
import math

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_epsilon
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.released_moment import KEPT
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.laplace import LaplaceMoment
from dpca_tasks.mechanisms.subspace.mod_sulq import ModSulq
from dpca_tasks.mechanisms.subspace.noisy_power import NoisyPower
from dpca_tasks.mechanisms.subspace.wishart import Wishart
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks, NormalisedBlocks

D = 6
TARGET = PrivacyTarget(epsilon=0.5, delta=1e-6)
PURE = PrivacyTarget(epsilon=0.5, delta=0.0)
LARGE = PrivacyTarget(epsilon=0.1, delta=1e-3, allow_large_delta=True)


def rows(n=4000, shift=0.0):
    """Rows of norm below 1, spread along the first axis, around a mean along the second."""
    rng = np.random.default_rng(7)
    made = rng.standard_normal((n, D)) * np.array([0.3, 0.02, 0.1, 0.02, 0.02, 0.02])
    made[:, 1] += shift
    return made


def run(mechanism, problem, target, source, key=bytes(32)):
    plan = mechanism.plan(problem, target)
    reserved = json.loads(json.dumps(plan.event))
    return mechanism.run(Curator(source, InMemoryReservation(event=reserved, relation=problem.relation, key=key)), plan)


def problem(**changes):
    return Problem(**{"n_features": D, "clip_norm": 1.0, **changes})


@pytest.mark.parametrize("mechanism", [LaplaceMoment(n_components=2), Wishart(n_components=2)])
def test_a_pure_mechanism_takes_delta_zero_and_charges_its_epsilon(mechanism):
    event = mechanism.plan(problem(), PURE).event
    charged = 1 / event["noise_multiplier"] if event["name"] == "laplace" else event["epsilon"]
    assert charged == pytest.approx(0.5, rel=1e-15)
    assert charged <= 0.5
    assert event.get("delta", 0.0) == 0.0


def test_a_mechanism_that_needs_a_delta_refuses_zero():
    with pytest.raises(InvalidInput, match="delta"):
        AnalyzeGauss(n_components=2).plan(problem(), PURE)


def test_the_published_wishart_is_refused_with_its_delta():
    with pytest.raises(Refused, match=r"0\.0328"):
        Wishart(n_components=2, calibration="paper").plan(problem(), PrivacyTarget(epsilon=0.1, delta=1e-6))


def test_the_published_power_method_is_refused():
    with pytest.raises(Refused, match="entry"):
        NoisyPower(n_components=2, calibration="paper").plan(problem(), TARGET)


def test_analyze_gauss_as_published_is_charged_as_the_gaussian_which_it_is():
    plan = AnalyzeGauss(n_components=2, calibration="paper").plan(problem(), LARGE)
    assert plan.noise_multiplier == pytest.approx(37.765, abs=5e-4)
    assert plan.event == events.gaussian(plan.noise_multiplier)
    real = gaussian_epsilon(noise_multiplier=plan.noise_multiplier, delta=1e-3)
    assert plan.real_epsilon is not None
    assert plan.real_epsilon == pytest.approx(real, rel=1e-12)
    assert plan.real_epsilon < 0.05


@pytest.mark.parametrize(
    ("relation", "epsilon", "named"), [("add_remove", 1.0, "epsilon < 1"), ("replace_one", 0.5, "replace_one")]
)
def test_analyze_gauss_as_published_is_refused_outside_its_theorem(relation, epsilon, named):
    mechanism = AnalyzeGauss(n_components=2, calibration="paper")
    with pytest.raises(Refused, match=named):
        mechanism.plan(problem(relation=relation), PrivacyTarget(epsilon=epsilon, delta=1e-6))


def test_mod_sulq_as_published_has_the_std_of_the_sheet():
    asked = problem(n_features=123, relation="replace_one")
    plan = ModSulq(n_components=2, calibration="paper").plan(asked, LARGE)
    assert plan.noise_multiplier * math.sqrt(2) == pytest.approx(6779, abs=1)
    assert plan.real_epsilon is not None
    assert plan.real_epsilon < 1e-3
    with pytest.raises(Refused, match="replace_one"):
        ModSulq(n_components=2, calibration="paper").plan(problem(), LARGE)


MOMENT = [
    AnalyzeGauss(n_components=1),
    AnalyzeGauss(n_components=1, calibration="paper"),
    LaplaceMoment(n_components=1),
    ModSulq(n_components=1),
    Wishart(n_components=1),
]
ALL = [*MOMENT, NoisyPower(n_components=1), NoisyPower(n_components=1, averaging="last")]


@pytest.mark.parametrize("mechanism", ALL, ids=repr)
def test_the_leading_direction_is_found(mechanism):
    """A gap of 320 against noise below 40: a miss would be 5 std for the worst of these."""
    found = run(mechanism, problem(), TARGET, ArrayBlocks(rows()))
    assert abs(found.components[0, 0]) > 0.9


@pytest.mark.parametrize(
    "mechanism", [AnalyzeGauss(n_components=1), Wishart(n_components=1), NoisyPower(n_components=1)]
)
def test_a_private_centre_takes_the_mean_out(mechanism):
    """Uncentred, the mean of 0.6 along the second axis leads; centred, the spread along the first does."""
    source = ArrayBlocks(rows(20_000, shift=0.6))
    plain = run(mechanism, problem(), TARGET, source)
    centred = run(mechanism, problem(center="private"), TARGET, source)
    assert abs(plain.components[0, 1]) > 0.9
    assert plain.mean is None
    assert abs(centred.components[0, 0]) > 0.9
    np.testing.assert_allclose(centred.mean, [0, 0.6, 0, 0, 0, 0], atol=0.02)


def test_explained_variance_has_a_released_total_and_further_directions_complete_the_basis():
    found = run(AnalyzeGauss(n_components=2), problem(), TARGET, ArrayBlocks(rows()))
    assert found.spectrum.sum() == pytest.approx(found.total_variance, rel=1e-9)
    whole = np.vstack([found.components, found.further])
    np.testing.assert_allclose(whole @ whole.T, np.eye(min(D, KEPT)), atol=1e-12)


def test_a_smaller_k_of_the_same_key_is_the_head_of_a_larger():
    source = ArrayBlocks(rows())
    three, one = (run(AnalyzeGauss(n_components=k), problem(), TARGET, source) for k in (3, 1))
    np.testing.assert_array_equal(one.components, three.components[:1])
    np.testing.assert_array_equal(np.vstack([one.components, one.further])[:3], three.components)


def test_normalised_rows_all_count_alike():
    """A few huge records along the first axis against many small ones along the second."""
    made = np.zeros((3000, D))
    made[:100, 0] = 1.0
    made[100:, 1] = 1e-3
    mechanism = AnalyzeGauss(n_components=1)
    clipped = run(mechanism, problem(), TARGET, ArrayBlocks(made))
    alike = run(mechanism, problem(), TARGET, NormalisedBlocks(ArrayBlocks(made), length=1.0))
    assert abs(clipped.components[0, 0]) > 0.9
    assert abs(alike.components[0, 1]) > 0.9
