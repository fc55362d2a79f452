"""Printed noise where it is offered: its size, what it is charged, and what it says of itself."""

import math

import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_epsilon
from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import Center, PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace.dp_spca import DpSpca
from dpca_tasks.mechanisms.subspace.exponential import Exponential
from dpca_tasks.mechanisms.subspace.local_gaussian import LocalGaussian
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity

D = 12
PURE = PrivacyTarget(epsilon=0.6, delta=0.0)
SMALL = PrivacyTarget(epsilon=0.1, delta=1e-3, allow_large_delta=True)


def problem(relation: Relation = "add_remove", *, records: int = 1000, center: Center = "none") -> Problem:
    return Problem(n_features=D, clip_norm=1.0, relation=relation, records_at_most=records, center=center)


def test_printed_cauchy_noise_is_charged_the_third_of_epsilon_that_it_costs() -> None:
    plan = SmoothSensitivity(n_components=2, noise="cauchy", calibration="paper").plan(problem(), PURE)
    assert plan.event == events.approximate(0.6 / 3, 0.0)
    assert plan.real_epsilon == pytest.approx(0.2)
    assert plan.noise_multiplier == pytest.approx(6 * math.sqrt(2 * D) / 0.6), "6 U / epsilon, U in the l1 norm"
    tight = SmoothSensitivity(n_components=2, noise="cauchy").plan(problem(), PURE)
    assert plan.noise_multiplier == pytest.approx(3 * tight.noise_multiplier)
    assert tight.real_epsilon is None


@pytest.mark.parametrize(("relation", "real"), [("add_remove", 0.3), ("zero_out", 0.3), ("replace_one", 0.6)])
def test_the_printed_slope_costs_half_of_epsilon_unless_records_are_replaced(relation: Relation, real: float) -> None:
    plan = Exponential(n_components=1, calibration="paper").plan(problem(relation), PURE)
    assert plan.event == events.approximate(real, 0.0)
    assert plan.real_epsilon == real
    moved = 2.0 if relation == "replace_one" else 1.0
    assert plan.noise_multiplier * moved == pytest.approx(2 / 0.6), "density exp(epsilon / 2 tr(V^T S V))"


def test_the_printed_slope_is_for_one_draw() -> None:
    with pytest.raises(Refused, match="n_components=1"):
        Exponential(n_components=2, calibration="paper").plan(problem(), PURE)
    with pytest.raises(Refused, match="center=none"):
        Exponential(n_components=1, calibration="paper").plan(problem(center="private"), PURE)


def test_printed_local_noise_is_charged_the_gaussian_that_it_is() -> None:
    plan = LocalGaussian(n_components=2, calibration="paper").plan(problem("replace_one"), SMALL)
    multiplier = 37.765 / math.sqrt(2)
    assert plan.noise_multiplier == pytest.approx(multiplier, rel=1e-4)
    assert plan.event == events.gaussian(plan.noise_multiplier)
    real = gaussian_epsilon(noise_multiplier=plan.noise_multiplier, delta=1e-3)
    assert plan.real_epsilon == pytest.approx(real, rel=1e-12)
    assert plan.real_epsilon == pytest.approx(0.05816, rel=1e-3)
    one = PrivacyTarget(epsilon=1.0, delta=1e-5)
    with pytest.raises(Refused, match="needs epsilon < 1"):
        LocalGaussian(n_components=2, calibration="paper").plan(problem("replace_one"), one)


def test_local_noise_that_gives_more_than_it_claims_is_refused() -> None:
    with pytest.raises(Refused, match="really gives epsilon"):
        LocalGaussian(n_components=2, calibration="paper").plan(
            problem("replace_one"), PrivacyTarget(epsilon=0.99, delta=1e-8)
        )


def test_a_stated_mu_of_dp_spca_is_checked_by_the_same_conditions() -> None:
    asked, kind = problem(records=32_561), {"n_components": 2, "form": "one_row", "calibration": "paper"}
    free = DpSpca(**kind).plan(asked, SMALL)  # type: ignore[arg-type]
    stated = DpSpca(**kind, mu=0.001).plan(asked, SMALL)  # type: ignore[arg-type]
    assert stated.noise_multiplier >= free.noise_multiplier
    with pytest.raises(Refused, match=r"condition .* does not hold at mu=0.5"):
        DpSpca(**kind, mu=0.5).plan(asked, SMALL)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="calibration=paper"):
        DpSpca(n_components=2, mu=0.5).plan(asked, SMALL)
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        DpSpca(**kind, mu=1.0).plan(asked, SMALL)  # type: ignore[arg-type]
