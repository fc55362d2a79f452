"""The trust boundary: reserved steps only, one answer a step, noise bound to the question."""

import dataclasses

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, StepMismatch
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.distributions import Gaussian, Symmetric
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum

ROWS = np.random.default_rng(2).standard_normal((50, 5)) / 3
LAW = Symmetric(noise_multiplier=4.0)
QUERY = SecondMoment(n_features=5, clip_norm=1.0, relation="add_remove", bits=12)
KEY = bytes(range(32))


def reserved(event=LAW.event, *, key=KEY, **terms):
    return InMemoryReservation(event=event, key=key, **terms)


def noise_of(query=QUERY, law=LAW, rows=ROWS, *, key=KEY, skip=0):
    """Release and subtract the exact sum: what the noise was, in units of the clip norm."""
    event = events.self_composed(law.event, skip + 1)
    curator = Curator(ArrayBlocks(rows), reserved(event, key=key, relation=query.relation))
    for _ in range(skip + 1):
        noisy = curator.release(query, law)
    exact = unpack_symmetric(exact_sum(ArrayBlocks(rows), query) / query.steps_per_unit, 5)
    return noisy / query.unit - exact


def test_the_answer_is_the_exact_sum_plus_noise_of_the_stated_size():
    noise = noise_of()
    assert np.abs(noise).max() < 6 * 4.0  # 15 draws beyond 6 std: 3e-8 for an unlucky key, fixed here
    assert np.abs(noise).max() > 0.5


def test_the_same_question_under_the_same_key_has_the_same_noise():
    np.testing.assert_array_equal(noise_of(), noise_of())


@pytest.mark.parametrize(
    "change",
    [
        {"key": bytes(32)},
        {"rows": np.vstack([ROWS, np.zeros(5)])},
        {"rows": ROWS[::-1]},
        {"law": Symmetric(noise_multiplier=4.5)},
        {"query": dataclasses.replace(QUERY, clip_norm=2.0)},
        {"query": dataclasses.replace(QUERY, bits=11)},
        {"query": dataclasses.replace(QUERY, relation="zero_out")},
        {"skip": 1},
    ],
    ids=str,
)
def test_any_change_of_the_question_gives_unrelated_noise(change):
    """A shared stream would correlate at 1; unrelated ones pass 0.9 over 15 draws with chance below 1e-5."""
    upper = np.triu_indices(5)
    assert abs(np.corrcoef(noise_of()[upper], noise_of(**change)[upper])[0, 1]) < 0.9


def product_of(directions):
    return MomentProduct(
        n_features=5, clip_norm=1.0, relation="add_remove", bits=12, directions=on_direction_grid(directions)
    )


def product_noise(query):
    law = Gaussian(noise_multiplier=4.0)
    noisy = Curator(ArrayBlocks(ROWS), reserved(law.event)).release(query, law)
    return noisy - exact_sum(ArrayBlocks(ROWS), query) / query.steps_per_unit


def test_any_change_of_the_directions_gives_unrelated_noise():
    """One step of the public grid in one entry is enough; unrelated noise passes 0.9 over 10 draws at 4e-4."""
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 2)))[0]
    moved = directions.copy()
    moved[0, 0] += 2.0**-24
    noise = product_noise(product_of(directions))
    np.testing.assert_array_equal(noise, product_noise(product_of(directions)))
    assert abs(np.corrcoef(noise, product_noise(product_of(moved)))[0, 1]) < 0.9


def test_blocks_are_a_performance_setting():
    answers = [Curator(ArrayBlocks(ROWS, block_records=size), reserved()).release(QUERY, LAW) for size in (1, 7, 100)]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


def test_a_step_that_was_not_reserved_is_refused():
    curator = Curator(ArrayBlocks(ROWS), reserved())
    curator.release(QUERY, LAW)
    with pytest.raises(StepMismatch, match="not reserved"):
        curator.release(QUERY, LAW)


def test_a_step_with_less_noise_than_reserved_is_refused():
    with pytest.raises(StepMismatch, match="another event"):
        Curator(ArrayBlocks(ROWS), reserved()).release(QUERY, Symmetric(noise_multiplier=3.999))


def test_a_law_for_another_layout_is_refused():
    with pytest.raises(InvalidInput, match="no sensitivity of the statistic"):
        Curator(ArrayBlocks(ROWS), reserved()).release(QUERY, Gaussian(noise_multiplier=4.0))


def test_noise_too_large_for_the_grid_is_refused():
    law = Symmetric(noise_multiplier=2.0**20)
    with pytest.raises(InvalidInput, match="grid steps"):
        Curator(ArrayBlocks(ROWS), reserved(law.event)).release(QUERY, law)


def test_a_kept_step_is_read_back_without_the_rows():
    reservation = reserved()
    answer = Curator(ArrayBlocks(ROWS), reservation).release(QUERY, LAW)

    class NoRows(ArrayBlocks):
        def read(self, block, /):
            raise AssertionError("the rows were read again")

    np.testing.assert_array_equal(Curator(NoRows(ROWS), reservation).release(QUERY, LAW), answer)


def test_another_question_in_an_answered_step_is_refused():
    reservation = reserved()
    Curator(ArrayBlocks(ROWS), reservation).release(QUERY, LAW)
    for rows, query in ((ROWS[:-1], QUERY), (ROWS, dataclasses.replace(QUERY, clip_norm=2.0))):
        with pytest.raises(StepMismatch, match="another request"):
            Curator(ArrayBlocks(rows), reservation).release(query, LAW)


def test_a_resumed_step_goes_on_from_the_kept_public_inputs():
    law = Gaussian(noise_multiplier=4.0)
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 2)))[0]

    def product(by):
        moved = on_direction_grid(directions + by)
        return MomentProduct(n_features=5, clip_norm=1.0, relation="add_remove", bits=12, directions=moved)

    reservation = reserved(law.event)
    first = Curator(ArrayBlocks(ROWS), reservation)
    answer = first.release(first.with_stored_inputs(product(0.0)), law)
    again = Curator(ArrayBlocks(ROWS), reservation)
    settled = again.with_stored_inputs(product(2.0**-23))  # other last bits, as another machine would give
    np.testing.assert_array_equal(settled.directions, product(0.0).directions)
    np.testing.assert_array_equal(again.release(settled, law), answer)


def test_a_reservation_never_shows_its_key():
    reservation = InMemoryReservation(event=LAW.event)
    assert len(reservation.key) == 32
    assert repr(reservation.key) not in repr(reservation)
    assert reservation.key != InMemoryReservation(event=LAW.event).key
