"""Implicit alternating least squares without privacy: what it minimises, and that it needs the same acknowledgement."""

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE, PrivacyTarget
from dpca_tasks.mechanisms.completion import REFERENCES
from dpca_tasks.mechanisms.completion.als import Ials
from storage.artifacts.embeddings import ItemEmbeddings
from tests.dpca_tasks.mechanisms.completion.test_als import disclosed
from tests.dpca_tasks.mechanisms.completion.test_dpals import problem

USERS, ITEMS, RANK = 300, 40, 2
FACTS = problem(n_features=ITEMS, low=0.0, high=1.0, ratings_per_user=ITEMS, records_at_most=USERS)


@pytest.fixture(scope="module")
def choices():
    """Two kinds of users, of which each chooses items of its own half, mostly."""
    rng = np.random.default_rng(3)
    own = (np.arange(USERS)[:, None] % 2) == (np.arange(ITEMS)[None] % 2)
    return sparse.csr_array((rng.random((USERS, ITEMS)) < np.where(own, 0.4, 0.05)).astype(float))


def test_a_round_solves_the_regressions_of_a_second_implementation(choices):
    mechanisms = (Ials(rank=RANK, rounds=rounds, ridge=2.0, unobserved=0.3) for rounds in (1, 2))
    before, found = (disclosed(mechanism, choices, FACTS).factors for mechanism in mechanisms)
    dense, ridge = choices.toarray(), 2.0 * np.eye(RANK)
    users = np.stack(
        [
            np.linalg.solve(before[row > 0].T @ before[row > 0] + 0.3 * before.T @ before + ridge, before.T @ row)
            for row in dense
        ]
    )
    for item, column in enumerate(dense.T):
        used = users[column > 0]
        expected = np.linalg.solve(used.T @ used + 0.3 * users.T @ users + ridge, users.T @ column)
        assert found[item] == pytest.approx(expected, abs=0.01)  # the grid of users


def test_items_like_those_chosen_are_recommended(choices):
    result = disclosed(Ials(rank=RANK, ridge=1.0), choices, FACTS)
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


def test_it_is_refused_unless_no_guarantee_is_asked_for_in_so_many_words():
    assert REFERENCES["ials"] is Ials
    with pytest.raises(Refused, match="i-know-this-is-not-private"):
        Ials(rank=RANK).plan(FACTS, PrivacyTarget(epsilon=1.0, delta=1e-6))


@pytest.mark.parametrize("wrong", [{"unobserved": 0.0}, {"ridge": -1.0}, {"rounds": 0}])
def test_settings_out_of_their_domain_are_refused(wrong):
    with pytest.raises(InvalidInput, match="positive and finite"):
        Ials(rank=RANK, **wrong).plan(FACTS, NO_GUARANTEE)
