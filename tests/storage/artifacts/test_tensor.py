"""Tensor components: posterior weights and likelihoods are those of a direct computation; what is none is refused."""

import copy
import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal

from storage.artifacts.files import read_artifact, read_manifest, write_artifact
from storage.artifacts.tensor import FLOOR, TensorComponents
from storage.backends.local import LocalPlace
from storage.errors import Invalid

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
    with pytest.raises(Invalid, match="no noise variance, and a density needs one"):
        centres.score(points)


def test_long_documents_and_distant_points_have_weights_that_are_numbers():
    long = np.array([[10**6, 10**6, 0, 0, 0], [0, 0, 10**9, 0, 10**9], [0, 0, 0, 0, 0]])
    weights = topics().transform(long)
    np.testing.assert_allclose(weights, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.3, 0.2]], atol=1e-12)
    assert math.isfinite(topics().score(long))
    far = mixture().transform([[1e90, 0.0, 0.0], [-1e90, 0.0, 0.0]])
    assert far.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert topics().transform(np.empty((0, 5))).shape == (0, 3)


def test_the_floor_keeps_one_stray_word_from_deciding():
    document = np.array([[8, 6, 0, 4, 1]])  # the last word has probability 0 in the topic of the others
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


def test_a_release_without_any_component_is_stored_and_says_so(tmp_path):
    digest = write_artifact(
        topics(components=None, weights=None, eigenvalues=[-1.0], manifest={"outcome": {"components_found": 0}}),
        home=tmp_path,
    )
    empty = read_artifact(LocalPlace(tmp_path), digest)
    assert read_manifest(LocalPlace(tmp_path), digest)["n_components"] == 0
    assert (empty.n_components, empty.top_words(3), empty.summary()["components_found"]) == (0, [], 0)
    for ask in (empty.transform, empty.score):
        with pytest.raises(Invalid, match="no component, since noise hid all"):
            ask([[1, 1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([[1.5, 0, 0, 0, 0]], "no whole number"),
        ([[-1, 0, 0, 0, 0]], "negative"),
        ([[1, 0, 0]], "has 3 columns; this set of tensor components has 5 features"),
        ([[np.nan, 0, 0, 0, 0]], "NaN or infinity"),
        ([[1e200, 0, 0, 0, 0]], "beyond 1e"),
    ],
)
def test_rows_that_are_no_documents_are_refused(rows, rule):
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
def test_what_is_no_release_is_refused(wrong):
    with pytest.raises(Invalid):
        topics(**wrong)
    with pytest.raises(Invalid):
        mixture(noise_variance=-1.0)


def test_consumers_load_neither_a_database_nor_accounting_nor_a_cluster():
    """Only what `storage.artifacts` itself imports is loaded by building, writing words and computing weights."""
    program = (
        "import sys, json, numpy as np\n"
        "from storage.artifacts.tensor import TensorComponents\n"
        "made = TensorComponents(components=np.eye(2, 3), weights=np.array([0.5, 0.5]), model='topics', n_features=3,"
        " manifest={})\n"
        "made.transform([[1, 1, 0]]); made.top_words(2)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert not {"sqlalchemy", "dask", "distributed", "prefect", "dpca_tasks"} & set(json.loads(done.stdout))
