"""Rows that a consumer passes to an artifact: checked once, for every kind."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import Invalid
from storage.schemas.plain_rows import plain_rows


def checked_rows(name: str, rows: Any, *, width: int, column: str, noun: str) -> Any:
    """Return a 2-D float64 array, dense or csr, of finite numbers and of so many columns.

    Parameters
    ----------
    name : str
        What the caller calls them, for messages.
    rows : array-like or scipy sparse array or matrix
    width : int
        The number of columns.
    column, noun : str
        What a column is, and what has so many of them, for messages.

    Raises
    ------
    Invalid
        If `rows` has another shape, is not numeric, holds NaN or infinity, or would lose something (`plain_rows`).
    """
    from scipy import sparse  # 0.1 s, which commands without rows need not wait for

    rows = plain_rows(rows.compute() if hasattr(rows, "__dask_graph__") else rows, name=name)
    matrix: Any = rows if sparse.issparse(rows) else _dense(name, rows)
    if matrix.ndim != 2:
        raise Invalid(f"{name} is {matrix.ndim}-D; it must be 2-D; pass one row as {name}.reshape(1, -1)")
    if matrix.shape[1] != width:
        raise Invalid(
            f"{name} has {matrix.shape[1]} columns; this {noun} has {width} {column}s; pass one column a {column}"
        )
    if matrix.dtype.kind not in "buif":
        raise Invalid(f"{name} has dtype {matrix.dtype}; it must hold real numbers; convert it first")
    matrix = matrix.astype(np.float64, copy=False)
    if sparse.issparse(matrix):
        matrix = matrix.tocsr()
    if not np.isfinite(matrix.data if sparse.issparse(matrix) else matrix).all():
        raise Invalid(f"{name} holds NaN or infinity; every value must be finite; impute or drop it first")
    return matrix


def _dense(name: str, rows: Any) -> NDArray[Any]:
    try:
        array = np.asarray(rows)
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):  # whose text may quote a value
        raise Invalid(f"{name} is not an array of numbers; it must hold real numbers; pass a 2-D array") from None
