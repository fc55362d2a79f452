"""Columns of data frames and tables of any library, found by the interface they share; none of them is imported."""

from collections.abc import Sequence
from typing import Any


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
