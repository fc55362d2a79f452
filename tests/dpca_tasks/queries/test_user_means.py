"""The average rating: what a user moves of it, by removing, emptying and replacing users of every kind."""

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.rating_means import UserMeans
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.rating_queries import averages, moved
from tests.dpca_tasks.queries.test_item_statistics import RELATIONS, STRANGERS, neighbours, user

LOW = user(range(7), [1.0] * 7)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("share", [0.01, 0.25, 0.9])
def test_no_user_moves_the_sum_and_the_number_beyond_the_stated_sensitivity(relation, share):
    query, users = averages(relation, count_share=share), [*STRANGERS.values(), LOW]
    worst = max(moved(query, *neighbours(relation, mine, other)) for mine in users for other in users)
    assert 0.999 < worst <= query.sensitivity("joint"), "and some user attains it"


def test_a_user_counts_once_however_many_ratings_there_are():
    query = averages("add_remove")
    rows = sparse.vstack([STRANGERS["rates everything at the end"], STRANGERS["rates one item"]]).tocsr()
    parts = query.split(exact_sum(ArrayBlocks(rows), query))
    assert (parts["sum"].tolist(), parts["number"].tolist()) == ([0], [2 << query.bits]), "5 and 1, around 3"
    assert not exact_sum(ArrayBlocks(STRANGERS["has no ratings"]), query).any()


def test_the_published_centring_moves_them_further_than_stated(monkeypatch):
    """It adds up ratings and counts them, as if a user gave one."""

    def published(self, block):
        above = 2.0 * block.values / 2.0**16 - 1.0
        return np.array([np.rint(above.sum() * 2.0**self.bits), block.values.size << self.bits], np.int64)

    monkeypatch.setattr(UserMeans, "map", published)
    mine = STRANGERS["rates everything at the end"]
    assert moved(averages("zero_out"), *neighbours("zero_out", mine, None)) > 6.9


def test_blocks_do_not_matter():
    query, rng = averages("zero_out"), np.random.default_rng(4)
    rows = sparse.csr_array(rng.integers(1, 6, (40, 7)) * (rng.random((40, 7)) < 0.4).astype(float))
    whole, *others = (exact_sum(ArrayBlocks(rows, block_records=size), query) for size in (1000, 1, 7))
    assert whole.all()
    assert all((other == whole).all() for other in others)


def test_the_share_of_the_number_is_checked():
    with pytest.raises(InvalidInput, match="count_share"):
        averages("add_remove", count_share=1.0)
