"""Weights of a stream: they reproduce published and exact numbers, and bad settings are refused.

The privacy costs of successive extensions of the horizon add up to the cost of the whole.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dpca_tasks.accounting.calibration import UNITS, gaussian_noise_multiplier, units_of
from dpca_tasks.accounting.factorisation import (
    EXCESS,
    MOST_TICKS,
    Weights,
    choose_weights,
    coefficients_of,
    divided,
    extension_event,
    tree_factors,
)
from dpca_tasks.errors import InvalidInput

YEAR = choose_weights("sqrt", ticks=365)
HORIZONS = (7, 30, 90, 365, 730, 3650)
EXACT = dict(zip(HORIZONS, (1.674500, 2.146268, 2.497727, 2.944054, 3.164798, 3.677185), strict=True))
STRATEGIES = {
    "sqrt": YEAR,
    "power": choose_weights("power", longest=365),
    "window": choose_weights("window", window=30, longest=365),
    "decay": choose_weights("decay", half_life=30, longest=365),
}
each_strategy = pytest.mark.parametrize("weights", STRATEGIES.values(), ids=STRATEGIES)


@pytest.mark.parametrize("ticks", HORIZONS)
def test_exact_coefficients_have_the_published_sensitivity(ticks):
    assert (coefficients_of("sqrt", ticks) ** 2).sum() == pytest.approx(EXACT[ticks], abs=5e-7)


@pytest.mark.parametrize(("ticks", "bits"), [*zip(HORIZONS, (3, 4, 5, 6, 7, 8), strict=True)])
def test_weights_have_the_fewest_bits_that_hardly_raise_the_worst_error(ticks, bits):
    """The chosen number of bits is the smallest for which rounding raises the worst error factor only a little.

    The factor of exact coefficients is zeta squared.
    """
    weights = choose_weights("sqrt", ticks=ticks)
    assert weights.bits == bits
    assert weights.factors(ticks).max() <= EXCESS * EXACT[ticks]
    rounded = np.rint(coefficients_of("sqrt", ticks) * 2 ** (bits - 1)).astype(int)
    coarser = Weights(strategy="sqrt", weights=tuple(rounded.tolist()), bits=bits - 1)
    assert coarser.factors(ticks).max() > EXCESS * EXACT[ticks]


def test_the_weights_of_a_year_are_the_published_ones():
    assert YEAR.weights[:8] == (64, 32, 24, 20, 18, 16, 14, 13)
    assert YEAR.zeta_squared(365) == Fraction(sum(w * w for w in YEAR.weights[:365]), 4**6)
    assert float(YEAR.zeta_squared(365)) == pytest.approx(2.941162, abs=5e-7)
    factors = YEAR.factors(365)
    assert factors.max() == pytest.approx(2.9507, abs=5e-5)
    assert (factors[0], math.sqrt((factors**2).mean())) == pytest.approx((1.716, 2.7815), rel=1e-3)
    assert [YEAR.factors(365, "window", window=wide).max() for wide in (7, 30, 90)] == pytest.approx(
        [2.71, 3.17, 3.48], rel=5e-3
    )


@pytest.mark.parametrize(
    ("settings", "bits", "answer", "factor"),
    [
        ({"strategy": "power", "longest": 365}, 5, "prefix", 3.5690),
        ({"strategy": "power"}, 7, "prefix", 4.65),
        ({"strategy": "window", "window": 7}, 4, "window", 1.77832),
        ({"strategy": "window", "window": 30}, 5, "window", 2.36790),
        ({"strategy": "decay", "half_life": 7}, 5, "decay", 1.4681),
        ({"strategy": "decay", "half_life": 30}, 6, "decay", 1.8828),
        ({"strategy": "decay", "half_life": 90}, 6, "decay", 2.2194),
    ],
)
def test_one_charge_covers_an_endless_stream_at_the_published_factor(settings, bits, answer, factor):
    """Compare the error factor of endless strategies with the published one.

    Rounding cuts off the tail of a slowly decaying series, so the factor may also be smaller.
    """
    weights = choose_weights(**settings)
    ticks = settings.get("longest", 3650)
    assert weights.endless
    assert weights.bits == bits
    assert weights.zeta(1) == weights.zeta(10**9)
    assert 0.9 * factor <= weights.factors(ticks, answer)[-1] <= EXCESS * factor * (1 + 1e-3)


@pytest.mark.parametrize(
    ("strategy", "terms", "length", "published"),
    [("window", {"window": 7}, 40_000, 1.77832), ("decay", {"half_life": 30.0}, 3000, 1.8828)],
)
def test_dividing_the_wanted_coefficients_by_the_exact_ones_gives_the_exact_ones(strategy, terms, length, published):
    """Dividing the wanted answer's coefficients by the exact coefficients c must give c again.

    So the error factor is the square of zeta.
    """
    series = coefficients_of(strategy, length, **terms)
    assert (series**2).sum() == pytest.approx(published, rel=1e-4)
    wanted = STRATEGIES[strategy].wanted(500, strategy, **terms)
    assert divided(wanted, series) == pytest.approx(series[:500], abs=1e-12)


@each_strategy
@pytest.mark.parametrize("answer", ["prefix", "window", "decay"])
def test_answers_divided_by_weights_and_multiplied_again_are_the_answers(weights, answer):
    wanted = weights.wanted(200, answer, window=30, half_life=30.0)
    product = np.convolve(divided(wanted, weights.series), weights.series)[:200]
    assert product == pytest.approx(wanted, abs=1e-12)


def test_the_tree_has_the_published_factors():
    year = tree_factors(365)
    assert (year[0], year[254], year[255], year[364]) == pytest.approx((3.0, 6.574, 2.123, 5.706), abs=5e-4)
    for ticks, (largest, typical, first) in {7: (2.59, 1.96, 1.73), 30: (3.72, 2.87, 2.24)}.items():
        found = tree_factors(ticks)
        summary = found.max(), math.sqrt((found**2).mean()), found[0]
        assert summary == pytest.approx((largest, typical, first), abs=6e-3)


def test_the_estimator_of_the_tree_is_the_best_linear_one():
    """Compare the tree's error factor at 12 ticks with generalized least squares over all complete tree nodes."""
    for tick in range(1, 13):
        nodes = [(start, 1 << h) for h in range(4) for start in range(0, tick - (1 << h) + 1, 1 << h)]
        design = np.array([[start <= at < start + size for at in range(tick)] for start, size in nodes], float)
        covariance = np.linalg.inv(design.T @ design)
        assert tree_factors(12)[tick - 1] == pytest.approx(math.sqrt(4 * covariance.sum()), rel=1e-12)


def test_costs_of_instalments_and_extensions_add_up_to_the_total_and_never_to_less():
    multiplier = gaussian_noise_multiplier(epsilon=1.0, delta=1e-6)
    ends = [0, 1, 7, 30, 365, 366, 730]
    events = [
        extension_event(YEAR, horizon=365, charged=before, to=after, noise_multiplier=multiplier)
        for before, after in itertools.pairwise(ends)
    ]
    whole = Fraction(1) / Fraction(multiplier) ** 2 * YEAR.zeta_squared(730) / YEAR.zeta_squared(365)
    charged = sum(1 / Fraction(event["noise_multiplier"]) ** 2 for event in events)
    assert whole <= charged <= whole * (1 + Fraction(1, 10**12))
    assert sum(units_of(event["noise_multiplier"]) for event in events) >= math.ceil(whole * UNITS)


def test_the_first_instalment_of_the_horizon_is_the_whole_stream():
    event = extension_event(YEAR, horizon=365, charged=0, to=365, noise_multiplier=4.25)
    assert event == {"name": "gaussian", "noise_multiplier": 4.25}


@pytest.mark.parametrize(("to", "part"), [(1, 0.34), (7, 0.57), (30, 0.73), (90, 0.85)])
def test_instalments_cost_the_published_fractions(to, part):
    event = extension_event(YEAR, horizon=365, charged=0, to=to, noise_multiplier=1.0)
    assert event["noise_multiplier"] ** -2 == pytest.approx(part, abs=6e-3)


def test_an_extension_that_adds_nothing_is_refused():
    ended = Weights(strategy="sqrt", weights=(4, 2, 0, 0), bits=2)
    for weights, charged, to in ((YEAR, 365, 365), (YEAR, 365, 300), (ended, 2, 4), (STRATEGIES["decay"], 10, 20)):
        with pytest.raises(InvalidInput):
            extension_event(weights, horizon=2, charged=charged, to=to, noise_multiplier=4.0)
    with pytest.raises(InvalidInput, match="open another stream"):
        extension_event(YEAR, horizon=365, charged=365, to=3651, noise_multiplier=4.0)


@each_strategy
def test_the_sensitivity_is_rounded_up_by_less_than_one_unit_in_the_last_place(weights):
    zeta = weights.zeta(300)
    assert Fraction(math.nextafter(zeta, 0.0)) ** 2 < weights.zeta_squared(300) <= Fraction(zeta) ** 2


def test_replacing_costs_more_than_root_two_where_weights_have_signs():
    """Compare the cost of replacing a record, relative to adding one, with the published ratios.

    The replaced record and the new record arrive one window apart.
    """
    for window, ratio in ((7, 1.54), (30, 1.57), (90, 1.59)):
        weights = choose_weights("window", window=window)
        assert weights.signed
        found = math.sqrt(weights.replaced_squared(1) / weights.zeta_squared(1))
        assert found == pytest.approx(ratio, abs=8e-3)
    assert YEAR.replaced_squared(365) == 2 * YEAR.zeta_squared(365)


@each_strategy
def test_weights_have_a_canonical_text_from_which_they_are_read_back(weights):
    assert Weights.from_json(weights.to_json()) == weights
    assert Weights.from_json(weights.to_json()).to_json() == weights.to_json()


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "sqrt"},
        {"strategy": "sqrt", "ticks": 0},
        {"strategy": "window"},
        {"strategy": "window", "window": 0},
        {"strategy": "decay", "half_life": math.nan},
        {"strategy": "power", "window": 7},
        {"strategy": "best", "ticks": 3},
        {"strategy": "sqrt", "ticks": MOST_TICKS + 1},
        {"strategy": "decay", "half_life": 1e300},
        {"strategy": "window", "window": MOST_TICKS + 1},
    ],
)
def test_a_strategy_with_missing_or_unbounded_settings_is_refused(settings):
    with pytest.raises(InvalidInput):
        choose_weights(**settings)


@pytest.mark.parametrize(
    "weights", [(), (3, 2), (4, 5), (4, -5), (4, 2.0), (4, True)], ids=lambda weights: " ".join(map(str, weights))
)
def test_weights_above_the_first_weight_or_not_integers_are_refused(weights):
    with pytest.raises(InvalidInput):
        Weights(strategy="sqrt", weights=weights, bits=2)


@pytest.mark.parametrize("answer", ["window", "decay", "median"])
def test_an_undefined_kind_of_answer_is_refused(answer):
    with pytest.raises(InvalidInput):
        YEAR.factors(7, answer)
