"""Alternating least squares without privacy: exact, behind every gate, and no member of the private mechanisms."""

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import NO_GUARANTEE, PrivacyTarget
from dpca_tasks.mechanisms.completion import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.completion.als import Als
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from tests.dpca_tasks.mechanisms.completion.test_dpals import RANK, low_rank, problem, unseen_error

__all__ = ["low_rank"]


def disclosed(mechanism, rows, facts, *, block_records=4096, steps=None):
    plan = mechanism.plan(facts, NO_GUARANTEE)
    reservation = InMemoryReservation(event=plan.event, steps={} if steps is None else steps)
    source = ArrayBlocks(rows, block_records=block_records)
    return mechanism.run(DisclosingCurator(source, reservation, i_know_this_is_not_private=True), plan)


def plain(**changes):
    return Als(**{"rank": RANK, "ridge": 1e-4, "offsets": False, "user_means": False, **changes})


def test_it_is_a_reference_and_not_a_mechanism():
    assert REFERENCES["als"] is Als
    assert REFERENCES.keys().isdisjoint(MECHANISMS)
    event = plain(rounds=3).plan(problem(), NO_GUARANTEE).event
    assert [step["name"] for step in events.steps(event)] == ["non_private"] * 3
    assert not events.is_private(event)


def test_ratings_of_low_rank_are_completed(low_rank):
    rows, whole, seen = low_rank
    assert unseen_error(disclosed(plain(), rows, problem()), whole, seen) < 0.002


def test_it_solves_the_regressions_of_a_second_implementation(low_rank):
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
        assert found[item] == pytest.approx(expected, abs=0.01)  # the grid of users and ratings


def test_offsets_are_taken_off_and_blocks_do_not_matter(low_rank):
    rows, facts = low_rank[0][:200].copy(), problem(records_at_most=200)
    rows.data = rows.data + np.linspace(-2, 2, 60)[rows.indices]
    mechanism = Als(rank=RANK, rounds=2)
    whole, other = (disclosed(mechanism, rows, facts, block_records=size) for size in (4096, 7))
    assert (whole.factors == other.factors).all()
    assert np.corrcoef(whole.offsets, np.linspace(-2, 2, 60))[0, 1] > 0.95
    assert whole.counts.sum() == rows.nnz


@pytest.mark.parametrize("target", [PrivacyTarget(epsilon=1.0, delta=1e-6), PrivacyTarget(epsilon=np.inf, delta=0.0)])
def test_it_is_refused_unless_no_guarantee_is_asked_for_in_so_many_words(target):
    with pytest.raises(Refused, match="i-know-this-is-not-private"):
        plain().plan(problem(), target)


def test_an_ordinary_curator_has_no_way_out_without_noise(low_rank):
    plan = plain().plan(problem(), NO_GUARANTEE)
    reservation = InMemoryReservation(event=plan.event)
    with pytest.raises(Refused, match="needs a DisclosingCurator"):
        plain().run(Curator(ArrayBlocks(low_rank[0]), reservation), plan)
    assert reservation.steps == {}


@pytest.mark.parametrize(
    ("wrong", "rule"), [({"rank": 60}, "below the 60"), ({"rounds": 0}, "rounds=0"), ({"ridge": 0.0}, "positive")]
)
def test_settings_out_of_their_domain_are_refused(wrong, rule):
    with pytest.raises(InvalidInput, match=rule):
        plain(**wrong).plan(problem(), NO_GUARANTEE)
