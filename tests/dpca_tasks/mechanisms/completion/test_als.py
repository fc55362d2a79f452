"""Explicit and implicit alternating least squares without privacy: exact, and only with an acknowledgment.

Both require the non-private acknowledgment, and are not listed among the private mechanisms. The objective of the
implicit variant is checked as well.
"""

import numpy as np
import pytest
from scipy import sparse

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE, PrivacyTarget
from dpca_tasks.mechanisms.completion import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.completion.als import Als, Ials
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from tests.dpca_tasks.mechanisms.completion.test_dpals import RANK, low_rank, problem, unseen_error

__all__ = ["low_rank"]


def disclosed(mechanism, rows, facts, *, block_records=4096, steps=None):
    plan = mechanism.plan(facts, NO_GUARANTEE)
    reservation = InMemoryReservation(event=plan.event, steps={} if steps is None else steps)
    source = ArrayBlocks(rows, block_records=block_records)
    return mechanism.run(DisclosingCurator(source, reservation, i_know_this_is_not_private=True), plan)


def plain(**changes):
    return Als(**{"rank": RANK, "ridge": 1e-4, "offsets": False, "user_means": False, **changes})


def test_the_reference_is_not_listed_as_a_private_mechanism():
    assert REFERENCES["als"] is Als
    assert REFERENCES.keys().isdisjoint(MECHANISMS)
    event = plain(rounds=3).plan(problem(), NO_GUARANTEE).event
    assert [step["name"] for step in events.steps(event)] == ["non_private"] * 3
    assert not events.is_private(event)


def test_ratings_of_low_rank_are_completed(low_rank):
    rows, whole, seen = low_rank
    assert unseen_error(disclosed(plain(), rows, problem()), whole, seen) < 0.002


def test_the_factors_are_those_of_a_second_implementation(low_rank):
    rows, facts, mechanism = low_rank[0][:200], problem(records_at_most=200), plain(rounds=2, ridge=2.0)
    found = disclosed(mechanism, rows, facts).factors
    before = disclosed(plain(rounds=1, ridge=2.0), rows, facts).factors
    dense = rows.toarray()
    users = np.zeros((200, RANK))
    for user, row in enumerate(dense):
        used = before[row != 0]
        users[user] = np.linalg.solve(used.T @ used + 2 * np.eye(RANK), used.T @ row[row != 0])
    for item, column in enumerate(dense.T):
        used = users[column != 0]
        expected = np.linalg.solve(used.T @ used + 2 * np.eye(RANK), used.T @ column[column != 0])
        # tolerance for rounding users and ratings to their grids
        assert found[item] == pytest.approx(expected, abs=0.01)


def test_offsets_are_subtracted_and_blocks_do_not_matter(low_rank):
    rows, facts = low_rank[0][:200].copy(), problem(records_at_most=200)
    rows.data = rows.data + np.linspace(-2, 2, 60)[rows.indices]
    mechanism = Als(rank=RANK, rounds=2)
    whole, other = (disclosed(mechanism, rows, facts, block_records=size) for size in (4096, 7))
    assert (whole.factors == other.factors).all()
    assert np.corrcoef(whole.offsets, np.linspace(-2, 2, 60))[0, 1] > 0.95
    assert whole.counts.sum() == rows.nnz


@pytest.mark.parametrize("target", [PrivacyTarget(epsilon=1.0, delta=1e-6), PrivacyTarget(epsilon=np.inf, delta=0.0)])
def test_the_reference_requires_an_explicit_acknowledgment(target):
    with pytest.raises(Refused, match="i-know-this-is-not-private"):
        plain().plan(problem(), target)


def test_an_ordinary_curator_releases_nothing_without_noise(low_rank):
    plan = plain().plan(problem(), NO_GUARANTEE)
    reservation = InMemoryReservation(event=plan.event)
    with pytest.raises(Refused, match="use a DisclosingCurator"):
        plain().run(Curator(ArrayBlocks(low_rank[0]), reservation), plan)
    assert reservation.steps == {}


@pytest.mark.parametrize(
    ("wrong", "rule"), [({"rank": 60}, "below the 60"), ({"rounds": 0}, "rounds=0"), ({"ridge": 0.0}, "positive")]
)
def test_settings_out_of_their_domain_are_refused(wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        plain(**wrong).plan(problem(), NO_GUARANTEE)


USERS, ITEMS, IALS_RANK = 300, 40, 2
FACTS = problem(n_features=ITEMS, low=0.0, high=1.0, ratings_per_user=ITEMS, records_at_most=USERS)


@pytest.fixture(scope="module")
def choices():
    """Return a matrix of choices by two kinds of users; users mostly choose items of their kind's half."""
    rng = np.random.default_rng(3)
    own = (np.arange(USERS)[:, None] % 2) == (np.arange(ITEMS)[None] % 2)
    return sparse.csr_array((rng.random((USERS, ITEMS)) < np.where(own, 0.4, 0.05)).astype(float))


def test_a_round_solves_the_regressions_of_a_second_implementation(choices):
    mechanisms = (Ials(rank=IALS_RANK, rounds=rounds, ridge=2.0, unobserved=0.3) for rounds in (1, 2))
    before, found = (disclosed(mechanism, choices, FACTS).factors for mechanism in mechanisms)
    dense, ridge = choices.toarray(), 2.0 * np.eye(IALS_RANK)
    users = np.stack(
        [
            np.linalg.solve(before[row > 0].T @ before[row > 0] + 0.3 * before.T @ before + ridge, before.T @ row)
            for row in dense
        ]
    )
    for item, column in enumerate(dense.T):
        used = users[column > 0]
        expected = np.linalg.solve(used.T @ used + 0.3 * users.T @ users + ridge, users.T @ column)
        assert found[item] == pytest.approx(expected, abs=0.01)  # tolerance for rounding users to their grid


def test_items_similar_to_the_chosen_ones_are_recommended(choices):
    result = disclosed(Ials(rank=IALS_RANK, ridge=1.0), choices, FACTS)
    items = ItemEmbeddings(
        factors=result.factors,
        offsets=result.offsets,
        low=0.0,
        high=1.0,
        manifest={"user_step": dict(result.user_step)},
    )
    best = [item for item, _ in items.recommend([0, 2, 4], [1.0, 1.0, 1.0], count=10)]
    assert all(item % 2 == 0 for item in best)
    assert not {0, 2, 4} & set(best)


def test_implicit_als_requires_an_explicit_acknowledgment():
    assert REFERENCES["ials"] is Ials
    with pytest.raises(Refused, match="i-know-this-is-not-private"):
        Ials(rank=IALS_RANK).plan(FACTS, PrivacyTarget(epsilon=1.0, delta=1e-6))


@pytest.mark.parametrize("wrong", [{"unobserved": 0.0}, {"ridge": -1.0}, {"rounds": 0}])
def test_settings_of_implicit_als_out_of_their_domain_are_refused(wrong):
    with pytest.raises(InvalidInput, match="positive and finite"):
        Ials(rank=IALS_RANK, **wrong).plan(FACTS, NO_GUARANTEE)
