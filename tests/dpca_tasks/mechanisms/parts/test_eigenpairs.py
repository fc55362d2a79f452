"""Leading eigenpairs of a released matrix, also where eigenvalues tie."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs


@given(seed=st.integers(0, 2**32 - 1), order=st.integers(2, 24), levels=st.integers(1, 3), data=st.data())
def test_ties_lose_no_pair(seed: int, order: int, levels: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((order, order)))[0]
    spectrum = rng.integers(1, levels + 1, order).astype(float)
    matrix = (basis * spectrum) @ basis.T
    count = data.draw(st.integers(1, order))
    values, rows = leading_eigenpairs((matrix + matrix.T) / 2, count)
    np.testing.assert_allclose(values, np.sort(spectrum)[::-1][:count], atol=1e-12)
    np.testing.assert_allclose(rows @ rows.T, np.eye(count), atol=1e-12)


def test_a_matrix_of_which_the_partial_solver_finds_no_pair() -> None:
    """Close to the identity, and found by search: LAPACK's dsyevr returns 0 of 2 pairs here."""
    lost = 0
    rng = np.random.default_rng(0)
    for _ in range(400):
        basis = np.linalg.qr(rng.standard_normal((17, 17)))[0]
        values, rows = leading_eigenpairs(basis @ basis.T, 2)
        lost += (values.size, len(rows)) != (2, 2)
    assert lost == 0
