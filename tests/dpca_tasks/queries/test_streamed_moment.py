"""Joint sensitivity of all ticks of a stream: for any history of a record, changes stay within the stated bound."""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from dpca_tasks.accounting.factorisation import Weights, choose_weights
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.distributions import Symmetric, UpperTriangle
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.second_moment import CentredMoment, RecordMean, SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.records.blocks import ArrayBlocks, NormalisedBlocks
from dpca_tasks.sums.exact_sum import exact_sum

D = 2
TICKS = 4
RELATIONS = ("add_remove", "zero_out", "replace_one")
CHOSEN = {
    "sqrt": choose_weights("sqrt", ticks=TICKS),
    "power": choose_weights("power", longest=TICKS),
    "window": choose_weights("window", window=2, longest=8),
    "decay": choose_weights("decay", half_life=2, longest=8),
    "tiny": Weights(strategy="sqrt", weights=(1, 0, 1, 0), bits=0),
}
each_strategy = pytest.mark.parametrize("weights", CHOSEN.values(), ids=CHOSEN)
each_relation = pytest.mark.parametrize("relation", RELATIONS)


def facts(relation="add_remove", bits=3):
    return {"n_features": D, "clip_norm": 1.0, "relation": relation, "bits": bits}


def tick_of(moment, weights, tick, *, horizon=TICKS, arrivals=None):
    numbers = tuple(range(1, tick + 1)) if arrivals is None else arrivals
    return StreamedMoment.of_moment(moment, weights=weights, horizon=horizon, tick=tick, arrivals=numbers)


def answer(query, records):
    """Return the sum over records, each given as (tick first seen, rows); None is an unknown arrival."""
    total = np.zeros(query.layout.size, np.int64)
    for seen, rows in records:
        source = ArrayBlocks(rows, record_rows=[len(rows)], first_seen=None if seen is None else [seen])
        total += exact_sum(source, query)
    return total


def squared_norm(query, packed):
    """Return the exact squared Frobenius norm of a packed integer matrix, in squared units."""
    matrix = unpack_symmetric(packed.astype(float), query.layout.order)
    return Fraction(sum(int(entry) ** 2 for entry in matrix.ravel()), query.steps_per_unit**2)


def moved(moment, weights, mine, others):
    """Return the squared change of all ticks together, between two histories of one record.

    A history is (tick first seen, rows at each tick or None).
    """
    total = Fraction(0)
    for tick in range(1, TICKS + 1):
        query = tick_of(moment, weights, tick)
        left, right = (
            answer(
                query, [] if history is None or history[1][tick - 1] is None else [(history[0], history[1][tick - 1])]
            )
            for history in (mine, others)
        )
        total += squared_norm(query, left - right)
    return total


RECORDS = (None, np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.array([[0.6, 0.8], [9.0, -1.0]]))


def step_table(weights, relation):
    """Return what a record adds to a tick, for each tick, arrival and record of `RECORDS`.

    The shape is (ticks, arrivals, records, 2, 2), in units of the grid.
    """
    found = np.zeros((TICKS, TICKS, len(RECORDS), D, D))
    for tick, arrival, (at, rows) in itertools.product(range(TICKS), range(TICKS), enumerate(RECORDS)):
        if rows is not None:
            query = tick_of(SecondMoment(**facts(relation)), weights, tick + 1)
            packed = answer(query, [(arrival + 1, rows)]) / query.steps_per_unit
            found[tick, arrival, at] = unpack_symmetric(packed, D)
    return found


@each_strategy
@each_relation
def test_no_pair_of_histories_exceeds_the_joint_sensitivity_of_a_stream(weights, relation):
    """Try all pairs of histories of four ticks, with every change of the record, absence and return."""
    table = step_table(weights, relation)
    separate = np.square(table[:, :, :, None, None] - table[:, None, None]).sum(axis=(-2, -1))
    histories = np.array(list(itertools.product(range(len(RECORDS)), repeat=TICKS)))
    worst = 0.0
    for mine, other in itertools.product(range(TICKS), repeat=2):
        others = histories if relation == "replace_one" else np.zeros((1, TICKS), int)
        total = sum(separate[t, mine][histories[:, t]][:, other][:, others[:, t]] for t in range(TICKS))
        worst = max(worst, total.max())
    declared = tick_of(SecondMoment(**facts(relation)), weights, 1).sensitivity("l2") ** 2
    assert worst <= declared * (1 + 1e-12)
    charged = float(weights.zeta_squared(TICKS))
    reached = sum(w * w for w in weights.weights[:TICKS]) / 4**weights.bits
    assert worst >= reached * (2 if relation == "replace_one" else 1) * (1 - 1e-12)
    assert weights.endless or reached == charged


rows_of_a_record = st.lists(
    st.lists(st.sampled_from([0.0, 1e-9, 0.03, 0.0625, 0.125, -0.6, 0.8, 1.0, 40.0, math.nan]), min_size=D, max_size=D),
    min_size=1,
    max_size=6,
).map(np.array)
histories = st.tuples(
    st.integers(1, TICKS + 1) | st.none(),
    st.lists(st.none() | rows_of_a_record | st.just(np.full((200, D), 0.05)), min_size=TICKS, max_size=TICKS),
)


@each_relation
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_program_keeps_the_joint_bound_for_any_rows(relation, data):
    """Generate histories of a record of many rows that is edited, removed and restored, or replaced.

    Rows may be as short as a grid step. The joint change must be within the bound.
    """
    weights = data.draw(st.sampled_from(sorted(CHOSEN)).map(CHOSEN.get))
    kind = data.draw(st.sampled_from([SecondMoment, CentredMoment]))
    moment = kind(**facts(relation, bits=data.draw(st.sampled_from([1, 3, 10]))))
    mine = data.draw(histories)
    emptied = (mine[0], [None if rows is None else np.zeros_like(rows) for rows in mine[1]])
    others = {"add_remove": None, "zero_out": emptied, "replace_one": data.draw(histories)}[relation]
    found = moved(moment, weights, mine, others)
    target(float(found))
    assert found <= Fraction(tick_of(moment, weights, 1).sensitivity("l2")) ** 2


@each_strategy
def test_a_record_that_arrives_first_and_stays_attains_the_bound(weights):
    moment = SecondMoment(**facts())
    kept = (1, [np.eye(D)[:1]] * TICKS)
    assert moved(moment, weights, kept, None) == Fraction(sum(w * w for w in weights.weights[:TICKS]), 4**weights.bits)


def test_an_id_that_returns_with_a_new_arrival_number_exceeds_the_bound():
    """Let an id return with a new arrival number: the joint bound is exceeded.

    So an id must keep its first number, which a table of ids ensures.
    """
    weights = CHOSEN["sqrt"]
    row = np.eye(D)[:1]
    total = sum(
        squared_norm(query, answer(query, [(1 if tick < 3 else 3, row)]))
        for tick in range(1, TICKS + 1)
        for query in [tick_of(SecondMoment(**facts()), weights, tick)]
    )
    assert total > weights.zeta_squared(TICKS)


@each_strategy
@each_relation
def test_forgetting_all_arrival_numbers_at_a_tick_does_not_raise_the_sensitivity(weights, relation):
    """Replace all arrivals by 1 from some tick on: the joint sensitivity must not grow.

    All arrivals of both histories and all such ticks are tried.
    """
    query = tick_of(SecondMoment(**facts(relation)), weights, 1)
    for mine, other, last in itertools.product(range(1, TICKS + 1), repeat=3):
        worst = 0.0
        for tick in range(1, TICKS + 1):
            numbers = tuple(range(1, tick + 1)) if tick <= last else (TICKS,) * tick
            tonight = dataclasses.replace(query, tick=tick, arrivals=numbers)
            one, two = (tonight.weight_of(seen) / 2**weights.bits for seen in (mine, other))
            worst += one**2 + (two**2 + 2 * max(0.0, -one * two) if relation == "replace_one" else 0.0)
        assert worst <= query.sensitivity("l2") ** 2


def test_the_arrival_is_the_first_tick_whose_snapshot_is_not_older():
    weights = Weights(strategy="sqrt", weights=(8, 4, 3, 2, 1), bits=3)
    tick = tick_of(SecondMoment(**facts()), weights, 5, horizon=5, arrivals=(0, 3, 3, 7, 9))
    seen = {None: 1, 0: 1, 1: 2, 3: 2, 4: 3, 7: 3, 8: 4, 9: 4, 10: 8, 99: 8}
    expected = {None: 1, 0: 1, 1: 2, 3: 2, 4: 4, 7: 4, 8: 8, 9: 8, 10: 0, 99: 0}
    assert {number: tick.weight_of(number) for number in seen} == expected


def test_a_records_arrival_does_not_depend_on_rows_or_policies_around_it():
    """Split, scale and reorder blocks: each record must keep the tick at which it was first seen."""
    moment = SecondMoment(**facts())
    tick = tick_of(moment, CHOSEN["sqrt"], 3)
    rows = np.array([[0.5, 0.5], [1.0, 0.0]])
    plain = ArrayBlocks(rows, first_seen=[1, 3])
    one, two = (plain.read(at) for at in range(2))
    unsorted = dataclasses.replace(
        two, indices=np.array([1, 0, 0]), values=np.array([0.0, 0.5, 0.5]), row_ptr=np.array([0, 3])
    )
    assert np.array_equal(tick.map(tick.grid(unsorted)), tick.map(tick.grid(two)))
    normalised = NormalisedBlocks(plain, length=1.0)
    assert [normalised.read(at).first_seen for at in range(2)] == [1, 3]
    for kind in (SecondMoment, CentredMoment):
        query = tick_of(kind(**facts()), CHOSEN["sqrt"], 3)
        assert query.grid(one).first_seen == 1
        assert np.array_equal(exact_sum(plain, query), query.map(query.grid(one)) + query.map(query.grid(two)))
        assert np.array_equal(
            exact_sum(plain, query), exact_sum(ArrayBlocks(rows, first_seen=[1, 3], block_records=1), query)
        )


def test_blocks_hold_records_of_one_number_and_cover_all_of_them():
    seen = [1, 1, 1, 4, 4, 9]
    source = ArrayBlocks(np.arange(12.0).reshape(6, 2), first_seen=seen, block_records=2)
    blocks = [source.read(at) for at in range(source.n_blocks)]
    assert [(block.first_seen, block.record_ptr.size - 1) for block in blocks] == [(1, 2), (1, 1), (4, 2), (9, 1)]
    assert source.extents[:, 0].sum() == 6
    assert source.content != ArrayBlocks(np.arange(12.0).reshape(6, 2)).content
    assert ArrayBlocks(np.empty((0, 2)), first_seen=[]).n_blocks == 0
    for wrong in ([1, 2], [2, 1, 1, 1, 1, 1]):
        with pytest.raises(InvalidInput):
            ArrayBlocks(np.arange(12.0).reshape(6, 2), first_seen=wrong)


@each_relation
def test_the_curator_releases_a_tick_under_the_event_of_the_whole_stream(relation):
    """Release a tick in one ordinary step: its noise std must be z times the joint sensitivity.

    z is the noise multiplier of the whole stream's event.
    """
    weights, multiplier = CHOSEN["sqrt"], 3.0
    noise = Symmetric(noise_multiplier=multiplier)
    query = tick_of(SecondMoment(**facts(relation, bits=9)), weights, 2)
    answers = []
    for key in range(200):
        reservation = InMemoryReservation(event=noise.event, relation=relation, key=key.to_bytes(32, "little"))
        answers.append(Curator(ArrayBlocks(np.eye(D), first_seen=[1, 2]), reservation).release(query, noise))
    diagonal = np.array(answers)[:, range(D), range(D)]
    declared = multiplier * query.sensitivity("l2")
    # the tolerance is 4.2 standard errors: a false alarm in one of 4e4 seeds
    assert diagonal.std() == pytest.approx(declared, rel=0.15)
    assert diagonal.mean(axis=0) == pytest.approx([weights.series[1], 1.0], abs=4.2 * declared / math.sqrt(200))


def test_the_digest_covers_everything_on_which_an_answer_depends():
    moment, weights = SecondMoment(**facts()), CHOSEN["sqrt"]
    base = tick_of(moment, weights, 2)
    others = [
        tick_of(moment, weights, 3),
        tick_of(moment, weights, 2, horizon=3),
        tick_of(moment, weights, 2, arrivals=(1, 3)),
        tick_of(moment, CHOSEN["power"], 2),
        tick_of(SecondMoment(**facts(bits=4)), weights, 2),
        tick_of(CentredMoment(**facts()), weights, 2),
    ]
    digests = [query.digest() for query in (base, *others)]
    assert len(set(digests)) == len(digests)
    assert tick_of(moment, Weights.from_json(weights.to_json()), 2).digest() == digests[0]


@pytest.mark.parametrize(
    "change",
    [
        {"arrivals": (1,)},
        {"arrivals": (2, 1)},
        {"arrivals": (-1, 1)},
        {"horizon": 0},
        {"horizon": 10**6},
        {"of": RecordMean(**facts())},
        {"of": SecondMoment(**facts(bits=4))},
        {"bits": 14, "of": SecondMoment(**facts(bits=14))},
    ],
    ids=lambda change: "-".join(change),
)
def test_an_invalid_tick_of_a_stream_is_refused(change):
    with pytest.raises(InvalidInput):
        dataclasses.replace(tick_of(SecondMoment(**facts()), CHOSEN["sqrt"], 2), **change)


def test_other_noise_than_isometric_is_refused():
    query = tick_of(SecondMoment(**facts()), CHOSEN["sqrt"], 1)
    reservation = InMemoryReservation(event=UpperTriangle(noise_multiplier=4.0).event)
    with pytest.raises(InvalidInput, match="no sensitivity"):
        Curator(ArrayBlocks(np.eye(D)), reservation).release(query, UpperTriangle(noise_multiplier=4.0))
    with pytest.raises(InvalidInput, match="no sensitivity in norm"):
        query.sensitivity("l1")


def test_a_stream_whose_parameters_contradict_its_moment_is_refused():
    assert issubclass(StreamedMoment, RowSum)
    with pytest.raises(InvalidInput, match="differ"):
        dataclasses.replace(tick_of(SecondMoment(**facts()), CHOSEN["sqrt"], 1), clip_norm=2.0)
