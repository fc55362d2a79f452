"""The released moment and its derived models, from simulated releases of a raw table with a schema."""

import pickle
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dpca.artifacts.derived import Correlations, DerivedModel
from dpca.artifacts.files import read_artifact, write_artifact
from dpca.artifacts.moment import AS_WEIGHTED, PrivateMoment, epsilon_with_less_noise
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.local import LocalPlace
from dpca.errors import Invalid
from dpca.schemas.encoder import Encoder
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier

CONSTANT = 0.5
FACTS: dict[str, Any] = {
    "columns": [
        {"name": "age", "kind": "numeric", "range": [0, 100]},
        {"name": "job", "kind": "categorical", "values": ["a", "b", "c"], "others": "refuse"},
        {"name": "owner", "kind": "boolean"},
        {"name": "income", "kind": "numeric", "range": [0, 200]},
    ]
}
PRIVACY = {"epsilon": 0.5, "delta": 1e-6}


def raw_table(n_rows: int = 20_000) -> pa.Table:
    """Return people whose income depends on their age and job, and who own a house if it is high."""
    rng = np.random.default_rng(1)
    age, job = rng.uniform(20, 80, n_rows), rng.choice(3, n_rows, p=[0.5, 0.3, 0.2])
    income = 30 + 0.5 * age + 20.0 * job + rng.normal(0, 10, n_rows)
    owner = income + rng.normal(0, 10, n_rows) > 80
    return pa.table({"age": age, "job": np.array(["a", "b", "c"])[job], "owner": owner, "income": income})


TABLE = raw_table()
ROWS = Encoder.of(FACTS).transform(TABLE)


def released(
    *, std: float = 5.0, mean: bool = True, seed: int = 0, rows: NDArray[np.float64] = ROWS, **more: Any
) -> PrivateMoment:
    """Simulate a release of rows with this noise."""
    extended = np.column_stack([rows, np.full(len(rows), CONSTANT)]) if mean else rows
    order = extended.shape[1]
    square = np.random.default_rng(seed).standard_normal((order, order))
    matrix = extended.T @ extended + std * (square + square.T) / np.sqrt(2.0)
    noise = {"law": "isometric", "std": std, "step": 0.0, "constant": CONSTANT if mean else None}
    facts = {"feature_names": list(Encoder.of(FACTS).feature_names), "encoder": FACTS} if rows is ROWS else {}
    return PrivateMoment(
        matrix=matrix[np.triu_indices(order)],
        manifest={**facts, "privacy": PRIVACY, "release": "r", "outcome": {"noise": noise}, **more},
    )


MOMENT = released()


def test_every_kind_is_read_as_it_was_written(tmp_path: Any) -> None:
    models = [
        MOMENT,
        MOMENT.correlations(parent="p"),
        MOMENT.ridge("income"),
        MOMENT.ridge("job"),
        MOMENT.lda("job"),
        MOMENT.pca(2, whiten=True, scale="famd"),
    ]
    for made in models:
        found = read_artifact(LocalPlace(tmp_path), write_artifact(made, home=tmp_path))
        for copy in (found, pickle.loads(pickle.dumps(made))):
            assert type(copy) is type(made)
            assert copy.manifest == made.manifest
            assert all(np.array_equal(copy.arrays()[name], values) for name, values in made.arrays().items())
        assert made.headline()
        assert made.summary()["n_features"] > 0


def test_statistics_have_names_errors_and_a_nearest_psd_form() -> None:
    assert list(MOMENT.feature_names) == ["age", "job=a", "job=b", "job=c", "owner", "income"]
    mean, covariance, correlation = MOMENT.mean(), MOMENT.covariance(), MOMENT.correlation()
    assert (np.abs(mean.values - ROWS.mean(axis=0)) < 5 * mean.errors).all()
    assert (np.abs(covariance.values - np.cov(ROWS.T, bias=True)) < 5 * covariance.errors + 1e-12).all()
    assert np.linalg.eigvalsh(MOMENT.correlation(psd=True).values)[0] > -1e-9
    assert np.linalg.eigvalsh(released(std=200.0).second_moment(psd=True).values)[0] > -1e-6
    assert (correlation.errors[~np.eye(6, dtype=bool)] > 0).all()


def test_a_regression_predicts_raw_rows_without_the_target() -> None:
    model = MOMENT.ridge("income", parent="digest")
    assert list(model.feature_names) == ["age", "job=a", "job=b", "job=c", "owner"]
    assert (model.manifest["parent"], model.manifest["release"]) == ("digest", "r")
    wanted = ROWS[:, 5]
    for rows in (TABLE.drop_columns(["income"]), ROWS[:, :5]):
        predicted = model.predict(rows)
        assert np.corrcoef(predicted, wanted)[0, 1] ** 2 > 0.6
    low, high = model.intervals(0.95)[0].T
    exact = released(std=1e-9).ridge("income", l2=model.derived["l2"])
    assert ((low < exact.coefficients[0]) & (exact.coefficients[0] < high)).mean() > 0.5
    assert model.manifest["outcome"]["r_squared"][0] == pytest.approx(
        np.corrcoef(predicted, wanted)[0, 1] ** 2, abs=0.1
    )
    assert {row["feature"] for row in model.rows()} == set(model.feature_names)


def test_a_category_is_classified_by_least_squares_and_by_discriminants() -> None:
    jobs, rows = np.array(TABLE["job"].to_pylist()), TABLE.drop_columns(["job"])
    for model in (MOMENT.ridge("job"), MOMENT.lda("job")):
        assert model.decision_function(rows).shape == (len(ROWS), 3)
        assert (model.predict(rows) == jobs).mean() > 0.6 > (jobs == "a").mean()


def test_two_values_are_classified_by_one_score() -> None:
    owners = np.array(TABLE["owner"].to_pylist())
    model = MOMENT.ridge("owner")
    rows = TABLE.drop_columns(["owner"])
    assert ((model.predict(rows) == 1.0) == owners).mean() > 0.8
    assert ((model.decision_function(rows) > 0) == (model.predict(rows) == 1.0)).all()
    numeric = released(rows=np.column_stack([ROWS[:, :4], ROWS[:, 5], 2.0 * ROWS[:, 4] - 1.0]))
    signs = numeric.ridge("5", classes=(-1.0, 1.0)).predict(np.column_stack([ROWS[:, :4], ROWS[:, 5]]))
    assert ((signs > 0) == owners).mean() > 0.8


def test_a_classification_without_a_mean_relies_on_columns_that_add_up_to_a_constant() -> None:
    owners = np.array(TABLE["owner"].to_pylist())
    rows, (plain, centred) = TABLE.drop_columns(["owner"]), (released(mean=mean, std=20.0) for mean in (False, True))
    right = [((each.ridge("owner").predict(rows) == 1.0) == owners).mean() for each in (plain, centred)]
    assert right[0] > max(right[1] - 0.02, 0.8)
    jobs = np.array(TABLE["job"].to_pylist())
    assert (plain.ridge("job").predict(TABLE.drop_columns(["job"])) == jobs).mean() > 0.55 > (jobs == "a").mean()


def test_whitened_components_have_unit_variances_and_named_loadings() -> None:
    found = MOMENT.pca(3, whiten=True)
    scores = found.transform(TABLE)
    assert np.allclose(scores.mean(axis=0), 0.0, atol=0.05)
    assert np.allclose(scores.std(axis=0), 1.0, atol=0.05)
    assert np.allclose(np.cov(scores.T), np.eye(3), atol=0.05)
    assert found.rows()[0]["feature"].startswith("job=")
    with pytest.raises(Invalid, match="no target"):
        found.predict(ROWS)


def test_famd_gives_categories_and_numbers_their_weights() -> None:
    exact = released(std=1e-9)
    famd = exact.pca(2, scale="famd")
    assert famd.loadings is not None
    shares, stds = ROWS.mean(axis=0), ROWS.std(axis=0)
    weights = np.where([False, True, True, True, False, False], 1.0 / np.sqrt(np.maximum(shares, 1e-9)), 1.0 / stds)
    values, vectors = np.linalg.eigh(np.cov((ROWS * weights).T, bias=True))
    assert np.allclose(np.abs(famd.loadings), np.abs((vectors[:, ::-1] * np.sqrt(values[::-1]))[:, :2].T), atol=1e-4)
    jobs = released(std=1e-9, rows=ROWS[:, 1:4], feature_names=["job=a", "job=b", "job=c"], encoder={"columns": []})
    assert np.allclose(  # each of two axes of three shares has inertia 1: the eigenvalues of a correspondence analysis
        jobs.pca(2, scale="mca").manifest["outcome"]["eigenvalues"], len(ROWS), rtol=1e-6
    )


def test_samples_have_the_released_moments() -> None:
    drawn = MOMENT.sample(50_000, seed=3)
    assert np.array_equal(drawn, MOMENT.sample(50_000, seed=3))
    assert np.allclose(drawn.mean(axis=0), MOMENT.mean().values, atol=0.02)
    assert np.allclose(np.cov(drawn.T), MOMENT.covariance(psd=True).values, atol=0.01)


def test_a_subspace_gives_the_moment_that_it_kept() -> None:
    directions = np.eye(2, 6)
    noise = MOMENT.manifest["outcome"]["noise"]
    facts = {"clip_norm": 2.0, "release": "r", "outcome": {"noise": noise, "share": 0.5}}
    found = PrivateSubspace(components=directions, matrix=MOMENT.matrix, manifest=facts).moment(parent="d")
    assert np.array_equal(found.matrix, MOMENT.matrix)
    assert found.manifest["outcome"] == {"noise": noise}
    assert (found.manifest["parent"], found.manifest["clip_norm"]) == ("d", 2.0)
    with pytest.raises(Invalid, match="--keep-matrix"):
        PrivateSubspace(components=directions, manifest=facts).moment()
    with pytest.raises(Invalid, match="rounds"):
        PrivateSubspace(components=directions, answers=np.ones(3), manifest=facts).moment()


def test_weights_of_rounds_are_stated_as_such() -> None:
    weights = np.eye(7)[np.triu_indices(7)]
    weighted = PrivateMoment(matrix=MOMENT.matrix, weights=weights, manifest=MOMENT.manifest)
    assert AS_WEIGHTED in weighted.correlations().manifest["warnings"]
    assert np.array_equal(weighted.correlation().errors, MOMENT.correlation().errors)


def test_what_the_release_cannot_support_is_refused_with_what_would_do() -> None:
    plain = released(mean=False)
    assert plain.ridge("income").intercepts[0] == 0.0
    for refused in (plain.mean, plain.covariance, plain.correlation, lambda: plain.sample(3)):
        with pytest.raises(Invalid, match=r"no mean; release the moment with center=private$"):
            refused()
    noisy = released(std=20_000.0)
    for refuse in (lambda: noisy.correlation(), lambda: noisy.ridge("income"), lambda: noisy.pca(3, whiten=True)):
        with pytest.raises(Invalid, match=r"a release with epsilon \S+ instead of 0.5 should suffice$"):
            refuse()
    with pytest.raises(Invalid, match="its columns are age, job, owner, income"):
        MOMENT.ridge("wealth")
    with pytest.raises(Invalid, match="not a category"):
        MOMENT.lda("age")
    with pytest.raises(Invalid, match="leave out classes"):
        MOMENT.ridge("job", classes=(0, 1))
    with pytest.raises(Invalid, match="ascending order"):
        MOMENT.ridge("age", classes=(1, 0))
    with pytest.raises(Invalid, match="scale=mca is for categories only"):
        MOMENT.pca(1, scale="mca")
    with pytest.raises(Invalid, match="is unknown"):
        MOMENT.pca(1, scale="other")
    with pytest.raises(Invalid, match="no classification"):
        MOMENT.ridge("income").decision_function(ROWS[:, :5])


@pytest.mark.parametrize(
    ("ask", "std"),
    [
        (PrivateMoment.correlation, 2500.0),
        (partial(PrivateMoment.ridge, target="income"), 300.0),
        (partial(PrivateMoment.pca, n_components=2, whiten=True), 700.0),
    ],
)
def test_the_suggested_epsilon_mostly_lets_the_request_pass(ask: Any, std: float) -> None:
    passed = []
    for seed in range(20):
        try:
            ask(released(std=std, seed=seed))
        except Invalid as error:
            epsilon = float(str(error).partition("epsilon ")[2].split()[0])
            before, after = (gaussian_noise_multiplier(epsilon=each, delta=1e-6) for each in (0.5, epsilon))
            try:
                ask(released(std=std * after / before, seed=seed + 100))
                passed.append(True)
            except Invalid:
                passed.append(False)
    assert len(passed) > 10
    assert np.mean(passed) > 0.7


@pytest.mark.parametrize(
    ("arrays", "facts", "message"),
    [
        ({"matrix": np.ones(4)}, {}, "need those of an upper triangle"),
        ({"weights": np.ones(3)}, {}, "need those of an upper triangle"),
        ({}, {"outcome": {}}, "facts about its noise"),
        ({}, {"feature_names": ["one"]}, "1 feature names"),
        ({}, {"secret": 1}, "only public facts"),
    ],
)
def test_other_arrays_or_facts_are_refused(arrays: dict[str, Any], facts: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        PrivateMoment(**{"matrix": MOMENT.matrix, "manifest": {**MOMENT.manifest, **facts}, **arrays})


def test_models_of_other_shapes_are_refused() -> None:
    facts = {"derived": {"model": "ridge", "target": "y", "outputs": ["y"]}}
    with pytest.raises(Invalid, match="pass one entry for each"):
        DerivedModel(coefficients=np.ones((1, 3)), intercepts=np.ones(2), manifest=facts)
    with pytest.raises(Invalid, match="each needs a name"):
        DerivedModel(coefficients=np.ones((2, 3)), intercepts=np.ones(2), manifest=facts)
    square = np.eye(2)
    with pytest.raises(Invalid, match="square matrices"):
        Correlations(values=square, errors=square, partial=square, partial_errors=np.eye(3), manifest=facts)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.03, 1e-6), (1.0, 1e-6), (8.0, 1e-9)])
def test_the_epsilon_of_less_noise_agrees_with_the_calibration(epsilon: float, delta: float) -> None:
    found = epsilon_with_less_noise(epsilon=epsilon, delta=delta, factor=2.5)
    before, after = (gaussian_noise_multiplier(epsilon=each, delta=delta) for each in (epsilon, found))
    assert before / after == pytest.approx(2.5, rel=1e-6)
