"""Rows of several nights as one source: each row once, at the age of its night, whatever the partition."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from dpca_tasks.accounting.factorisation import choose_weights
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from storage.datasets.catalog import Catalog, Entry
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.night_rows import NightRows
from storage.errors import Conflict, Invalid

NIGHTS = [np.random.default_rng(night).integers(-3, 4, size=(40 + night, 3)) for night in range(3)]


@pytest.fixture
def nights(tmp_path: Path, catalog: Catalog) -> list[Entry]:
    """Ingest the rows of three nights without ids, in blocks of other sizes each night."""
    catalog.home.mkdir(mode=0o700)
    for night, rows in enumerate(NIGHTS):
        np.save(tmp_path / "rows.npy", rows)
        options = IngestOptions(block_nnz=20 * (night + 1))
        ingest(tmp_path / "rows.npy", name="x", home=catalog.home, engine=catalog.engine, options=options)
    with catalog.engine.begin() as connection:
        found = connection.exec_driver_sql("SELECT id FROM snapshot ORDER BY number").scalars().all()
    return [catalog.entry(snapshot) for snapshot in found]


def chained(catalog: Catalog, bound: list[Entry]) -> NightRows:
    return NightRows.of([(catalog.open(entry), entry.number) for entry in bound])


def released(source: NightRows, arrivals: tuple[int, ...]) -> np.ndarray:
    """Return the sum of a tick without noise."""
    moment = SecondMoment(n_features=3, clip_norm=6.0, relation="add_remove", bits=8)
    weights = choose_weights("sqrt", ticks=7)
    tick = StreamedMoment.of_moment(moment, weights=weights, horizon=7, tick=len(arrivals), arrivals=arrivals)
    total = np.zeros(tick.layout.size, np.int64)
    for number in range(source.n_blocks):
        tick.add(tick.grid(source.read(number)), total)
    return total


def test_every_row_comes_once_with_the_number_of_its_night(catalog: Catalog, nights: list[Entry]) -> None:
    source = chained(catalog, nights)
    blocks = [source.read(number) for number in range(source.n_blocks)]
    assert [entry.number for entry in nights] == [1, 2, 3]
    assert source.n_records == sum(map(len, NIGHTS))
    assert [block.first_record for block in blocks] == np.cumsum([0, *source.extents[:-1, 0]]).tolist()
    for number, rows in enumerate(NIGHTS, start=1):
        found = [block for block in blocks if block.first_seen == number]
        assert sum(len(block.row_ptr) - 1 for block in found) == len(rows)
        assert sum(block.values.sum() for block in found) == rows.sum()
    with pytest.raises(IndexError, match="does not exist"):
        source.read(source.n_blocks)


def test_sums_are_those_of_each_night_by_itself_at_its_age(catalog: Catalog, nights: list[Entry]) -> None:
    """However the rows are cut into blocks: the three nights were cut differently, and each alone differently again."""
    weights = choose_weights("sqrt", ticks=7)
    apart = [released(chained(catalog, [entry]), (entry.number or 0,)) // weights.weight(0) for entry in nights]
    expected = sum(weights.weight(2 - age) * moment for age, moment in enumerate(apart))
    assert np.array_equal(released(chained(catalog, nights), (1, 2, 3)), expected)


def test_a_snapshot_bound_to_several_ticks_is_read_once(catalog: Catalog, nights: list[Entry]) -> None:
    """An empty night brings no row again: it would count twice."""
    first, second, _ = nights
    source = chained(catalog, [first, first, second, second])
    assert source.n_records == len(NIGHTS[0]) + len(NIGHTS[1])
    assert source.content == chained(catalog, [first, second]).content


def test_the_content_tells_nights_and_numbers_apart(catalog: Catalog, nights: list[Entry]) -> None:
    first, second, third = nights
    contents = {chained(catalog, bound).content for bound in ([first], [first, second], [first, third], nights)}
    renumbered = NightRows.of([(catalog.open(first), 9)])
    assert len(contents | {renumbered.content, first.content_digest}) == 6


def test_a_night_from_before_the_numbering_arrives_first(catalog: Catalog, nights: list[Entry]) -> None:
    first, second, _ = nights
    source = NightRows.of([(catalog.open(first), None), (catalog.open(second), 2)])
    assert source.read(0).first_seen is None
    with pytest.raises(Conflict, match="never fall"):
        NightRows.of([(catalog.open(second), 2), (catalog.open(first), None)])


def test_nights_of_other_columns_and_no_night_are_refused(
    catalog: Catalog, nights: list[Entry], tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", np.ones((2, 4)))
    report = ingest(tmp_path / "rows.npy", name="y", home=catalog.home, engine=catalog.engine)
    with pytest.raises(Invalid, match="same columns"):
        chained(catalog, [*nights, catalog.entry(report.snapshot)])
    with pytest.raises(Invalid, match="at least one"):
        NightRows.of([])


def test_a_pickle_holds_addresses_and_numbers_alone(catalog: Catalog, nights: list[Entry]) -> None:
    source = chained(catalog, nights)
    pickled = pickle.dumps(source)
    assert pickle.loads(pickled) == source
    for secret in (source.content, nights[0].content_digest):
        assert secret.encode() not in pickled
        assert secret not in repr(source)
