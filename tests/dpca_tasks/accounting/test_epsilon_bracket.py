"""Epsilon brackets, Wishart costs, joint views of noised messages, and ranges of exponential mechanisms.

A bracket must contain the true epsilon of closed forms and of dp-accounting. The two ends must agree, or the bracket
must report that they differ. The cost of one Wishart matrix must follow from the densities of the single number on
which its privacy loss depends. The joint view of noised messages is compared with explicit conditioning of Gaussians.
The range of an exponential mechanism's privacy loss must never exceed the exact bound and must be close to it.
"""

import itertools
import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import integrate, interpolate, optimize, stats
from scipy.stats import norm

from dpca_tasks.accounting import epsilon_bracket as module
from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier, largest_range
from dpca_tasks.accounting.closed_brackets import (
    gain_over_equal_weights,
    least_noise,
    usual_colluders,
    view_mu,
    wishart_delta,
    wishart_epsilon,
)
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
    """Return dp-accounting's upper bound on epsilon of an event; a smaller grid ``interval`` makes it tighter."""

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


@pytest.mark.parametrize("high", [0.5, 3.0])
def test_losses_are_rounded_to_the_nearest_point_and_those_outside_to_the_ends(high: float) -> None:
    """Compare the masses with the distribution function, and the mean error of losses inside with its bounds."""
    step, atom = 0.125, (0.3, 0.25)
    loss = module.StepLoss(low=-0.75, high=high, below=lambda x: 0.75 * norm.cdf(x), atoms=(atom,))
    found = loss.rounded(step)
    edges = [-math.inf, *((found.points[1:] + found.points[:-1]) / 2), math.inf]
    expected = 0.75 * np.diff(norm.cdf(edges)) + 0.25 * np.isclose(found.points, 0.25)
    assert found.masses == pytest.approx(expected, abs=1e-15)
    assert (found.points[0], found.points[-1]) == (-0.75, high)
    least, most = -0.75 - step / 2, high + step / 2
    inside = integrate.quad(lambda x: x * norm.pdf(x), least, most)[0]
    mean = 0.75 * (inside + least * norm.cdf(least) + most * norm.sf(most)) + 0.25 * 0.3
    assert found.errors[0] <= found.points @ found.masses - mean <= found.errors[1] < found.errors[0] + 1e-3


def test_the_mean_error_has_its_bounds_when_the_density_turns_before_its_halves_show_it() -> None:
    """Let most of the density rise and fall in cell 150, whose halves have almost equal masses."""

    def density(rise: float) -> interpolate.BSpline:
        nodes = np.array([-0.5, 149.5, 149.5 + rise, 149.501 + rise, 150.5, 300.5])
        return interpolate.make_interp_spline(nodes, [1e-4, 5e-4, 5e-4, 2.5, 5e-4, 1e-4], k=1)

    def rest(rise: float) -> float:
        halves = [float(density(rise).integrate(*ends)) for ends in ((149.5, 150), (150, 150.5))]
        return halves[0] - halves[1] + 1e-7

    found = density(optimize.brentq(rest, 0.2, 0.4))
    below, whole = found.antiderivative(), float(found.integrate(-0.5, 300.5))
    loss = module.StepLoss(low=0.0, high=300.0, below=lambda x: below(np.clip(x, -0.5, 300.5)) / whole)
    rounded = loss.rounded(1.0)
    knots = np.unique(found.t)
    mean = sum(integrate.quad(lambda x: x * found(x), *ends)[0] for ends in itertools.pairwise(knots)) / whole
    assert rounded.errors[0] <= rounded.points @ rounded.masses - mean <= rounded.errors[1] < rounded.errors[0] + 0.01


def test_thousands_of_steps_of_little_loss_are_bracketed_within_two_percent() -> None:
    """Bracket an event on which dp-accounting with a grid step of 0.001 returns 0.0513; the true value is 0.0044."""
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
    """Compare brackets with dp-accounting on events for which its linear interpolation is nearly exact."""
    accountant = pessimistic(event, delta, interval=interval)
    found = epsilon_bracket(event, delta=delta)
    assert found.agrees
    assert found.lower <= accountant
    assert found.upper == pytest.approx(accountant, rel=0.02)


@pytest.mark.parametrize(("multiplier", "count", "delta"), [(20.0, 100, 1e-5), (3.0, 7, 1e-2), (300.0, 5000, 1e-8)])
def test_many_gaussians_on_the_grid_equal_their_composed_gaussian(multiplier: float, count: int, delta: float) -> None:
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
    """Compare the bracket of one sampled Gaussian with its closed form.

    The outcome set with the largest delta is the half-line above a point x for an added record. For a removed record,
    it is the half-line below a point.
    """

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


def test_a_limit_that_is_reached_is_reported_and_the_bracket_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("degrees", "scale", "epsilon"), [(4, 1.0, 0.3), (7, 3.0, 0.1), (40, 1.0, 0.05), (2, 5.0, 1.0)]
)
def test_delta_is_the_larger_of_the_two_integrals_that_define_it(degrees: float, scale: float, epsilon: float) -> None:
    law = stats.chi2(degrees, scale=scale)

    def lost(first: float, second: float) -> float:
        def above(t: float) -> float:
            return max(float(law.pdf(t - first) - math.exp(epsilon) * law.pdf(t - second)), 0.0)

        end = float(law.isf(1e-14)) + 1
        edges = [0.0, 1.0, *np.geomspace(1.001, end, 12)]
        return float(sum(integrate.quad(above, a, b, epsabs=1e-12)[0] for a, b in itertools.pairwise(edges)))

    expected = max(lost(0.0, 1.0), lost(1.0, 0.0))
    assert wishart_delta(degrees, scale=scale, epsilon=epsilon) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0328), (1.0, 0.283)])
def test_the_published_matrix_has_a_delta_that_no_epsilon_covers(epsilon: float, delta: float) -> None:
    found = wishart_delta(2, scale=3 / (2 * epsilon), epsilon=epsilon)
    assert found == pytest.approx(delta, rel=2e-3)
    assert wishart_delta(2, scale=3 / (2 * epsilon), epsilon=100.0) == found
    assert wishart_epsilon(2, scale=3 / (2 * epsilon), delta=delta / 2) == math.inf


def test_many_degrees_of_freedom_are_as_noisy_as_a_gaussian() -> None:
    """Compare the noise of a Wishart matrix with Analyze Gauss at p = 1e4 degrees of freedom and d = 123 features.

    The standard deviations off the diagonal are 12.59 and 12.31.
    """
    scale = optimize.brentq(lambda c: wishart_delta(1e4, scale=c, epsilon=0.1) - 1e-3, 0.01, 1.0)
    assert scale * math.sqrt(1e4 + 122) == pytest.approx(12.59, abs=0.005)
    assert gaussian_noise_multiplier(epsilon=0.1, delta=1e-3) / math.sqrt(2) == pytest.approx(12.31, abs=0.005)


def test_the_computed_epsilon_is_valid_and_slightly_smaller_ones_are_not() -> None:
    found = wishart_epsilon(50, scale=1.0, delta=1e-3)
    assert wishart_delta(50, scale=1.0, epsilon=found) <= 1e-3 < wishart_delta(50, scale=1.0, epsilon=found * 0.99999)


def conditioned_mu(sites, colluders, share, mask):
    """Return mu of a unit shift of site 0's message.

    The observer sees the messages of all honest sites, and conditions on the masks of the colluding sites.
    """
    masks = mask * (np.eye(sites) - 1 / sites)
    seen, honest = np.arange(sites - colluders, sites), np.arange(sites - colluders)
    given = masks[np.ix_(honest, honest)]
    if colluders:
        cross = masks[np.ix_(honest, seen)]
        given = given - cross @ np.linalg.solve(masks[np.ix_(seen, seen)], cross.T)
    return np.sqrt(np.linalg.inv(given + share * np.eye(len(honest)))[0, 0])


@pytest.mark.parametrize(("sites", "colluders"), [(2, 0), (5, 0), (5, 1), (10, 3), (30, 9), (4, 3)])
@pytest.mark.parametrize(("share", "mask"), [(0.1, 1.0), (1.0, 50.0), (0.3, 0.01)])
def test_the_view_is_that_of_conditioned_gaussians(sites, colluders, share, mask):
    found = view_mu(sensitivity=2.0, honest=sites - colluders, share_variance=share, mask_variance=mask)
    assert found == pytest.approx(2.0 * conditioned_mu(sites, colluders, share, mask), rel=1e-10)


@pytest.mark.parametrize(("colluders", "epsilon"), [(0, 1.39), (3, 1.55)])
def test_the_true_epsilon_of_printed_variances_exceeds_their_claim(colluders, epsilon):
    """Compute the true epsilon of the paper's variances for ten sites with a claim of (1, 1e-5).

    A single message has a mu of 0.2681.
    """
    mu = 0.268086 * view_mu(sensitivity=1.0, honest=10 - colluders, share_variance=0.1, mask_variance=1.0)
    assert gaussian_epsilon(noise_multiplier=1 / mu, delta=1e-5) == pytest.approx(epsilon, abs=0.01)


def test_the_least_noise_gives_the_strictest_site_its_mu_and_others_a_smaller_loss():
    rng = np.random.default_rng(8)
    for honest in (1, 3, 8):
        weights, mus = rng.uniform(0.1, 1, 8).tolist(), rng.uniform(0.2, 2, 8).tolist()
        share = least_noise(weights=weights, sensitivities=[1.5] * 8, mus=mus) / honest
        reached = [view_mu(sensitivity=1.5 * w, honest=honest, share_variance=share) for w in weights]
        assert max(np.array(reached) / mus) == pytest.approx(1.0, rel=1e-12)


def test_the_gain_over_equal_weights_is_least_for_equal_sizes():
    """Check Proposition 1 over all divisions of 12 records among 3 sites, and its extremes for 1,000 among 10."""
    parts = [p for p in itertools.product(range(1, 11), repeat=3) if sum(p) == 12]
    gains = {p: gain_over_equal_weights(p) for p in parts}
    assert min((gain, parts) for parts, gain in gains.items())[1] == (4, 4, 4)
    assert sorted(max((gain, parts) for parts, gain in gains.items())[1]) == [1, 1, 10]
    assert gain_over_equal_weights([100] * 10) == pytest.approx(10.0)
    assert gain_over_equal_weights([1] * 9 + [991]) == pytest.approx(90_000, rel=1e-4)


def test_a_roster_without_honest_sites_is_refused():
    assert [usual_colluders(sites) for sites in (1, 3, 4, 10)] == [0, 0, 1, 3]
    with pytest.raises(InvalidInput, match="honest"):
        view_mu(sensitivity=1.0, honest=0, share_variance=1.0)


EPSILONS = st.floats(-3.0, 1.3).map(lambda power: 10.0**power)
DELTAS = st.floats(-12.0, -0.5).map(lambda power: 10.0**power)


def two_point(loss, found):
    """Return (loss, probability) pairs of a two-point distribution on ``loss`` and ``loss - found``.

    The probabilities are such that the likelihood ratio has mean 1.
    """
    likely = (mp.exp(found) - mp.exp(loss)) / (mp.exp(found) - 1)
    return ((loss, likely), (loss - found, 1 - likely))


def hockey_stick(laws, epsilon):
    """Return the exact delta at epsilon for a composition of independent privacy losses with these distributions."""
    total = mp.mpf(0)
    for choice in itertools.product(*laws):
        loss = sum(part[0] for part in choice)
        chance = math.prod(part[1] for part in choice)
        total += chance * max(mp.mpf(0), 1 - mp.exp(mp.mpf(epsilon) - loss))
    return total


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"), [(0.1, 1e-3, 0.1215), (1.0, 1e-3, 1.0516), (1.0, 0.0, 1.0), (1.0, 1e-6, 1.0015)]
)
def test_the_range_has_the_published_values_rounded_down(epsilon, delta, expected):
    assert 0 <= largest_range(epsilon=epsilon, delta=delta) - expected < 1e-4


@given(epsilon=EPSILONS, delta=DELTAS)
def test_one_draw_has_the_largest_private_range_up_to_one_float(epsilon, delta):
    """For one draw, the largest range r must be private, and the next larger float must not be.

    The worst loss of range r is the two-point distribution with the larger point at ``(epsilon + r) / 2``.
    """
    found = largest_range(epsilon=epsilon, delta=delta)
    assert found > epsilon
    with mp.workdps(60):
        for value, private in ((found, True), (math.nextafter(found, math.inf), False)):
            exact = mp.mpf(value)
            worst = two_point((mp.mpf(epsilon) + exact) / 2, exact)
            assert (hockey_stick([worst], epsilon) <= mp.mpf(delta)) is private


@given(epsilon=EPSILONS, delta=DELTAS, place=st.floats(0.0, 1.0))
def test_no_two_point_law_is_worse(epsilon, delta, place):
    found = largest_range(epsilon=epsilon, delta=delta)
    with mp.workdps(40):
        assert hockey_stick([two_point(mp.mpf(found) * place, mp.mpf(found))], epsilon) <= mp.mpf(delta)


@pytest.mark.parametrize("draws", [2, 3, 5])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-3), (1.0, 1e-3), (1.0, 1e-6), (4.0, 1e-6)])
def test_several_draws_keep_their_guarantee_together(epsilon, delta, draws):
    """Compose nine two-point loss distributions per draw in all combinations: no exact delta may exceed delta."""
    found = mp.mpf(largest_range(epsilon=epsilon, delta=delta, draws=draws))
    with mp.workdps(30):
        places = [two_point(found * place / 8, found) for place in range(9)]
        worst = max(
            hockey_stick(laws, epsilon)
            for laws in itertools.combinations_with_replacement(places, draws)
            if draws < 5 or len(set(laws)) == 1
        )
    assert worst <= delta


def test_without_delta_the_draws_share_epsilon_exactly():
    for draws in (1, 2, 3, 7, 10):
        found = largest_range(epsilon=0.7, delta=0.0, draws=draws)
        assert draws * Fraction(found) <= Fraction(0.7) < draws * Fraction(math.nextafter(found, 1.0))


def test_many_draws_have_more_than_a_share_of_epsilon():
    """At (1, 1e-6), each of ten draws has a range of 0.139 by zCDP, more than 0.1.

    For two draws, basic composition gives a larger range than zCDP.
    """
    assert largest_range(epsilon=1.0, delta=1e-6, draws=10) == pytest.approx(0.1396, abs=1e-4)
    assert largest_range(epsilon=1.0, delta=1e-6, draws=2) == pytest.approx(0.5009, abs=1e-4)


def test_more_privacy_never_gives_a_larger_range():
    found = [largest_range(epsilon=1.0, delta=delta, draws=4) for delta in np.geomspace(1e-300, 0.5, 20)]
    assert (np.diff(found) >= 0).all()
    assert largest_range(epsilon=1.0, delta=0.0, draws=4) <= found[0]


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.0},
        {"epsilon": 1e10},
        {"epsilon": 1e-9, "delta": 0.0},
        {"delta": 1.0},
        {"delta": -0.1},
        {"draws": 0},
    ],
    ids=str,
)
def test_targets_without_a_range_are_refused(change):
    with pytest.raises(InvalidInput):
        largest_range(**{"epsilon": 1.0, "delta": 1e-6, "draws": 1, **change})
