"""Tensor components, item embeddings and private estimates as artifacts: results are exact, bad input is refused.

Posterior weights and likelihoods must equal a direct computation. The step that fits a new user to item embeddings must
equal the step of training. Private estimates are written and read back, and accept public facts only.
"""

import copy
import dataclasses
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal

from dpca.artifacts.embeddings import JOINT, ItemEmbeddings
from dpca.artifacts.estimate import PrivateEstimate
from dpca.artifacts.files import read_artifact, read_manifest, write_artifact
from dpca.artifacts.tensor import FLOOR, TensorComponents
from dpca.backends.local import LocalPlace
from dpca.errors import Invalid
from dpca_tasks.kernels.ratings import descend, residuals
from dpca_tasks.records.blocks import ArrayBlocks
from tests.dpca_tasks.queries.rating_queries import ITEMS, RANK, moment, statistics

NAMES = ["court", "bank", "rate", "grain", "ship"]
TOPICS = np.array([[0.5, 0.3, 0.0, 0.2, 0.0], [0.0, 0.0, 0.6, 0.0, 0.4], [0.2, 0.2, 0.2, 0.2, 0.2]])
CENTRES = np.array([[3.0, 0.0, 0.0], [0.0, -2.0, 1.0]])


def topics(**changes):
    facts = {"components": TOPICS, "weights": [0.5, 0.3, 0.2], "eigenvalues": [9.0, 5.0, 2.0, 1.0], "model": "topics"}
    return TensorComponents(**{**facts, "n_features": 5, "manifest": {"feature_names": NAMES}, **changes})


def mixture(**changes):
    facts = {"components": CENTRES, "weights": [0.7, 0.3], "model": "mixture", "n_features": 3, "noise_variance": 0.5}
    return TensorComponents(**{**facts, "manifest": {}, **changes})


def floored(words):
    raised = np.maximum(words, FLOOR / words.shape[1])
    return raised / raised.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_documents_get_the_posterior_weights_of_the_multinomial(form):
    counts = np.random.default_rng(1).poisson(1.0, (20, 5))
    likelihoods = np.array(
        [[np.prod(topic ** row.astype(float)) for topic in floored(TOPICS)] for row in counts]
    ) * np.array([0.5, 0.3, 0.2])
    found = topics().transform(form(counts))
    np.testing.assert_allclose(found, likelihoods / likelihoods.sum(axis=1, keepdims=True), rtol=1e-10)
    assert topics().score(form(counts)) == pytest.approx(np.log(likelihoods.sum(axis=1)).mean(), rel=1e-12)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_points_get_the_posterior_weights_of_spherical_gaussians(form):
    points = np.random.default_rng(2).normal(size=(20, 3)) * 2.0
    densities = np.stack(
        [w * multivariate_normal(m, 0.5).pdf(points) for w, m in zip([0.7, 0.3], CENTRES, strict=True)], axis=1
    )
    found = mixture().transform(form(points))
    np.testing.assert_allclose(found, densities / densities.sum(axis=1, keepdims=True), rtol=1e-10)
    assert mixture().score(form(points)) == pytest.approx(np.log(densities.sum(axis=1)).mean(), rel=1e-12)


@pytest.mark.parametrize("variance", [None, 0.0])
def test_without_a_variance_all_weight_is_on_the_nearest_centre_and_there_is_no_score(variance):
    centres = mixture(noise_variance=variance)
    points = np.array([[2.0, 0.0, 0.0], [0.0, -3.0, 0.0]])
    assert centres.transform(points).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert mixture(noise_variance=1e-300).transform(points).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(Invalid, match="no noise variance, and a density needs it"):
        centres.score(points)


def test_long_documents_and_distant_points_have_finite_weights():
    long = np.array([[10**6, 10**6, 0, 0, 0], [0, 0, 10**9, 0, 10**9], [0, 0, 0, 0, 0]])
    weights = topics().transform(long)
    np.testing.assert_allclose(weights, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.3, 0.2]], atol=1e-12)
    assert math.isfinite(topics().score(long))
    far = mixture().transform([[1e90, 0.0, 0.0], [-1e90, 0.0, 0.0]])
    assert far.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert topics().transform(np.empty((0, 5))).shape == (0, 3)


def test_the_floor_keeps_one_stray_word_from_deciding():
    document = np.array([[8, 6, 0, 4, 1]])  # in the topic of the other four words, the last word has probability 0
    assert topics().transform(document)[0, 0] > 0.95


def test_the_top_words_are_named_where_names_are_declared():
    assert topics().top_words(2)[:2] == [[("court", 0.5), ("bank", 0.3)], [("rate", 0.6), ("ship", 0.4)]]
    assert [name for name, _ in topics().top_words(9)[2]] == NAMES
    assert mixture().top_words(2) == [[("0", 3.0), ("1", 0.0)], [("1", -2.0), ("2", 1.0)]]
    with pytest.raises(Invalid, match="count=0"):
        topics().top_words(0)


def test_a_copy_and_a_stored_one_are_equal_and_read_only(tmp_path):
    place = LocalPlace(tmp_path)
    for made in (topics(), mixture()):
        stored = read_artifact(place, write_artifact(made, home=tmp_path))
        for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), stored):
            assert (other.components == made.components).all()
            assert not other.components.flags.writeable
            assert not other.weights.flags.writeable
            assert other.manifest == made.manifest
            assert other.noise_variance == made.noise_variance
    assert topics().arrays().keys() == {"components", "weights", "eigenvalues"}
    assert topics().headline() == "3 topics of 5 words"
    assert mixture().headline() == "2 centres of 3 features"
    assert "NOT PRIVATE" in repr(mixture(manifest={"mechanism": "als", "privacy": {"private": False}}))


def test_a_release_without_components_is_stored_and_its_headline_states_this(tmp_path):
    digest = write_artifact(
        topics(components=None, weights=None, eigenvalues=[-1.0], manifest={"outcome": {"components_found": 0}}),
        home=tmp_path,
    )
    empty = read_artifact(LocalPlace(tmp_path), digest)
    assert read_manifest(LocalPlace(tmp_path), digest)["n_components"] == 0
    assert (empty.n_components, empty.top_words(3), empty.summary()["components_found"]) == (0, [], 0)
    for call in (empty.transform, empty.score):
        with pytest.raises(Invalid, match="no component, because noise hid all"):
            call([[1, 1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([[1.5, 0, 0, 0, 0]], "not a whole number"),
        ([[-1, 0, 0, 0, 0]], "negative"),
        ([[1, 0, 0]], "has 3 columns; this set of tensor components has 5 features"),
        ([[np.nan, 0, 0, 0, 0]], "NaN or infinity"),
        ([[1e200, 0, 0, 0, 0]], "beyond 1e"),
    ],
)
def test_rows_that_are_not_word_counts_are_refused(rows, rule):
    with pytest.raises(Invalid, match=rule):
        topics().transform(rows)


def test_a_mean_of_no_rows_is_refused():
    with pytest.raises(Invalid, match="there are no rows"):
        topics().score(np.empty((0, 5)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "subspace"},
        {"weights": None},
        {"weights": [0.3, 0.5, 0.2]},
        {"weights": [0.5, 0.5, 0.5]},
        {"weights": [0.7, 0.3]},
        {"weights": [0.8, 0.2, 0.0]},
        {"components": TOPICS * 0.5},
        {"components": TOPICS[:, :4]},
        {"components": TOPICS - 0.1},
        {"components": [[np.nan] * 5] * 3},
        {"eigenvalues": [1.0, 2.0, 3.0]},
        {"eigenvalues": [2.0, 1.0]},
        {"noise_variance": 1.0},
        {"n_features": 4},
        {"n_features": 0},
        {"manifest": {"documents": 7}},
        {"manifest": {"feature_names": ["one"]}},
        {"manifest": {"n_components": 2}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_invalid_release_is_refused(wrong):
    with pytest.raises(Invalid):
        topics(**wrong)
    with pytest.raises(Invalid):
        mixture(noise_variance=-1.0)


def test_consumers_load_neither_a_database_nor_accounting_nor_a_cluster():
    """Run a consumer's work on components: neither SQLAlchemy, Dask, Prefect nor `dpca_tasks` may be imported."""
    program = (
        "import sys, json, numpy as np\n"
        "from dpca.artifacts.tensor import TensorComponents\n"
        "made = TensorComponents(components=np.eye(2, 3), weights=np.array([0.5, 0.5]), model='topics', n_features=3,"
        " manifest={})\n"
        "made.transform([[1, 1, 0]]); made.top_words(2)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert not {"sqlalchemy", "dask", "distributed", "prefect", "dpca_tasks"} & set(json.loads(done.stdout))


STEP = {"centre": 3.0, "prior": 2.0, "ridge": 0.1, "rating_bound": 4.0}


def made(**changes):
    query = statistics("add_remove")
    facts = {
        "factors": query.factors * query.unit,
        "offsets": query.offsets,
        "low": 1.0,
        "high": 5.0,
        "manifest": {"user_step": STEP},
    }
    return ItemEmbeddings(**{**facts, **changes})


@pytest.mark.parametrize("unobserved", [None, 0.4])
def test_a_new_user_is_solved_as_in_training(unobserved):
    rng = np.random.default_rng(1)
    ratings = rng.uniform(-1, 7, (20, ITEMS)) * (rng.random((20, ITEMS)) < 0.7)
    query, embeddings = statistics("add_remove", clip="weight", user_norm=50.0), made()
    if unobserved is not None:
        factors = query.factors * query.unit
        query = dataclasses.replace(query, unobserved=unobserved * factors.T @ factors)
        embeddings = made(manifest={"user_step": {**STEP, "unobserved": unobserved}})
    block = query.grid(ArrayBlocks(sparse.csr_array(ratings)).read(0))
    trained, _ = query.users(block)
    for row, factor in zip(ratings, trained, strict=True):
        rated = np.flatnonzero(row)
        own, folded = embeddings.fold_in(rated, row[rated])
        # tolerance for half a step of the users' grid and for the grid of ratings, 2^-16 of their range
        assert folded == pytest.approx(factor / 2.0**10 * 50.0, abs=0.03)
        assert 1.0 <= own <= 5.0


def test_a_new_user_is_fitted_by_descent_as_in_training():
    """Fit users to two directions by descent, as the next round of training does: the factors must be equal."""
    rng = np.random.default_rng(1)
    ratings = rng.uniform(-1, 7, (20, ITEMS)) * (rng.random((20, ITEMS)) < 0.7)
    query = moment("add_remove")
    step = {"centre": 3.0, "prior": 2.0, "rating_bound": 4.0, "row_norm": 1.5, "gains": query.gains.tolist()}
    embeddings = made(factors=query.directions * query.unit, manifest={"user_step": step})
    block = query.grid(ArrayBlocks(sparse.csr_array(ratings)).read(0))
    left, _ = residuals(
        block.values, block.indices, block.row_ptr, query.low, query.step, query.offsets, query.centre, query.prior
    )
    bounds = (query.unit, query.gains, query.row_norm, query.rating_bound)
    _, trained = descend(left, block.indices, block.row_ptr, query.directions, *bounds)
    for row, factor in zip(ratings, trained, strict=True):
        rated = np.flatnonzero(row)
        _, folded = embeddings.fold_in(rated, row[rated])
        assert folded == pytest.approx(factor, abs=1e-3)  # tolerance for the rounding of ratings to their grid
    assert np.abs(trained).min(axis=0).max() > 1e-3
    assert embeddings.fold_in([], [])[1].tolist() == [0.0, 0.0]


def test_predictions_lie_in_the_range_and_recommendations_leave_out_what_was_rated():
    embeddings = made()
    rated, ratings = [0, 3], [5.0, 1.0]
    scores = embeddings.predict(rated, ratings)
    assert ((scores >= 1.0) & (scores <= 5.0)).all()
    found = embeddings.recommend(rated, ratings, count=100)
    assert sorted(item for item, _ in found) == [1, 2, 4, 5, 6]
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert embeddings.recommend(rated, ratings, count=2) == found[:2]
    own, factor = embeddings.fold_in([], [])
    assert (own, factor.tolist()) == (3.0, [0.0] * RANK)


def test_the_last_of_two_ratings_counts_and_the_order_of_items_does_not_matter():
    embeddings = made()
    twice = embeddings.predict([2, 0, 2], [1.0, 4.0, 5.0])
    assert (twice == embeddings.predict([0, 2], [4.0, 5.0])).all()


def test_offsets_alone_give_predictions():
    embeddings = made(factors=None, manifest={"user_step": {"centre": 3.0, "prior": None}})
    assert embeddings.predict([1], [5.0]) == pytest.approx(3.0 + embeddings.offsets)
    assert embeddings.rank == 0


def test_a_copy_is_equal_and_read_only_and_states_what_the_guarantee_covers():
    embeddings = made(counts=np.arange(1.0, ITEMS + 1))
    for other in (copy.deepcopy(embeddings), pickle.loads(pickle.dumps(embeddings))):
        assert (other.factors == embeddings.factors).all()
        assert not other.offsets.flags.writeable
        assert other.manifest == embeddings.manifest
    assert embeddings.summary()["guarantee"] == JOINT
    assert "joint differential privacy" in JOINT
    built = ItemEmbeddings.build(embeddings.arrays(), embeddings.manifest)
    assert (built.predict([0], [2.0]) == embeddings.predict([0], [2.0])).all()


@pytest.mark.parametrize(
    ("items", "ratings", "rule"),
    [
        ([0, 1], [1.0], "each rating needs an item"),
        ([7], [1.0], "outside 0..6"),
        ([-1], [1.0], "outside 0..6"),
        ([0], [np.nan], "not a finite number"),
        ([0.5], [1.0], "each rating needs an item"),
    ],
)
def test_invalid_ratings_are_refused(items, ratings, rule):
    with pytest.raises(Invalid, match=rule):
        made().predict(items, ratings)


def test_an_unknown_item_is_refused_by_its_id():
    named = made(manifest={"user_step": STEP, "feature_names": [f"film {item}" for item in range(ITEMS)]})
    assert named.items_of(["film 3", "film 0"]).tolist() == [3, 0]
    assert named.id_of(3) == "film 3"
    assert made().items_of(["6"]).tolist() == [6]
    with pytest.raises(Invalid, match="item 'film 9' is unknown"):
        named.items_of(["film 9"])
    with pytest.raises(Invalid, match="count=0"):
        named.recommend([0], [1.0], count=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offsets": np.zeros(3)},
        {"low": 5.0},
        {"counts": np.zeros(2)},
        {"manifest": {}},
        {"manifest": {"user_step": {"centre": 3.0, "prior": 1.0}}},
        {"manifest": {"user_step": STEP, "feature_names": ["one"]}},
        {"manifest": {"user_step": {**STEP, "gains": [1.0, 1.0, 1.0]}}},
        {"manifest": {"user_step": {**STEP, "row_norm": 1.0, "gains": [1.0, 1.0]}}},
        {"manifest": {"user_step": {**STEP, "row_norm": 1.0, "gains": [1.0, "a", 1.0]}}},
        {"manifest": {"user_step": {**STEP, "row_norm": 1.0, "gains": 3}}},
        {"manifest": {"user_step": STEP, "users": 7}},
    ],
)
def test_invalid_embeddings_are_refused(wrong):
    with pytest.raises(Invalid):
        made(**wrong)


FACTS = {"outcome": {"share": 0.7, "share_std": 0.01}, "plan": {"evaluated": "map@3"}, "mechanism": "captured_share"}


def test_a_written_estimate_is_read_back_unchanged(tmp_path: Path) -> None:
    made = PrivateEstimate(sums=np.array([6.0, 3.0, -1.0]), manifest=FACTS)
    found = read_artifact(LocalPlace(tmp_path), write_artifact(made, home=tmp_path))
    assert isinstance(found, PrivateEstimate)
    assert found.sums.tolist() == [6.0, 3.0, -1.0]
    assert found.summary() == {"evaluated": "map@3", "share": 0.7, "share_std": 0.01}
    assert found.headline() == "an estimate of the quality of map@3"
    assert pickle.loads(pickle.dumps(found)).manifest == found.manifest
    with pytest.raises(ValueError, match="read-only"):
        found.sums[0] = 0.0


def test_private_facts_and_invalid_numbers_are_refused() -> None:
    with pytest.raises(Invalid, match="only public facts"):
        PrivateEstimate(sums=np.ones(3), manifest={**FACTS, "n_records": 60})
    with pytest.raises(Invalid, match="finite"):
        PrivateEstimate(sums=np.array([np.nan]), manifest=FACTS)
