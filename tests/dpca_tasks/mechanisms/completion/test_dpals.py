"""DPALS, private alternating least squares: cost, settings, accuracy, and resumption after any step."""

import math

import numpy as np
import pytest
from scipy import sparse
from scipy.special import log_ndtr, ndtr

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.completion.dpals import Dpals
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.base import StepSecrets
from dpca_tasks.records.blocks import ArrayBlocks

USERS, ITEMS, RANK, RATED = 3000, 60, 2, 25
MU = {1: 0.2681, 2: 0.5016, 5: 1.1212, 10: 2.0004, 20: 3.4478}
"""The exact mu of each epsilon at delta 1e-5."""


def problem(**changes):
    facts = {"n_features": ITEMS, "low": -10.0, "high": 10.0, "ratings_per_user": RATED, "records_at_most": USERS}
    return RatingsProblem(**{**facts, **changes})


def target(epsilon):
    return PrivacyTarget(epsilon=float(epsilon), delta=1e-5)


def plain(**changes):
    """Return DPALS without item offsets, because the ratings of these tests have none."""
    without = {"offsets": False, "sampling": "uniform", "user_means": False, "item_ridge": 0.2}
    return Dpals(**{"rank": RANK, **without, **changes})


@pytest.fixture(scope="module")
def low_rank():
    """Return ratings of unit variance and rank 2, the full matrix, and the mask of rated items.

    Each user rated 25 of 60 items.
    """
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
    """Return the error of predicted hidden ratings, for users who are fitted to their given ratings."""
    errors, ridge = [], result.user_step["ridge"]
    for row, rated in zip(whole[:300], seen[:300], strict=True):
        used = result.factors[rated]
        user = np.linalg.solve(used.T @ used + ridge * np.eye(RANK), used.T @ row[rated])
        errors.append(result.factors[~rated] @ user - row[~rated])
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


@pytest.mark.parametrize("epsilon", MU)
def test_both_statistics_of_every_round_are_charged(epsilon):
    """Check that the noise of both statistics in all rounds adds up to the target's mu.

    The sum of ``k / sH^2 + k / sw^2`` over all rounds must equal mu^2, with k ratings per user and noise stds sH and
    sw.
    """
    mechanism = plain(rank=5, rounds=5, growth=1.0)
    facts = problem(n_features=1000, ratings_per_user=50, records_at_most=50_000)
    plan = mechanism.plan(facts, target(epsilon))
    start = mechanism._random_start(facts)
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
    assert 0.999e-5 < delta <= 1e-5 * (1 + 1e-12)  # tolerance for rounding of floats
    totals = mechanism.offsets or mechanism.frequent < 1
    assert events.count_steps(plan.event) == mechanism.rounds + totals


@pytest.mark.parametrize(("epsilon", "true"), [(1, 1.06), (2, 2.19), (5, 5.575), (10, 10.97), (20, 20.89)])
def test_printed_noise_is_charged_its_true_epsilon(epsilon, true):
    """Charge the noise that the paper prints by its true epsilon.

    The noise multiplier is the printed sigma divided by the bound of one rating, on both statistics of every round.
    """
    facts = problem(n_features=1000, ratings_per_user=50, records_at_most=50_000)
    plan = plain(rank=5, rounds=5, calibration="paper").plan(facts, target(epsilon))
    sigma = math.sqrt(2 * 50 * 5 * (epsilon + math.log(1e5))) / epsilon
    assert [step["noise_multiplier"] for step in events.steps(plan.event)] == pytest.approx([sigma / 10] * 5)
    assert plan.real_epsilon == pytest.approx(true, abs=6e-3)
    assert not plan.certified
    assert f"really gives epsilon {plan.real_epsilon:.4g}" in plan.warnings[0]
    with_totals = Dpals(rank=5, rounds=5, calibration="paper").plan(facts, target(epsilon))
    assert with_totals.real_epsilon > plan.real_epsilon, "totals are charged beside the rounds"


def test_printed_noise_is_offered_only_for_added_or_removed_users():
    with pytest.raises(Refused, match="replace_one"):
        plain(calibration="paper").plan(problem(relation="replace_one"), target(1))


def test_a_printed_release_runs_with_its_noise(low_rank):
    rows, facts, mechanism = low_rank[0][:300], problem(records_at_most=300), plain(calibration="paper")
    result = run(mechanism, rows, facts, 5)
    assert (result.factors != run(plain(), rows, facts, 5).factors).any()
    assert mechanism._query(facts, target(5), bits=4, factors=result.factors).outer_share == 0.5


def test_sampling_in_each_round_differs_from_sampling_once_per_release(low_rank):
    """Sample ratings once per release and anew in each round, with negligible noise.

    The factors of the two runs must differ, because their sampled ratings differ.
    """
    rows, facts = low_rank[0], problem(ratings_per_user=3)
    once, anew = (run(plain(rounds=1, coins=coins), rows, facts, 1e6) for coins in ("release", "round"))
    assert (once.factors != anew.factors).any()
    query = plain(coins="round")._query(facts, target(1), bits=4, factors=once.factors)
    secrets = [
        StepSecrets(
            release_coins=subkey(bytes(32), label="release", info=b""),
            step_coins=subkey(bytes(32), label="step", info=bytes([step])),
            noise=subkey(bytes(32), label="noise", info=b""),
            noise_scale=1.0,
        )
        for step in (0, 1)
    ]
    first, second = (query.with_secrets(of_step).coin_key.secret for of_step in secrets)
    assert first != second
    once_more = plain()._query(facts, target(1), bits=4, factors=once.factors)
    first, second = (once_more.with_secrets(of_step).coin_key.secret for of_step in secrets)
    assert first == second


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
def test_a_private_centre_is_the_mean_of_users_means_and_paid_by_the_totals_share(relation):
    rng = np.random.default_rng(9)
    ratings = sparse.csr_array(rng.integers(3, 6, (USERS, ITEMS)) * (rng.random((USERS, ITEMS)) < 0.4).astype(float))
    facts = problem(low=1.0, high=5.0, relation=relation)
    mechanism = Dpals(rank=RANK, private_centre=True)
    plan = mechanism.plan(facts, target(5))
    multipliers = [step["noise_multiplier"] for step in events.steps(plan.event)]
    whole = sum(multiplier**-2 for multiplier in multipliers)
    assert multipliers[0] ** -2 / whole == pytest.approx(0.02)
    assert multipliers[1] ** -2 / whole == pytest.approx(0.08)
    result = run(mechanism, ratings, facts, 5)
    # over 3,000 users the noise of the sum has a std below 0.01 for each relation; half a rounding step is less
    assert result.user_step["centre"] == pytest.approx(4.0, abs=0.05)
    alone = plain(private_centre=True).plan(facts, target(5))
    assert events.count_steps(alone.event) == 1 + 4


@pytest.mark.parametrize("orthonormal", [True, False])
def test_a_start_by_analyze_gauss_is_charged_and_saves_rounds(low_rank, orthonormal):
    """Compare a run of one round from a start by Analyze Gauss with one from a random start.

    The random start is hardly better than a prediction without factors, whose error is 1.
    """
    rows, whole, seen = low_rank
    form = {"rounds": 1, "user_ridge": 0.1, "start_share": 0.3, "orthonormal": orthonormal}
    form |= {} if orthonormal else {"user_norm": 2.0, "rating_clip": 2.2, "user_ridge": 0.5}
    started, random = plain(start="analyze_gauss", **form), plain(**form)
    multipliers = [step["noise_multiplier"] for step in events.steps(started.plan(problem(), target(20)).event)]
    assert multipliers[0] ** -2 / sum(multiplier**-2 for multiplier in multipliers) == pytest.approx(0.3)
    facts = problem(low=-4.0, high=4.0)
    errors = [unseen_error(run(mechanism, rows, facts, 20), whole, seen) for mechanism in (started, random)]
    assert errors[0] < 0.25
    assert errors[0] < errors[1] / 2


def test_the_private_mean_of_no_users_is_within_the_range():
    rows = sparse.csr_array((50, ITEMS))
    result = run(Dpals(rank=RANK, private_centre=True), rows, problem(records_at_most=50), 0.1)
    assert -10.0 <= result.user_step["centre"] <= 10.0


@pytest.mark.parametrize(("epsilon", "most"), [(2, 0.45), (8, 0.15), (1e5, 0.03)])
def test_predictions_are_close_to_hidden_ratings(low_rank, epsilon, most):
    """Hidden ratings have std 1, and the noise has one fixed key: the error must be at most ``most``."""
    rows, whole, seen = low_rank
    assert unseen_error(run(plain(user_ridge=0.1), rows, problem(), epsilon), whole, seen) < most


@pytest.mark.parametrize("clip", ["weight", "paper"])
def test_other_kinds_of_clipping_learn_too(low_rank, clip):
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
def test_the_warning_of_too_few_users_depends_on_public_facts_alone(records, epsilon, is_few):
    facts = problem(n_features=1682, ratings_per_user=50, records_at_most=records, low=1.0, high=5.0)
    warnings = Dpals(rank=4).plan(facts, PrivacyTarget(epsilon=epsilon, delta=1e-6)).warnings
    assert any("use item_means" in warning for warning in warnings) is is_few


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
        ({"start": "analyze_gauss", "start_share": 0.0}, "start_share"),
        ({"start": "analyze_gauss", "start_share": 0.95}, "start_share"),
        ({"centre": 1.0, "private_centre": True}, "centre=1 is declared"),
    ],
)
def test_settings_out_of_their_domain_are_refused(wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        plain(**wrong).plan(problem(), target(1))


def test_public_facts_out_of_their_domain_are_refused():
    for wrong, rule in (({"low": 10.0}, "ratings_between=10:10"), ({"ratings_per_user": 0}, "ratings_per_user=0")):
        with pytest.raises(InvalidInput, match=rule):
            plain().plan(problem(**wrong), target(1))


def test_statistics_larger_than_memory_are_planned():
    facts = problem(n_features=20_000, ratings_per_user=50, records_at_most=200_000)
    plan = Dpals(rank=128, rounds=2).plan(facts, PrivacyTarget(epsilon=5.0, delta=1e-6))
    assert events.count_steps(plan.event) == 3


def test_weighted_ratings_are_learned_as_well_as_sampled_ones(low_rank):
    rows, whole, seen = low_rank
    facts = problem(ratings_per_user=12)
    weighted, chosen = (
        unseen_error(
            run(Dpals(rank=RANK, offsets=False, sampling=sampling, user_ridge=0.1), rows, facts, 20), whole, seen
        )
        for sampling in ("weights", "tail")
    )
    assert weighted < 0.3
    assert weighted < 1.2 * chosen


def test_the_weight_of_all_items_is_part_of_the_users_step_and_of_the_items(low_rank):
    """Run on data without ratings of 0: a weight on all pairs must pull predictions of unrated items toward 0."""
    rows, _, seen = low_rank
    ones = sparse.csr_array((np.ones_like(rows.data), rows.indices, rows.indptr), shape=rows.shape)
    facts = problem(low=0.0, high=1.0)
    form = {"orthonormal": False, "centre": 0.0, "user_norm": 2.0, "rating_clip": 1.0, "user_ridge": 0.5}
    scores = []
    for unobserved in (0.0, 2.0):
        result = run(plain(unobserved=unobserved, **form), ones, facts, 1e3)
        step, used = result.user_step, result.factors[seen[0]]
        assert step.get("unobserved", 0.0) == unobserved
        matrix = used.T @ used + step["ridge"] * np.eye(RANK)
        matrix += unobserved * result.factors.T @ result.factors
        scores.append(float((result.factors[~seen[0]] @ np.linalg.solve(matrix, used.sum(axis=0))).mean()))
    assert scores[0] > 0.5
    assert scores[1] < 0.6 * scores[0]


def test_a_weight_of_all_items_has_no_printed_noise():
    with pytest.raises(InvalidInput, match="unobserved needs a third"):
        plain(unobserved=0.5, calibration="paper").plan(problem(), target(1))
    with pytest.raises(InvalidInput, match="at least 0"):
        plain(unobserved=-1.0).plan(problem(), target(1))
