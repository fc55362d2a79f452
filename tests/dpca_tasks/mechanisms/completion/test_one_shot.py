"""Completion by one-shot Analyze Gauss, item means and private Frank-Wolfe: cost, accuracy and resumption.

The solution for items consists of the projection where it is needed, the ridge after the projection, and a fixed frame.
Item offsets must approach the truth as noise vanishes and be shrunk under strong noise. Private Frank-Wolfe is tested
with exact and with printed noise.
"""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca_tasks.accounting import events
from dpca_tasks.audit.trials import audit_mechanism
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.completion.dpfw import Dpfw
from dpca_tasks.mechanisms.completion.dpsvd import Dpsvd
from dpca_tasks.mechanisms.completion.item_means import ItemMeans
from dpca_tasks.mechanisms.completion.one_shot import OneShot
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem, leading_factors, orthonormal, pool, solve_items
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from flows.families.completion import COMPLETION
from tests.dpca_tasks.mechanisms.completion.test_dpals import MU, RANK, low_rank, problem, run, target, unseen_error

__all__ = ["low_rank"]


def plain(**changes):
    """Return the one-shot mechanism without item offsets, because the ratings of these tests have none."""
    return OneShot(**{"rank": RANK, "offsets": False, "user_means": False, "user_ridge": 0.1, **changes})


@pytest.mark.parametrize("mechanism", [plain(), OneShot(rank=2), OneShot(rank=2, totals_share=0.3)])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_totals_and_the_moment_add_up_to_the_target(mechanism, epsilon):
    plan = mechanism.plan(problem(), target(epsilon))
    mu = math.sqrt(sum(step["noise_multiplier"] ** -2 for step in events.steps(plan.event)))
    delta = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    assert 0.999e-5 < delta <= 1e-5 * (1 + 1e-12)  # tolerance for rounding of floats
    assert events.count_steps(plan.event) == 1 + mechanism.offsets


@pytest.mark.parametrize(
    ("scaling", "epsilon", "most"), [("normalise", 2, 0.1), ("clip", 2, 0.15), ("clip", 1e5, 0.05)]
)
def test_predictions_are_close_to_hidden_ratings(low_rank, scaling, epsilon, most):
    """Hidden ratings have std 1, and the noise has one fixed key: the error must be at most ``most``."""
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


def test_a_large_diagonal_does_not_hide_the_leading_factor():
    """Compute the leading factor of a matrix that has one large diagonal entry.

    The large entry dominates the leading eigenvector, unless the diagonal is replaced before.
    """
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


def test_too_many_items_for_a_moment_are_refused():
    with pytest.raises(InvalidInput, match="declare fewer items, or use dpals"):
        plain().plan(problem(n_features=20_000), target(1))


def test_the_projection_leaves_a_definite_matrix_as_it_is_and_cuts_what_is_negative():
    definite, indefinite = np.diag([2.0, 1.0]), np.diag([2.0, -5.0])
    solved = solve_items(np.stack([definite, indefinite]), np.ones((2, 2)), ridge=0.5)
    assert solved[0] == pytest.approx([1 / 2.5, 1 / 1.5])
    assert solved[1] == pytest.approx([1 / 2.5, 1 / 0.5])


def test_an_orthonormal_frame_keeps_directions_and_rows_of_zeros():
    rng = np.random.default_rng(1)
    factors = rng.standard_normal((20, 3)) @ np.diag([5.0, 1.0, 0.2])
    factors[4] = 0.0
    made = orthonormal(factors)
    assert made.T @ made == pytest.approx(np.eye(3), abs=1e-12)
    assert not made[4].any()
    symmetric = made.T @ factors
    assert symmetric == pytest.approx(symmetric.T)
    assert not orthonormal(np.zeros((4, 2))).any()


def test_pooled_rows_are_weighted_means():
    one, other = (1.0, np.ones((2, 1, 1)), np.zeros((2, 1))), (3.0, np.zeros((2, 1, 1)), np.ones((2, 1)))
    outer, weighted = pool([one, other])
    assert (outer == 0.25).all()
    assert (weighted == 0.75).all()


ITEMS = 8
CLAIM = PrivacyTarget(epsilon=4.0, delta=0.1, allow_large_delta=True)
OFFSETS = np.linspace(-0.7, 0.7, ITEMS)


def run_of_item_means(epsilon, *, relation="add_remove"):
    rng = np.random.default_rng(9)
    ratings = np.clip(3 + OFFSETS + 0.5 * rng.standard_normal((2000, ITEMS)), 1, 5)
    facts = RatingsProblem(
        n_features=ITEMS, low=1.0, high=5.0, ratings_per_user=4, records_at_most=2000, relation=relation
    )
    mechanism = ItemMeans(rank=1)
    plan = mechanism.plan(facts, PrivacyTarget(epsilon=epsilon, delta=1e-5))
    reservation = InMemoryReservation(event=plan.event, relation=relation, key=bytes(32))
    return mechanism.run(Curator(ArrayBlocks(ratings), reservation), plan), plan


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
def test_offsets_and_counts_are_found_up_to_noise(relation):
    result, plan = run_of_item_means(1e4, relation=relation)
    assert result.factors is None
    assert result.counts == pytest.approx(np.full(ITEMS, 1000), rel=0.15)
    assert result.offsets == pytest.approx(OFFSETS, abs=0.08)
    assert events.count_steps(plan.event) == 1


def test_much_noise_shrinks_offsets_toward_the_centre():
    noisy, _ = run_of_item_means(0.01)
    assert np.abs(noisy.offsets).max() < 0.5  # 0.5 is the assumed std of item offsets
    assert (noisy.counts > 0).all()


def test_an_empty_range_is_refused():
    facts = RatingsProblem(n_features=ITEMS, low=5.0, high=1.0, ratings_per_user=4)
    with pytest.raises(InvalidInput, match="the lower one first"):
        ItemMeans(rank=1).plan(facts, PrivacyTarget(epsilon=1.0, delta=1e-6))


@pytest.mark.audit_only
@pytest.mark.audit
@pytest.mark.parametrize("name", ["item_means", "dpals", "dpfw", "dpsvd", "one_shot"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_the_attack_finds_at_least_half_of_the_claim_and_never_more(name, relation):
    """Audit each completion mechanism: the bound on epsilon must be between 0.5 and the claim.

    The bound is wrong with probability at most 0.05; keys come from a fixed seed, so the test is deterministic.
    """
    subject = COMPLETION.audit
    finding = audit_mechanism(subject.build(name), relation=relation, subject=subject, target=CLAIM, trials=300)
    assert finding.passed
    assert finding.bound > 0.5


def plain_of_dpfw(**changes):
    """Return private Frank-Wolfe without item offsets, because the ratings of these tests have none."""
    return Dpfw(**{"rank": RANK, "offsets": False, "user_means": False, "spread": 1.0, **changes})


def unseen_error_of_dpfw(result, whole, seen):
    """Return the error of predicted hidden ratings, as a consumer computes them from the released items."""
    manifest = {"user_step": dict(result.user_step)}
    items = ItemEmbeddings(factors=result.factors, offsets=result.offsets, low=-10.0, high=10.0, manifest=manifest)
    found = [items.predict(np.flatnonzero(rated), row[rated])[~rated] for row, rated in zip(whole, seen, strict=True)]
    return float(np.sqrt(np.mean((np.concatenate(found) - whole[~seen]) ** 2)))


@pytest.mark.parametrize("epsilon", MU)
def test_every_round_is_charged(epsilon):
    plan = plain_of_dpfw(rounds=5).plan(problem(n_features=1000, records_at_most=50_000), target(epsilon))
    mu = math.sqrt(sum(step["noise_multiplier"] ** -2 for step in events.steps(plan.event)))
    assert mu == pytest.approx(MU[epsilon], rel=1e-3)
    assert events.count_steps(plan.event) == 5
    with_totals = Dpfw(rank=2).plan(problem(), target(epsilon))
    assert events.count_steps(with_totals.event) == (9 if epsilon <= 5 else 17)
    assert sum(step["noise_multiplier"] ** -2 for step in events.steps(with_totals.event)) == pytest.approx(
        MU[epsilon] ** 2, rel=1e-3
    )


@pytest.mark.parametrize(("relation", "bound"), [("zero_out", 1.0), ("replace_one", math.sqrt(2.0))])
def test_the_printed_noise_is_charged_its_true_epsilon(relation, bound):
    """Charge the noise that the paper prints by its true epsilon, below 0.25 at a claim of 1.

    The std of the noise is ``sqrt(64 T ln(1 / delta)) / epsilon`` in squared norms of a row, in any relation.
    """
    mechanism, facts = plain_of_dpfw(rounds=8, calibration="paper"), problem(relation=relation)
    plan = mechanism.plan(facts, target(1))
    (part,) = mechanism._query(facts, bits=1).parts.values()
    assert part.scale * plan.noise_multiplier == pytest.approx(math.sqrt(64 * 8 * math.log(1e5)), rel=1e-12)
    mu = bound * math.sqrt(8) / math.sqrt(64 * 8 * math.log(1e5))
    epsilon = plan.real_epsilon
    delta = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert epsilon < 0.25  # true epsilon of the printed noise, at a claim of epsilon 1


@pytest.mark.parametrize(("epsilon", "most"), [(2, 0.75), (20, 0.4), (1e5, 0.3)])
def test_predictions_of_dpfw_are_close_to_hidden_ratings(low_rank, epsilon, most):
    """Hidden ratings have std 1, and the noise has one fixed key: the error must be at most ``most``."""
    rows, whole, seen = low_rank
    result = run(plain_of_dpfw(), rows, problem(), epsilon)
    assert result.factors.shape == (60, 8 if epsilon <= 5 else 16)
    assert unseen_error_of_dpfw(result, whole[:300], seen[:300]) < most


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_a_direction_that_is_all_noise_has_a_finite_gain(low_rank, epsilon):
    """Along a direction of pure noise, the released moment may be negative; gains must be positive and bounded.

    The divisor of a gain is at least the norm of one clipped row.
    """
    result = run(plain_of_dpfw(rounds=6), low_rank[0][:3], problem(records_at_most=300), epsilon)
    gains, row_norm = np.array(result.user_step["gains"]), result.user_step["row_norm"]
    most = plain_of_dpfw()._nuclear_norm(problem(records_at_most=300)) / row_norm
    assert np.isfinite(gains).all()
    assert np.isfinite(result.factors).all()
    assert (gains > 0).all()
    assert (gains <= most * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    "moment", [-np.eye(60), np.zeros((60, 60)), 1e-12 * np.eye(60)], ids=["less", "none", "little"]
)
def test_a_moment_below_one_row_is_treated_as_one_row(monkeypatch, low_rank, moment):
    monkeypatch.setattr(Curator, "release_parts", lambda *_: {"moment": moment})
    facts = problem(records_at_most=300)
    result = run(plain_of_dpfw(rounds=2), low_rank[0][:3], facts, 1)
    most = plain_of_dpfw()._nuclear_norm(facts) / result.user_step["row_norm"]
    assert result.user_step["gains"] == [pytest.approx(most, rel=1e-12)] * 2


def test_blocks_and_resumption_do_not_change_a_bit_of_dpfw(low_rank):
    rows, facts, mechanism = low_rank[0][:200], problem(records_at_most=200), Dpfw(rank=RANK, rounds=3)
    plan = mechanism.plan(facts, target(5))
    first = InMemoryReservation(event=plan.event, key=bytes(32))
    whole = run(mechanism, rows, facts, 5, reservation=first)
    assert len(first.steps) == 4
    resumed = InMemoryReservation(event=plan.event, key=bytes(32), steps={at: first.steps[at] for at in range(2)})
    for other in (
        run(mechanism, rows, facts, 5, block_records=7),
        run(mechanism, rows, facts, 5, reservation=resumed, block_records=1),
    ):
        assert other.user_step == whole.user_step
        for name in ("factors", "offsets", "counts"):
            assert (getattr(other, name) == getattr(whole, name)).all()


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"rank": 0}, "below the 60 items"),
        ({"rounds": 0}, "rounds at least 1"),
        ({"row_norm": 0.0}, "row_norm"),
        ({"nuclear_norm": math.inf}, "nuclear_norm"),
        ({"spread": math.nan}, "spread"),
        ({"offsets": True, "totals_share": 1.0}, "totals_share"),
        ({"offsets": True, "calibration": "paper"}, "offsets=false"),
    ],
)
def test_settings_of_dpfw_out_of_their_domain_are_refused(wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        plain_of_dpfw(**wrong).plan(problem(), target(1))
