"""A subspace projects exactly, and refuses bad rows and what is no subspace."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid

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

    def test_rows_of_the_subspace_come_back(self) -> None:
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

    def test_the_manifest_tells_shape_and_format(self) -> None:
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
    def test_what_is_no_subspace_is_refused(self, changes: dict[str, Any], found: str) -> None:
        sound: dict[str, Any] = {"components": np.eye(2, 3), "eigenvalues": [2.0, 1.0], "manifest": {}}
        PrivateSubspace(**sound)
        with pytest.raises(Invalid, match=found):
            PrivateSubspace(**{**sound, **changes})
