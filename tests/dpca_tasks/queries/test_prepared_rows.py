"""Extended rows, norm histograms and samples, against plain numpy."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, WorkerFailed
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.augmented_moment import CONSTANT, CentredMoment
from dpca_tasks.queries.counts import NormHistogram, norm_grid
from dpca_tasks.queries.poisson_sampled import PoissonSampled, sampled
from dpca_tasks.queries.record_mean import RecordMean
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks, NormalisedBlocks
from dpca_tasks.sums.exact_sum import exact_sum

ROWS = np.random.default_rng(3).standard_normal((200, 5)) / 4
FACTS: dict[str, Any] = {"n_features": 5, "clip_norm": 2.0, "relation": "add_remove", "bits": 13}
MOMENT = SecondMoment(**FACTS)
SAMPLE = sampled(MOMENT, rate=0.3)


def units(query, source):
    packed = exact_sum(source, query) / query.steps_per_unit * query.unit
    return unpack_symmetric(packed, query.layout.order) if query.layout.kind == "symmetric" else packed


@pytest.mark.parametrize("counts", [np.ones(200, int), np.array([1, 4] * 40), np.array([0, 5] * 40)])
def test_an_extended_moment_holds_second_moment_sum_and_count(counts):
    source = ArrayBlocks(ROWS, record_rows=counts)
    weights = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    kept = ROWS * np.repeat(scales(counts), counts)[:, None]
    found = units(CentredMoment(**FACTS), source)
    constant = CONSTANT * 2.0
    last = np.append(constant * weights @ kept, constant**2 * np.count_nonzero(counts))
    np.testing.assert_allclose(found[:-1, :-1], kept.T @ kept, atol=0.02)
    np.testing.assert_allclose(found[-1], last, atol=0.05)
    np.testing.assert_allclose(units(RecordMean(**FACTS), source), last, atol=0.05)


def scales(counts):
    """What clipping to norm 2 leaves of each record."""
    bounds = np.concatenate([[0], np.cumsum(counts)])
    norms = [np.linalg.norm(ROWS[start:stop]) for start, stop in itertools.pairwise(bounds)]
    return np.minimum(1, 2.0 / np.maximum(norms, 1e-9))


def test_records_without_a_norm_still_count_and_rows_of_ones_are_exact():
    rows = np.vstack([np.zeros(5), np.full(5, np.nan)])
    found = units(CentredMoment(**FACTS), ArrayBlocks(rows))
    assert found[-1, -1] == pytest.approx(2 * (CONSTANT * 2.0) ** 2, rel=1e-12)
    assert not found[:-1].any()


def test_a_histogram_counts_records_by_norm():
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [np.inf, 1.0], [1e300, 1e300], [0.6, 0.8], [5e-324, 0.0]])
    query = NormHistogram(
        n_features=2, clip_norm=1.0, relation="add_remove", bits=3, edges=np.array([0.5, 1.0, 4.0, 5.0, 8.0])
    )
    assert (exact_sum(ArrayBlocks(rows, block_records=2), query) >> 3).tolist() == [1, 1, 0, 1, 1]


def test_the_public_norm_grid_has_four_bins_an_octave():
    grid = norm_grid()
    assert (grid[0], grid[-1]) == (2.0**-20, 2.0**20)
    np.testing.assert_allclose(grid[4:] / grid[:-4], 2.0)


def test_edges_out_of_order_are_refused():
    with pytest.raises(InvalidInput, match="increasing"):
        NormHistogram(n_features=2, clip_norm=1.0, relation="add_remove", bits=3, edges=np.array([1.0, 0.5]))


@pytest.mark.parametrize("rows", [ROWS, np.array([[1e300, -1e300], [1e-310, 0.0], [0.0, 0.0]])])
def test_normalised_records_have_one_norm_or_none(rows):
    source = NormalisedBlocks(ArrayBlocks(rows, block_records=7), length=2.0)
    blocks = [source.read(at) for at in range(source.n_blocks)]
    norms = [np.linalg.norm(part) for block in blocks for part in np.split(block.values, block.row_ptr[1:-1])]
    np.testing.assert_allclose([norm for norm in norms if norm], 2.0, rtol=1e-12)
    assert sum(norm > 0 for norm in norms) == (np.abs(rows).max(axis=1) > 0).sum()
    assert source.content != ArrayBlocks(rows).content


def with_coins(key=b"k" * 32, rate=0.3):
    made = sampled(MOMENT, rate=rate)
    assert isinstance(made, PoissonSampled)
    return PoissonSampled(
        **{**FACTS, "query": made.query, "rate": rate, "coin_key": subkey(key, label="coins", info=b"")}
    )


def chosen(query, *, n=20_000, block_records=4096):
    """Which records are in: each is a one in the first column, and alone in its block of the sum of squares."""
    source = ArrayBlocks(np.ones((n, 5)), block_records=block_records)
    blocks = [query.grid(source.read(at)) for at in range(source.n_blocks)]
    return np.concatenate([np.diff(block.row_ptr[block.record_ptr]) > 0 for block in blocks])


def test_a_sample_holds_each_record_with_its_rate_whatever_the_blocks():
    """A binomial of 20,000 at 0.3, two-sided at 1e-6; the key is fixed."""
    inside = chosen(with_coins())
    assert stats.binomtest(int(inside.sum()), inside.size, 0.3).pvalue > 1e-6
    np.testing.assert_array_equal(inside, chosen(with_coins(), block_records=333))
    assert abs(np.corrcoef(inside, chosen(with_coins(b"j" * 32)))[0, 1]) < 0.05


def test_a_sampled_sum_is_the_sum_over_the_sample():
    query = with_coins()
    source = ArrayBlocks(ROWS, block_records=9)
    inside = chosen(query, n=len(ROWS))
    np.testing.assert_array_equal(exact_sum(source, query), exact_sum(ArrayBlocks(ROWS[inside]), MOMENT))


def test_a_sample_of_all_is_the_query_and_one_without_coins_sums_nothing():
    assert sampled(MOMENT, rate=1.0) is MOMENT
    with pytest.raises(WorkerFailed):
        exact_sum(ArrayBlocks(ROWS), SAMPLE)
    for rate in (0.0, 1.5, np.nan):
        with pytest.raises(InvalidInput, match="rate"):
            sampled(MOMENT, rate=rate)


def test_the_coin_key_travels_and_is_never_shown_or_hashed():
    query = with_coins()
    assert pickle.loads(pickle.dumps(query)).coin_key == query.coin_key
    assert "coin" not in repr(query)
    assert query.digest() == SAMPLE.digest() != sampled(MOMENT, rate=0.31).digest() != MOMENT.digest()


def test_the_curator_tosses_other_coins_in_every_step_and_charges_the_sampled_event():
    law = Symmetric(noise_multiplier=1e-3)
    event = events.self_composed(events.poisson_sampled(law.event, 0.3), 2)
    curator = Curator(ArrayBlocks(ROWS), InMemoryReservation(event=event, key=bytes(32)))
    first, second = (curator.release(SAMPLE, law) for _ in range(2))
    whole = np.trace(ROWS.T @ ROWS)
    assert 0.1 < np.trace(first) / whole < 0.5
    assert abs(np.trace(first - second)) > 0.01
