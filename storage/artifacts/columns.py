"""Rows with names of columns, brought into the order of a release before they are multiplied.

A data frame (pandas, polars), an Arrow table and an AnnData object name their columns; none of these libraries is
imported here. Plain arrays have no names, and go by position.

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

from storage.errors import Invalid
from storage.schemas.frames import column_at, column_labels, is_annotated, without_index
from storage.schemas.matching import match_names
from storage.schemas.plain_rows import plain_rows


def rows_by_name(
    rows: Any, *, names: Sequence[str] | None, noun: str, encode: Callable[[Any], Any] | None = None
) -> Any:
    """Return the matrix of rows, its columns in the order of the release where both name them.

    Parameters
    ----------
    rows : data frame, Arrow table, AnnData, or array-like or scipy sparse
        What has no names of columns is returned as it is. Columns that are only numbered from 0, as pandas does, have
        none, unless these numbers are the names that are wanted.
    names : sequence of str, optional
        The public names of the features; without them columns go by position.
    noun : str
        What wants them, for messages.
    encode : callable, optional
        The encoding of raw tables: frames and tables are raw then; arrays and AnnData objects are encoded already.

    Raises
    ------
    Invalid
        If a wanted column is missing, another one is there, or a column holds no real numbers.

    Guarantees
    ----------
    Permuted columns give the same array to the bit, in the same order of memory.
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
    """Take columns of a dense or sparse matrix, in the order of memory that they would have had."""
    taken = matrix[:, order]
    if not hasattr(taken, "tocsr"):
        return np.ascontiguousarray(taken)
    taken = taken.tocsr()
    taken.sort_indices()
    return taken
