"""Tables that users hold, as scikit-learn takes them: an array or a sparse matrix, and the names of its columns."""

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data


def checked_table(estimator: BaseEstimator, table: Any, *, reset: bool) -> Any:
    """Return the values of a table, float64 and finite, and hold its columns against those of the estimator.

    Parameters
    ----------
    estimator : estimator
        Gets ``n_features_in_``, and ``feature_names_in_`` where the columns have names.
    table : array-like, scipy sparse array or matrix, DataFrame (pandas or polars), AnnData, Dask array or DataFrame
    reset : bool
        Whether the columns are learned, as in ``fit``, or compared.

    Returns
    -------
    float64 array, or csr array without stored zeros

    Raises
    ------
    ValueError
        As scikit-learn does: other columns, fewer than two rows to fit, values that are not finite numbers.
    """
    held = in_memory(table)
    if hasattr(held, "var_names"):
        import pandas as pd  # comes with anndata

        validate_data(
            estimator, pd.DataFrame(columns=held.var_names.astype(object)), reset=reset, skip_check_array=True
        )
        reset, held = False, held.X
        names = estimator.__dict__.pop("feature_names_in_")
        try:
            return _checked(estimator, held, reset=reset, fits=reset)
        finally:
            estimator.feature_names_in_ = names
    return _checked(estimator, held, reset=reset, fits=reset)


def in_memory(table: Any) -> Any:
    """Return a table of which every value is in memory: computed by its own Dask scheduler, read from its file."""
    if getattr(table, "isbacked", False):
        return table.to_memory()
    return table.compute() if hasattr(table, "__dask_graph__") else table


def _checked(estimator: BaseEstimator, values: Any, *, reset: bool, fits: bool) -> Any:
    least = {"ensure_min_samples": 2, "ensure_min_features": 2} if fits else {}
    checked = validate_data(estimator, values, reset=reset, accept_sparse="csr", dtype=np.float64, **least)
    if not sparse.issparse(checked):
        return checked
    matrix = sparse.csr_array(checked, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
