"""Offsets of items: they approach the truth as noise vanishes, and are shrunk where there is much of it."""

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.audit.trials import audit_mechanism
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.completion.item_means import ItemMeans
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from flows.families.completion import COMPLETION

ITEMS = 8
CLAIM = PrivacyTarget(epsilon=4.0, delta=0.1, allow_large_delta=True)
OFFSETS = np.linspace(-0.7, 0.7, ITEMS)


def run(epsilon, *, relation="add_remove"):
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
    result, plan = run(1e4, relation=relation)
    assert result.factors is None
    assert result.counts == pytest.approx(np.full(ITEMS, 1000), rel=0.15)
    assert result.offsets == pytest.approx(OFFSETS, abs=0.08)
    assert events.count_steps(plan.event) == 1


def test_much_noise_shrinks_offsets_toward_the_centre():
    noisy, _ = run(0.01)
    assert np.abs(noisy.offsets).max() < 0.5  # the std that offsets are taken to have
    assert (noisy.counts > 0).all()


def test_an_empty_range_is_refused():
    facts = RatingsProblem(n_features=ITEMS, low=5.0, high=1.0, ratings_per_user=4)
    with pytest.raises(InvalidInput, match="the lower one first"):
        ItemMeans(rank=1).plan(facts, PrivacyTarget(epsilon=1.0, delta=1e-6))


@pytest.mark.audit
@pytest.mark.parametrize("name", ["item_means", "dpals", "dpfw", "dpsvd", "one_shot"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_an_attack_finds_no_more_than_is_claimed_and_a_part_of_it(name, relation):
    """The bound is wrong with probability at most 0.05; the keys are of a fixed seed, so the test does not vary."""
    subject = COMPLETION.audit
    finding = audit_mechanism(subject.build(name), relation=relation, subject=subject, target=CLAIM, trials=300)
    assert finding.passed
    assert finding.bound > 0.5
