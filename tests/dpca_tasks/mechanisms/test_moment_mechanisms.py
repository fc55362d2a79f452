"""Mechanisms that noise one second moment, whole releases, and mechanisms with data-dependent sensitivity.

Mechanisms on one moment are tested for charges, refusals, centering and stored answers. Whole releases, from rows to
published facts, are tested for edge cases, reproducible bits, and invariance to the order and signs of columns. Smooth
sensitivity and propose-test-release are tested for results, refusals, outcomes, and planted bugs.
"""

import json
import math

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_epsilon
from dpca_tasks.audit.attacks import Neighbours
from dpca_tasks.audit.trials import TARGET as PERTURBING_MECHANISMS_TARGET
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.prior_releases import QuantileClip
from dpca_tasks.mechanisms.released_moment import KEPT, Moment, decompose
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.laplace import LaplaceMoment
from dpca_tasks.mechanisms.subspace.mod_sulq import ModSulq
from dpca_tasks.mechanisms.subspace.noisy_power import NoisyPower
from dpca_tasks.mechanisms.subspace.propose_test_release import ProposeTestRelease
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity
from dpca_tasks.mechanisms.subspace.wishart import Wishart
from dpca_tasks.privacy import eigensolver, noised_directions
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.noised_directions import ProposedGap, SmoothNoise
from dpca_tasks.records.blocks import ArrayBlocks, NormalisedBlocks
from dpca_tasks.refinement.refined_release import refine_release
from flows.families.restated_subspace import state_subspace
from tests.mechanism_table import RELATIONS

D = 6
TARGET = PrivacyTarget(epsilon=0.5, delta=1e-6)
PURE = PrivacyTarget(epsilon=0.5, delta=0.0)
LARGE = PrivacyTarget(epsilon=0.1, delta=1e-3, allow_large_delta=True)


def rows(n=4000, shift=0.0):
    """Return rows of norm below 1 that vary most along the first axis, around a mean along the second axis."""
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


def test_analyze_gauss_as_published_is_charged_as_its_true_gaussian():
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


def test_mod_sulq_as_published_has_the_published_std():
    requested = problem(n_features=123, relation="replace_one")
    plan = ModSulq(n_components=2, calibration="paper").plan(requested, LARGE)
    assert plan.noise_multiplier * math.sqrt(2) == pytest.approx(6779, abs=1)
    assert plan.real_epsilon is not None
    assert plan.real_epsilon < 1e-3
    with pytest.raises(Refused, match="replace_one"):
        ModSulq(n_components=2, calibration="paper").plan(problem(), LARGE)


MOMENT = [
    AnalyzeGauss(n_components=1, rounds=1),
    AnalyzeGauss(n_components=1, calibration="paper"),
    LaplaceMoment(n_components=1),
    ModSulq(n_components=1),
    Wishart(n_components=1),
]
ALL = [*MOMENT, NoisyPower(n_components=1), NoisyPower(n_components=1, averaging="last")]


@pytest.mark.parametrize("mechanism", ALL, ids=repr)
def test_the_leading_direction_is_found(mechanism):
    """Release the leading direction of data with an eigengap of 320 under noise below 40.

    For the mechanism with the most noise, a miss would be a deviation of 5 stds.
    """
    found = run(mechanism, problem(), TARGET, ArrayBlocks(rows()))
    assert abs(found.components[0, 0]) > 0.9


@pytest.mark.parametrize(
    "mechanism", [AnalyzeGauss(n_components=1, rounds=1), Wishart(n_components=1), NoisyPower(n_components=1)]
)
def test_a_private_center_removes_the_mean(mechanism):
    """Center rows by a private mean of 0.6 along the second axis.

    Without centering, the mean dominates the component. With centering, the largest variance does, along the first
    axis.
    """
    source = ArrayBlocks(rows(20_000, shift=0.6))
    plain = run(mechanism, problem(), TARGET, source)
    centred = run(mechanism, problem(center="private"), TARGET, source)
    assert abs(plain.components[0, 1]) > 0.9
    assert plain.mean is None
    assert abs(centred.components[0, 0]) > 0.9
    np.testing.assert_allclose(centred.mean, [0, 0.6, 0, 0, 0, 0], atol=0.02)


def test_explained_variance_has_a_released_total_and_further_directions_complete_the_basis():
    found = run(AnalyzeGauss(n_components=2, rounds=1), problem(), TARGET, ArrayBlocks(rows()))
    assert found.spectrum.sum() == pytest.approx(found.total_variance, rel=1e-9)
    whole = np.vstack([found.components, found.further])
    np.testing.assert_allclose(whole @ whole.T, np.eye(min(D, KEPT)), atol=1e-12)


def test_fewer_components_under_the_same_key_are_the_first_of_more():
    source = ArrayBlocks(rows())
    three, one = (run(AnalyzeGauss(n_components=k, rounds=1), problem(), TARGET, source) for k in (3, 1))
    np.testing.assert_array_equal(one.components, three.components[:1])
    np.testing.assert_array_equal(np.vstack([one.components, one.further])[:3], three.components)


def test_normalized_rows_have_equal_weight():
    """Scale rows to equal length: many small rows along the second axis then outweigh few large ones."""
    made = np.zeros((3000, D))
    made[:100, 0] = 1.0
    made[100:, 1] = 1e-3
    mechanism = AnalyzeGauss(n_components=1, rounds=1)
    clipped = run(mechanism, problem(), TARGET, ArrayBlocks(made))
    alike = run(mechanism, problem(), TARGET, NormalisedBlocks(ArrayBlocks(made), length=1.0))
    assert abs(clipped.components[0, 0]) > 0.9
    assert abs(alike.components[0, 1]) > 0.9


FORMED = ("analyze_gauss", "mod_sulq", "wishart", "laplace")
REFINED_RELEASES_PURE = ("wishart", "laplace")
KEY = bytes(range(32))


def release(rows, *, mechanism="analyze_gauss", k=1, epsilon=1.0, center="none", relation="add_remove", **settings):
    """Release components of rows under a fixed key; return the mechanism's result."""
    problem = Problem(
        n_features=rows.shape[1], clip_norm=1.0, center=center, relation=relation, records_at_most=100_000
    )
    chosen = MECHANISMS[mechanism](n_components=k, **settings)
    plan = chosen.plan(
        problem, PrivacyTarget(epsilon=epsilon, delta=0.0 if mechanism in REFINED_RELEASES_PURE else 1e-6)
    )
    reservation = InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=KEY)
    return chosen.run(Curator(ArrayBlocks(rows), reservation), plan)


def published(raw, *, k, method="auto"):
    """Refine a release and compute its published facts, as a fit does."""
    refined = refine_release(raw, n_components=k, method=method)
    return state_subspace(refined, raw=raw, keep_matrix=32.0, warnings=(), manifest={})


def spiky(features, n_rows=4_000):
    """Return rows of norm at most 1 with three strong directions, each within a few features."""
    rng, directions = np.random.default_rng(2), np.zeros((3, features))
    for direction in directions:
        direction[rng.choice(features, min(6, features), replace=False)] = 1.0
    rows = rng.standard_normal((n_rows, 3)) * [1.0, 0.7, 0.5] @ directions
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)


ROWS = {
    "no signal": lambda features: np.zeros((50, features)),
    "one spike": lambda features: np.tile(np.eye(features)[0], (1_000, 1)),
    "ties": lambda features: np.tile(np.eye(features), (50, 1)),
}


@pytest.mark.parametrize("center", ["none", "private"])
@pytest.mark.parametrize(("features", "k"), [(2, 1), (20, 3), (20, 19)])
@pytest.mark.parametrize("mechanism", FORMED)
def test_every_edge_case_of_a_release_publishes_plain_numbers(mechanism, features, k, center):
    for made in ROWS.values():
        for epsilon in (0.01, 1e3):
            raw = release(made(features), mechanism=mechanism, k=k, epsilon=epsilon, center=center)
            for count, method in ((k, "auto"), ("auto", "eb")):
                found = published(raw, k=count, method=method)
                json.dumps(dict(found.manifest), allow_nan=False)
                size = found.n_components
                np.testing.assert_allclose(found.components @ found.components.T, np.eye(size), atol=1e-8)
                shown = found.outcome
                assert np.isfinite(found.eigenvalues).all()
                assert all(shown[name] is None or 0.0 <= shown[name] <= 1.0 for name in ("share", "cv", "cv_low"))
                ratios = shown["explained_variance_ratio"] or ()
                assert math.fsum(ratios) <= 1.0 + 1e-12
                assert all(ratio >= 0.0 for ratio in ratios)


def test_a_release_without_signal_states_no_captured_variance():
    """Release three components of zero rows: the facts state no captured variance.

    Keys are fixed; one in a hundred other keys would show a component above the noise.
    """
    shown = published(release(np.zeros((50, 30)), k=3), k=3).outcome
    assert shown["above_noise"] == 0
    assert shown["cv"] is shown["cv_low"] is None


@pytest.mark.parametrize("mechanism", FORMED)
def test_a_single_feature_has_no_subspace_and_is_refused_before_anything_is_drawn(mechanism):
    with pytest.raises(InvalidInput, match="n_components"):
        release(np.ones((10, 1)), mechanism=mechanism)


@pytest.mark.parametrize("mechanism", ["analyze_gauss", "mod_sulq"])
@pytest.mark.parametrize("center", ["none", "private"])
def test_a_release_is_published_with_the_same_bytes_twice_and_on_one_and_two_threads(mechanism, center):
    rows, found = spiky(160, 2_000), []
    for threads in (1, 2, 2):
        with threadpool_limits(threads):
            found.append(published(release(rows, mechanism=mechanism, k=4, center=center), k=4))
    # releases after a map may be best without refinement
    assert {each.refined_by for each in found} != {"none"} or mechanism == "analyze_gauss"
    for name in ("components", "eigenvalues", "spectrum", "matrix", "answers", "map_directions", "mean"):
        assert len({np.asarray(getattr(each, name)).tobytes() for each in found}) == 1, name
    assert len({json.dumps(dict(each.manifest)) for each in found}) == 1


def test_order_signs_and_unit_of_columns_change_the_columns_and_no_fact():
    """Permute, reflect and scale the columns of a released matrix: components change alike, facts do not."""
    raw, rng, unit = release(spiky(80), k=4, rounds=1), np.random.default_rng(3), 7.3
    assert raw.released is not None
    places, signs = rng.permutation(80), rng.choice([-1.0, 1.0], 80)
    moved = unit * (raw.released * np.outer(signs, signs))[np.ix_(places, places)]
    noise = {**raw.noise, "std": unit * raw.noise["std"], "step": unit * raw.noise["step"]}
    other = decompose(Moment(matrix=moved, released=moved, noise=noise), n_components=4)
    here, there = (published(each, k=4) for each in (raw, other))
    expected = (here.components * signs)[:, places]
    np.testing.assert_allclose(there.components.T @ there.components, expected.T @ expected, atol=1e-8)
    np.testing.assert_allclose(there.eigenvalues, unit * here.eigenvalues, rtol=1e-10)
    in_units = ("captured", "captured_low", "noise_std", "noise_edge")
    for name, fact in here.outcome.items():
        if name in in_units:
            assert there.outcome[name] == pytest.approx(unit * fact), name
        elif name in ("share", "share_low", "cv", "cv_low", "explained_variance_ratio"):
            assert there.outcome[name] == pytest.approx(fact), name
        elif name != "noise":
            assert there.outcome[name] == fact, name
    assert here.refined_by != "none"


def test_the_size_of_the_noise_that_a_release_states_is_that_of_its_matrix():
    """Compare the noise std that a release states with the std of its matrix, for zero rows.

    The std of 5,000 off-diagonal draws has an error of 1 %; five times that is allowed.
    """
    raw = release(np.zeros((50, 101)), k=3, rounds=1)
    assert raw.released is not None
    drawn = raw.released[np.triu_indices(101, 1)]
    assert drawn.std() == pytest.approx(raw.noise["std"], rel=0.05)
    assert np.diag(raw.released).std() == pytest.approx(math.sqrt(2) * raw.noise["std"], rel=0.36)


PERTURBING_MECHANISMS_D, K = 7, 2
COUNTS = (9000, 6000, 500, 400, 300, 200, 100)
CLEAR = np.repeat(np.eye(PERTURBING_MECHANISMS_D), COUNTS, axis=0)
FLAT = np.repeat(np.eye(PERTURBING_MECHANISMS_D), [3] * PERTURBING_MECHANISMS_D, axis=0)
CLAIM = PrivacyTarget(epsilon=2.0, delta=1e-6)
EVERY = [
    SmoothSensitivity(n_components=K),
    SmoothSensitivity(n_components=K, noise="spherical_t"),
    SmoothSensitivity(n_components=K, noise="cauchy"),
    ProposeTestRelease(n_components=K),
]


def run_of_perturbing_mechanisms(mechanism, rows, *, key=bytes(32), claim=CLAIM, **facts):
    plan = mechanism.plan(Problem(n_features=PERTURBING_MECHANISMS_D, clip_norm=1.0, **facts), claim)
    reservation = InMemoryReservation(event=json.loads(json.dumps(plan.event)), relation=plan.problem.relation, key=key)
    return mechanism.run(Curator(ArrayBlocks(rows), reservation), plan)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("mechanism", EVERY, ids=repr)
def test_a_clear_plane_is_found_and_a_flat_spectrum_is_noise(mechanism, relation):
    found = run_of_perturbing_mechanisms(mechanism, CLEAR, relation=relation).components
    assert np.linalg.norm(found[:, :K]) ** 2 > 1.98
    noise = [
        run_of_perturbing_mechanisms(mechanism, FLAT, relation=relation, key=bytes([i] * 32)).components
        for i in range(20)
    ]
    assert np.mean([np.linalg.norm(one[:, :K]) ** 2 for one in noise]) < 1.2


@pytest.mark.parametrize("noise", ["spherical_t", "cauchy"])
def test_pure_noise_uses_no_delta(noise):
    mechanism = SmoothSensitivity(n_components=K, noise=noise)
    for delta in (0.0, 1e-6):
        plan = mechanism.plan(
            Problem(n_features=PERTURBING_MECHANISMS_D, clip_norm=1.0), PrivacyTarget(epsilon=2.0, delta=delta)
        )
        assert plan.event == events.approximate(2.0, 0.0)
        assert plan.noise_multiplier == pytest.approx(2 * math.sqrt(PERTURBING_MECHANISMS_D * K) / 2.0)


def test_the_papers_noise_is_offered_below_epsilon_one_with_its_true_epsilon():
    mechanism = SmoothSensitivity(n_components=K, calibration="paper")
    problem = Problem(n_features=PERTURBING_MECHANISMS_D, clip_norm=1.0)
    plan = mechanism.plan(problem, PrivacyTarget(epsilon=0.5, delta=1e-6))
    tight = SmoothSensitivity(n_components=K).plan(problem, PrivacyTarget(epsilon=0.5, delta=1e-6))
    assert plan.real_epsilon is not None
    assert plan.real_epsilon < 0.25
    assert plan.noise_multiplier > 2 * tight.noise_multiplier
    assert tight.real_epsilon is None
    with pytest.raises(Refused, match="below 1"):
        mechanism.plan(problem, CLAIM)
    with pytest.raises(InvalidInput, match="use calibration=tight with"):
        SmoothSensitivity(n_components=K, noise="spherical_t", calibration="paper").plan(problem, CLAIM)


@pytest.mark.parametrize("mechanism", [EVERY[0], EVERY[3]], ids=lambda mechanism: mechanism.name)
class TestRefusals:
    def test_a_solver_that_may_not_converge_requires_an_explicit_option(self, mechanism, monkeypatch):
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

    def test_a_plan_states_the_required_eigengap(self, mechanism):
        assert (
            "eigengap after component 2"
            in mechanism.plan(Problem(n_features=PERTURBING_MECHANISMS_D, clip_norm=1.0), CLAIM).warnings[0]
        )


def test_a_quantile_clip_norm_uses_its_share_of_epsilon_first():
    mechanism = QuantileClip(mechanism=ProposeTestRelease(n_components=K), quantile=0.9)
    found = run_of_perturbing_mechanisms(mechanism, 3.0 * CLEAR)
    assert found.clip_norm == pytest.approx(3.0, rel=0.3)
    assert found.outcome["failed"] is False
    assert np.linalg.norm(found.components[:, :K]) ** 2 > 1.98


def test_the_outcome_of_a_test_is_public_and_consistent():
    passed, failed = (run_of_perturbing_mechanisms(EVERY[3], rows).outcome for rows in (CLEAR, FLAT))
    assert set(passed) == {"failed", "eigengap_bound", "noise_std"}
    assert passed["failed"] is False
    assert 5300 < passed["eigengap_bound"] < 5500
    assert 0 < passed["noise_std"] < 1e-3
    assert failed["failed"] is True
    assert set(failed) == {"failed", "eigengap_bound"}
    assert run_of_perturbing_mechanisms(EVERY[0], CLEAR).outcome is None


@pytest.mark.audit
@pytest.mark.parametrize("noise", ["spherical_t", pytest.param("cauchy", marks=pytest.mark.audit_only)])
def test_attacks_find_no_epsilon_above_pure_claims(attack, noise):
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
    assert finding.bound > PERTURBING_MECHANISMS_TARGET.epsilon


@pytest.mark.audit
def test_a_gap_that_is_published_with_little_noise_is_found(attack, monkeypatch):
    """Release the eigengap with noise that is ten times too small: the audit must detect neighbors by their gap.

    The neighbors' gaps differ by one, and their directions are equal.
    """
    monkeypatch.setattr(noised_directions, "laplace_noise_multiplier", lambda *, epsilon: 0.1)
    rows = np.repeat(np.eye(2), [201, 20], axis=0)
    pair = Neighbours(name="widened", left=ArrayBlocks(rows), right=ArrayBlocks(rows[1:]))
    finding = attack(ProposeTestRelease(n_components=1), relation="add_remove", pairs=[pair], trials=100)
    assert finding.bound > PERTURBING_MECHANISMS_TARGET.epsilon


def test_a_replaced_record_takes_twice_the_noise():
    """Compare the noise of released directions for replaced and added records: the std must double.

    The mean squared distance over thirty keys must increase by a factor near 4.
    """
    claim = PrivacyTarget(epsilon=1.0, delta=1e-3, allow_large_delta=True)
    spread = {}
    for relation in ("add_remove", "replace_one"):
        found = [
            run_of_perturbing_mechanisms(EVERY[0], CLEAR, key=bytes([i] * 32), relation=relation, claim=claim)
            for i in range(30)
        ]
        spread[relation] = np.mean([K - np.linalg.norm(one.components[:, :K]) ** 2 for one in found])
    assert 3 < spread["replace_one"] / spread["add_remove"] < 5.5
