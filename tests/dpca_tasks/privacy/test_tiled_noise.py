"""Tiled noise: exact products with a noise matrix that is never formed as a whole.

Products with integers must equal those with the matrix that the distribution draws, on any machine and in any order.
Every product must belong to the matrix that a formed release would have stored. A step in tiles has one event, one
noise stream and one stored answer per tile, also after interruptions.
"""

import dataclasses
import os
import signal

import numpy as np
import pytest
from scipy import sparse, stats

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, StepMismatch
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.completion.dpals import Dpals
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.noise.distributions import Gaussian, JointGaussian, Symmetric, UpperTriangle
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import tiled_noise
from dpca_tasks.privacy.curator import Curator, Rows
from dpca_tasks.privacy.gate import Arrays, InMemoryReservation
from dpca_tasks.privacy.tiled_noise import (
    DrawnPanel,
    NoiseOperator,
    Panel,
    Strip,
    cut_rows,
    draw_panel,
    multiply,
)
from dpca_tasks.queries import joint_sum
from dpca_tasks.queries.item_statistics import ItemStatistics
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums import partial_sums
from tests.dpca_tasks.queries.rating_queries import ITEMS, RANK, statistics

KEY = subkey(bytes(range(32)), label="noise", info=b"")
SCALE = 2.0**28
LAWS = [Symmetric(noise_multiplier=4.0), UpperTriangle(noise_multiplier=4.0)]
each_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)


def drawn(law, order):
    """Return the symmetric noise matrix as drawn directly by the distribution, without tiles."""
    matrix = np.zeros((order, order), np.int64)
    matrix[np.triu_indices(order)] = law.draw(KEY, order, scale_in_steps=SCALE)
    return matrix + np.triu(matrix, 1).T


def directions(order, width, seed=0):
    columns = np.linalg.qr(np.random.default_rng(seed).standard_normal((order, width)))[0]
    return np.rint(columns * 2**15).astype(np.int64)


def operator(law, order, **options):
    return NoiseOperator(law, KEY, order=order, scale_in_steps=SCALE, **options)


@each_law
@pytest.mark.parametrize("order", [1, 2, 150])
def test_the_product_is_that_of_the_drawn_matrix(law, order):
    requested = directions(order, min(order, 7))
    np.testing.assert_array_equal(operator(law, order).begin(requested)(), drawn(law, order) @ requested)


@each_law
@pytest.mark.parametrize(("first", "last"), [(0, 40), (0, 1), (17, 29), (39, 40), (40, 40)])
def test_a_strip_is_a_part_of_the_drawn_matrix(law, first, last):
    strip = law.draw_strip(KEY, 40, scale_in_steps=SCALE, first=first, last=last)
    np.testing.assert_array_equal(strip, drawn(law, 40)[first:last, first:])


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 2), (3, 41)])
def test_rows_outside_the_matrix_are_refused(first, last):
    with pytest.raises(InvalidInput, match="must lie in"):
        LAWS[0].draw_strip(KEY, 40, scale_in_steps=SCALE, first=first, last=last)


def test_a_scale_beyond_exact_noise_is_refused():
    with pytest.raises(InvalidInput, match="grid steps"):
        LAWS[0].draw_strip(KEY, 4, scale_in_steps=2.0**31, first=0, last=4)


@pytest.mark.parametrize(("inner", "entries", "own"), [(3, 1 << 24, 1 << 31), (1 << 10, 200, 1 << 31), (7, 1, 0)])
def test_strips_and_memory_are_performance_settings(monkeypatch, inner, entries, own):
    expected = drawn(LAWS[0], 60) @ directions(60, 5)
    for name, value in (("INNER", inner), ("STRIP_ENTRIES", entries), ("OWN_MEMORY", own)):
        monkeypatch.setattr(tiled_noise, name, value)
    noise = operator(LAWS[0], 60)
    for _ in range(2):  # the second product uses stored noise, or draws the noise again
        np.testing.assert_array_equal(noise.begin(directions(60, 5))(), expected)


def test_products_of_the_largest_numbers_are_exact():
    """Multiply the largest possible noise by a column of the largest norm: the product must be exact.

    The noise is 16.1 std at the largest scale, all of one sign.
    """
    order = tiled_noise.INNER
    largest = np.floor(16.1 * SCALE) - np.arange(order * order).reshape(order, order) % 3
    entry = int(2**15.5 / order**0.5)
    requested = np.full((order, 2), entry) - np.arange(2)
    panel = DrawnPanel(drawn=(Strip(0, largest),))
    exact = largest.astype(object) @ requested.astype(object)
    np.testing.assert_array_equal(multiply(panel, requested), exact.astype(np.int64))


@pytest.mark.parametrize("share", [0.3, 0.0], ids=["kept", "drawn again"])
def test_workers_give_the_bits_of_one_process(client, monkeypatch, share):
    monkeypatch.setattr(tiled_noise, "SHARE", share)
    monkeypatch.setattr(tiled_noise, "FAN_IN", 2)
    noise = operator(LAWS[0], 150, client=client)
    for seed in range(2):
        requested = directions(150, 6, seed)
        np.testing.assert_array_equal(noise.begin(requested)(), operator(LAWS[0], 150).begin(requested)())


@pytest.mark.timeout(60)
def test_noise_that_was_lost_with_the_last_worker_is_drawn_again(alone):
    noise, requested = operator(LAWS[0], 150, client=alone), directions(150, 6)
    expected = operator(LAWS[0], 150).begin(requested)()
    np.testing.assert_array_equal(noise.begin(requested)(), expected)
    product = noise.begin(requested)
    for pid in alone.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    np.testing.assert_array_equal(product(), expected)


def test_noise_has_variance_one_on_the_diagonal_and_a_half_next_to_it():
    """Test the noise variance on the diagonal (1) and off the diagonal (1/2) by chi-square at a fixed key.

    Each of the two tests rejects correct noise with probability 1e-4.
    """
    order = 300
    matrix = operator(LAWS[0], order).begin(np.eye(order, dtype=np.int64))() / SCALE
    np.testing.assert_array_equal(matrix, matrix.T)
    for entries, variance in ((np.diag(matrix), 1.0), (matrix[np.triu_indices(order, 1)], 0.5)):
        tail = stats.chi2.cdf(np.square(entries).sum() / variance, entries.size)
        assert 5e-5 < tail < 1 - 5e-5


@pytest.mark.parametrize(("order", "parts"), [(1, 8), (10, 3), (20_000, 8), (1_000_000, 64)])
def test_panels_cover_all_rows_and_have_about_equal_areas(order, parts):
    bounds = np.array(cut_rows(order, parts), np.float64)
    assert (bounds[0], bounds[-1]) == (0, order)
    assert (np.diff(bounds) >= 0).all()
    areas = np.diff(bounds * order - bounds * (bounds - 1) / 2)
    assert np.abs(areas - areas.mean()).max() <= 2 * order


def test_neither_key_nor_noise_is_printed():
    panel = Panel(distribution=LAWS[0], key=KEY, order=8, scale_in_steps=SCALE, first=0, last=8)
    assert KEY.secret.hex() not in repr(panel)
    assert repr(KEY.secret) not in repr(panel)
    assert repr(draw_panel(panel)) == "DrawnPanel()"
    assert draw_panel(panel).__sizeof__() == 8 * 8 * 8


D = 30
ROWS = np.random.default_rng(2).standard_normal((90, D)) / 3
LAW = Symmetric(noise_multiplier=4.0)
QUERY = SecondMoment(n_features=D, clip_norm=2.0, relation="add_remove", bits=12)
RELEASED_OPERATOR_KEY = bytes(range(32))


def reserved(event=LAW.event):
    return InMemoryReservation(event=event, key=RELEASED_OPERATOR_KEY)


def curator(reservation=None, *, rows=ROWS, **options):
    return Curator(ArrayBlocks(rows, block_records=17), reservation or reserved(), **options)


def directions_of_released_operator(width=6, seed=0, order=D):
    columns = np.linalg.qr(np.random.default_rng(seed).standard_normal((order, width)))[0]
    return np.rint(columns * 2**15).astype(np.int64)


class Changed(ArrayBlocks):
    """Different rows under the same content digest, as after a hardware fault or a program change."""

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
    requested = directions_of_released_operator(order=operator.order)
    exact = (steps @ requested.astype(object)).astype(np.float64) * (query.unit / query.steps_per_unit / 2**15)
    np.testing.assert_array_equal(operator.product(requested), exact)


def test_a_cluster_gives_the_bits_of_one_process(client):
    here, there = (curator(client=where).release_operator(QUERY, LAW) for where in (None, client))
    for seed in range(3):
        np.testing.assert_array_equal(
            there.product(directions_of_released_operator(seed=seed)),
            here.product(directions_of_released_operator(seed=seed)),
        )


@pytest.mark.parametrize("products", [1, 3])
def test_a_resumed_run_gives_the_same_bits(products):
    reservation = reserved()
    first = curator(reservation).release_operator(QUERY, LAW)
    before = [first.product(directions_of_released_operator(seed=seed)) for seed in range(products)]
    again = curator(reservation).release_operator(QUERY, LAW)
    for seed in range(products):
        np.testing.assert_array_equal(again.product(directions_of_released_operator(seed=seed)), before[seed])


def test_a_resumed_run_may_request_other_products_of_the_same_matrix():
    reservation = reserved()
    curator(reservation).release_operator(QUERY, LAW).product(directions_of_released_operator())
    other = curator(reservation).release_operator(QUERY, LAW).product(directions_of_released_operator(seed=9))
    np.testing.assert_array_equal(
        other, curator().release_operator(QUERY, LAW).product(directions_of_released_operator(seed=9))
    )


def test_storage_does_not_grow_with_the_number_of_products():
    reservation = reserved()
    operator = curator(reservation).release_operator(QUERY, LAW)
    for seed in range(3):
        operator.product(directions_of_released_operator(seed=seed))
    assert {name: array.shape for name, array in reservation.steps[0].items()} == {
        "answer": (D, 4),
        "question": (39,),
        "public.directions": (D, 4),
    }


@pytest.mark.parametrize("resumed", [False, True])
def test_a_product_from_changed_rows_is_refused(resumed):
    """Change the rows between two products with one noise matrix: the second product must be refused.

    Two different sums with equal noise would reveal their difference.
    """
    reservation = reserved()
    first = curator(reservation)
    operator = first.release_operator(QUERY, LAW)
    operator.product(directions_of_released_operator())
    if resumed:
        operator = Curator(Changed(), reservation).release_operator(QUERY, LAW)
    else:
        object.__setattr__(first._rows, "source", Changed())
        first._rows.residency.clear()  # as if the rows were too large to be kept in memory
    with pytest.raises(StepMismatch, match="dataset verify"):
        operator.product(directions_of_released_operator(seed=1))


@pytest.mark.parametrize(
    "change", [{"rows": ROWS[:-1]}, {"query": dataclasses.replace(QUERY, clip_norm=1.0)}], ids=["rows", "query"]
)
def test_a_second_request_for_an_answered_product_is_refused(change):
    reservation = reserved()
    curator(reservation).release_operator(QUERY, LAW).product(directions_of_released_operator())
    requested = {"rows": ROWS, "query": QUERY, **change}
    with pytest.raises(StepMismatch, match="another request"):
        curator(reservation, rows=requested["rows"]).release_operator(requested["query"], LAW).product(
            directions_of_released_operator()
        )


def test_a_step_is_either_formed_or_an_operator():
    formed, applied = reserved(), reserved()
    curator(formed).release(QUERY, LAW)
    with pytest.raises(StepMismatch, match="another request"):
        curator(formed).release_operator(QUERY, LAW).product(directions_of_released_operator())
    curator(applied).release_operator(QUERY, LAW).product(directions_of_released_operator())
    with pytest.raises(StepMismatch, match="another request"):
        curator(applied).release(QUERY, LAW)


def test_an_operator_uses_one_reserved_step():
    caller = curator(reserved(events.self_composed(LAW.event, 2)))
    one, two = (caller.release_operator(QUERY, LAW) for _ in range(2))
    assert not np.array_equal(
        one.product(directions_of_released_operator()), two.product(directions_of_released_operator())
    )
    with pytest.raises(StepMismatch, match="not reserved"):
        caller.release_operator(QUERY, LAW)


@pytest.mark.parametrize(
    ("law", "error"),
    [(Symmetric(noise_multiplier=3.9), StepMismatch), (Gaussian(noise_multiplier=4.0), InvalidInput)],
    ids=["less noise", "layout"],
)
def test_an_unsuitable_distribution_is_refused(law, error):
    with pytest.raises(error):
        curator().release_operator(QUERY, law)


def test_directions_that_could_overflow_are_refused():
    with pytest.raises(InvalidInput, match="orthonormal"):
        curator().release_operator(QUERY, LAW).product(4 * directions_of_released_operator())


RELEASED_TILES_LAW = JointGaussian(noise_multiplier=3.0)
OF_ITEM = RANK * (RANK + 1) // 2 + RANK
GRAM = {"unobserved": 0.3 * np.eye(RANK), "gram_share": 0.2}


def ratings(users=60):
    rng = np.random.default_rng(3)
    return sparse.csr_array(rng.integers(1, 6, (users, ITEMS)) * (rng.random((users, ITEMS)) < 0.7).astype(float))


def reserved_of_released_tiles(**options):
    return InMemoryReservation(event=RELEASED_TILES_LAW.event, relation="zero_out", key=bytes(32), **options)


def curator_of_released_tiles(reservation=None, *, block_records=16, **options):
    return Curator(
        ArrayBlocks(ratings(), block_records=block_records), reservation or reserved_of_released_tiles(), **options
    )


@pytest.fixture
def tiny(monkeypatch):
    """Reduce the tile size to two items."""
    monkeypatch.setattr(joint_sum, "TILE", 2 * OF_ITEM + 1)


@pytest.mark.parametrize("changes", [{}, GRAM], ids=["two parts", "three parts"])
@pytest.mark.parametrize("items", [1, 2, 3, ITEMS])
def test_tiles_of_any_size_give_the_complete_answer(monkeypatch, items, changes):
    query = statistics("zero_out", **changes)
    whole = curator_of_released_tiles().release_parts(query, RELEASED_TILES_LAW)
    monkeypatch.setattr(joint_sum, "TILE", items * OF_ITEM)
    answer = curator_of_released_tiles(block_records=7).release_tiles(query, RELEASED_TILES_LAW)
    assert [tile.last - tile.first for tile in answer.tiles][:-1] == [items] * (-(-ITEMS // items) - 1)
    found = answer.whole()
    assert found.keys() == whole.keys()
    assert all((found[name] == whole[name]).all() for name in whole)


@pytest.mark.usefixtures("tiny")
def test_a_cluster_gives_the_same_tiles(client):
    query = statistics("zero_out", **GRAM)
    alone, spread = (
        curator_of_released_tiles(block_records=5, client=at).release_tiles(query, RELEASED_TILES_LAW).whole()
        for at in (None, client)
    )
    assert all((alone[name] == spread[name]).all() for name in alone)


@pytest.mark.usefixtures("tiny")
def test_no_sum_is_larger_than_a_tile(monkeypatch):
    monkeypatch.setattr(Rows, "sum", lambda *_, **__: pytest.fail("all of it was summed"))
    reservation = reserved_of_released_tiles()
    answer = curator_of_released_tiles(reservation).release_tiles(statistics("zero_out"), RELEASED_TILES_LAW)
    answer.whole()
    assert [stored["answer"].size for stored in reservation.steps.values()] == [
        4,
        *(tile.size for tile in answer.tiles),
    ]


class Crashing(InMemoryReservation):
    """A reservation whose process ends just before or just after storing its n-th answer."""

    __slots__ = ()

    def keep(self, step, arrays):
        if len(self.steps) == CRASH["before"]:
            raise KeyboardInterrupt
        stored = super().keep(step, arrays)
        if len(self.steps) == CRASH["after"]:
            raise KeyboardInterrupt
        return stored


CRASH = {"before": -1, "after": -1}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_crash_in_any_tile_resumes_to_the_same_answer(monkeypatch, where, at):
    query = statistics("zero_out")
    steps: dict[int, Arrays] = {}
    whole = curator_of_released_tiles().release_tiles(query, RELEASED_TILES_LAW).whole()
    monkeypatch.setitem(CRASH, where, at - (where == "before"))
    crashing = Crashing(event=RELEASED_TILES_LAW.event, relation="zero_out", key=bytes(32), steps=steps)
    with pytest.raises(KeyboardInterrupt):
        curator_of_released_tiles(crashing).release_tiles(query, RELEASED_TILES_LAW).whole()
    before = dict(steps)
    resumed = curator_of_released_tiles(reserved_of_released_tiles(steps=steps))
    found = resumed.release_tiles(resumed.with_stored_inputs(query), RELEASED_TILES_LAW).whole()
    assert all((found[name] == whole[name]).all() for name in whole)
    assert all(steps[place] is before[place] for place in before), "no stored answer is made again"


def test_a_resumed_step_keeps_its_stored_tile_size(monkeypatch):
    query, steps = statistics("zero_out"), dict[int, Arrays]()
    whole = curator_of_released_tiles().release_parts(query, RELEASED_TILES_LAW)
    monkeypatch.setattr(joint_sum, "TILE", 2 * OF_ITEM)
    curator_of_released_tiles(reserved_of_released_tiles(steps=steps)).release_tiles(query, RELEASED_TILES_LAW).read(0)
    monkeypatch.setattr(joint_sum, "TILE", 3 * OF_ITEM)
    resumed = curator_of_released_tiles(reserved_of_released_tiles(steps=steps)).release_tiles(
        query, RELEASED_TILES_LAW
    )
    assert [tile.first for tile in resumed.tiles] == list(range(0, ITEMS, 2))
    found = resumed.whole()
    assert all((found[name] == whole[name]).all() for name in whole)


@pytest.mark.usefixtures("tiny")
def test_a_step_in_tiles_is_one_answer_to_one_request():
    steps: dict[int, Arrays] = {}
    curator_of_released_tiles(reserved_of_released_tiles(steps=steps)).release_tiles(
        statistics("zero_out"), RELEASED_TILES_LAW
    ).whole()
    for other in (statistics("zero_out", ridge=0.2), statistics("zero_out", rating_clip=1.0)):
        with pytest.raises(StepMismatch, match="answered for another request"):
            curator_of_released_tiles(reserved_of_released_tiles(steps=steps)).release_tiles(other, RELEASED_TILES_LAW)
    with pytest.raises(StepMismatch, match="answered for another request"):
        curator_of_released_tiles(reserved_of_released_tiles(steps=steps)).release_parts(
            statistics("zero_out"), RELEASED_TILES_LAW
        )
    once = curator_of_released_tiles(reserved_of_released_tiles(steps=steps))
    once.release_tiles(statistics("zero_out"), RELEASED_TILES_LAW)
    with pytest.raises(StepMismatch, match="not reserved"):
        once.release_tiles(statistics("zero_out"), RELEASED_TILES_LAW)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("room", "times"), [(1 << 20, 1), (0, 4)])
def test_users_are_solved_once_per_step_if_memory_suffices(monkeypatch, room, times):
    own, prepared = ItemStatistics.prepare, []

    def counting(self, block):
        prepared.append(block.first_record)
        return own(self, block)

    whole = curator_of_released_tiles().release_tiles(statistics("zero_out"), RELEASED_TILES_LAW).whole()
    monkeypatch.setattr(ItemStatistics, "prepare", counting)
    monkeypatch.setattr(partial_sums, "OWN_MEMORY", room)
    found = (
        curator_of_released_tiles(block_records=20).release_tiles(statistics("zero_out"), RELEASED_TILES_LAW).whole()
    )
    assert sorted(prepared) == sorted([0, 20, 40] * times)
    assert all((found[name] == whole[name]).all() for name in whole)


@pytest.mark.usefixtures("tiny")
def test_results_of_a_killed_worker_are_recomputed(alone):
    query = statistics("zero_out")
    whole = curator_of_released_tiles().release_tiles(query, RELEASED_TILES_LAW).whole()
    requested = curator_of_released_tiles(block_records=5, client=alone)
    answer = requested.release_tiles(query, RELEASED_TILES_LAW)
    first = answer.read(0)
    assert requested._rows.residency.prepared, "users' factors stay on the worker between tiles"
    (process,) = alone.run(os.getpid).values()
    os.kill(process, signal.SIGKILL)
    found = [first, *(answer.read(at) for at in range(1, len(answer.tiles)))]
    for name in whole:
        assert (np.concatenate([parts[name] for parts in found]) == whole[name]).all()


@pytest.mark.parametrize("settings", [{}, {"unobserved": 0.5, "orthonormal": False}, {"sampling": "weights"}])
def test_a_release_in_tiles_equals_one_in_whole_rounds(monkeypatch, settings):
    """Compare a release in tiles with one in whole rounds: the factors must be equal.

    Rounds that pool statistics read the earlier ones back, tile by tile.
    """
    facts = RatingsProblem(n_features=ITEMS, low=1.0, high=5.0, ratings_per_user=4, records_at_most=60)
    mechanism = Dpals(rank=RANK, rounds=3, **settings)
    plan = mechanism.plan(facts, PrivacyTarget(epsilon=5.0, delta=1e-4))
    found = []
    for tile in (joint_sum.TILE, OF_ITEM):
        monkeypatch.setattr(joint_sum, "TILE", tile)
        reservation = InMemoryReservation(event=plan.event, key=bytes(32))
        factors = mechanism.run(Curator(ArrayBlocks(ratings()), reservation), plan).factors
        assert factors is not None
        found.append(factors)
        assert events.count_steps(plan.event) == 4
        assert len(reservation.steps) == (4 if tile > 1000 else 4 + 3 * ITEMS)
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0].any()
