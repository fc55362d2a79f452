"""One noised matrix that is never formed: every product belongs to the one that a release would have kept."""

import dataclasses

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, StepMismatch
from dpca_tasks.noise.distributions import Gaussian, Symmetric, UpperTriangle
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks

D = 30
ROWS = np.random.default_rng(2).standard_normal((90, D)) / 3
LAW = Symmetric(noise_multiplier=4.0)
QUERY = SecondMoment(n_features=D, clip_norm=2.0, relation="add_remove", bits=12)
KEY = bytes(range(32))


def reserved(event=LAW.event):
    return InMemoryReservation(event=event, key=KEY)


def curator(reservation=None, *, rows=ROWS, **options):
    return Curator(ArrayBlocks(rows, block_records=17), reservation or reserved(), **options)


def directions(width=6, seed=0, order=D):
    columns = np.linalg.qr(np.random.default_rng(seed).standard_normal((order, width)))[0]
    return np.rint(columns * 2**15).astype(np.int64)


class Changed(ArrayBlocks):
    """Other rows under the same content: what a fault or a program that changed would make of a snapshot."""

    def __init__(self):
        super().__init__(np.vstack([ROWS[:-1], ROWS[:1]]))
        self.content = ArrayBlocks(ROWS, block_records=17).content


@pytest.mark.parametrize("law", [LAW, UpperTriangle(noise_multiplier=4.0)], ids=lambda law: type(law).__name__)
@pytest.mark.parametrize("kind", [SecondMoment, CentredMoment])
def test_products_are_exactly_those_of_the_matrix_that_a_release_forms(kind, law):
    query = kind(n_features=D, clip_norm=2.0, relation="add_remove", bits=12)
    formed = curator(reserved(law.event)).release(query, law)
    operator = curator(reserved(law.event)).release_operator(query, law)
    identity = np.eye(operator.order, dtype=np.int64) << 15
    np.testing.assert_array_equal(operator.product(identity), formed)
    steps = np.rint(formed / query.unit * query.steps_per_unit).astype(np.int64).astype(object)
    asked = directions(order=operator.order)
    exact = (steps @ asked.astype(object)).astype(np.float64) * (query.unit / query.steps_per_unit / 2**15)
    np.testing.assert_array_equal(operator.product(asked), exact)


def test_a_cluster_gives_the_bits_of_one_process(client):
    here, there = (curator(client=where).release_operator(QUERY, LAW) for where in (None, client))
    for seed in range(3):
        np.testing.assert_array_equal(there.product(directions(seed=seed)), here.product(directions(seed=seed)))


@pytest.mark.parametrize("products", [1, 3])
def test_a_resumed_run_gives_the_same_bits(products):
    reservation = reserved()
    first = curator(reservation).release_operator(QUERY, LAW)
    before = [first.product(directions(seed=seed)) for seed in range(products)]
    again = curator(reservation).release_operator(QUERY, LAW)
    for seed in range(products):
        np.testing.assert_array_equal(again.product(directions(seed=seed)), before[seed])


def test_a_resumed_run_may_ask_for_other_products_of_the_same_matrix():
    reservation = reserved()
    curator(reservation).release_operator(QUERY, LAW).product(directions())
    other = curator(reservation).release_operator(QUERY, LAW).product(directions(seed=9))
    np.testing.assert_array_equal(other, curator().release_operator(QUERY, LAW).product(directions(seed=9)))


def test_what_is_kept_does_not_grow_with_the_products():
    reservation = reserved()
    operator = curator(reservation).release_operator(QUERY, LAW)
    for seed in range(3):
        operator.product(directions(seed=seed))
    assert {name: array.shape for name, array in reservation.steps[0].items()} == {
        "answer": (D, 4),
        "question": (39,),
        "public.directions": (D, 4),
    }


@pytest.mark.parametrize("resumed", [False, True])
def test_a_product_from_other_rows_does_not_leave(resumed):
    """Equal noise on two unlike sums would give their difference."""
    reservation = reserved()
    first = curator(reservation)
    operator = first.release_operator(QUERY, LAW)
    operator.product(directions())
    if resumed:
        operator = Curator(Changed(), reservation).release_operator(QUERY, LAW)
    else:
        object.__setattr__(first._rows, "source", Changed())
    with pytest.raises(StepMismatch, match="dataset verify"):
        operator.product(directions(seed=1))


@pytest.mark.parametrize(
    "change", [{"rows": ROWS[:-1]}, {"query": dataclasses.replace(QUERY, clip_norm=1.0)}], ids=["rows", "query"]
)
def test_another_question_is_refused(change):
    reservation = reserved()
    curator(reservation).release_operator(QUERY, LAW).product(directions())
    asked = {"rows": ROWS, "query": QUERY, **change}
    with pytest.raises(StepMismatch, match="another request"):
        curator(reservation, rows=asked["rows"]).release_operator(asked["query"], LAW).product(directions())


def test_a_step_has_one_form():
    formed, applied = reserved(), reserved()
    curator(formed).release(QUERY, LAW)
    with pytest.raises(StepMismatch, match="another request"):
        curator(formed).release_operator(QUERY, LAW).product(directions())
    curator(applied).release_operator(QUERY, LAW).product(directions())
    with pytest.raises(StepMismatch, match="another request"):
        curator(applied).release(QUERY, LAW)


def test_it_takes_one_reserved_step():
    asking = curator(reserved(events.self_composed(LAW.event, 2)))
    one, two = (asking.release_operator(QUERY, LAW) for _ in range(2))
    assert not np.array_equal(one.product(directions()), two.product(directions()))
    with pytest.raises(StepMismatch, match="not reserved"):
        asking.release_operator(QUERY, LAW)


@pytest.mark.parametrize(
    ("law", "error"),
    [(Symmetric(noise_multiplier=3.9), StepMismatch), (Gaussian(noise_multiplier=4.0), InvalidInput)],
    ids=["less noise", "layout"],
)
def test_a_law_that_does_not_fit_is_refused(law, error):
    with pytest.raises(error):
        curator().release_operator(QUERY, law)


def test_directions_that_could_overflow_are_refused():
    with pytest.raises(InvalidInput, match="orthonormal"):
        curator().release_operator(QUERY, LAW).product(4 * directions())
