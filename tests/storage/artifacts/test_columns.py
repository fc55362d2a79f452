"""Rows with names of columns give the scores of the same rows in the order of the release, to the bit."""

import subprocess
import sys
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import sparse

from storage.artifacts.columns import rows_by_name
from storage.artifacts.subspace import PrivateSubspace
from storage.artifacts.tensor import TensorComponents
from storage.errors import Invalid

pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")  # by anndata

NAMES = [f"f{column}" for column in range(40)]
RANDOM = np.random.default_rng(7)
ROWS = RANDOM.normal(size=(9, 40)) * RANDOM.integers(0, 2, size=(9, 40))
ORDER = RANDOM.permutation(40)
SUBSPACE = PrivateSubspace(components=np.linalg.qr(RANDOM.normal(size=(40, 5)))[0].T, manifest={"feature_names": NAMES})
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
    """A frame with the interface of polars that is used."""

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


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("release", [SUBSPACE, CENTRES], ids=lambda release: release.kind)
def test_permuted_columns_give_bit_equal_scores(release: Any, kind: str) -> None:
    make: Any = MAKERS[kind]
    scores = release.transform(make(ROWS, NAMES))
    permuted = release.transform(make(ROWS[:, ORDER], [NAMES[at] for at in ORDER]))
    assert scores.tobytes() == permuted.tobytes()
    np.testing.assert_allclose(scores, release.transform(ROWS), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_missing_column_and_an_unknown_one_are_one_line_each(kind: str) -> None:
    make: Any = MAKERS[kind]
    with pytest.raises(Invalid, match=r"^column 'f3' is missing; this subspace finds its 40 columns by name"):
        SUBSPACE.transform(make(np.delete(ROWS, 3, axis=1), [name for name in NAMES if name != "f3"]))
    with pytest.raises(Invalid, match=r"^column 'age' is not among the 40 that this subspace knows; leave"):
        SUBSPACE.transform(make(np.column_stack([ROWS, ROWS[:, 0]]), [*NAMES, "age"]))
    with pytest.raises(Invalid, match=r"^column 'f0' and 39 more are missing \(40 of the 40 that are there"):
        SUBSPACE.transform(make(ROWS, [f"g{column}" for column in range(40)]))


def test_columns_without_names_go_by_position() -> None:
    expected = SUBSPACE.transform(ROWS)
    np.testing.assert_allclose(SUBSPACE.transform(pd.DataFrame(ROWS)), expected, rtol=0, atol=1e-12)
    nameless = PrivateSubspace(components=SUBSPACE.components, manifest={})
    assert nameless.transform(pd.DataFrame(ROWS, columns=NAMES)).tobytes() == nameless.transform(ROWS).tobytes()


def test_numbered_columns_are_names_where_the_release_has_these_names() -> None:
    numbers = [str(column) for column in range(40)]
    numbered = PrivateSubspace(components=SUBSPACE.components, manifest={"feature_names": numbers[::-1]})
    expected = numbered.transform(ROWS[:, ::-1].copy())
    np.testing.assert_allclose(numbered.transform(pd.DataFrame(ROWS)), expected, rtol=0, atol=1e-12)
    shuffled = pd.DataFrame(ROWS).iloc[:, ::-1]
    with pytest.raises(Invalid, match="'f0' and 39 more are missing"):
        SUBSPACE.transform(shuffled)


def test_a_column_of_another_kind_is_named_and_its_values_are_not() -> None:
    frame = pd.DataFrame(ROWS, columns=NAMES)
    for values, kind in ((["SECRET"] * 9, ""), (pd.date_range("2020", periods=9), "datetime64"), ([1j] * 9, "complex")):
        with pytest.raises(Invalid, match=f"^column 'f5'( of rows)? holds .*{kind}.*; (it must|declare)") as caught:
            SUBSPACE.transform(frame.assign(f5=values))
        assert "SECRET" not in str(caught.value)


def test_what_matches_columns_imports_none_of_the_libraries_of_tables() -> None:
    code = (
        "import sys, storage.artifacts.columns; "
        "print([name for name in ('pandas', 'polars', 'pyarrow', 'duckdb', 'numba', 'scipy', 'anndata', 'pydantic') "
        "if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_arrays_are_returned_as_they_are() -> None:
    matrix = sparse.csr_array(ROWS)
    assert rows_by_name(matrix, names=NAMES, noun="subspace") is matrix
