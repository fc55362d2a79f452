"""Metrics, packed arrays, thread limits and advice.

Metrics are compared with their definitions, computed independently. Packed triangles and cubes must match the matrices
and tensors that they represent. The limit to one thread must last exactly as long as its context. Advice from public
facts is compared with runs by ``python -m papers advice``.
"""

import dataclasses
import importlib
import itertools
import math
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator
from threadpoolctl import threadpool_info, threadpool_limits

from dpca_tasks import advisor
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.advisor import RANDOM, advise, cost_of, expect, public_problem, split_budget
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout, pack_symmetric, unpack_cube, unpack_symmetric
from dpca_tasks.mechanisms.base import LARGE, PrivacyTarget, Problem
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.subspace import MECHANISMS
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
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.eigensolver import Eigenpairs
from dpca_tasks.threads import one_thread, two_at_once, two_threads

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


def test_metrics_of_an_unformed_moment_are_equal():
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


def test_variance_beyond_the_first_direction_is_that_of_rows_without_it():
    without = ROWS - np.outer(ROWS @ VECTORS[:, 0], VECTORS[:, 0])
    singular = np.linalg.svd(without @ SUBSPACE.T, compute_uv=False)
    got = captured_beyond_first(MOMENT, SUBSPACE, first=VECTORS[:, 0], values=VALUES)
    assert got == pytest.approx(float((singular[:2] ** 2).sum() / VALUES[1:3].sum()))
    only_first = np.vstack([VECTORS[:, 0], VECTORS[:, 6:].T])
    assert captured_beyond_first(MOMENT, only_first, first=VECTORS[:, 0], values=VALUES) < 0.1
    assert math.isnan(captured_beyond_first(MOMENT, SUBSPACE[:1], first=VECTORS[:, 0], values=VALUES))


def test_the_captured_fraction_of_no_variance_is_nan():
    assert math.isnan(captured_variance(np.zeros((8, 8)), SUBSPACE))


def test_principal_angles_are_those_of_the_rotation_and_the_distance_is_their_sine():
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


def test_an_empty_position_of_a_list_is_not_a_hit():
    held = sparse.csr_array(([1.0], [4], [0, 1]), shape=(1, 5))
    assert recall_of(np.array([[-1, -1]]), held) == pytest.approx([0.0])


def test_a_score_without_a_rank_and_an_empty_list_are_refused():
    with pytest.raises(InvalidInput, match="NaN"):
        ranked_items([[0.0, math.nan]], count=1)
    with pytest.raises(InvalidInput, match="at least 1"):
        ranked_items([[0.0]], count=0)


def least_sum(components, truth):
    """Return the smallest sum of distances over all matchings of components and truth, by enumeration."""
    padded = np.vstack([components, np.zeros((max(len(truth) - len(components), 0), truth.shape[1]))])
    kinds = itertools.permutations(range(len(padded)), len(truth))
    return min(float(np.linalg.norm(padded[list(variant)] - truth, axis=1).sum()) for variant in kinds)


@pytest.mark.parametrize("found", [0, 2, 4, 6])
def test_components_are_matched_once_each_with_the_least_sum(found):
    components, truth = RNG.standard_normal((found, 3)), RNG.standard_normal((4, 3))
    errors = matched_errors(components, truth)
    assert errors.shape == (4,)
    assert errors.sum() == pytest.approx(least_sum(components, truth))


def test_a_missing_component_counts_its_length_and_has_no_weight():
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


@pytest.mark.parametrize("order", [1, 2, 127, 128, 129, 300])
def test_a_packed_triangle_is_the_matrix_of_its_entries(order):
    packed = np.random.default_rng(0).standard_normal(Layout(kind="symmetric", order=order).size)
    matrix = unpack_symmetric(packed, order)
    np.testing.assert_array_equal(matrix[np.triu_indices(order)], packed)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_array_equal(pack_symmetric(matrix), packed)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_a_packed_cube_is_the_tensor_of_its_entries(order):
    packed = np.random.default_rng(0).standard_normal(Layout(kind="cube", order=order).size)
    cube = unpack_cube(packed, order)
    places = [place for place in np.ndindex(cube.shape) if list(place) == sorted(place)]
    assert [cube[place] for place in places] == packed.tolist()
    assert all((cube == cube.transpose(axes)).all() for axes in itertools.permutations(range(3)))


ROOT = Path(__file__).parent.parent.parent


def threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_the_limit_ends_with_its_last_holder_in_any_thread():
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, threadpool_limits(limits=2, user_api="blas"):
        for early, late in ((one, other), (other, one)):
            first, second = ExitStack(), ExitStack()
            early.submit(first.enter_context, one_thread()).result()
            late.submit(second.enter_context, one_thread()).result()
            assert threads() == {1}
            early.submit(first.close).result()
            assert threads() == {1}
            late.submit(second.close).result()
            assert threads() == {2}


def test_a_thread_that_requests_another_limit_waits_unless_it_holds_one(monkeypatch):
    monkeypatch.setattr("dpca_tasks.threads.processors", lambda: 8)
    with ThreadPoolExecutor(1) as other, threadpool_limits(limits=1, user_api="blas"):
        with one_thread(), two_threads():
            assert threads() == {1}
            waiting = other.submit(_seen_by_two)
            assert not waiting.done()
        assert waiting.result(timeout=30) == {2}
        assert threads() == {1}


def _seen_by_two():
    with two_threads():
        return threads()


@pytest.mark.parametrize("available", [1, 2, 8])
def test_two_parallel_tasks_keep_their_order_and_use_one_thread_each(monkeypatch, available):
    monkeypatch.setattr("dpca_tasks.threads.processors", lambda: available)
    inside: list[int] = []
    most: list[int] = []

    def seen(item):
        inside.append(item)
        most.append(len(inside))
        with two_threads():
            found = threads()
        inside.remove(item)
        return item, found

    with threadpool_limits(limits=2, user_api="blas"):
        assert two_at_once(seen, range(20)) == [(item, {1}) for item in range(20)]
        assert threads() == {2}
    assert max(most) <= min(2, available)


def test_an_error_of_one_parallel_task_reaches_the_caller():
    with pytest.raises(ZeroDivisionError), threadpool_limits(limits=2, user_api="blas"):
        two_at_once(lambda item: 1 // item, [1, 0])
    with two_threads():
        pass


def test_eigenpairs_of_a_large_matrix_have_the_same_bits_for_any_thread_limit():
    rows = np.random.default_rng(0).standard_normal((LARGE, LARGE))
    found = []
    for limit in (1, 2):
        with threadpool_limits(limits=limit, user_api="blas"):
            found.append(leading_eigenpairs(rows + rows.T, 8))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_kernel_starts_threads():
    found = [
        value
        for module in pkgutil.walk_packages([str(ROOT / "dpca_tasks")], "dpca_tasks.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, Dispatcher)
    ]
    assert len(found) > 5
    assert [kernel.py_func.__name__ for kernel in found if kernel.targetoptions.get("parallel")] == []


TARGET = PrivacyTarget(epsilon=1.0, delta=1e-9)
MANY = Problem(n_features=60, clip_norm=1.0, records_at_most=100_000, spectrum="0.3,0.1,0.05")
FEW = dataclasses.replace(MANY, records_at_most=100, n_features=400)
UNSAMPLED = sorted(set(MECHANISMS) - {"dp_spca", "dp_vrpca", "local_gaussian", "dps_pca"})


def test_advice_ranks_mechanisms_for_many_records_and_predicts_noise_for_few():
    ranked = advise(MANY, TARGET, n_components=3, only=UNSAMPLED)
    assert {advice.plan.mechanism for advice in ranked} <= set(UNSAMPLED)
    assert ranked[0].plan.mechanism == "analyze_gauss"
    assert not ranked[0].expects_noise
    assert ranked[0].expected.captured[0] > 0.95
    few = advise(FEW, TARGET, n_components=3, only=UNSAMPLED)
    assert few[0].forecast.above_noise == 0
    assert any(advice.expects_noise for advice in few)
    epsilon = few[0].epsilon_needed()
    assert epsilon is not None
    (enough,) = advise(FEW, dataclasses.replace(TARGET, epsilon=epsilon), n_components=3, only=[few[0].plan.mechanism])
    assert enough.forecast.above_noise == 3
    assert not enough.expects_noise


def test_without_a_delta_a_pure_mechanism_is_the_choice():
    ranked = advise(MANY, dataclasses.replace(TARGET, delta=0.0), n_components=3)
    assert {advice.plan.mechanism for advice in ranked} == {"wishart", "laplace", "exponential"}
    assert ranked[0].plan.mechanism == "wishart"


@pytest.mark.parametrize("name", UNSAMPLED)
def test_more_epsilon_and_more_records_never_lower_what_is_expected(name):
    lows = []
    for records, epsilon in ((1_000, 0.1), (1_000, 1.0), (30_000, 1.0), (3_000_000, 1.0)):
        problem = dataclasses.replace(MANY, records_at_most=records, n_features=12, spectrum="0.4,0.2,0.1")
        (advice,) = advise(problem, dataclasses.replace(TARGET, epsilon=epsilon), n_components=3, only=[name])
        lows.append(advice.expected.captured[0])
    assert all(after >= before - 0.02 for before, after in pairwise(lows))
    assert lows[-1] > 0.9


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_flat_spectrum_is_noise_for_every_mechanism_and_intervals_are_ordered(name):
    problem = dataclasses.replace(MANY, spectrum="flat", relation="zero_out", records_at_most=1_000_000)
    (advice,) = advise(problem, TARGET, n_components=3, only=[name])
    expected = advice.expected
    assert advice.expects_noise
    assert expected.random == pytest.approx(1.0)
    for low, high in (expected.captured, expected.beyond_first):
        assert 0.0 <= low <= high <= 1.0
    assert advice.cost.time in ("seconds", "minutes", "hours")
    assert advice.cost == cost_of(advice.mechanism, advice.plan)


def test_refined_releases_have_an_interval_and_a_single_number_only_if_narrow():
    plan = MECHANISMS["analyze_gauss"](n_components=3).plan(MANY, TARGET)
    good = expect(MECHANISMS["analyze_gauss"](n_components=3), plan)
    assert good.captured[0] < good.captured[1]
    assert good.likely == pytest.approx(sum(good.captured) / 2)
    doubtful = dataclasses.replace(good, captured=(0.4, 0.8))
    assert doubtful.likely is None


def test_forecasts_close_to_random_directions_are_called_noise():
    wide = Problem(n_features=3_000, clip_norm=1.0, records_at_most=8_000, spectrum="0.1,0.01,0.009")
    (advice,) = advise(wide, dataclasses.replace(TARGET, epsilon=0.1, delta=1e-6), n_components=10, only=["wishart"])
    assert advice.forecast.above_noise == 0
    assert advice.expects_noise
    barely = dataclasses.replace(advice.expected, captured=(0.02, 0.02), mean=0.02, random=0.005)
    assert barely.is_noise
    assert not dataclasses.replace(barely, seen=True).is_noise


def test_an_invalid_spectrum_is_refused_once_and_not_per_mechanism():
    with pytest.raises(InvalidInput, match="spectrum="):
        advise(dataclasses.replace(MANY, n_features=6), TARGET, n_components=3)


def test_truncation_is_noise_only_if_components_in_few_features_are_lost_too():
    """The forecast of DPS-PCA must expect noise only if components in few features are also lost.

    The forecast interval covers components in all features and in few features.
    """
    wide = Problem(n_features=1_000, clip_norm=1.0, records_at_most=50_000, spectrum=",".join(["0.018"] * 5))
    target = dataclasses.replace(TARGET, epsilon=0.5, delta=1e-6)
    (advice,) = advise(wide, target, n_components=5, only=["dps_pca"])
    assert advice.expected.captured[0] < 0.3 < 0.9 < advice.expected.captured[1]
    assert advice.expected.likely is None
    assert not advice.expects_noise


@pytest.mark.parametrize("noise", ["gaussian", "spherical_t", "cauchy"])
def test_noised_directions_keep_the_share_that_the_gap_allows(noise):
    """Compare the kept length of noised directions with the mean of 400 draws, at three eigengaps.

    At the planned gap, at least half of the length is kept; the other gaps are a tenth and three times as large.
    """
    problem = Problem(n_features=50, clip_norm=1.0, records_at_most=10_000)
    mechanism = MECHANISMS["smooth_sensitivity"](n_components=1, noise=noise)
    plan = mechanism.plan(problem, TARGET)
    kept = [mechanism.kept_lengths(plan, gap=factor * plan.level)[0] for factor in (0.1, 1.0, 3.0)]
    assert kept == sorted(kept)
    assert kept[0] < 0.05
    planned = mechanism._noise(problem, TARGET)
    pairs = Eigenpairs(directions=np.eye(50)[:, :1], gap=plan.level)
    solver = mechanism.solver(problem)
    keys = [subkey(bytes([at % 256, at // 256] * 16), label="noise", info=b"") for at in range(400)]
    drawn = np.array([planned.draw(key, solver, pairs) for key in keys])
    share = float(np.mean(drawn[:, 0] ** 2 / (drawn**2).sum(axis=1)))
    assert kept[1] == pytest.approx(share, abs=0.06)


def test_a_single_component_is_counted_beyond_the_first():
    (advice,) = advise(MANY, TARGET, n_components=1, only=["wishart"])
    assert advice.expected.beyond_first == advice.expected.captured


def test_a_budget_is_split_exactly_among_gaussian_releases():
    gaussian, others = split_budget(TARGET, releases=12)
    assert others == pytest.approx(1.0 / 12)
    assert gaussian > 3 * others
    assert gaussian_noise_multiplier(epsilon=gaussian, delta=1e-9) == pytest.approx(
        gaussian_noise_multiplier(epsilon=1.0, delta=1e-9, releases=12), rel=1e-6
    )
    (gauss,) = advise(MANY, TARGET, n_components=3, releases=12, only=["analyze_gauss"])
    assert gauss.plan.target.epsilon == pytest.approx(gaussian)
    (wishart,) = advise(MANY, TARGET, n_components=3, releases=12, only=["wishart"])
    assert wishart.plan.target.epsilon == pytest.approx(others)


@pytest.mark.parametrize("wrong", [{"relation": "swap"}, {"center": "mean"}, {"spectrum": "rising"}])
def test_invalid_public_facts_are_refused(wrong):
    facts = {"records_at_most": 10, "n_features": 5, "relation": "zero_out"}
    with pytest.raises(InvalidInput):
        public_problem(**{**facts, **wrong})


def test_the_advisor_reads_no_rows():
    assert RANDOM > 1.0
    assert not any(hasattr(advisor, name) for name in ("Curator", "ArrayBlocks", "Reservation"))
