"""The exported PCA of scikit-learn gives the same scores; ``make exports`` writes and reads it with skops."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from storage.artifacts.scikit_model import scikit_model
from storage.errors import Invalid
from tests.exports.__main__ import subspaces

ROWS = np.random.default_rng(1).normal(size=(7, 30))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand in for skops, which is not installed here: keep what is written."""
    kept: list[Any] = []

    def dumps(found: Any) -> bytes:
        kept.append(found)
        return b"a file"

    skops, io = ModuleType("skops"), ModuleType("skops.io")
    io.dumps = dumps  # type: ignore[attr-defined]
    skops.io = io  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "skops", skops)
    monkeypatch.setitem(sys.modules, "skops.io", io)
    return kept


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("case", ["around zero", "around a mean"])
def test_it_is_a_fitted_pca_of_the_same_scores(written: list[Any], case: str) -> None:
    subspace = subspaces()[case]
    assert scikit_model(subspace, {"dpca.artifact": "news@1"}) == b"a file"
    (pca,) = written
    scores = subspace.transform(ROWS)
    np.testing.assert_allclose(pca.transform(ROWS), scores, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pca.inverse_transform(scores), subspace.inverse_transform(scores), rtol=0, atol=1e-12)
    assert getattr(pca, "feature_names_in_", None) is None or list(pca.feature_names_in_) == subspace.feature_names
    assert pca.dpca_lineage_ == {"dpca.artifact": "news@1"}


def test_without_skops_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skops", None)
    with pytest.raises(Invalid, match=r"skops\S* is not installed; install 'dpca-pipeline\[sklearn\]'") as caught:
        scikit_model(subspaces()["around zero"], {})
    assert "\n" not in str(caught.value)
