"""Checks of rows passed by a consumer, and alignment of their columns with a release.

A data frame (pandas, polars), an Arrow table and an AnnData object name their columns; none of these libraries is
imported here. The columns of plain arrays have no names and are matched by position.

>>> class Frame:  # as pandas and polars have it
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
        The public names of the features. Without them, columns are matched by position.
    noun : str
        The kind of artifact, for messages.
    encode : callable, optional
        The encoding of raw tables. If present, frames and tables are raw rows, which it encodes; arrays and AnnData
        objects are already encoded.

    Raises
    ------
    Invalid
        If an expected column is missing, an unexpected one is present, or a column holds no real numbers.

    Guarantees
    ----------
    Permuted columns give a bitwise equal array with the same memory layout.
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
            raise Invalid("the AnnData object has no X, the matrix of rows; set it, as by adata.X = adata.layers[NAME]")
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
    """Select columns of a dense or sparse matrix, with the memory layout of a matrix built in that order."""
    taken = matrix[:, order]
    if not hasattr(taken, "tocsr"):
        return np.ascontiguousarray(taken)
    taken = taken.tocsr()
    taken.sort_indices()
    return taken


def checked_rows(name: str, rows: Any, *, width: int, column: str, noun: str) -> Any:
    """Return a 2-D float64 array, dense or csr, of finite numbers with the required number of columns.

    Parameters
    ----------
    name : str
        The argument's name in messages.
    rows : array-like or scipy sparse array or matrix
    width : int
        The number of columns.
    column, noun : str
        The nouns for a column and for the artifact, for messages.

    Raises
    ------
    Invalid
        If `rows` has another shape, is not numeric, holds NaN or infinity, or would lose information (`plain_rows`).
    """
    from scipy import sparse  # the import takes 0.1 s; commands without rows skip it

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
    except (TypeError, ValueError, OverflowError):  # their messages may quote a value
        raise Invalid(f"{name} is not an array of numbers; it must hold real numbers; pass a 2-D array") from None
