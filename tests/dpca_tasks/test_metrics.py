"""Metrics against their definitions, computed in another way."""

import itertools
import math

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from dpca_tasks.errors import InvalidInput
from dpca_tasks.metrics import (
    captured_beyond_first,
    captured_variance,
    held_variance,
    matched_errors,
    matched_weights,
    ndcg_of,
    nearest_error,
    principal_angles,
    ranked_items,
    recall_of,
    reconstruction_error,
    rmse,
    squared_distance,
    subspace_distance,
)

RNG = np.random.default_rng(7)
ROWS = RNG.standard_normal((50, 8)) * np.arange(8, 0, -1)
MOMENT = ROWS.T @ ROWS
VALUES, VECTORS = (found[..., ::-1] for found in np.linalg.eigh(MOMENT))
SUBSPACE = np.linalg.qr(RNG.standard_normal((8, 3)))[0].T


def test_variance_and_error_are_those_of_projected_rows():
    projected = ROWS @ SUBSPACE.T @ SUBSPACE
    held = float((projected**2).sum())
    assert held_variance(MOMENT, SUBSPACE) == pytest.approx(held)
    assert captured_variance(MOMENT, SUBSPACE) == pytest.approx(held / VALUES[:3].sum())
    error = reconstruction_error(MOMENT, SUBSPACE, total=float(np.trace(MOMENT)))
    assert error == pytest.approx(float(((ROWS - projected) ** 2).sum()))


def test_a_moment_that_is_not_formed_gives_the_same():
    rows = aslinearoperator(sparse.csr_array(ROWS))
    facts = {"first": VECTORS[:, 0], "values": VALUES}
    assert held_variance(rows.T @ rows, SUBSPACE) == pytest.approx(held_variance(MOMENT, SUBSPACE))
    assert captured_beyond_first(rows.T @ rows, SUBSPACE, **facts) == pytest.approx(
        captured_beyond_first(MOMENT, SUBSPACE, **facts)
    )


def test_the_best_directions_capture_all_and_leave_the_least_error():
    best = VECTORS[:, :3].T
    assert captured_variance(MOMENT, best, values=VALUES) == pytest.approx(1.0)
    assert captured_beyond_first(MOMENT, best, first=best[0], values=VALUES) == pytest.approx(1.0)
    error = reconstruction_error(MOMENT, best, total=float(np.trace(MOMENT)))
    assert error == pytest.approx(VALUES[3:].sum())


def test_what_lies_beyond_the_first_direction_is_that_of_rows_without_it():
    without = ROWS - np.outer(ROWS @ VECTORS[:, 0], VECTORS[:, 0])
    singular = np.linalg.svd(without @ SUBSPACE.T, compute_uv=False)
    got = captured_beyond_first(MOMENT, SUBSPACE, first=VECTORS[:, 0], values=VALUES)
    assert got == pytest.approx(float((singular[:2] ** 2).sum() / VALUES[1:3].sum()))
    only_first = np.vstack([VECTORS[:, 0], VECTORS[:, 6:].T])
    assert captured_beyond_first(MOMENT, only_first, first=VECTORS[:, 0], values=VALUES) < 0.1
    assert math.isnan(captured_beyond_first(MOMENT, SUBSPACE[:1], first=VECTORS[:, 0], values=VALUES))


def test_nothing_held_is_no_number():
    assert math.isnan(captured_variance(np.zeros((8, 8)), SUBSPACE))


def test_angles_are_those_of_rotated_directions_and_the_distance_their_sines():
    turned = np.array([[math.cos(0.3), 0.0, math.sin(0.3), 0.0], [0.0, math.cos(1.1), 0.0, math.sin(1.1)]])
    plane = np.eye(2, 4)
    assert principal_angles(plane, turned) == pytest.approx([0.3, 1.1])
    squared = math.sin(0.3) ** 2 + math.sin(1.1) ** 2
    assert squared_distance(plane, turned) == pytest.approx(squared)
    assert subspace_distance(plane, turned) == pytest.approx(math.sqrt(squared))
    assert subspace_distance(plane, np.eye(4)[2:]) == pytest.approx(math.sqrt(2.0))
    tiny = np.array([[math.cos(1e-9), 0.0, math.sin(1e-9), 0.0], [0.0, 1.0, 0.0, 0.0]])
    assert principal_angles(plane, tiny)[1] == pytest.approx(1e-9, rel=1e-6)


def test_rmse_is_the_root_of_the_mean_square():
    assert rmse([1.0, 2.0, 3.0], [1.0, 4.0, 2.0]) == pytest.approx(math.sqrt(5.0 / 3.0))
    assert math.isnan(rmse([], []))


def test_items_are_ranked_by_score_then_number_and_none_that_was_seen():
    scores = [[0.5, 0.9, 0.5, 0.1, 0.9], [0.0, 0.0, 0.0, 0.0, 0.0]]
    assert ranked_items(scores, count=3).tolist() == [[1, 4, 0], [0, 1, 2]]
    seen = sparse.csr_array(([1.0, 0.0, 1.0, 1.0, 1.0], [1, 0, 0, 1, 2], [0, 2, 5]), shape=(2, 5))
    assert ranked_items(scores, count=3, seen=seen).tolist() == [[4, 2, 3], [3, 4, -1]]


def test_ranks_equal_those_of_a_full_stable_sort():
    scores = RNG.integers(0, 6, (40, 30)) / 7.0
    full = np.argsort(-scores, axis=1, kind="stable")
    for count in (1, 7, 30):
        assert np.array_equal(ranked_items(scores, count=count), full[:, :count])


def test_recall_and_ndcg_of_lists_worked_out_by_hand():
    held = sparse.csr_array(([1.0, 0.0, 1.0, 1.0], [0, 3, 2, 4], [0, 2, 3, 3, 4]), shape=(4, 5))
    ranked = np.array([[3, 1], [0, 1], [0, 1], [2, 4]])
    assert recall_of(ranked, held) == pytest.approx([0.5, 0.0, math.nan, 1.0], nan_ok=True)
    second = 1.0 / math.log2(3.0)
    assert ndcg_of(ranked, held) == pytest.approx([1.0 / (1.0 + second), 0.0, math.nan, second], nan_ok=True)
    best = np.array([[0, 3, 1], [2, 0, 1], [0, 1, 2], [4, 0, 1]])
    assert recall_of(best, held) == pytest.approx([1.0, 1.0, math.nan, 1.0], nan_ok=True)
    assert ndcg_of(best, held) == pytest.approx([1.0, 1.0, math.nan, 1.0], nan_ok=True)


def test_more_held_out_items_than_places_can_all_be_hits():
    held = sparse.csr_array(np.ones((1, 6)))
    ranked = ranked_items(np.arange(6.0)[None], count=2)
    assert recall_of(ranked, held) == pytest.approx([1.0])
    assert ndcg_of(ranked, held) == pytest.approx([1.0])


def test_an_empty_place_is_no_hit():
    held = sparse.csr_array(([1.0], [4], [0, 1]), shape=(1, 5))
    assert recall_of(np.array([[-1, -1]]), held) == pytest.approx([0.0])


def test_a_score_without_a_rank_and_an_empty_list_are_refused():
    with pytest.raises(InvalidInput, match="NaN"):
        ranked_items([[0.0, math.nan]], count=1)
    with pytest.raises(InvalidInput, match="at least 1"):
        ranked_items([[0.0]], count=0)


def least_sum(components, truth):
    """Return the least sum of distances over all ways to match, by trying them."""
    padded = np.vstack([components, np.zeros((max(len(truth) - len(components), 0), truth.shape[1]))])
    ways = itertools.permutations(range(len(padded)), len(truth))
    return min(float(np.linalg.norm(padded[list(way)] - truth, axis=1).sum()) for way in ways)


@pytest.mark.parametrize("found", [0, 2, 4, 6])
def test_components_are_matched_once_each_with_the_least_sum(found):
    components, truth = RNG.standard_normal((found, 3)), RNG.standard_normal((4, 3))
    errors = matched_errors(components, truth)
    assert errors.shape == (4,)
    assert errors.sum() == pytest.approx(least_sum(components, truth))


def test_a_component_that_was_not_found_counts_its_length_and_has_no_weight():
    truth = np.diag([3.0, 2.0, 1.0])
    np.testing.assert_allclose(matched_errors(truth[[2, 0]], truth), [0.0, 2.0, 0.0])
    np.testing.assert_allclose(matched_weights(truth[[2, 0]], np.array([0.4, 0.6]), truth), [0.6, 0.0, 0.4])
    np.testing.assert_allclose(matched_errors(np.zeros((0, 3)), truth), [3.0, 2.0, 1.0])


def test_the_published_error_forgives_copies_and_what_is_hidden():
    truth = np.diag([3.0, 2.0, 1.0])
    assert nearest_error(truth[[0, 0, 0]], truth) == 0.0
    assert nearest_error(truth[[0]] + [0.0, 0.0, 0.5], truth) == pytest.approx(0.5)
    assert matched_errors(truth[[0, 0, 0]], truth).mean() > 1.0
    assert math.isnan(nearest_error(np.zeros((0, 3)), truth))
