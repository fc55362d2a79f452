"""Warnings about releases of mostly noise, before and after the release, and a private choice of the clip norm.

All draws have fixed keys. A release of noise alone exceeds the noise edge with probability at most 0.01 (measured below
0.01 for every mechanism). The cases here are fixed, so their outcomes do not vary. A clip norm chosen privately and a
mechanism that uses it are two steps under one epsilon.
"""

import dataclasses
from importlib.resources import as_file, files

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_epsilon
from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.audit.attacks import RecordingCurator
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.noise_level import FAILED, release_warnings
from dpca_tasks.mechanisms.prior_releases import QuantileClip, norm_quantile
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.laplace import LaplaceMoment
from dpca_tasks.mechanisms.subspace.propose_test_release import ProposeTestRelease
from dpca_tasks.mechanisms.subspace.wishart import Wishart
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.counts import norm_grid
from dpca_tasks.records.blocks import ArrayBlocks
from tests.mechanism_table import A9A_CLIP_NORM, A9A_COMPONENTS, COMMON_TARGET, PAPER_TARGET, TABLE

NOISE = "noise alone makes directions as strong as"
WITH_SPECTRUM = [name for name, row in TABLE.items() if row.spectrum]

each_mechanism = pytest.mark.parametrize("name", MECHANISMS)


def problem(**changes):
    return Problem(**{"n_features": 300, "clip_norm": 2.0, "relation": "zero_out", "records_at_most": 500, **changes})


def run(mechanism, plan, rows, *, key=b"k"):
    event = InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=key * 32)
    return mechanism.run(RecordingCurator(ArrayBlocks(rows), event), plan)


def expects_noise(plan):
    return any(NOISE in warning for warning in plan.warnings)


def dense_rows(n_rows, n_features):
    """Return dense rows of norm 2 with a slowly decaying spectrum."""
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((n_rows, n_features)) / np.arange(10, n_features + 10) ** 0.25
    return 2.0 * rows / np.linalg.norm(rows, axis=1, keepdims=True)


@each_mechanism
def test_a_plan_of_few_dense_records_with_many_columns_warns_before_spending(name):
    """Plan ten components of 300 columns from at most 500 records at (1, 1e-6): the plan warns of noise.

    There are at most 50 records per component.
    """
    (warning,) = MECHANISMS[name](n_components=10).plan(problem(), COMMON_TARGET).warnings[:1]
    assert NOISE in warning
    assert "records_at_most=500" in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("name", "target", "columns", "records"),
    [
        ("local_gaussian", COMMON_TARGET, 256, 9_298),
        ("local_gaussian", COMMON_TARGET, 784, 60_000),
        ("laplace", PAPER_TARGET, 256, 9_298),
        ("laplace", PAPER_TARGET, 784, 60_000),
        ("exponential", PAPER_TARGET, 256, 9_298),
        ("exponential", PAPER_TARGET, 784, 60_000),
    ],
)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
def test_a_plan_of_too_few_dense_records_warns_even_for_thousands(name, target, columns, records, declared):
    facts = {"records_at_most": records} if declared else {"records_at_most": 100_000, "records_declared": False}
    plan = MECHANISMS[name](n_components=10).plan(problem(n_features=columns, **facts), target)
    assert expects_noise(plan)
    assert ("records_at_most=" in plan.warnings[0]) == declared
    assert ("no number of records is declared" in plan.warnings[0]) == (not declared)


@pytest.mark.parametrize(
    ("name", "relation", "center"),
    [(name, "zero_out", "none") for name in TABLE]
    + [(name, "replace_one", "private") for name, row in TABLE.items() if not row.sampled],
)
def test_a_plan_of_many_records_with_few_columns_does_not_warn(name, center, relation):
    few = problem(n_features=6, records_at_most=900_000, center=center, relation=relation)
    assert not expects_noise(MECHANISMS[name](n_components=2).plan(few, COMMON_TARGET))


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
@each_mechanism
def test_the_usual_release_of_a_benchmark_has_no_false_alarm(name, declared):
    """Plan the usual release of the dataset a9a: only planned noise above the signal may cause a warning.

    a9a has 32,561 records of 123 columns. The noise exceeds the signal in the local model, and for Laplace noise if the
    number of records is not declared.
    """
    row = TABLE[name]
    facts = problem(
        n_features=123,
        clip_norm=A9A_CLIP_NORM,
        relation=row.relation,
        records_at_most=32_561 if declared else 100_000,
        records_declared=declared,
    )
    plan = row.usual.plan(facts, COMMON_TARGET)
    alarming = name == "local_gaussian" or (name == "laplace" and not declared)
    assert expects_noise(plan) == alarming
    if name not in {"local_gaussian", "laplace", "smooth_sensitivity", "propose_test_release"}:
        assert plan.warnings == ()


@pytest.fixture(scope="module")
def a9a():
    with as_file(files("flows") / "data" / "a9a.svm.gz") as path:
        rows, _ = load_svmlight_file(str(path), n_features=123)
    return rows.toarray()


@pytest.mark.parametrize("name", ["analyze_gauss", "noisy_power", "mod_sulq", "wishart", "dp_spca", "dp_vrpca"])
def test_a_release_with_signal_has_no_warning(name, a9a):
    facts = problem(n_features=123, clip_norm=A9A_CLIP_NORM, records_at_most=32_561)
    mechanism = TABLE[name].usual
    plan = mechanism.plan(facts, COMMON_TARGET)
    assert release_warnings(plan, run(mechanism, plan, a9a)) == ()
    assert getattr(mechanism, "n_components", None) == A9A_COMPONENTS


@pytest.mark.parametrize(
    ("name", "center"),
    [(name, "none") for name in WITH_SPECTRUM]
    + [(name, "private") for name in WITH_SPECTRUM if not TABLE[name].sampled],
)
@pytest.mark.parametrize("components", [1, 10])
def test_a_release_of_noise_alone_warns_afterwards(name, components, center):
    """Release components of zero rows: a warning states that no eigenvalue exceeds the noise.

    The declared number of records suggests a strong signal, so the plan does not show this problem.
    """
    mechanism = MECHANISMS[name](n_components=components)
    facts = problem(n_features=60, records_at_most=200 if name == "local_gaussian" else 20_000, center=center)
    plan = mechanism.plan(facts, COMMON_TARGET)
    rows = np.zeros((200 if name == "local_gaussian" else 3, 60))
    warnings = release_warnings(plan, run(mechanism, plan, rows))
    assert warnings[: len(plan.warnings)] == plan.warnings
    assert f"none of the {components} " in warnings[-1]


def test_fewer_records_than_columns_cause_a_warning_before_and_after_the_release():
    """Release ten components of 230 records with 255 columns: both plan and release warn.

    None of the eigenvalues exceeds the noise, and their sum exceeds the released total variance.
    """
    mechanism, facts = AnalyzeGauss(n_components=10), problem(n_features=255, records_at_most=230)
    plan = mechanism.plan(facts, COMMON_TARGET)
    found = run(mechanism, plan, dense_rows(230, 255))
    before, after = release_warnings(plan, found)
    assert "at most" in before
    assert "none of the 10" in after
    assert found.eigenvalues.sum() > found.total_variance


def test_the_last_round_decides_whether_a_release_in_rounds_is_noise():
    """Warn by the count after the last map: the edge of all rounds is only a bound, which weak components miss."""
    mechanism, facts = AnalyzeGauss(n_components=2, rounds=3), problem(n_features=60, records_at_most=20_000)
    plan = mechanism.plan(facts, COMMON_TARGET)
    found = run(mechanism, plan, np.zeros((3, 60)))
    assert found.rounds is not None
    assert found.eigenvalues[0] < found.rounds.noise_edge
    assert "none of the 2 components is above the noise" in release_warnings(plan, found, above_noise=0)[-1]
    assert release_warnings(plan, found, above_noise=1) == plan.warnings


def test_the_edge_is_in_the_units_of_a_clip_norm_chosen_privately():
    plan = LaplaceMoment(n_components=2).plan(problem(n_features=6, clip_norm=1.0), COMMON_TARGET)
    found = run(LaplaceMoment(n_components=2), plan, np.zeros((1, 6)))
    strong = dataclasses.replace(found, eigenvalues=np.array([4.0, 1.0]) * plan.noise_edge, spectrum=None)
    assert release_warnings(plan, strong) == plan.warnings
    assert release_warnings(plan, dataclasses.replace(strong, clip_norm=1.9)) == plan.warnings
    assert release_warnings(plan, dataclasses.replace(strong, clip_norm=2.1)) != plan.warnings


class TestProposeTestRelease:
    """Propose-test-release: in a release that passes its test, the noise is smaller than the signal."""

    MECHANISM = ProposeTestRelease(n_components=2)
    FACTS = problem(n_features=120, clip_norm=1.0, records_at_most=50_000)

    def rows(self, gap):
        rows = np.zeros((2 * gap, 120))
        rows[:gap, 0] = rows[gap:, 1] = 1.0
        return rows

    def test_a_released_bound_below_the_required_gap_is_a_failure(self):
        """Release with half of the eigengap that the plan requires: the outcome is a failure.

        This gap passes the threshold, but the noise is twice as strong as the directions.
        """
        plan = self.MECHANISM.plan(self.FACTS, COMMON_TARGET)
        needed = int(plan.warnings[0].split("exceeds about ")[1].split()[0])
        outcomes = {gap: run(self.MECHANISM, plan, self.rows(gap)) for gap in (needed // 2, 4 * needed)}
        failed, passed = outcomes.values()
        assert failed.outcome["failed"] is True
        assert failed.outcome["noise_std"] * np.sqrt(120) > 1.0
        assert release_warnings(plan, failed)[-1] == FAILED
        assert passed.outcome["failed"] is False
        assert passed.outcome["noise_std"] * np.sqrt(120) < 1.0
        assert release_warnings(plan, passed) == plan.warnings
        assert (passed.components[:, :2] ** 2).sum() > 1.5


PROBLEM = Problem(n_features=4, clip_norm=1.0)
TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
MECHANISM = QuantileClip(mechanism=AnalyzeGauss(n_components=2), quantile=0.9)


def test_the_quantile_is_interpolated_in_the_bin_that_covers_it():
    counts, edges = np.array([1.0, 8.0, 1.0]), np.array([1.0, 2.0, 4.0])
    found = [norm_quantile(counts, edges, quantile=q) for q in (0.05, 0.1, 0.5, 0.9, 0.95)]
    assert found == pytest.approx([1, 1, 2**0.5, 2, 2**1.5])


def test_counts_within_the_noise_are_ignored_unless_all_are():
    edges = np.array([1.0, 2.0, 4.0, 8.0])
    assert norm_quantile(np.array([0.0, 90.0, 3.0, 5.0]), edges, quantile=0.99, scale=1.0) < 2.0
    assert 2.0 < norm_quantile(np.array([-3.0, -2.0, -1.0, -4.0]), edges, quantile=0.5, scale=1.0) < 4.0
    assert norm_quantile(np.zeros(4), edges, quantile=0.9) == 1.0


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("epsilon", [0.03, 0.1, 1.0])
def test_the_noise_of_empty_bins_does_not_move_the_clip_norm(quantile, epsilon):
    """Choose a clip norm from a noisy histogram of norms as in a9a and MNIST, 400 times.

    At most one draw in 100 may exceed 1.5 times the true quantile. Each draw is too large with probability below .005,
    so more than four of 400 are too large with probability below .06. The seed is fixed.
    """
    stream, edges = np.random.default_rng(11), norm_grid()
    scale = 1.0 / min(epsilon / 32, 1 / 16)
    for norms in (np.full(32_561, 14**0.5), stream.normal(9.2, 1.4, 32_561).clip(4.0)):
        bins = np.searchsorted(edges, norms)
        exact, truth = np.bincount(bins, minlength=len(edges)).astype(float), np.quantile(norms, quantile)
        draws = exact + stream.laplace(scale=scale, size=(400, len(edges)))
        ratios = np.array([norm_quantile(draw, edges, quantile=quantile, scale=scale) for draw in draws]) / truth
        assert np.median(ratios) == pytest.approx(1.0, abs=0.2)
        assert (ratios > 1.5).mean() <= 0.01


def test_epsilons_of_both_parts_add_up_to_the_target():
    histogram, *rounds = events.steps(MECHANISM.plan(PROBLEM, TARGET).event)
    mu = np.sqrt(sum(each["noise_multiplier"] ** -2 for each in rounds))
    spent = 1 / histogram["noise_multiplier"] + gaussian_epsilon(noise_multiplier=1 / mu, delta=TARGET.delta)
    assert spent == pytest.approx(TARGET.epsilon, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0])
def test_a_budget_of_the_target_admits_the_release(epsilon):
    plan = MECHANISM.plan(PROBLEM, PrivacyTarget(epsilon=epsilon, delta=1e-6))
    budget = build_filter("gdp", epsilon=epsilon, delta=1e-6)
    assert budget.admits(budget.charge(plan.event, delta=1e-6))


@pytest.mark.parametrize("mechanism", [AnalyzeGauss(n_components=2, rounds=1), Wishart(n_components=2)])
def test_the_clip_norm_is_the_quantile_and_the_components_follow(mechanism):
    """Choose the clip norm privately, with norm 4 for 95 % of the records and norm 1000 for the rest.

    The clip norm must be close to 4, and the component along the first axis, where the many records are.
    """
    rows = np.zeros((20_000, 4))
    rows[:19_000, 0], rows[19_000:, 1] = 4.0, 1000.0
    wrapped = QuantileClip(mechanism=mechanism, quantile=0.9)
    plan = wrapped.plan(PROBLEM, TARGET)
    source = ArrayBlocks(rows)
    found = wrapped.run(
        Curator(source, InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=bytes(32))), plan
    )
    assert found.clip_norm is not None
    assert found.clip_norm == pytest.approx(4.0, rel=0.02)
    assert abs(found.components[0, 0]) > 0.99
    assert found.eigenvalues is not None
    assert found.eigenvalues[0] == pytest.approx(19_000 * found.clip_norm**2, rel=0.01)
    again = wrapped.run(
        Curator(source, InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=bytes(32))), plan
    )
    np.testing.assert_array_equal(again.components, found.components)


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1.0, np.nan])
def test_an_invalid_quantile_is_refused(quantile):
    with pytest.raises(InvalidInput, match="quantile"):
        QuantileClip(mechanism=AnalyzeGauss(n_components=2), quantile=quantile).plan(PROBLEM, TARGET)
