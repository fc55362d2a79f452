"""The range of an exponential mechanism's privacy loss: never above what holds, and near it."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from dpca_tasks.accounting.bounded_range import largest_range
from dpca_tasks.errors import InvalidInput

EPSILONS = st.floats(-3.0, 1.3).map(lambda power: 10.0**power)
DELTAS = st.floats(-12.0, -0.5).map(lambda power: 10.0**power)


def two_point(loss, found):
    """Return losses and probabilities of the law on ``loss`` and ``loss - r`` whose likelihood ratio has mean 1."""
    likely = (mp.exp(found) - mp.exp(loss)) / (mp.exp(found) - 1)
    return ((loss, likely), (loss - found, 1 - likely))


def hockey_stick(laws, epsilon):
    """Return the exact delta of independent losses."""
    total = mp.mpf(0)
    for choice in itertools.product(*laws):
        loss = sum(part[0] for part in choice)
        chance = math.prod(part[1] for part in choice)
        total += chance * max(mp.mpf(0), 1 - mp.exp(mp.mpf(epsilon) - loss))
    return total


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"), [(0.1, 1e-3, 0.1215), (1.0, 1e-3, 1.0516), (1.0, 0.0, 1.0), (1.0, 1e-6, 1.0015)]
)
def test_it_has_the_values_of_the_sheet_rounded_down(epsilon, delta, expected):
    assert 0 <= largest_range(epsilon=epsilon, delta=delta) - expected < 1e-4


@given(epsilon=EPSILONS, delta=DELTAS)
def test_one_draw_is_private_and_one_float_more_is_not(epsilon, delta):
    """The worst loss of a range r is the two-point law at ``(epsilon + r) / 2``."""
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
    """Every combination of nine two-point laws a draw, exactly."""
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
    """By zCDP: at (1, 1e-6) ten draws have 0.139 each instead of 0.1; two are better off apart."""
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
def test_what_has_no_range_is_refused(change):
    with pytest.raises(InvalidInput):
        largest_range(**{"epsilon": 1.0, "delta": 1e-6, "draws": 1, **change})
