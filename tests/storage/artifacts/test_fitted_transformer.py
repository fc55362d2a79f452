"""A loaded subspace is a fitted scikit-learn transformer: it goes wherever one goes, and nothing fits it again."""

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from types import ModuleType
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted

from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid

pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")  # by anndata

NAMES = ["age", "weight", "height", "dose"]
STREAM = np.random.default_rng(0)
ROWS = STREAM.normal(size=(40, 4))
LABELS = (ROWS[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(ROWS, columns=NAMES, index=[f"p{at}" for at in range(len(ROWS))])
ENCODER = {
    "columns": [
        {"name": "age", "kind": "numeric", "range": [0, 100]},
        {"name": "sex", "kind": "categorical", "values": ["f", "m"], "others": "zero"},
    ]
}
OUT = ["privatesubspace0", "privatesubspace1"]


def make_subspace(*, named: bool = True) -> PrivateSubspace:
    return PrivateSubspace(
        components=np.linalg.qr(np.random.default_rng(1).normal(size=(4, 2)))[0].T,
        mean=np.arange(4.0),
        manifest={"feature_names": NAMES} if named else {},
    )


@pytest.fixture
def subspace() -> PrivateSubspace:
    return make_subspace()


class TestPipelines:
    def test_a_pipeline_fits_what_comes_after_and_leaves_the_release(self, subspace: PrivateSubspace) -> None:
        before = {name: values.copy() for name, values in subspace.arrays().items()}
        pipeline = make_pipeline(subspace, LogisticRegression()).fit(ROWS, LABELS)
        assert pipeline[0] is subspace
        expected = LogisticRegression().fit((ROWS - np.arange(4.0)) @ subspace.components.T, LABELS)
        np.testing.assert_allclose(pipeline[-1].coef_, expected.coef_, rtol=1e-6)
        assert pipeline.predict(FRAME[NAMES[::-1]]).tolist() == expected.predict(subspace.transform(ROWS)).tolist()
        for name, values in subspace.arrays().items():
            np.testing.assert_array_equal(values, before[name])
        assert "PrivateSubspace" in pipeline._repr_html_()

    def test_a_search_clones_it_with_its_arrays(self, subspace: PrivateSubspace) -> None:
        pipeline = Pipeline([("map", subspace), ("model", LogisticRegression())])
        search = GridSearchCV(pipeline, {"model__C": [0.1, 1.0]}, cv=2).fit(ROWS, LABELS)
        assert search.best_estimator_["map"].components is subspace.components
        assert search.predict(ROWS).shape == (40,)

    def test_it_stands_beside_others(self, subspace: PrivateSubspace) -> None:
        union = FeatureUnion([("one", subspace), ("two", clone(subspace))])
        assert union.fit_transform(ROWS).shape == (40, 4)
        assert list(union.get_feature_names_out())[:2] == [f"one__{name}" for name in OUT]
        columns = ColumnTransformer([("map", subspace, NAMES[::-1])], remainder="drop").fit(FRAME)
        np.testing.assert_array_equal(columns.transform(FRAME), subspace.transform(ROWS))
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

    def test_it_is_fitted_and_a_clone_is_too(self, subspace: PrivateSubspace) -> None:
        twin = clone(subspace)
        check_is_fitted(twin)
        assert twin is not subspace
        assert twin.manifest == subspace.manifest
        np.testing.assert_array_equal(twin.transform(ROWS), subspace.transform(ROWS))

    def test_parameters_are_none_and_cannot_be_set(self, subspace: PrivateSubspace) -> None:
        assert subspace.get_params() == {}
        assert subspace.set_params() is subspace
        with pytest.raises(Invalid, match="n_components cannot be set"):
            subspace.set_params(n_components=3)

    @pytest.mark.parametrize("rows", [ROWS[:, :3], np.full((2, 4), np.nan), [["a"] * 4], FRAME.drop(columns="age")])
    def test_fitting_refuses_what_transforming_refuses(self, subspace: PrivateSubspace, rows: Any) -> None:
        for use in (subspace.fit, subspace.fit_transform, subspace.transform):
            with pytest.raises(Invalid) as caught:
                use(rows)
            assert "\n" not in str(caught.value)


class TestNotes:
    def test_others_may_leave_private_notes_and_change_nothing_else(self, subspace: PrivateSubspace) -> None:
        subspace._note = 1  # type: ignore[attr-defined]
        assert not hasattr(clone(subspace), "_note")
        del subspace._note  # type: ignore[attr-defined]
        for name in ("components", "n_components", "note"):
            with pytest.raises(FrozenInstanceError, match=f"cannot change '{name}'; a release is fixed"):
                setattr(subspace, name, 1)
            with pytest.raises(FrozenInstanceError):
                delattr(subspace, name)


class TestNames:
    def test_names_in_are_those_of_the_release(self, subspace: PrivateSubspace) -> None:
        assert subspace.n_features_in_ == 4
        assert subspace.feature_names_in_.tolist() == NAMES
        assert subspace.get_feature_names_out(NAMES).tolist() == OUT
        with pytest.raises(Invalid, match="feature_names_in_"):
            subspace.get_feature_names_out([*NAMES[1:], "other"])

    def test_without_names_there_is_no_attribute(self) -> None:
        assert not hasattr(make_subspace(named=False), "feature_names_in_")
        assert make_subspace(named=False).get_feature_names_out(["x"]).tolist() == OUT


class TestContainers:
    def test_pandas_keeps_the_index(self, subspace: PrivateSubspace) -> None:
        plain = subspace.transform(FRAME)
        assert subspace.set_output(transform="pandas") is subspace
        found: Any = subspace.transform(FRAME[NAMES[::-1]])
        assert isinstance(found, pd.DataFrame)
        assert (list(found.columns), list(found.index)) == (OUT, list(FRAME.index))
        np.testing.assert_array_equal(found, plain)
        unnamed: Any = subspace.fit_transform(sparse.csr_array(ROWS))
        assert list(unnamed.index) == list(range(40))

    def test_a_pipeline_sets_it(self, subspace: PrivateSubspace) -> None:
        pipeline = Pipeline([("map", subspace)]).set_output(transform="pandas")
        assert list(pipeline.fit_transform(FRAME).columns) == OUT

    def test_polars_has_the_names(self, subspace: PrivateSubspace, monkeypatch: pytest.MonkeyPatch) -> None:
        def frame(scores: Any, *, schema: list[str], orient: str) -> Any:
            return schema, orient, scores

        polars = ModuleType("polars")
        polars.DataFrame = frame  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "polars", polars)
        plain = subspace.transform(ROWS)
        schema, orient, scores = subspace.set_output(transform="polars").transform(ROWS)
        assert (schema, orient) == (OUT, "row")
        np.testing.assert_array_equal(scores, plain)

    def test_the_object_wins_over_the_setting_of_all(self, subspace: PrivateSubspace) -> None:
        with sklearn.config_context(transform_output="pandas"):
            assert isinstance(subspace.transform(ROWS), pd.DataFrame)
            assert isinstance(subspace.set_output(transform=None).transform(ROWS), pd.DataFrame)
            assert isinstance(subspace.set_output(transform="default").transform(ROWS), np.ndarray)
        assert isinstance(subspace.transform(ROWS), np.ndarray)

    def test_a_clone_has_its_own_and_a_pickle_none(self, subspace: PrivateSubspace) -> None:
        twin = clone(subspace.set_output(transform="pandas"))
        assert isinstance(twin.transform(ROWS), pd.DataFrame)
        twin.set_output(transform="default")
        assert isinstance(subspace.transform(ROWS), pd.DataFrame)
        assert isinstance(pickle.loads(pickle.dumps(subspace)).transform(ROWS), np.ndarray)

    def test_another_container_is_refused(self, subspace: PrivateSubspace) -> None:
        with pytest.raises(Invalid, match="'arrow' is unknown"):
            subspace.set_output(transform="arrow")

    def test_annotated_data_go_by_name_and_keep_theirs(self, subspace: PrivateSubspace) -> None:
        data = anndata.AnnData(FRAME)[:, NAMES[::-1]].copy()
        np.testing.assert_allclose(subspace.transform(data), subspace.transform(ROWS), rtol=0, atol=1e-12)
        framed: Any = subspace.set_output(transform="pandas").transform(data)
        assert list(framed.index) == list(FRAME.index)


def test_none_of_it_imports_scikit_learn() -> None:
    program = (
        "import sys, numpy as np\n"
        "from storage.artifacts.subspace import PrivateSubspace\n"
        "subspace = PrivateSubspace(components=np.eye(2, 3), manifest={})\n"
        "subspace.set_output(transform='default').fit(np.eye(3)).get_feature_names_out()\n"
        "subspace.__sklearn_clone__().fit_transform(np.eye(3))\n"
        "print({'sklearn', 'pandas', 'polars'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


WIDTHS = (1, 2, 3, 4, 5, 10)
"""The numbers of columns that scikit-learn's checks use; a release has one, so a check counts that passes for one."""
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
"""The checks of scikit-learn that a fitted release cannot pass, and why."""


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass_but_for_those_that_are_listed_with_their_reason() -> None:
    """Checks that are skipped, such as that of the array API where SciPy's is off, do not count."""
    failed: dict[str, int] = {}
    for width in WIDTHS:
        subspace = PrivateSubspace(components=np.eye(1, width), manifest={})
        for found in check_estimator(subspace, on_skip=None, on_fail=None):
            failed.setdefault(found["check_name"], 0)
            failed[found["check_name"]] += found["status"] == "failed"
    assert len(failed) > 40
    assert {name for name, times in failed.items() if times == len(WIDTHS)} == set(EXCEPTIONS)
