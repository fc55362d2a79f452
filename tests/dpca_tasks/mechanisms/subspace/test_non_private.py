"""The reference without noise: exact, behind every gate, and no member of the private mechanisms."""

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused, StepMismatch
from dpca_tasks.mechanisms.base import NO_GUARANTEE, PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.subspace.non_private import NonPrivate
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks

D = 5
ROWS = np.random.default_rng(3).standard_normal((200, D)) * np.array([0.5, 0.3, 0.1, 0.1, 0.1])
ROWS /= np.maximum(1.0, np.linalg.norm(ROWS, axis=1, keepdims=True))
PROBLEM = Problem(n_features=D, clip_norm=1.0)
QUERY = SecondMoment(n_features=D, clip_norm=1.0, relation="add_remove", bits=12)


def disclosing(event=None):
    reservation = InMemoryReservation(event=events.non_private() if event is None else event)
    return DisclosingCurator(ArrayBlocks(ROWS), reservation, i_know_this_is_not_private=True)


def test_it_is_a_reference_and_not_a_mechanism():
    assert {"non_private": NonPrivate} == REFERENCES
    assert REFERENCES.keys().isdisjoint(MECHANISMS)


@pytest.mark.parametrize("center", ["none", "private"])
def test_it_finds_the_leading_directions_exactly_up_to_the_grid(center):
    rows = ROWS - ROWS.mean(axis=0) if center == "private" else ROWS
    mechanism, problem = NonPrivate(n_components=2), Problem(n_features=D, clip_norm=1.0, center=center)
    plan = mechanism.plan(problem, NO_GUARANTEE)
    found = mechanism.run(disclosing(), plan)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    assert found.eigenvalues is not None
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:2], rtol=2e-3)
    np.testing.assert_allclose(np.abs(found.components @ vectors[:, ::-1][:, :2]), np.eye(2), atol=5e-3)
    assert (plan.event, plan.noise_multiplier, plan.certified) == (events.non_private(), 0.0, False)


@pytest.mark.parametrize(
    "target",
    [
        PrivacyTarget(epsilon=1.0, delta=1e-6),
        PrivacyTarget(epsilon=np.inf, delta=0.0),
        PrivacyTarget(epsilon=1.0, delta=1e-6, i_know_this_is_not_private=True),
    ],
)
def test_it_is_refused_unless_no_guarantee_is_asked_for_in_so_many_words(target):
    with pytest.raises(Refused, match="i-know-this-is-not-private"):
        NonPrivate(n_components=2).plan(PROBLEM, target)


@pytest.mark.parametrize("components", [0, D])
def test_a_number_of_components_without_meaning_is_refused(components):
    with pytest.raises(InvalidInput, match="n_components"):
        NonPrivate(n_components=components).plan(PROBLEM, NO_GUARANTEE)


def test_an_ordinary_curator_has_no_way_out_without_noise():
    reservation = InMemoryReservation(event=events.non_private())
    plan = NonPrivate(n_components=2).plan(PROBLEM, NO_GUARANTEE)
    with pytest.raises(Refused, match="DisclosingCurator"):
        NonPrivate(n_components=2).run(Curator(ArrayBlocks(ROWS), reservation), plan)
    with pytest.raises(StepMismatch):
        Curator(ArrayBlocks(ROWS), reservation).release(QUERY, Symmetric(noise_multiplier=1e-9))
    assert not hasattr(Curator, "disclose")
    assert reservation.steps == {}


@pytest.mark.parametrize("word", [False, 1, "yes", None])
def test_only_a_plain_acknowledgement_builds_the_curator_that_discloses(word):
    reservation = InMemoryReservation(event=events.non_private())
    with pytest.raises(Refused, match="not private"):
        DisclosingCurator(ArrayBlocks(ROWS), reservation, i_know_this_is_not_private=word)


def test_a_step_reserved_for_noise_is_never_disclosed():
    with pytest.raises(StepMismatch, match="another event"):
        disclosing(events.gaussian(4.0)).disclose(QUERY)
    once = disclosing()
    once.disclose(QUERY)
    with pytest.raises(StepMismatch, match="not reserved"):
        once.disclose(QUERY)
