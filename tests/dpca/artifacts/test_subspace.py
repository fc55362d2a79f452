"""Private subspaces: projection is exact, columns are matched by name, and the scikit-learn interface works.

A subspace refuses bad rows and invalid components. Rows with column names give bit for bit the same scores as the same
rows in the order of the release. A loaded subspace is a fitted scikit-learn transformer that cannot be fitted again.
"""

import copy
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from types import ModuleType
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted

from dpca.artifacts.columns import rows_by_name
from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from dpca.errors import Invalid

MANIFEST = {
    "mechanism": "analyze_gauss",
    "parameters": {},
    "plan": {"noise_multiplier": 4.2, "grid_bits": 12},
    "privacy": {
        "epsilon": 1.0,
        "delta": 1e-6,
        "relation": "add_remove",
        "unit": "record",
        "event": {"name": "gaussian", "noise_multiplier": 4.2},
    },
    "clip_norm": 3.5,
    "code_version": "0.1.0",
    "release": "a" * 32,
    "parent": None,
}


def make_subspace(*, seed: int = 0, n_components: int = 3, n_features: int = 7) -> PrivateSubspace:
    stream = np.random.default_rng(seed)
    components = np.linalg.qr(stream.normal(size=(n_features, n_components)))[0].T
    spectrum = -np.sort(-stream.normal(size=n_features))
    return PrivateSubspace(
        components=components, eigenvalues=spectrum[:n_components], spectrum=spectrum, manifest=MANIFEST
    )


SUBSPACE = make_subspace()
FORMATS = ("csr", "csc", "coo", "lil", "dok", "dia", "bsr")


class TestTransform:
    def test_scores_are_the_product_with_the_components(self) -> None:
        rows = np.random.default_rng(1).normal(size=(5, 7))
        np.testing.assert_array_equal(SUBSPACE.transform(rows), rows @ SUBSPACE.components.T)

    @pytest.mark.parametrize("kind", FORMATS)
    @pytest.mark.parametrize("make", [sparse.csr_array, sparse.csr_matrix])
    def test_sparse_rows_give_the_scores_of_dense_rows(self, kind: str, make: Any) -> None:
        dense = np.random.default_rng(2).integers(-3, 4, size=(6, 7)).astype(float)
        scores = SUBSPACE.transform(make(dense).asformat(kind))
        assert type(scores) is np.ndarray
        np.testing.assert_allclose(scores, SUBSPACE.transform(dense), rtol=0, atol=1e-14)

    @pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
    @pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float32, np.longdouble])
    def test_every_real_dtype_gives_float64(self, dtype: Any, make: Any) -> None:
        scores = SUBSPACE.transform(make(np.eye(4, 7).astype(dtype)))
        assert scores.dtype == np.float64
        np.testing.assert_array_equal(scores, SUBSPACE.components.T[:4])

    @pytest.mark.parametrize("dtype", [np.float16, object])
    def test_dense_rows_may_have_a_dtype_that_sparse_rows_cannot(self, dtype: Any) -> None:
        np.testing.assert_array_equal(SUBSPACE.transform(np.eye(7).astype(dtype)), SUBSPACE.components.T)

    def test_lists_are_rows(self) -> None:
        np.testing.assert_array_equal(SUBSPACE.transform(np.eye(7).tolist()), SUBSPACE.components.T)

    @pytest.mark.parametrize("rows", [np.empty((0, 7)), sparse.csr_array((0, 7))])
    def test_no_rows_give_no_scores(self, rows: Any) -> None:
        assert SUBSPACE.transform(rows).shape == (0, 3)

    def test_rows_in_the_subspace_are_reconstructed_exactly(self) -> None:
        scores = np.random.default_rng(3).normal(size=(4, 3))
        for given_scores in (scores, sparse.csr_array(scores)):
            rows = SUBSPACE.inverse_transform(given_scores)
            assert rows.shape == (4, 7)
            np.testing.assert_allclose(SUBSPACE.transform(rows), scores, rtol=0, atol=1e-14)

    def test_rows_are_left_unchanged(self) -> None:
        rows = sparse.coo_array(np.eye(2, 7))
        dense = np.eye(2, 7)
        SUBSPACE.transform(rows)
        SUBSPACE.transform(dense)
        assert rows.format == "coo"
        np.testing.assert_array_equal(dense, np.eye(2, 7))

    @pytest.mark.parametrize(
        ("rows", "found"),
        [
            (np.ones((2, 6)), "has 6 columns"),
            (sparse.csr_array((2, 8)), "has 8 columns"),
            (np.ones(7), "is 1-D"),
            (sparse.coo_array(np.ones(7)), "is 1-D"),
            (np.ones((1, 1, 7)), "is 3-D"),
            (3.0, "is 0-D"),
            (np.full((1, 7), "1"), "dtype <U1"),
            (np.ones((1, 7), dtype=complex), "dtype complex128"),
            (sparse.csr_array(np.ones((1, 7), dtype=complex)), "dtype complex128"),
            (np.full((1, 7), "2020-01-01", dtype="datetime64[D]"), "holds datetime64"),
            (np.full((1, 7), "x", dtype=object), "not an array of numbers"),
            ([[1.0], [1.0, 2.0]], "not an array of numbers"),
            (np.full((1, 7), np.nan), "NaN or infinity"),
            (sparse.csr_array(np.full((1, 7), np.inf)), "NaN or infinity"),
        ],
    )
    def test_bad_rows_are_refused_in_one_line(self, rows: Any, found: str) -> None:
        with pytest.raises(Invalid, match=found) as caught:
            SUBSPACE.transform(rows)
        assert "\n" not in str(caught.value)

    def test_a_refusal_quotes_no_value(self) -> None:
        with pytest.raises(Invalid) as caught:
            SUBSPACE.transform(np.full((1, 7), "a diagnosis", dtype=object))
        assert "diagnosis" not in str(caught.value)
        assert caught.value.__suppress_context__

    def test_scores_of_another_width_are_refused(self) -> None:
        with pytest.raises(Invalid, match="scores has 7 columns; this subspace has 3 components"):
            SUBSPACE.inverse_transform(np.ones((1, 7)))


class TestSubspace:
    @pytest.mark.parametrize("copied", [SUBSPACE, copy.deepcopy(SUBSPACE), pickle.loads(pickle.dumps(SUBSPACE))])
    def test_arrays_are_read_only_also_in_copies(self, copied: PrivateSubspace) -> None:
        assert copied.eigenvalues is not None
        assert copied.spectrum is not None
        for array in (copied.components, copied.eigenvalues, copied.spectrum):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0.0
        np.testing.assert_array_equal(copied.components, SUBSPACE.components)
        assert copied.manifest == SUBSPACE.manifest

    def test_arrays_are_private_copies(self) -> None:
        components = np.eye(2, 3)
        subspace = PrivateSubspace(components=components, eigenvalues=np.array([2.0, 1.0]), manifest={})
        components[0] = 7.0
        np.testing.assert_array_equal(subspace.components, np.eye(2, 3))

    def test_the_manifest_states_shape_and_format(self) -> None:
        derived = {"format": 1, "kind": "private_subspace", "n_components": 3, "n_features": 7}
        assert SUBSPACE.manifest == {**MANIFEST, **derived}
        assert (SUBSPACE.n_components, SUBSPACE.n_features) == (3, 7)

    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            ({"components": np.ones((2, 3))}, "orthonormal"),
            ({"components": np.eye(3, 2)}, "3 components for 2 features"),
            ({"components": np.eye(2, 3)[0]}, "2-D"),
            ({"components": np.empty((0, 3))}, "not empty"),
            ({"components": np.full((2, 3), np.nan)}, "finite"),
            ({"eigenvalues": [1.0]}, "1 eigenvalues for 2 components"),
            ({"eigenvalues": None, "spectrum": [2.0, 1.0]}, "without the eigenvalues"),
            ({"eigenvalues": [1.0, 2.0]}, "descending"),
            ({"eigenvalues": [np.inf, 2.0]}, "finite"),
            ({"spectrum": [1.0, 2.0]}, "spectrum must be in descending"),
            ({"manifest": {"snapshot": "s"}}, "only public facts"),
            ({"manifest": {"n_records": 9}}, "only public facts"),
            ({"manifest": {"n_features": 4}}, "n_features=4"),
            ({"manifest": {"clip_norm": float("nan")}}, "not JSON"),
            ({"manifest": {"plan": {"grid_bits": np.int64(3)}}}, "not JSON"),
            ({"manifest": {"feature_names": ["a"]}}, "1 feature names"),
        ],
    )
    def test_invalid_components_are_refused(self, changes: dict[str, Any], found: str) -> None:
        sound: dict[str, Any] = {"components": np.eye(2, 3), "eigenvalues": [2.0, 1.0], "manifest": {}}
        PrivateSubspace(**sound)
        with pytest.raises(Invalid, match=found):
            PrivateSubspace(**{**sound, **changes})


# set by anndata

NAMES = [f"f{column}" for column in range(40)]
RANDOM = np.random.default_rng(7)
ROWS = RANDOM.normal(size=(9, 40)) * RANDOM.integers(0, 2, size=(9, 40))
ORDER = RANDOM.permutation(40)
COLUMNS_SUBSPACE = PrivateSubspace(
    components=np.linalg.qr(RANDOM.normal(size=(40, 5)))[0].T, manifest={"feature_names": NAMES}
)
CENTRES = TensorComponents(
    components=RANDOM.normal(size=(2, 40)),
    weights=np.array([0.6, 0.4]),
    eigenvalues=np.array([2.0, 1.0]),
    model="mixture",
    n_features=40,
    noise_variance=1.0,
    manifest={"feature_names": NAMES},
)


class Polars:
    """Stub of a polars data frame, with the methods that the code under test calls."""

    def __init__(self, rows: NDArray[Any], names: list[str]) -> None:
        self.columns, self._rows = names, rows

    def __getitem__(self, name: str) -> NDArray[Any]:
        found: NDArray[Any] = self._rows[:, self.columns.index(name)]
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def to_numpy(self) -> NDArray[Any]:
        return self._rows


MAKERS = {
    "pandas": lambda rows, names: pd.DataFrame(rows, columns=names),
    "pandas-nullable": lambda rows, names: pd.DataFrame(rows, columns=names).convert_dtypes(),
    "polars": Polars,
    "arrow": lambda rows, names: pa.table(dict(zip(names, rows.T, strict=True))),
    "arrow-batch": lambda rows, names: pa.record_batch(dict(zip(names, rows.T, strict=True))),
    "anndata": lambda rows, names: anndata.AnnData(rows, var=pd.DataFrame(index=names)),
    "anndata-sparse": lambda rows, names: anndata.AnnData(sparse.csr_array(rows), var=pd.DataFrame(index=names)),
}


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("release", [COLUMNS_SUBSPACE, CENTRES], ids=lambda release: release.kind)
def test_permuted_columns_give_bit_equal_scores(release: Any, kind: str) -> None:
    make: Any = MAKERS[kind]
    scores = release.transform(make(ROWS, NAMES))
    permuted = release.transform(make(ROWS[:, ORDER], [NAMES[at] for at in ORDER]))
    assert scores.tobytes() == permuted.tobytes()
    np.testing.assert_allclose(scores, release.transform(ROWS), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
@pytest.mark.parametrize("kind", MAKERS)
def test_a_missing_column_and_an_unknown_one_are_one_line_each(kind: str) -> None:
    make: Any = MAKERS[kind]
    with pytest.raises(Invalid, match=r"^column 'f3' is missing; this subspace finds its 40 columns by name"):
        COLUMNS_SUBSPACE.transform(make(np.delete(ROWS, 3, axis=1), [name for name in NAMES if name != "f3"]))
    with pytest.raises(Invalid, match=r"^column 'age' is not among the 40 of this subspace; drop"):
        COLUMNS_SUBSPACE.transform(make(np.column_stack([ROWS, ROWS[:, 0]]), [*NAMES, "age"]))
    with pytest.raises(Invalid, match=r"^column 'f0' and 39 more are missing \(40 of the 40 columns have other names"):
        COLUMNS_SUBSPACE.transform(make(ROWS, [f"g{column}" for column in range(40)]))


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_columns_without_names_are_matched_by_position() -> None:
    expected = COLUMNS_SUBSPACE.transform(ROWS)
    np.testing.assert_allclose(COLUMNS_SUBSPACE.transform(pd.DataFrame(ROWS)), expected, rtol=0, atol=1e-12)
    nameless = PrivateSubspace(components=COLUMNS_SUBSPACE.components, manifest={})
    assert nameless.transform(pd.DataFrame(ROWS, columns=NAMES)).tobytes() == nameless.transform(ROWS).tobytes()


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_numbered_columns_are_names_where_the_release_has_these_names() -> None:
    numbers = [str(column) for column in range(40)]
    numbered = PrivateSubspace(components=COLUMNS_SUBSPACE.components, manifest={"feature_names": numbers[::-1]})
    expected = numbered.transform(ROWS[:, ::-1].copy())
    np.testing.assert_allclose(numbered.transform(pd.DataFrame(ROWS)), expected, rtol=0, atol=1e-12)
    shuffled = pd.DataFrame(ROWS).iloc[:, ::-1]
    with pytest.raises(Invalid, match="'f0' and 39 more are missing"):
        COLUMNS_SUBSPACE.transform(shuffled)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_a_column_of_another_kind_is_named_without_its_values() -> None:
    frame = pd.DataFrame(ROWS, columns=NAMES)
    for values, kind in ((["SECRET"] * 9, ""), (pd.date_range("2020", periods=9), "datetime64"), ([1j] * 9, "complex")):
        with pytest.raises(Invalid, match=f"^column 'f5'( of rows)? holds .*{kind}.*; (it must|declare)") as caught:
            COLUMNS_SUBSPACE.transform(frame.assign(f5=values))
        assert "SECRET" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_matching_columns_imports_no_data_frame_library() -> None:
    code = (
        "import sys, dpca.artifacts.columns; "
        "print([name for name in ('pandas', 'polars', 'pyarrow', 'duckdb', 'numba', 'scipy', 'anndata', 'pydantic') "
        "if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_arrays_are_returned_as_they_are() -> None:
    matrix = sparse.csr_array(ROWS)
    assert rows_by_name(matrix, names=NAMES, noun="subspace") is matrix


# set by anndata

FITTED_TRANSFORMER_NAMES = ["age", "weight", "height", "dose"]
STREAM = np.random.default_rng(0)
FITTED_TRANSFORMER_ROWS = STREAM.normal(size=(40, 4))
LABELS = (FITTED_TRANSFORMER_ROWS[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(
    FITTED_TRANSFORMER_ROWS,
    columns=FITTED_TRANSFORMER_NAMES,
    index=[f"p{at}" for at in range(len(FITTED_TRANSFORMER_ROWS))],
)
ENCODER = {
    "columns": [
        {"name": "age", "kind": "numeric", "range": [0, 100]},
        {"name": "sex", "kind": "categorical", "values": ["f", "m"], "others": "zero"},
    ]
}
OUT = ["privatesubspace0", "privatesubspace1"]


def make_subspace_of_fitted_transformer(*, named: bool = True) -> PrivateSubspace:
    return PrivateSubspace(
        components=np.linalg.qr(np.random.default_rng(1).normal(size=(4, 2)))[0].T,
        mean=np.arange(4.0),
        manifest={"feature_names": FITTED_TRANSFORMER_NAMES} if named else {},
    )


@pytest.fixture
def subspace() -> PrivateSubspace:
    return make_subspace_of_fitted_transformer()


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
class TestPipelines:
    def test_a_pipeline_fits_later_steps_and_leaves_the_release_unchanged(self, subspace: PrivateSubspace) -> None:
        before = {name: values.copy() for name, values in subspace.arrays().items()}
        pipeline = make_pipeline(subspace, LogisticRegression()).fit(FITTED_TRANSFORMER_ROWS, LABELS)
        assert pipeline[0] is subspace
        expected = LogisticRegression().fit((FITTED_TRANSFORMER_ROWS - np.arange(4.0)) @ subspace.components.T, LABELS)
        np.testing.assert_allclose(pipeline[-1].coef_, expected.coef_, rtol=1e-6)
        assert (
            pipeline.predict(FRAME[FITTED_TRANSFORMER_NAMES[::-1]]).tolist()
            == expected.predict(subspace.transform(FITTED_TRANSFORMER_ROWS)).tolist()
        )
        for name, values in subspace.arrays().items():
            np.testing.assert_array_equal(values, before[name])
        assert "PrivateSubspace" in pipeline._repr_html_()

    def test_a_grid_search_clones_a_subspace_with_its_arrays(self, subspace: PrivateSubspace) -> None:
        pipeline = Pipeline([("map", subspace), ("model", LogisticRegression())])
        search = GridSearchCV(pipeline, {"model__C": [0.1, 1.0]}, cv=2).fit(FITTED_TRANSFORMER_ROWS, LABELS)
        assert search.best_estimator_["map"].components is subspace.components
        assert search.predict(FITTED_TRANSFORMER_ROWS).shape == (40,)

    def test_a_subspace_works_in_a_union_of_transformers(self, subspace: PrivateSubspace) -> None:
        union = FeatureUnion([("one", subspace), ("two", clone(subspace))])
        assert union.fit_transform(FITTED_TRANSFORMER_ROWS).shape == (40, 4)
        assert list(union.get_feature_names_out())[:2] == [f"one__{name}" for name in OUT]
        columns = ColumnTransformer([("map", subspace, FITTED_TRANSFORMER_NAMES[::-1])], remainder="drop").fit(FRAME)
        np.testing.assert_array_equal(columns.transform(FRAME), subspace.transform(FITTED_TRANSFORMER_ROWS))
        assert columns.get_feature_names_out().tolist() == [f"map__{name}" for name in OUT]

    def test_a_release_of_raw_tables_takes_them_in_a_pipeline(self) -> None:
        table = pd.DataFrame({"sex": ["m", "f"] * 20, "age": range(40)})
        subspace = PrivateSubspace(
            components=np.eye(2, 3), manifest={"feature_names": ["age", "sex=f", "sex=m"], "encoder": ENCODER}
        )
        columns = ColumnTransformer([("map", subspace, ["sex", "age"])])
        model = make_pipeline(columns, LogisticRegression()).fit(table, LABELS)
        np.testing.assert_allclose(model[0].transform(table)[:, 0], table["age"] / 100)
        assert columns.fit(table).get_feature_names_out().tolist() == [f"map__{name}" for name in OUT]

    def test_a_subspace_and_its_clone_are_fitted(self, subspace: PrivateSubspace) -> None:
        twin = clone(subspace)
        check_is_fitted(twin)
        assert twin is not subspace
        assert twin.manifest == subspace.manifest
        np.testing.assert_array_equal(
            twin.transform(FITTED_TRANSFORMER_ROWS), subspace.transform(FITTED_TRANSFORMER_ROWS)
        )

    def test_parameters_are_none_and_cannot_be_set(self, subspace: PrivateSubspace) -> None:
        assert subspace.get_params() == {}
        assert subspace.set_params() is subspace
        with pytest.raises(Invalid, match="n_components cannot be set"):
            subspace.set_params(n_components=3)

    @pytest.mark.parametrize(
        "rows", [FITTED_TRANSFORMER_ROWS[:, :3], np.full((2, 4), np.nan), [["a"] * 4], FRAME.drop(columns="age")]
    )
    def test_fitting_refuses_what_transforming_refuses(self, subspace: PrivateSubspace, rows: Any) -> None:
        for use in (subspace.fit, subspace.fit_transform, subspace.transform):
            with pytest.raises(Invalid) as caught:
                use(rows)
            assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
class TestNotes:
    def test_only_private_attributes_can_be_set(self, subspace: PrivateSubspace) -> None:
        subspace._note = 1  # type: ignore[attr-defined]
        assert not hasattr(clone(subspace), "_note")
        del subspace._note  # type: ignore[attr-defined]
        for name in ("components", "n_components", "note"):
            with pytest.raises(FrozenInstanceError, match=f"cannot change '{name}'; a release is fixed"):
                setattr(subspace, name, 1)
            with pytest.raises(FrozenInstanceError):
                delattr(subspace, name)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
class TestNames:
    def test_input_feature_names_are_those_of_the_release(self, subspace: PrivateSubspace) -> None:
        assert subspace.n_features_in_ == 4
        assert subspace.feature_names_in_.tolist() == FITTED_TRANSFORMER_NAMES
        assert subspace.get_feature_names_out(FITTED_TRANSFORMER_NAMES).tolist() == OUT
        with pytest.raises(Invalid, match="feature_names_in_"):
            subspace.get_feature_names_out([*FITTED_TRANSFORMER_NAMES[1:], "other"])

    def test_without_names_the_attribute_for_names_is_missing(self) -> None:
        assert not hasattr(make_subspace_of_fitted_transformer(named=False), "feature_names_in_")
        assert make_subspace_of_fitted_transformer(named=False).get_feature_names_out(["x"]).tolist() == OUT


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
class TestContainers:
    def test_pandas_keeps_the_index(self, subspace: PrivateSubspace) -> None:
        plain = subspace.transform(FRAME)
        assert subspace.set_output(transform="pandas") is subspace
        found: Any = subspace.transform(FRAME[FITTED_TRANSFORMER_NAMES[::-1]])
        assert isinstance(found, pd.DataFrame)
        assert (list(found.columns), list(found.index)) == (OUT, list(FRAME.index))
        np.testing.assert_array_equal(found, plain)
        unnamed: Any = subspace.fit_transform(sparse.csr_array(FITTED_TRANSFORMER_ROWS))
        assert list(unnamed.index) == list(range(40))

    def test_a_pipeline_sets_the_container(self, subspace: PrivateSubspace) -> None:
        pipeline = Pipeline([("map", subspace)]).set_output(transform="pandas")
        assert list(pipeline.fit_transform(FRAME).columns) == OUT

    def test_polars_has_the_names(self, subspace: PrivateSubspace, monkeypatch: pytest.MonkeyPatch) -> None:
        def frame(scores: Any, *, schema: list[str], orient: str) -> Any:
            return schema, orient, scores

        polars = ModuleType("polars")
        polars.DataFrame = frame  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "polars", polars)
        plain = subspace.transform(FITTED_TRANSFORMER_ROWS)
        schema, orient, scores = subspace.set_output(transform="polars").transform(FITTED_TRANSFORMER_ROWS)
        assert (schema, orient) == (OUT, "row")
        np.testing.assert_array_equal(scores, plain)

    def test_the_container_of_one_object_overrides_the_global_setting(self, subspace: PrivateSubspace) -> None:
        with sklearn.config_context(transform_output="pandas"):
            assert isinstance(subspace.transform(FITTED_TRANSFORMER_ROWS), pd.DataFrame)
            assert isinstance(subspace.set_output(transform=None).transform(FITTED_TRANSFORMER_ROWS), pd.DataFrame)
            assert isinstance(subspace.set_output(transform="default").transform(FITTED_TRANSFORMER_ROWS), np.ndarray)
        assert isinstance(subspace.transform(FITTED_TRANSFORMER_ROWS), np.ndarray)

    def test_a_clone_keeps_the_container_and_a_pickle_does_not(self, subspace: PrivateSubspace) -> None:
        twin = clone(subspace.set_output(transform="pandas"))
        assert isinstance(twin.transform(FITTED_TRANSFORMER_ROWS), pd.DataFrame)
        twin.set_output(transform="default")
        assert isinstance(subspace.transform(FITTED_TRANSFORMER_ROWS), pd.DataFrame)
        assert isinstance(pickle.loads(pickle.dumps(subspace)).transform(FITTED_TRANSFORMER_ROWS), np.ndarray)

    def test_another_container_is_refused(self, subspace: PrivateSubspace) -> None:
        with pytest.raises(Invalid, match="'arrow' is unknown"):
            subspace.set_output(transform="arrow")

    def test_columns_of_annotated_data_are_matched_by_name(self, subspace: PrivateSubspace) -> None:
        data = anndata.AnnData(FRAME)[:, FITTED_TRANSFORMER_NAMES[::-1]].copy()
        np.testing.assert_allclose(
            subspace.transform(data), subspace.transform(FITTED_TRANSFORMER_ROWS), rtol=0, atol=1e-12
        )
        framed: Any = subspace.set_output(transform="pandas").transform(data)
        assert list(framed.index) == list(FRAME.index)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
def test_a_subspace_is_used_without_importing_scikit_learn() -> None:
    program = (
        "import sys, numpy as np\n"
        "from dpca.artifacts.subspace import PrivateSubspace\n"
        "subspace = PrivateSubspace(components=np.eye(2, 3), manifest={})\n"
        "subspace.set_output(transform='default').fit(np.eye(3)).get_feature_names_out()\n"
        "subspace.__sklearn_clone__().fit_transform(np.eye(3))\n"
        "print({'sklearn', 'pandas', 'polars'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


WIDTHS = (1, 2, 3, 4, 5, 10)
"""The numbers of columns in scikit-learn's checks; a release has a fixed number, so passing with any one counts."""
_READ_ONLY = "sets n_components first; a release has the number that it has, and is read-only"
_FITTED = "asks for what holds before a fit, or for a fit that learns from rows; a release is fitted when it is loaded"
_WORDS = "wants scikit-learn's own words or type of error; ours says the same, with the rule and the next move"
EXCEPTIONS = {
    "check_dont_overwrite_parameters": _READ_ONLY,
    "check_methods_sample_order_invariance": _READ_ONLY,
    "check_methods_subset_invariance": _READ_ONLY,
    "check_fit2d_1sample": _READ_ONLY,
    "check_fit2d_1feature": _READ_ONLY,
    "check_fit1d": _READ_ONLY,
    "check_fit2d_predict1d": _READ_ONLY,
    "check_do_not_raise_errors_in_init_or_set_params": _FITTED,
    "check_parameters_default_constructible": _FITTED,
    "check_n_features_in": _FITTED,
    "check_estimators_empty_data_messages": _FITTED,
    "check_n_features_in_after_fitting": _WORDS,
    "check_complex_data": _WORDS,
    "check_dtype_object": _WORDS,
}
"""The checks of scikit-learn that a fitted release cannot pass, with the reasons."""


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_pass_except_for_listed_exceptions() -> None:
    """Run scikit-learn's checks of an estimator on a subspace: only the listed exceptions may fail.

    Skipped checks do not count as failed, for example the array API check where SciPy's array API is off.
    """
    failed: dict[str, int] = {}
    for width in WIDTHS:
        subspace = PrivateSubspace(components=np.eye(1, width), manifest={})
        for found in check_estimator(subspace, on_skip=None, on_fail=None):
            failed.setdefault(found["check_name"], 0)
            failed[found["check_name"]] += found["status"] == "failed"
    assert len(failed) > 40
    assert {name for name, times in failed.items() if times == len(WIDTHS)} == set(EXCEPTIONS)
