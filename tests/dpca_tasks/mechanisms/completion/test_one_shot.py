"""Analyze Gauss on rating rows: its price, what it learns, and that it can be resumed anywhere."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.completion.dpsvd import Dpsvd
from dpca_tasks.mechanisms.completion.one_shot import OneShot
from dpca_tasks.mechanisms.completion.rating_moment import leading_factors
from dpca_tasks.privacy.gate import InMemoryReservation
from tests.dpca_tasks.mechanisms.completion.test_dpals import RANK, low_rank, problem, run, target, unseen_error

__all__ = ["low_rank"]


def plain(**changes):
    """Without offsets: the data of these tests have none."""
    return OneShot(**{"rank": RANK, "offsets": False, "user_means": False, "user_ridge": 0.1, **changes})


@pytest.mark.parametrize("mechanism", [plain(), OneShot(rank=2), OneShot(rank=2, totals_share=0.3)])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_totals_and_the_moment_add_up_to_the_target(mechanism, epsilon):
    plan = mechanism.plan(problem(), target(epsilon))
    mu = math.sqrt(sum(step["noise_multiplier"] ** -2 for step in events.steps(plan.event)))
    delta = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    assert 0.999e-5 < delta <= 1e-5 * (1 + 1e-12)  # as far as floats tell
    assert events.count_steps(plan.event) == 1 + mechanism.offsets


@pytest.mark.parametrize(
    ("scaling", "epsilon", "most"), [("normalise", 2, 0.1), ("clip", 2, 0.15), ("clip", 1e5, 0.05)]
)
def test_predictions_come_close_to_ratings_that_were_not_given(low_rank, scaling, epsilon, most):
    """Their std is 1, and the noise is of one fixed key."""
    rows, whole, seen = low_rank
    result = run(plain(scaling=scaling, spread=1.0), rows, problem(), epsilon)
    assert unseen_error(result, whole, seen) < most


def test_weighted_rows_find_the_factors_too(low_rank):
    rows, whole, seen = low_rank
    mechanism = Dpsvd(rank=RANK, offsets=False, user_means=False, user_ridge=0.1, spread=1.0)
    assert unseen_error(run(mechanism, rows, problem(), 2), whole, seen) < 0.2
    plan = Dpsvd(rank=RANK).plan(problem(), target(2))
    assert events.count_steps(plan.event) == 2
    with pytest.raises(InvalidInput, match="row_norm"):
        Dpsvd(rank=RANK, row_norm=-1.0).plan(problem(), target(2))


def test_blocks_do_not_change_a_bit_and_a_resumed_release_is_the_same(low_rank):
    rows, facts, mechanism = low_rank[0][:200], problem(records_at_most=200), OneShot(rank=RANK)
    plan = mechanism.plan(facts, target(5))
    first = InMemoryReservation(event=plan.event, key=bytes(32))
    whole = run(mechanism, rows, facts, 5, reservation=first)
    assert len(first.steps) == 2
    resumed = InMemoryReservation(event=plan.event, key=bytes(32), steps={0: first.steps[0]})
    for other in (
        run(mechanism, rows, facts, 5, block_records=7),
        run(mechanism, rows, facts, 5, reservation=resumed, block_records=1),
    ):
        for name in ("factors", "offsets", "counts"):
            assert (getattr(other, name) == getattr(whole, name)).all()


def test_a_large_diagonal_does_not_hide_the_leading_part():
    """A strong diagonal entry is an eigenvector of its own, unless it is replaced."""
    factor = np.full(8, 8**-0.5)
    moment = np.outer(factor, factor) + np.diag([3.0, *[0.0] * 7])
    kept, replaced = (np.abs(leading_factors(moment, 1, passes=passes)[:, 0]) for passes in (0, 20))
    assert kept @ factor < 0.6
    assert replaced @ factor > 0.999


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"rank": 0}, "below the 60 items"),
        ({"row_norm": 0.0}, "row_norm"),
        ({"spread": -1.0}, "spread"),
        ({"user_ridge": math.inf}, "user_ridge"),
        ({"diagonal_passes": -1}, "diagonal_passes"),
        ({"offsets": True, "totals_share": 1.0}, "totals_share"),
        ({"centre": 99.0}, "centre"),
    ],
)
def test_settings_out_of_their_domain_are_refused(wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        plain(**wrong).plan(problem(), target(1))


def test_more_items_than_a_moment_is_held_of_are_refused():
    with pytest.raises(InvalidInput, match="declare the items that matter, or use dpals"):
        plain().plan(problem(n_features=20_000), target(1))
