"""A bracket holds the true epsilon, of closed forms and beside dp-accounting, and its ends agree or it says so."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from scipy import optimize
from scipy.stats import norm

from dpca_tasks.accounting import epsilon_bracket as module
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.accounting.events import (
    Event,
    approximate,
    composed,
    gaussian,
    laplace,
    non_private,
    poisson_sampled,
    self_composed,
)
from dpca_tasks.errors import InvalidInput

ONE_ROW_A_STEP = self_composed(poisson_sampled(gaussian(3.6526136531449014), 1 / 32561), 32561)


def pessimistic(event: Event, delta: float, *, interval: float) -> float:
    """An epsilon of dp-accounting's that is too large, and nearer on a finer grid."""

    def loss(leaf: Event, rate: float) -> privacy_loss_distribution.PrivacyLossDistribution:
        options = {"value_discretization_interval": interval}
        match leaf["name"]:
            case "gaussian":
                noise = privacy_loss_distribution.from_gaussian_mechanism
                return noise(leaf["noise_multiplier"], sampling_prob=rate, **options)
            case "laplace":
                noise = privacy_loss_distribution.from_laplace_mechanism
                return noise(leaf["noise_multiplier"], sampling_prob=rate, **options)
            case "poisson_sampled":
                return loss(leaf["event"], leaf["rate"])
        known = common.DifferentialPrivacyParameters(leaf["epsilon"], leaf["delta"])
        return privacy_loss_distribution.from_privacy_parameters(known, interval)

    steps = event["events"] if event["name"] == "composed" else [event]
    total = privacy_loss_distribution.identity(interval)
    for step in steps:
        inner, count = (step["event"], step["count"]) if step["name"] == "self_composed" else (step, 1)
        total = total.compose(loss(inner, 1.0).self_compose(count))
    return float(total.get_epsilon_for_delta(delta))


def test_thousands_of_steps_of_little_loss_are_bracketed_within_two_percent() -> None:
    """The grid of a thousandth says 0.0513 of this event; the truth is 0.0044."""
    coarse = pessimistic(ONE_ROW_A_STEP, 1e-6, interval=1e-3)
    assert coarse == pytest.approx(0.0513, rel=1e-3)
    found = epsilon_bracket(ONE_ROW_A_STEP, delta=1e-6)
    assert found.agrees
    assert 0.0043 < found.lower <= found.upper <= 1.02 * found.lower < 0.0045


def test_an_event_below_delta_alone_has_epsilon_zero() -> None:
    found = epsilon_bracket(ONE_ROW_A_STEP, delta=1e-3)
    assert (found.lower, found.upper, found.agrees) == (0.0, 0.0, True)


@pytest.mark.parametrize(
    ("event", "delta", "interval"),
    [
        (self_composed(poisson_sampled(gaussian(2.0), 0.05), 100), 1e-5, 1e-4),
        (composed(gaussian(5.0), self_composed(poisson_sampled(gaussian(1.0), 0.1), 10)), 1e-6, 1e-3),
        (self_composed(laplace(20.0), 50), 1e-5, 1e-4),
        (self_composed(poisson_sampled(laplace(2.0), 0.1), 50), 1e-5, 1e-4),
        (composed(gaussian(4.0), laplace(3.0), approximate(0.5, 1e-7)), 1e-6, 1e-4),
        (self_composed(approximate(0.125, 1e-7), 50), 1e-5, 1e-3),
        (self_composed(poisson_sampled(gaussian(0.5), 0.9), 400), 1e-6, 0.2),
    ],
)
def test_the_bracket_agrees_with_the_accountant_where_its_grid_is_fine(
    event: Event, delta: float, interval: float
) -> None:
    """The accountant joins the dots of its grid, so it is nearly exact on these."""
    accountant = pessimistic(event, delta, interval=interval)
    found = epsilon_bracket(event, delta=delta)
    assert found.agrees
    assert found.lower <= accountant
    assert found.upper == pytest.approx(accountant, rel=0.02)


@pytest.mark.parametrize(("multiplier", "count", "delta"), [(20.0, 100, 1e-5), (3.0, 7, 1e-2), (300.0, 5000, 1e-8)])
def test_many_gaussians_on_the_grid_are_the_one_that_they_compose_to(
    multiplier: float, count: int, delta: float
) -> None:
    exact = epsilon_bracket(self_composed(gaussian(multiplier), count), delta=delta)
    assert exact.upper == pytest.approx(
        dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(count), delta), rel=1e-8
    )
    step = ((("gaussian", 1.0), ("noise_multiplier", multiplier)), count)
    for adds in (False, True):
        lower, upper = module._direction([step], delta=delta, within=0.02, adds=adds)
        assert lower <= exact.lower
        assert exact.upper <= upper <= 1.02 * lower


@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.2])
def test_one_laplace_draw_has_its_closed_form(delta: float) -> None:
    found = epsilon_bracket(laplace(0.5), delta=delta)
    assert found.lower <= 2.0 + 2 * math.log(1 - delta) <= found.upper <= 1.02 * found.lower


@pytest.mark.parametrize(("multiplier", "rate", "delta"), [(1.0, 0.01, 1e-5), (0.7, 0.3, 1e-3), (2.0, 0.5, 1e-7)])
def test_one_sampled_gaussian_has_its_closed_form(multiplier: float, rate: float, delta: float) -> None:
    """The record's presence is seen above a place x, its absence below one."""

    def masses(x: float) -> tuple[float, float]:
        without = norm.sf(x / multiplier)
        return without, (1 - rate) * without + rate * norm.sf((x - 1) / multiplier)

    def delta_at(epsilon: float) -> float:
        def place(loss: float) -> float:
            return multiplier**2 * math.log1p(math.expm1(loss) / rate) + 0.5

        without, within = masses(place(epsilon))
        removed = within - math.exp(epsilon) * without
        if -epsilon <= math.log1p(-rate):
            return removed
        without, within = masses(place(-epsilon))
        return max(removed, (1 - without) - math.exp(epsilon) * (1 - within))

    exact = optimize.brentq(lambda epsilon: delta_at(epsilon) - delta, 1e-9, 50.0, xtol=1e-14)
    found = epsilon_bracket(poisson_sampled(gaussian(multiplier), rate), delta=delta)
    assert found.lower <= exact <= found.upper <= 1.02 * found.lower


def test_a_limit_that_is_reached_is_said_and_the_bracket_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    event = self_composed(poisson_sampled(gaussian(1.5), 0.001), 2000)
    fine = epsilon_bracket(event, delta=1e-5)
    monkeypatch.setattr(module, "LARGEST_TRANSFORM", 1 << 13)
    module._bracket.cache_clear()
    coarse = epsilon_bracket(event, delta=1e-5)
    module._bracket.cache_clear()
    assert fine.agrees
    assert not coarse.agrees
    assert coarse.lower <= fine.lower
    assert fine.upper <= coarse.upper


def test_an_answer_without_noise_has_no_epsilon() -> None:
    found = epsilon_bracket(composed(gaussian(1.0), non_private()), delta=1e-6)
    assert (found.lower, found.upper) == (math.inf, math.inf)


@pytest.mark.parametrize(("delta", "within"), [(0.0, 0.02), (1.0, 0.02), (math.nan, 0.02), (1e-6, 0.0), (1e-6, 1.0)])
def test_a_bracket_out_of_its_domain_is_refused(delta: float, within: float) -> None:
    with pytest.raises(InvalidInput, match="delta="):
        epsilon_bracket(gaussian(1.0), delta=delta, within=within)
