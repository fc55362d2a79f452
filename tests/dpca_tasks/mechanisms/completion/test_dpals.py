"""Private alternating least squares: its price, its choices, what it learns, and that it can be resumed anywhere."""

import math

import numpy as np
import pytest
from scipy import sparse
from scipy.special import log_ndtr, ndtr

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.completion.dpals import Dpals
from dpca_tasks.mechanisms.parts.ratings import RatingsProblem
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks

USERS, ITEMS, RANK, RATED = 3000, 60, 2, 25
MU = {1: 0.2681, 2: 0.5016, 5: 1.1212, 10: 2.0004, 20: 3.4478}
"""The exact mu of each epsilon at delta 1e-5."""


def problem(**changes):
    facts = {"n_features": ITEMS, "low": -10.0, "high": 10.0, "ratings_per_user": RATED, "records_at_most": USERS}
    return RatingsProblem(**{**facts, **changes})


def target(epsilon):
    return PrivacyTarget(epsilon=float(epsilon), delta=1e-5)


def plain(**changes):
    """Without offsets: the data of these tests have none."""
    without = {"offsets": False, "sampling": "uniform", "user_means": False, "item_ridge": 0.2}
    return Dpals(**{"rank": RANK, **without, **changes})


@pytest.fixture(scope="module")
def low_rank():
    """Ratings of unit variance and rank 2, of which each user gave 25 in 60; and all of them."""
    rng = np.random.default_rng(7)
    users, items = rng.standard_normal((USERS, RANK)), rng.standard_normal((ITEMS, RANK)) / math.sqrt(RANK)
    whole = users @ items.T
    seen = rng.random(whole.shape).argsort(axis=1) < RATED
    return sparse.csr_array(whole * seen), whole, seen


def run(mechanism, rows, facts, epsilon, *, reservation=None, block_records=4096, **others):
    plan = mechanism.plan(facts, target(epsilon))
    reserved = reservation or InMemoryReservation(event=plan.event, relation=facts.relation, key=bytes(32))
    return mechanism.run(Curator(ArrayBlocks(rows, block_records=block_records), reserved, **others), plan)


def unseen_error(result, whole, seen):
    """The error of predictions of ratings that were not given, by users who fold in those that were."""
    errors, ridge = [], result.user_step["ridge"]
    for row, rated in zip(whole[:300], seen[:300], strict=True):
        used = result.factors[rated]
        user = np.linalg.solve(used.T @ used + ridge * np.eye(RANK), used.T @ row[rated])
        errors.append(result.factors[~rated] @ user - row[~rated])
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


@pytest.mark.parametrize("epsilon", MU)
def test_both_statistics_of_every_round_are_charged(epsilon):
    """``k / sH^2 + k / sw^2``, over all rounds, is the exact mu^2 of the target."""
    mechanism = plain(rank=5, rounds=5, growth=1.0)
    facts = problem(n_features=1000, ratings_per_user=50, records_at_most=50_000)
    plan = mechanism.plan(facts, target(epsilon))
    start = mechanism._start(facts)
    query = mechanism._query(facts, plan.target, bits=plan.bits, factors=start, offsets=None, priorities=None)
    stds = [part.scale * step["noise_multiplier"] for step in events.steps(plan.event) for part in query.parts.values()]
    assert len(stds) == 10
    assert math.sqrt(sum(50 / std**2 for std in stds)) == pytest.approx(MU[epsilon], rel=1e-3)


@pytest.mark.parametrize("mechanism", [plain(), Dpals(rank=2), Dpals(rank=2, frequent=0.5, totals_share=0.3, rounds=2)])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_totals_and_rounds_add_up_to_the_target(mechanism, epsilon):
    plan = mechanism.plan(problem(), target(epsilon))
    mu = math.sqrt(sum(step["noise_multiplier"] ** -2 for step in events.steps(plan.event)))
    delta = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    assert 0.999e-5 < delta <= 1e-5 * (1 + 1e-12)  # as far as floats tell
    totals = mechanism.offsets or mechanism.frequent < 1
    assert events.count_steps(plan.event) == mechanism.rounds + totals


@pytest.mark.parametrize(("epsilon", "most"), [(2, 0.45), (8, 0.15), (1e5, 0.03)])
def test_predictions_come_close_to_ratings_that_were_not_given(low_rank, epsilon, most):
    """Their std is 1, and the noise is of one fixed key."""
    rows, whole, seen = low_rank
    assert unseen_error(run(plain(user_ridge=0.1), rows, problem(), epsilon), whole, seen) < most


@pytest.mark.parametrize("clip", ["weight", "paper"])
def test_the_other_clips_learn_too(low_rank, clip):
    rows, whole, seen = low_rank
    result = run(plain(clip=clip, user_norm=8.0, user_ridge=0.1), rows, problem(), 20)
    assert unseen_error(result, whole, seen) < 0.6


def test_the_published_form_without_orthonormal_factors_learns(low_rank):
    rows, whole, seen = low_rank
    form = plain(orthonormal=False, pooled=1, growth=1.0, clip="paper", user_norm=2.0, user_ridge=0.5, rating_clip=2.2)
    assert unseen_error(run(form, rows, problem(), 1e4), whole, seen) < 0.3


def test_blocks_do_not_change_a_bit_and_a_resumed_release_is_the_same(low_rank):
    rows, facts, mechanism = low_rank[0][:200], problem(records_at_most=200), Dpals(rank=RANK, rounds=3)
    plan = mechanism.plan(facts, target(5))
    first = InMemoryReservation(event=plan.event, key=bytes(32))
    whole = run(mechanism, rows, facts, 5, reservation=first)
    assert len(first.steps) == 4
    resumed = InMemoryReservation(event=plan.event, key=bytes(32), steps={at: first.steps[at] for at in range(2)})
    for other in (
        run(mechanism, rows, facts, 5, block_records=7),
        run(mechanism, rows, facts, 5, reservation=resumed, block_records=1),
    ):
        for name in ("factors", "offsets", "counts"):
            assert (getattr(other, name) == getattr(whole, name)).all()


def test_a_cluster_gives_the_same_bits(low_rank, client):
    rows, facts, mechanism = low_rank[0][:200], problem(records_at_most=200), Dpals(rank=RANK, rounds=2)
    alone = run(mechanism, rows, facts, 5)
    spread = run(mechanism, rows, facts, 5, client=client, block_records=20)
    assert (alone.factors == spread.factors).all()


def test_infrequent_items_get_no_factor_and_tails_are_counted_first():
    rng = np.random.default_rng(8)
    popular = np.linspace(1.0, 0.1, ITEMS)
    ratings = sparse.csr_array((rng.random((USERS, ITEMS)) < popular) * rng.choice([-1.0, 1.0], (USERS, ITEMS)))
    result = run(Dpals(rank=RANK, frequent=0.5), ratings, problem(), 20)
    with_factors = np.flatnonzero(result.factors.any(axis=1))
    assert with_factors.size == ITEMS // 2
    assert with_factors.max() < ITEMS * 0.7
    assert (Dpals(rank=RANK)._priorities(result.counts) == result.counts).all()
    assert not Dpals(rank=RANK, sampling="uniform")._priorities(result.counts).any()


@pytest.mark.parametrize(("records", "epsilon", "is_few"), [(943, 1.0, True), (943, 10.0, True), (50_000, 5.0, False)])
def test_too_few_users_are_warned_of_by_public_facts_alone(records, epsilon, is_few):
    facts = problem(n_features=1682, ratings_per_user=50, records_at_most=records, low=1.0, high=5.0)
    warnings = Dpals(rank=4).plan(facts, PrivacyTarget(epsilon=epsilon, delta=1e-6)).warnings
    assert any("item_means will do better" in warning for warning in warnings) is is_few


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"rank": 0}, "below the 60 items"),
        ({"rank": ITEMS}, "below the 60 items"),
        ({"rounds": 0}, "at least 1"),
        ({"pooled": 0}, "at least 1"),
        ({"user_ridge": 0.0}, "positive"),
        ({"frequent": 0.0}, "frequent"),
        ({"totals_share": 1.0}, "totals_share"),
        ({"centre": 99.0}, "centre"),
    ],
)
def test_settings_out_of_their_domain_are_refused(wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        plain(**wrong).plan(problem(), target(1))


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"low": 10.0}, "ratings_between=10:10"),
        ({"ratings_per_user": 0}, "ratings_per_user=0"),
        ({"n_features": 20_000}, "held in memory"),
    ],
)
def test_public_facts_out_of_their_domain_are_refused(wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        plain(rank=RANK if "n_features" not in wrong else 200).plan(problem(**wrong), target(1))
