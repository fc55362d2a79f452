"""Tables that hold no numbers, or no rows, are refused by one line, by every estimator and by what they release."""

import functools
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

from flows.estimators import InMemoryBudget, PrivateMatrixFactorization, PrivatePCA
from tests.flows.estimators.rows import ROWS, model

pytestmark = pytest.mark.filterwarnings(
    "ignore:The 'future.infer_string' option",  # anndata sets it
    "ignore:X has feature names",
)
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
    """Return both estimators, fitted."""
    factors = PrivateMatrixFactorization(
        n_components=1, epsilon=1.0, delta=1e-6, ratings_between=(1, 5), ratings_per_user=5, budget=InMemoryBudget()
    )
    return model(budget=InMemoryBudget()).fit(ROWS), factors.fit(np.clip(np.abs(ROWS[:50]) + 1, 1, 5))


@pytest.mark.parametrize("rows", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("method", ["fit", "transform", "predict", "artifact"])
def test_what_is_no_table_of_numbers_is_refused_by_one_line(rows: Any, method: str) -> None:
    rows = rows() if callable(rows) else rows  # AnnData warns where it is made
    pca, factors = fitted()
    calls: dict[str, list[Callable[[Any], Any]]] = {
        "fit": [clone(pca).fit, clone(factors).fit],
        "transform": [pca.transform, factors.transform],
        "predict": [pca.inverse_transform, factors.predict, factors.inverse_transform],
        "artifact": [pca.artifact_.transform, pca.artifact_.inverse_transform],
    }
    if method == "artifact" and getattr(rows, "shape", ()) == (0, 5):  # what was released has scores for no row, too
        assert pca.artifact_.transform(rows).shape == (0, pca.n_components_)
        return
    for call in calls[method]:
        with pytest.raises((ValueError, TypeError)) as caught:
            call(rows)
        assert len(str(caught.value).splitlines()) == 1
        assert "4711" not in str(caught.value)


@pytest.mark.parametrize("kind", [Decimal, Fraction, str, int])
def test_numbers_of_other_types_are_read(kind: Callable[[int], Any]) -> None:
    pca, _ = fitted()
    rows = [[kind(at) for at in range(5)]] * 2
    assert pca.transform(rows).tolist() == pca.transform(np.tile(np.arange(5.0), (2, 1))).tolist()
