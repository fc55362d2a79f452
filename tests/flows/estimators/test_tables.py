"""Containers of rows: results do not depend on the container, and tables without usable rows are refused.

Data that need not be in memory as a whole are read in parts. Tables without numbers or without rows are refused in one
line, by every estimator and by its releases.

Raw data frames are released by a declared schema, in memory and on a ledger.
"""

import functools
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.delayed import delayed
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dpca
from dpca.errors import Invalid
from dpca.schemas.schema import Schema
from flows.estimators import InMemoryBudget, PrivateMatrixFactorization, PrivatePCA
from flows.estimators.tables import Columns, Entries, Table, TableRows
from storage.workspace import Workspace
from tests.flows.estimators.rows import ROWS, TERMS, model

NAMES = pd.Index(list("abcde"))
FRAME = pd.DataFrame(ROWS, columns=NAMES)
CHUNKED = da.from_array(ROWS, chunks=(1_000, 2))
# set by anndata


def annotated(rows: Any) -> anndata.AnnData:
    return anndata.AnnData(X=rows, var=pd.DataFrame(index=NAMES))


def backed(rows: Any, folder: Path) -> anndata.AnnData:
    annotated(rows).write_h5ad(folder / "rows.h5ad")
    return anndata.read_h5ad(folder / "rows.h5ad", backed="r")


def polars_frame() -> Any:
    return pytest.importorskip("polars", reason="polars is in the environments of `make estimators` alone").from_pandas(
        FRAME
    )


TABLES = {
    "array": (lambda folder: ROWS, False),
    "fortran order": (lambda folder: np.asfortranarray(ROWS), False),
    "csr": (lambda folder: sparse.csr_array(ROWS), False),
    "csc matrix": (lambda folder: sparse.csc_matrix(ROWS), False),
    "pandas": (lambda folder: FRAME, True),
    "polars": (lambda folder: polars_frame(), True),
    "AnnData": (lambda folder: annotated(ROWS), True),
    "AnnData, csr": (lambda folder: annotated(sparse.csr_matrix(ROWS)), True),
    "AnnData in a file": (lambda folder: backed(ROWS, folder), True),
    "AnnData in a file, csr": (lambda folder: backed(sparse.csr_matrix(ROWS), folder), True),
    "AnnData in a file, csc": (lambda folder: backed(sparse.csc_matrix(ROWS), folder), True),
    "view of AnnData in a file": (lambda folder: backed(ROWS, folder)[:, NAMES], True),
    "AnnData of Dask": (lambda folder: annotated(CHUNKED), True),
    "Dask": (lambda folder: CHUNKED, False),
    "Dask of csr": (lambda folder: da.from_array(ROWS, chunks=(1_000, 5)).map_blocks(sparse.csr_matrix), False),
    "Dask of unknown rows": (lambda folder: CHUNKED[CHUNKED[:, 0] == CHUNKED[:, 0]], False),
    "Dask DataFrame": (lambda folder: dd.from_pandas(FRAME, npartitions=3), True),
}


PLAIN = Table.in_memory(ROWS, entries=Entries())


def content(table: Table) -> str:
    return TableRows(table).content


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize("kind", TABLES)
def test_columns_are_learned_from_a_table_whose_values_are_not_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, named = TABLES[kind]
    table, estimator = make(tmp_path), model()
    monkeypatch.setattr(da.Array, "compute", lambda *_, **__: pytest.fail("values were computed"))
    monkeypatch.setattr("flows.estimators.tables._columns_of", lambda _: pytest.fail("values were taken"))
    learned = Columns.learned(estimator, table)
    assert learned == Columns(n_features=5, names=tuple(NAMES) if named else None)
    assert estimator.n_features_in_ == 5
    assert hasattr(estimator, "feature_names_in_") is named


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize("kind", TABLES)
def test_equal_rows_in_any_container_have_equal_scores(kind: str, tmp_path: Path) -> None:
    make, named = TABLES[kind]
    table = make(tmp_path)
    assert content(Table.checked(model(), table, reset=True, entries=Entries())) == content(PLAIN)
    fitted = model().fit(table)
    scores = fitted.transform(table)
    assert hasattr(scores, "__dask_graph__") is ("Dask" in kind)
    assert np.asarray(scores) == pytest.approx((ROWS - fitted.mean_) @ fitted.components_.T, rel=1e-9, abs=1e-9)
    assert hasattr(fitted, "feature_names_in_") is named
    if named:
        with pytest.raises(ValueError, match="The feature names should match"):
            fitted.transform(FRAME[NAMES[::-1]])


class Watched:
    """Dask rows that are computed chunk by chunk; ``most`` is the size of the largest computed chunk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most, real = 0, da.Array.compute

        def compute(array: da.Array, **options: Any) -> Any:
            self.most = max(self.most, array.shape[0])
            return real(array, **options)

        monkeypatch.setattr(da.Array, "compute", compute)
        self.rows = da.concatenate(
            [da.from_delayed(self._part(first), (500, 5), float) for first in range(0, 4000, 500)]
        )

    def _part(self, first: int) -> Any:
        return delayed(lambda: ROWS[first : first + 500])()


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize("mechanism", ["analyze_gauss", "noisy_power"])
def test_a_dask_array_is_computed_one_chunk_at_a_time(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    fitted = model(mechanism=mechanism, budget=InMemoryBudget(**TERMS)).fit(watched.rows)
    scores = fitted.transform(watched.rows)
    assert watched.most == 500
    assert scores.chunks == (watched.rows.chunks[0], (2,))
    assert scores[:7].compute() == pytest.approx(fitted.transform(ROWS[:7]))


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_rows_in_a_file_are_read_a_slice_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.estimators.tables._PIECE_VALUES", 5_000)
    held = backed(ROWS, tmp_path)
    monkeypatch.setattr(anndata.AnnData, "to_memory", lambda self: pytest.fail("read whole"))
    table = Table.checked(model(), held, reset=True, entries=Entries())
    assert [piece().shape for piece in table.pieces] == [(1_000, 5)] * 4
    assert content(table) == content(PLAIN)
    fitted = model().fit(held)
    assert fitted.transform(held) == pytest.approx(fitted.transform(pd.DataFrame(ROWS, columns=NAMES)))


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize("size", [1, 7, 5_000, 1 << 22])
def test_the_chunk_size_changes_no_result(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = content(Table.in_memory(ROWS[:50], entries=Entries()))
    monkeypatch.setattr("flows.estimators.tables._PIECE_VALUES", size)
    rows = TableRows(Table.in_memory(ROWS[:50], entries=Entries()))
    assert rows.n_blocks == -(-50 // max(size // 5, 1))
    assert rows.content == first
    read = np.concatenate([rows.read(block).values for block in range(rows.n_blocks)])
    assert read.tolist() == ROWS[:50].ravel().tolist()


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_chunks_are_validated_like_rows_in_memory() -> None:
    bad: NDArray[np.float64] = np.where(ROWS[3_500, 0] == ROWS, np.nan, ROWS)
    with pytest.raises(ValueError, match="NaN"):
        model().fit(da.from_array(bad, chunks=(1_000, 5)))
    with pytest.raises(ValueError, match="is expecting 5 features"):
        model().fit(ROWS).transform(da.from_array(ROWS[:, :4], chunks=(1_000, 4)))
    with pytest.raises(ValueError, match="Expected 2D array"):
        model().fit(da.from_array(ROWS[:, 0], chunks=1_000))
    with pytest.raises(ValueError, match="a minimum of 2 is required"):
        model().fit(da.from_array(ROWS[:1], chunks=(1_000, 5)))
    with pytest.raises(NotFittedError):
        model().transform(CHUNKED)
    with pytest.raises(ValueError, match="fewer than two samples"):
        TableRows(Table(n_features=5, pieces=[lambda: ROWS[:1]]))


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize(
    "rows",
    [
        FRAME.assign(a="4711 or so"),
        np.full((5, 5), 4711 + 1j),
        np.full(5, 4711.0),
        FRAME.assign(a="4711 or so").to_numpy(dtype=object),
        da.from_array(FRAME.assign(a="4711 or so").to_numpy(dtype=object), chunks=(1_000, 5)),
        FRAME.assign(a=pd.array(["4711 or so"] * len(ROWS), dtype=pd.ArrowDtype(pa.string()))),
    ],
    ids=["text", "complex", "one row", "objects", "dask", "arrow"],
)
@pytest.mark.parametrize("method", ["fit", "transform", "inverse_transform"])
def test_no_refusal_quotes_a_value(rows: Any, method: str) -> None:
    fitted = model(budget=InMemoryBudget()).fit(FRAME if hasattr(rows, "columns") else ROWS)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        np.asarray(getattr(fitted, method)(rows))
    assert "4711" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


OTHERS = {
    "reordered": FRAME[NAMES[::-1]],
    "renamed": FRAME.rename(columns={"a": "A"}),
    "without one": FRAME[NAMES[1:]],
    "with one more": FRAME.assign(f=1.0),
    "Arrow table": pa.Table.from_pandas(FRAME[NAMES[::-1]]),
    "record batch": pa.RecordBatch.from_pandas(FRAME[NAMES[::-1]]),
    "Dask": dd.from_pandas(FRAME[NAMES[::-1]], npartitions=2),
}


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize("other", OTHERS)
def test_other_columns_than_those_of_the_fit_are_refused(other: str) -> None:
    fitted = model().fit(FRAME)
    with pytest.raises(ValueError, match="feature names should match those that were passed during fit"):
        fitted.transform(OTHERS[other])
    with pytest.raises(ValueError, match="feature names should match those that were passed during fit"):
        fitted.transform(annotated(ROWS)[:, NAMES[::-1]])


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_a_table_that_changes_between_two_readings_is_refused() -> None:
    pieces = iter([ROWS[:9], ROWS[:8]])
    rows = TableRows(Table(n_features=5, pieces=[lambda: next(pieces)]))
    with pytest.raises(Invalid, match="changed while they were read"):
        rows.read(0)


BIG = 10**400


def without_x() -> anndata.AnnData:
    return anndata.AnnData(X=None, obs=pd.DataFrame(index=list("ab")), var=pd.DataFrame(index=list("vwxyz")))


STRANGE: dict[str, Any] = {
    "huge integers": [[BIG, 1, 1, 1, 1]] * 3,
    "huge in objects": np.array([[BIG, 1, 1, 1, 1]] * 3, dtype=object),
    "huge in a frame": pd.DataFrame({name: [BIG] * 3 for name in "vwxyz"}),
    "huge fractions": [[Fraction(BIG), 1, 1, 1, 1]] * 3,
    "AnnData without X": without_x,
    "an empty AnnData": anndata.AnnData,
    "an empty frame": pd.DataFrame(),
    "a frame without rows": pd.DataFrame({name: [] for name in "vwxyz"}),
    "no list": [],
    "an empty list": [[]],
    "no rows": np.empty((0, 5)),
    "no columns": np.empty((5, 0)),
    "no stored rows": sparse.csr_array((0, 5)),
    "complex numbers": [[1j, 1, 1, 1, 1]] * 3,
    "complex columns": pd.DataFrame({name: [1j] * 3 for name in "vwxyz"}),
    "texts": [["4711 or so"] * 5] * 3,
    "bytes": [[b"4711 or so"] * 5] * 3,
    "nested lists": [[[1]] * 5] * 3,
    "ragged lists": [[1] * 5, [1] * 4, [1] * 5],
    "nested and ragged": [[[1], 1, 1, 1, 1]] * 3,
    "signalling decimals": [[Decimal("sNaN")] * 5] * 3,
    "records": np.zeros(3, dtype=[("a", int), ("b", float)]),
    "a number": 3,
    "nothing": None,
    "a set": {1, 2},
}


@functools.cache
def fitted() -> tuple[PrivatePCA, PrivateMatrixFactorization]:
    """Return a fitted PrivatePCA and a fitted PrivateMatrixFactorization."""
    factors = PrivateMatrixFactorization(
        n_components=1, epsilon=1.0, delta=1e-6, ratings_between=(1, 5), ratings_per_user=5, budget=InMemoryBudget()
    )
    return model(budget=InMemoryBudget()).fit(ROWS), factors.fit(np.clip(np.abs(ROWS[:50]) + 1, 1, 5))


@pytest.mark.filterwarnings(
    "ignore:The 'future.infer_string' option",  # set by anndata
    "ignore:X has feature names",
)
@pytest.mark.parametrize("rows", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("method", ["fit", "transform", "predict", "artifact"])
def test_a_table_without_numbers_is_refused_in_one_line(rows: Any, method: str) -> None:
    # AnnData refuses some arrays when it is created, so it is created inside the test
    rows = rows() if callable(rows) else rows
    pca, factors = fitted()
    calls: dict[str, list[Callable[[Any], Any]]] = {
        "fit": [clone(pca).fit, clone(factors).fit],
        "transform": [pca.transform, factors.transform],
        "predict": [pca.inverse_transform, factors.predict, factors.inverse_transform],
        "artifact": [pca.artifact_.transform, pca.artifact_.inverse_transform],
    }
    # an artifact accepts an array of zero rows, and returns no scores
    if method == "artifact" and getattr(rows, "shape", ()) == (0, 5):
        assert pca.artifact_.transform(rows).shape == (0, pca.n_components_)
        return
    for call in calls[method]:
        with pytest.raises((ValueError, TypeError)) as caught:
            call(rows)
        assert len(str(caught.value).splitlines()) == 1
        assert "4711" not in str(caught.value)


@pytest.mark.filterwarnings(
    "ignore:The 'future.infer_string' option",  # set by anndata
    "ignore:X has feature names",
)
@pytest.mark.parametrize("kind", [Decimal, Fraction, str, int])
def test_numbers_of_other_types_are_read(kind: Callable[[int], Any]) -> None:
    pca, _ = fitted()
    rows = [[kind(at) for at in range(5)]] * 2
    assert pca.transform(rows).tolist() == pca.transform(np.tile(np.arange(5.0), (2, 1))).tolist()


SCHEMA: dict[str, Any] = {
    "columns": [
        {"name": "job", "kind": "categorical", "values": ["a", "b", "c"], "others": "refuse"},
        {"name": "age", "kind": "numeric", "range": [0, 100]},
        {"name": "city", "kind": "categorical", "values": ["x", "y"], "others": "category"},
        {"name": "note", "kind": "drop"},
    ]
}
DIFFERENCE = np.array([1.0, 1.0, 1.0, 0.0, -1.0, -1.0, -1.0])


def people(n_rows: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "city": rng.choice(["x", "y", "z"], n_rows),
            "age": rng.integers(0, 100, n_rows),
            "note": ["-"] * n_rows,
            "job": rng.choice(["a", "b", "c"], n_rows),
        }
    )


def encoded_model(**options: Any) -> dpca.PrivatePCA:
    return dpca.PrivatePCA(
        **{"n_components": 2, "epsilon": 5.0, "delta": 1e-7, "clip_norm": 2.0, "schema": SCHEMA, **options}
    )


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("center", ["none", "private"])
def test_raw_frames_are_encoded_and_the_constraints_hold(rounds: int, center: str) -> None:
    budget = dpca.Budget(epsilon=50, delta=1e-5)
    fitted = encoded_model(rounds=rounds, center=center, budget=budget).fit(people())
    assert fitted.feature_names_in_.tolist() == [
        *("job=a", "job=b", "job=c", "age", "city=x", "city=y", "city=(other)"),
    ]
    assert np.abs(fitted.components_ @ DIFFERENCE).max() < 1e-6
    scores = fitted.transform(people(20))
    assert scores.shape == (20, 2)
    np.testing.assert_allclose(fitted.artifact_.transform(people(20)), scores, atol=1e-12)
    assert np.isfinite(fitted.score(people(20))) or (center == "none" and rounds == 1)


@pytest.mark.parametrize("form", ["schema", "file"])
def test_a_schema_may_be_an_object_or_a_file(form: str, tmp_path: Path) -> None:
    file = tmp_path / "schema.yaml"
    file.write_text(
        "columns:\n- {name: job, kind: categorical, values: [a, b, c], others: refuse}\n"
        "- {name: city, kind: categorical, values: [x, y], others: category}\n"
    )
    schema = file if form == "file" else Schema.parse({"columns": [SCHEMA["columns"][0], SCHEMA["columns"][2]]})
    budget = dpca.Budget(epsilon=50, delta=1e-5)
    made = clone(encoded_model(schema=schema, budget=budget)).set_params(budget=budget)
    assert made.fit(people()[["job", "city"]]).components_.shape == (2, 6)


def test_rows_that_the_schema_refuses_are_not_charged() -> None:
    budget = dpca.Budget(epsilon=50, delta=1e-5)
    rows = people()
    rows.loc[7, "job"] = "unknown"
    for table in (rows, people().drop(columns="job")):
        with pytest.raises(Invalid):
            encoded_model(budget=budget).fit(table)
    assert budget.remaining == 50


def test_a_slot_returns_its_release_whatever_the_rows() -> None:
    """The rows of a repeated slot are not encoded."""
    budget, rows = dpca.Budget(epsilon=50, delta=1e-5), people()
    fitted = encoded_model(budget=budget, slot="one").fit(rows)
    rows.loc[7, "job"] = "unknown"
    again = encoded_model(budget=budget, slot="one").fit(rows)
    np.testing.assert_array_equal(again.components_, fitted.components_)
    assert again.feature_names_in_.tolist() == fitted.feature_names_in_.tolist()


def test_ids_of_individuals_are_refused() -> None:
    schema = {"columns": [*SCHEMA["columns"][:3], {"name": "note", "kind": "id"}]}
    with pytest.raises(Invalid, match="each row of X is the data of one person"):
        encoded_model(schema=schema).fit(people())


def test_a_ledger_stores_the_raw_table_and_states_the_schema(home: Path) -> None:
    budget = dpca.open_budget("people", epsilon=50, delta=1e-6)
    fitted = encoded_model(rounds=1, budget=budget, slot="one").fit(people())
    assert np.abs(fitted.components_ @ DIFFERENCE).max() < 1e-6
    assert fitted.artifact_.manifest["encoder"]["columns"][0]["name"] == "job"
    again = encoded_model(rounds=1, budget=budget, slot="one").fit(people())
    np.testing.assert_array_equal(again.components_, fitted.components_)
    assert len(list(Workspace.read_only().ledger.history("people"))) == 1
    following = encoded_model(budget=budget, slot="two", like=fitted.published_).fit(people())
    assert following.artifact_.manifest["plan"]["like"] == fitted.published_
