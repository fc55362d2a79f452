"""Made ratings have the stated shape: rank and std, activity, skew, and means as of their sheet."""

import numpy as np
import pytest

from dpca_tasks.records.made_ratings import expected_count, low_rank, pairs, skewed


def test_the_low_rank_task_has_rank_five_std_one_and_the_stated_density() -> None:
    assert expected_count(50_000) == 216
    made = low_rank(n_users=2_000, n_items=400, seed=3, tested=100)
    assert made.train.nnz / 2_000 == pytest.approx(expected_count(2_000), rel=0.02)  # std of the mean is 0.25
    assert made.train.data.std() == pytest.approx(1.0, abs=0.05)
    dense = made.train.toarray()
    whole = low_rank(n_users=30, n_items=20, seed=1)
    known = whole.train.toarray() + whole.held.toarray()
    assert (known != 0.0).all()
    assert np.linalg.matrix_rank(known, tol=1e-9) == 5
    assert not dense[made.held.nonzero()].any()
    assert np.diff(made.held.indptr)[:100].min() == 50
    assert made.held.indptr[100] == made.held.nnz


def test_the_skewed_task_has_the_activity_skew_and_errors_of_its_sheet() -> None:
    """At 4,000 users, the errors are within 0.01 of .986 and .924; items' counts scale with users."""
    made = skewed(n_users=4_000, seed=0)
    whole = made.train.nnz + made.held.nnz
    assert made.held.nnz / whole == pytest.approx(0.1, abs=0.002)
    assert 4 * made.train.nnz == pytest.approx(1.43e6, rel=0.03)
    per_user = np.diff(made.train.indptr) + np.diff(made.held.indptr)
    assert (per_user.min(), per_user.max() <= 1_000) == (20, True)
    counts = np.sort(np.bincount(made.train.indices, minlength=2_500))[::-1]
    assert counts[:500].sum() / counts.sum() == pytest.approx(0.77, abs=0.01)
    centre = made.train.data.mean()
    assert np.sqrt(np.mean((made.held.data - centre) ** 2)) == pytest.approx(0.986, abs=0.01)
    sums = np.add.reduceat(made.train.data, made.train.indptr[:-1])
    means = np.repeat(sums / np.diff(made.train.indptr), np.diff(made.held.indptr))
    assert np.sqrt(np.mean((made.held.data - means) ** 2)) == pytest.approx(0.924, abs=0.01)
    assert set(np.unique(made.train.data)) == {0.5 * step for step in range(1, 11)}
    assert not (made.train.multiply(made.held)).count_nonzero()


def test_popularity_of_light_users_is_more_skewed() -> None:
    made = skewed(n_users=2_000, seed=1)
    counts = np.diff(made.train.indptr)
    head = np.repeat(counts <= np.median(counts), counts)
    popular = made.train.indices < 500
    assert popular[head].mean() > popular[~head].mean() + 0.1


def test_a_seed_is_a_draw_and_pairs_are_ones_at_the_same_places() -> None:
    one, same, other = (skewed(n_users=100, n_items=100, seed=seed) for seed in (1, 1, 2))
    assert (one.train != same.train).nnz == 0
    assert (one.train != other.train).nnz > 0
    implicit = pairs(one)
    np.testing.assert_array_equal(implicit.train.indices, one.train.indices)
    assert set(implicit.train.data) == set(implicit.held.data) == {1.0}
    assert (implicit.low, implicit.high) == (0.0, 1.0)
