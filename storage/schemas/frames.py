"""Columns of data frames and tables of any library, found by the interface they share; none of them is imported.

An index numbers or names rows, so it is no feature. Arrow and Parquet state the columns of a stored index; elsewhere
its name alone shows one, and then nothing is guessed.
"""

import re
from collections.abc import Sequence
from typing import Any

from storage.errors import Invalid

_INDEX = re.compile(r"|Unnamed: \d+(_level_\d+)?|__index_level_\d+__")
"""The names that pandas gives to an index without a name when it writes it, and when it reads that again."""


def feature_columns(
    found: Sequence[str], *, index: Sequence[str] = (), named: Sequence[str] = (), drop_others: bool = False
) -> list[str]:
    """Return the columns of a table that may be features, in their order.

    Parameters
    ----------
    found : sequence of str
    index : sequence of str
        The columns that the table calls its index.
    named : sequence of str
        The columns that are declared by name: they stay.
    drop_others : bool
        Whether a column that looks like an index is left out; else it is refused.

    Raises
    ------
    Invalid
        If a column looks like an index, and no declaration settles what it is.
    """
    kept, known, stored = [], set(named), set(index)
    for at, name in enumerate(found):
        if name not in known and (name in stored or _INDEX.fullmatch(name)):
            if name in stored or drop_others:
                continue
            said = f"column {name!r} has the name of" if name else f"column {at + 1} has no name, like"
            raise Invalid(
                f"{said} the index of a data frame, which is no feature; leave it out (index=False), or rename it if "
                "it is one; of a file, --feature-names or a --table-schema without it leave it out, and --unit-column "
                "takes it for ids"
            )
        kept.append(name)
    return kept


def index_columns(schema: Any) -> tuple[str, ...]:
    """Return the columns of an Arrow schema that its metadata call the index of a data frame."""
    stated = (schema.pandas_metadata or {}).get("index_columns", ())
    return tuple(name for name in stated if isinstance(name, str))  # a range is no column


def without_index(rows: Any, *, named: Sequence[str] = (), drop_others: bool = False) -> Any:
    """Return a frame or table without the columns of a stored index; anything else as it is.

    Raises
    ------
    Invalid
        As `feature_columns`.
    """
    labels = list(rows.columns) if hasattr(rows, "to_dask_array") and hasattr(rows, "columns") else column_labels(rows)
    if labels is None or is_annotated(rows):
        return rows
    names = [str(label) for label in labels]
    index = index_columns(rows.schema) if hasattr(rows, "column_names") else ()
    kept = feature_columns(names, index=index, named=named, drop_others=drop_others)
    return rows.select(kept) if index and len(kept) < len(names) else rows


def column_labels(rows: Any) -> list[Any] | None:
    """Return the labels of the columns of a frame, a table or an AnnData object; None of anything else."""
    if is_annotated(rows):
        return list(rows.var_names)
    if hasattr(rows, "column_names"):  # an Arrow table
        return list(rows.column_names)
    if hasattr(rows, "columns") and hasattr(rows, "to_numpy"):
        return list(rows.columns)
    return None


def is_annotated(rows: Any) -> bool:
    """Return whether rows are an AnnData object: a matrix with names beside it."""
    return hasattr(rows, "var_names") and hasattr(rows, "X")


def column_at(rows: Any, labels: Sequence[Any], at: int) -> Any:
    """Return one column of a frame or table, by position where labels may repeat."""
    if hasattr(rows, "iloc"):
        return rows.iloc[:, at]
    return rows.column(at) if hasattr(rows, "column_names") else rows[labels[at]]
