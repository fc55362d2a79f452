"""A step in tiles: one event, one noise stream, one stored answer a tile, whatever happens between them."""

import os
import signal

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.accounting import events
from dpca_tasks.errors import StepMismatch
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.completion.dpals import Dpals
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.privacy.curator import Curator, Rows
from dpca_tasks.privacy.gate import Arrays, InMemoryReservation
from dpca_tasks.queries import tiled_sum
from dpca_tasks.queries.item_statistics import ItemStatistics
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums import resident_rows
from tests.dpca_tasks.queries.rating_queries import ITEMS, RANK, statistics

LAW = JointGaussian(noise_multiplier=3.0)
OF_ITEM = RANK * (RANK + 1) // 2 + RANK
GRAM = {"unobserved": 0.3 * np.eye(RANK), "gram_share": 0.2}


def ratings(users=60):
    rng = np.random.default_rng(3)
    return sparse.csr_array(rng.integers(1, 6, (users, ITEMS)) * (rng.random((users, ITEMS)) < 0.7).astype(float))


def reserved(**options):
    return InMemoryReservation(event=LAW.event, relation="zero_out", key=bytes(32), **options)


def curator(reservation=None, *, block_records=16, **options):
    return Curator(ArrayBlocks(ratings(), block_records=block_records), reservation or reserved(), **options)


@pytest.fixture
def tiny(monkeypatch):
    """Tiles of two items."""
    monkeypatch.setattr(tiled_sum, "TILE", 2 * OF_ITEM + 1)


@pytest.mark.parametrize("changes", [{}, GRAM], ids=["two parts", "three parts"])
@pytest.mark.parametrize("items", [1, 2, 3, ITEMS])
def test_tiles_of_any_size_are_the_whole_answer(monkeypatch, items, changes):
    query = statistics("zero_out", **changes)
    whole = curator().release_parts(query, LAW)
    monkeypatch.setattr(tiled_sum, "TILE", items * OF_ITEM)
    answer = curator(block_records=7).release_tiles(query, LAW)
    assert [tile.last - tile.first for tile in answer.tiles][:-1] == [items] * (-(-ITEMS // items) - 1)
    found = answer.whole()
    assert found.keys() == whole.keys()
    assert all((found[name] == whole[name]).all() for name in whole)


@pytest.mark.usefixtures("tiny")
def test_a_cluster_gives_the_same_tiles(client):
    query = statistics("zero_out", **GRAM)
    alone, spread = (curator(block_records=5, client=at).release_tiles(query, LAW).whole() for at in (None, client))
    assert all((alone[name] == spread[name]).all() for name in alone)


@pytest.mark.usefixtures("tiny")
def test_no_sum_is_larger_than_a_tile(monkeypatch):
    monkeypatch.setattr(Rows, "sum", lambda *_, **__: pytest.fail("all of it was summed"))
    reservation = reserved()
    answer = curator(reservation).release_tiles(statistics("zero_out"), LAW)
    answer.whole()
    assert [stored["answer"].size for stored in reservation.steps.values()] == [
        4,
        *(tile.size for tile in answer.tiles),
    ]


class Crashing(InMemoryReservation):
    """A reservation whose process ends before, or just after, it stores its n-th answer."""

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
    whole = curator().release_tiles(query, LAW).whole()
    monkeypatch.setitem(CRASH, where, at - (where == "before"))
    crashing = Crashing(event=LAW.event, relation="zero_out", key=bytes(32), steps=steps)
    with pytest.raises(KeyboardInterrupt):
        curator(crashing).release_tiles(query, LAW).whole()
    before = dict(steps)
    resumed = curator(reserved(steps=steps))
    found = resumed.release_tiles(resumed.with_stored_inputs(query), LAW).whole()
    assert all((found[name] == whole[name]).all() for name in whole)
    assert all(steps[place] is before[place] for place in before), "no stored answer is made again"


def test_a_resumed_step_keeps_its_tiles_when_another_version_would_cut_others(monkeypatch):
    query, steps = statistics("zero_out"), dict[int, Arrays]()
    whole = curator().release_parts(query, LAW)
    monkeypatch.setattr(tiled_sum, "TILE", 2 * OF_ITEM)
    curator(reserved(steps=steps)).release_tiles(query, LAW).read(0)
    monkeypatch.setattr(tiled_sum, "TILE", 3 * OF_ITEM)
    resumed = curator(reserved(steps=steps)).release_tiles(query, LAW)
    assert [tile.first for tile in resumed.tiles] == list(range(0, ITEMS, 2))
    found = resumed.whole()
    assert all((found[name] == whole[name]).all() for name in whole)


@pytest.mark.usefixtures("tiny")
def test_a_step_in_tiles_is_one_answer_to_one_request():
    steps: dict[int, Arrays] = {}
    curator(reserved(steps=steps)).release_tiles(statistics("zero_out"), LAW).whole()
    for other in (statistics("zero_out", ridge=0.2), statistics("zero_out", rating_clip=1.0)):
        with pytest.raises(StepMismatch, match="answered for another request"):
            curator(reserved(steps=steps)).release_tiles(other, LAW)
    with pytest.raises(StepMismatch, match="answered for another request"):
        curator(reserved(steps=steps)).release_parts(statistics("zero_out"), LAW)
    once = curator(reserved(steps=steps))
    once.release_tiles(statistics("zero_out"), LAW)
    with pytest.raises(StepMismatch, match="not reserved"):
        once.release_tiles(statistics("zero_out"), LAW)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("room", "times"), [(1 << 20, 1), (0, 4)])
def test_users_are_solved_once_a_step_where_there_is_room(monkeypatch, room, times):
    own, prepared = ItemStatistics.prepare, []

    def counting(self, block):
        prepared.append(block.first_record)
        return own(self, block)

    whole = curator().release_tiles(statistics("zero_out"), LAW).whole()
    monkeypatch.setattr(ItemStatistics, "prepare", counting)
    monkeypatch.setattr(resident_rows, "OWN_MEMORY", room)
    found = curator(block_records=20).release_tiles(statistics("zero_out"), LAW).whole()
    assert sorted(prepared) == sorted([0, 20, 40] * times)
    assert all((found[name] == whole[name]).all() for name in whole)


@pytest.mark.usefixtures("tiny")
def test_what_a_killed_worker_held_is_made_again(alone):
    query = statistics("zero_out")
    whole = curator().release_tiles(query, LAW).whole()
    asked = curator(block_records=5, client=alone)
    answer = asked.release_tiles(query, LAW)
    first = answer.read(0)
    assert asked._rows.residency.prepared, "users' factors stay on the worker between tiles"
    (process,) = alone.run(os.getpid).values()
    os.kill(process, signal.SIGKILL)
    found = [first, *(answer.read(at) for at in range(1, len(answer.tiles)))]
    for name in whole:
        assert (np.concatenate([parts[name] for parts in found]) == whole[name]).all()


@pytest.mark.parametrize("settings", [{}, {"unobserved": 0.5, "orthonormal": False}, {"sampling": "weights"}])
def test_a_release_in_tiles_is_the_one_of_whole_rounds(monkeypatch, settings):
    """Pooled rounds read their earlier statistics back, tile by tile."""
    facts = RatingsProblem(n_features=ITEMS, low=1.0, high=5.0, ratings_per_user=4, records_at_most=60)
    mechanism = Dpals(rank=RANK, rounds=3, **settings)
    plan = mechanism.plan(facts, PrivacyTarget(epsilon=5.0, delta=1e-4))
    found = []
    for tile in (tiled_sum.TILE, OF_ITEM):
        monkeypatch.setattr(tiled_sum, "TILE", tile)
        reservation = InMemoryReservation(event=plan.event, key=bytes(32))
        factors = mechanism.run(Curator(ArrayBlocks(ratings()), reservation), plan).factors
        assert factors is not None
        found.append(factors)
        assert events.count_steps(plan.event) == 4
        assert len(reservation.steps) == (4 if tile > 1000 else 4 + 3 * ITEMS)
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0].any()
