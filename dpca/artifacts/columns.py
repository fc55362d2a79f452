"""Checks of rows passed by a consumer, and alignment of their columns with the features of a release.

The columns of a data frame (pandas, polars), an Arrow table or an AnnData object have names, and are matched by name.
The columns of plain arrays have no names, and are matched by position. This module imports none of these libraries.

>>> class Frame:  # a minimal data frame, with the members that pandas and polars share
...     columns = ["b", "a"]
...     def __getitem__(self, name): return np.array({"a": [1, 2], "b": [3, 4]}[name])
...     def __len__(self): return 2
...     def to_numpy(self): return np.array([[3, 1], [4, 2]])
>>> rows_by_name(Frame(), names=("a", "b"), noun="subspace")
array([[1., 3.],
       [2., 4.]])
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.errors import Invalid
from dpca.schemas.frames import column_at, column_labels, is_annotated, match_names, plain_rows, without_index


def rows_by_name(
    rows: Any, *, names: Sequence[str] | None, noun: str, encode: Callable[[Any], Any] | None = None
) -> Any:
    """Return the matrix of rows, with columns matched by name if both the rows and the release have names.

    Parameters
    ----------
    rows : data frame, Arrow table, AnnData, or array-like or scipy sparse
        Rows without column names are returned unchanged. Columns numbered from 0, the default of pandas, count as
        unnamed, unless these numbers are the names in `names`.
    names : sequence of str, optional
        The public names of the release's features. Without them, columns are matched by position.
    noun : str
        The word for the kind of artifact in error messages, such as "subspace".
    encode : callable, optional
        The function that encodes raw tables. If it is given, data frames and tables are treated as raw rows and
        encoded; arrays and AnnData objects are treated as already encoded.

    Raises
    ------
    Invalid
        If an expected column is missing, an unexpected one is present, or a column holds no real numbers.

    Guarantees
    ----------
    Rows with permuted named columns give a bitwise equal array with the same memory layout.
    """
    labels = column_labels(rows)
    if labels is None:
        return rows
    if encode is not None and not is_annotated(rows):
        return encode(rows)
    rows = plain_rows(without_index(rows, named=names or ()))
    labels = column_labels(rows) or []
    text = [str(label) for label in labels]
    is_numbered = text == [str(column) for column in range(len(text))]
    order = None
    if names is not None and not (is_numbered and set(text) != set(names)):
        order = match_names(text, names, noun=noun)
    if is_annotated(rows):
        if rows.X is None:
            raise Invalid(
                "the AnnData object has no matrix X of rows; it must have one; set it, for example by "
                "adata.X = adata.layers[NAME]"
            )
        return rows.X if order is None else _taken(rows.X, order)
    positions = range(len(labels)) if order is None else order.tolist()
    return _matrix([(text[at], column_at(rows, labels, at)) for at in positions], n_rows=len(rows))


def _matrix(columns: Sequence[tuple[str, Any]], *, n_rows: int) -> NDArray[np.float64]:
    matrix = np.empty((n_rows, len(columns)))
    for at, (name, column) in enumerate(columns):
        values = np.asarray(column)
        kind = str(values.dtype)
        try:
            if values.dtype.kind not in "buifO":
                raise TypeError
            matrix[:, at] = values if values.dtype.kind != "O" else np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise Invalid(
                f"column {name!r} holds {'text or objects' if kind == 'object' else kind}; it must hold real numbers; "
                "convert it first"
            ) from None
    return matrix


def _taken(matrix: Any, order: NDArray[np.intp]) -> Any:
    """Return the columns of a dense or sparse matrix in a given order, as a new row-major or CSR matrix."""
    taken = matrix[:, order]
    if not hasattr(taken, "tocsr"):
        return np.ascontiguousarray(taken)
    taken = taken.tocsr()
    taken.sort_indices()
    return taken


def checked_rows(name: str, rows: Any, *, width: int, column: str, noun: str) -> Any:
    """Check rows, and return them as a 2-D float64 array, dense or csr, of finite numbers.

    Parameters
    ----------
    name : str
        The name of the argument `rows` in error messages.
    rows : array-like or scipy sparse array or matrix
    width : int
        The required number of columns.
    column, noun : str
        The words for a column and for the artifact in error messages, such as "feature" and "subspace".

    Raises
    ------
    Invalid
        If `rows` is not 2-D with `width` columns, is not numeric, holds NaN or infinity, or would lose information
        when converted to float64 (see `plain_rows`).
    """
    from scipy import sparse  # import scipy only here, because the import takes 0.1 s and only rows need it

    rows = plain_rows(rows.compute() if hasattr(rows, "__dask_graph__") else rows, name=name)
    matrix: Any = rows if sparse.issparse(rows) else _dense(name, rows)
    if matrix.ndim != 2:
        raise Invalid(f"{name} is {matrix.ndim}-D; it must be 2-D; pass one row as {name}.reshape(1, -1)")
    if matrix.shape[1] != width:
        raise Invalid(
            f"{name} has {matrix.shape[1]} columns; this {noun} has {width} {column}s; pass one column per {column}"
        )
    if matrix.dtype.kind not in "buif":
        raise Invalid(f"{name} has dtype {matrix.dtype}; it must hold real numbers; convert it first")
    matrix = matrix.astype(np.float64, copy=False)
    if sparse.issparse(matrix):
        matrix = matrix.tocsr()
    if not np.isfinite(matrix.data if sparse.issparse(matrix) else matrix).all():
        raise Invalid(f"{name} holds NaN or infinity; every value must be finite; impute or drop such values first")
    return matrix


def _dense(name: str, rows: Any) -> NDArray[Any]:
    try:
        array = np.asarray(rows)
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):  # hide the original error, as its message may quote a value
        raise Invalid(f"{name} is not an array of numbers; pass a 2-D array of real numbers") from None
