"""Whole releases, from rows to what is published of them: edge cases, bits, and the order and signs of columns."""

import json
import math

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.released_moment import Moment, decompose
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release
from flows.families.stated_subspace import state_subspace

FORMED = ("analyze_gauss", "mod_sulq", "wishart", "laplace")
PURE = ("wishart", "laplace")
KEY = bytes(range(32))


def release(rows, *, mechanism="analyze_gauss", k=1, epsilon=1.0, center="none", relation="add_remove"):
    """Release under a fixed key; return what the mechanism returns."""
    problem = Problem(
        n_features=rows.shape[1], clip_norm=1.0, center=center, relation=relation, records_at_most=100_000
    )
    chosen = MECHANISMS[mechanism](n_components=k)
    plan = chosen.plan(problem, PrivacyTarget(epsilon=epsilon, delta=0.0 if mechanism in PURE else 1e-6))
    reservation = InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=KEY)
    return chosen.run(Curator(ArrayBlocks(rows), reservation), plan)


def published(raw, *, k, method="auto"):
    """Refine and state a release, as a fit does."""
    refined = refine_release(raw, n_components=k, method=method)
    return state_subspace(refined, raw=raw, keep_matrix=32.0, warnings=(), manifest={})


def spiky(features, n_rows=4_000):
    """Rows of norm at most 1 with three directions of a few features each."""
    rng, directions = np.random.default_rng(2), np.zeros((3, features))
    for direction in directions:
        direction[rng.choice(features, min(6, features), replace=False)] = 1.0
    rows = rng.standard_normal((n_rows, 3)) * [1.0, 0.7, 0.5] @ directions
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)


ROWS = {
    "no signal": lambda features: np.zeros((50, features)),
    "one spike": lambda features: np.tile(np.eye(features)[0], (1_000, 1)),
    "ties": lambda features: np.tile(np.eye(features), (50, 1)),
}


@pytest.mark.parametrize("center", ["none", "private"])
@pytest.mark.parametrize(("features", "k"), [(2, 1), (20, 3), (20, 19)])
@pytest.mark.parametrize("mechanism", FORMED)
def test_every_edge_case_of_a_release_publishes_plain_numbers(mechanism, features, k, center):
    for made in ROWS.values():
        for epsilon in (0.01, 1e3):
            raw = release(made(features), mechanism=mechanism, k=k, epsilon=epsilon, center=center)
            for count, method in ((k, "auto"), ("auto", "eb")):
                found = published(raw, k=count, method=method)
                json.dumps(dict(found.manifest), allow_nan=False)
                size = found.n_components
                np.testing.assert_allclose(found.components @ found.components.T, np.eye(size), atol=1e-8)
                told = found.outcome
                assert np.isfinite(found.eigenvalues).all()
                assert all(told[name] is None or 0.0 <= told[name] <= 1.0 for name in ("share", "cv", "cv_low"))
                ratios = told["explained_variance_ratio"] or ()
                assert math.fsum(ratios) <= 1.0 + 1e-12
                assert all(ratio >= 0.0 for ratio in ratios)


def test_without_a_signal_a_release_says_nothing_of_the_best_subspace():
    """The keys are fixed; another would show a component in one of a hundred."""
    told = published(release(np.zeros((50, 30)), k=3), k=3).outcome
    assert told["above_noise"] == 0
    assert told["cv"] is told["cv_low"] is None


@pytest.mark.parametrize("mechanism", FORMED)
def test_a_single_feature_has_no_subspace_and_is_refused_before_anything_is_drawn(mechanism):
    with pytest.raises(InvalidInput, match="n_components"):
        release(np.ones((10, 1)), mechanism=mechanism)


@pytest.mark.parametrize("mechanism", ["analyze_gauss", "mod_sulq"])
@pytest.mark.parametrize("center", ["none", "private"])
def test_a_release_is_published_with_the_same_bytes_twice_and_on_one_and_two_threads(mechanism, center):
    rows, found = spiky(160, 2_000), []
    for threads in (1, 2, 2):
        with threadpool_limits(threads):
            found.append(published(release(rows, mechanism=mechanism, k=4, center=center), k=4))
    assert {each.refined_by for each in found} != {"none"}
    for name in ("components", "eigenvalues", "spectrum", "matrix", "mean"):
        assert len({np.asarray(getattr(each, name)).tobytes() for each in found}) == 1, name
    assert len({json.dumps(dict(each.manifest)) for each in found}) == 1


def test_order_signs_and_unit_of_columns_change_the_columns_and_no_fact():
    """Noise is part of the released matrix, which is moved as a whole."""
    raw, rng, unit = release(spiky(80), k=4), np.random.default_rng(3), 7.3
    assert raw.released is not None
    places, signs = rng.permutation(80), rng.choice([-1.0, 1.0], 80)
    moved = unit * (raw.released * np.outer(signs, signs))[np.ix_(places, places)]
    noise = {**raw.noise, "std": unit * raw.noise["std"], "step": unit * raw.noise["step"]}
    other = decompose(Moment(matrix=moved, released=moved, noise=noise), n_components=4)
    here, there = (published(each, k=4) for each in (raw, other))
    expected = (here.components * signs)[:, places]
    np.testing.assert_allclose(there.components.T @ there.components, expected.T @ expected, atol=1e-8)
    np.testing.assert_allclose(there.eigenvalues, unit * here.eigenvalues, rtol=1e-10)
    in_units = ("captured", "captured_low", "noise_std", "noise_edge")
    for name, fact in here.outcome.items():
        if name in in_units:
            assert there.outcome[name] == pytest.approx(unit * fact), name
        elif name in ("share", "share_low", "cv", "cv_low", "explained_variance_ratio"):
            assert there.outcome[name] == pytest.approx(fact), name
        elif name != "noise":
            assert there.outcome[name] == fact, name
    assert here.refined_by != "none"


def test_the_size_of_the_noise_that_a_release_states_is_that_of_its_matrix():
    """Of 5,000 draws off the diagonal of a release of nothing: a deviation of 1 %, and five are allowed."""
    raw = release(np.zeros((50, 101)), k=3)
    assert raw.released is not None
    drawn = raw.released[np.triu_indices(101, 1)]
    assert drawn.std() == pytest.approx(raw.noise["std"], rel=0.05)
    assert np.diag(raw.released).std() == pytest.approx(math.sqrt(2) * raw.noise["std"], rel=0.36)
