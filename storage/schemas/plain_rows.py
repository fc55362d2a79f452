"""Rows of numbers in memory, checked for what `numpy.asarray` drops in silence: masks, units, dates, categories.

It needs numpy alone, since loading an artifact imports it.

>>> plain_rows(np.ma.masked_array([[1.0, 2.0]], mask=[[False, True]]), missing=True)
array([[ 1., nan]])
"""

import re
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import Invalid
from storage.schemas.frames import is_annotated

_NO_NUMBERS = re.compile(r"date|time|duration|period|interval|month|categor|enum|dictionary|pint\[", re.IGNORECASE)
"""Types of columns, of pandas, polars and Arrow, that numpy makes ticks, codes or bare numbers of."""
_EXACT = 1 << 53
_LARGE = "holds an integer beyond 2**53, which float64 rounds; scale or drop its column"
_RULE = "declare it in a schema and pass what its encoder makes of it (see `dpca schema draft`), or convert it first"


def plain_rows(rows: Any, *, name: str = "rows", missing: bool = False) -> Any:
    """Return rows of which nothing is lost when they become float64.

    Parameters
    ----------
    rows : array-like, scipy sparse, data frame, Arrow table, AnnData or Dask collection
        What is computed later (AnnData, Dask) is checked by its types here; check its pieces when they are made.
    name : str
        The name of the rows in messages.
    missing : bool
        Whether NaN is a missing entry. Masked entries become NaN then; else they are refused.

    Raises
    ------
    Invalid
        If a column holds dates, durations or categories, or values are masked, have a unit, or are integers that
        float64 does not hold.
    """
    if is_annotated(rows):
        return rows
    if hasattr(rows, "columns") and not isinstance(rows, np.ndarray):
        return _plain_frame(rows, name, missing=missing)
    if isinstance(rows, list | tuple):
        rows = _plain_list(rows)
    kind = getattr(getattr(rows, "dtype", None), "kind", "f")
    if kind in "mMV":
        raise Invalid(f"{name} holds {rows.dtype}, which is no number without a rule; {_RULE}")
    unit = getattr(rows, "units", getattr(rows, "unit", None))  # of astropy, pint and unyt
    if unit is not None:
        raise Invalid(f"{name} has the unit {unit}, and a release keeps none; pass plain numbers of a declared unit")
    if np.ma.isMaskedArray(rows):
        if missing:
            return np.ma.filled(rows.astype(np.float64), np.nan)
        if np.ma.getmaskarray(rows).any():
            raise Invalid(f"{name} has masked values, and a mask is missing data; fill them in, or drop their rows")
        rows = rows.data
    if kind == "O" and isinstance(rows, np.ndarray):
        _check_objects(rows, name)
    if kind in "iu" and rows.dtype.itemsize > 4 and not hasattr(rows, "__dask_graph__"):
        _check_integers(rows.data if hasattr(rows, "tocsr") else rows, name)
    return rows


def _plain_frame(frame: Any, name: str, *, missing: bool) -> Any:
    """Check the types of the columns of a frame; make sparse ones dense where a sparse one would mean other rows."""
    kinds = dict(_types(frame))
    if len(kinds) < len(frame.columns):
        return frame  # names that repeat are refused by those who read it
    for column, kind in kinds.items():
        if _NO_NUMBERS.match(kind):
            raise Invalid(f"column {column!r} of {name} holds {kind}, which is no number without a rule; {_RULE}")
        if kind == "object":
            _check_objects(np.asarray(frame[column], dtype=object), f"column {column!r} of {name}")
        if "int64" in kind.lower() and hasattr(frame, "dtypes") and not hasattr(frame, "__dask_graph__"):
            ends = (getattr(frame[column], end)() for end in ("min", "max"))
            if any(isinstance(end, Integral) and abs(int(end)) > _EXACT for end in ends):
                raise Invalid(f"column {column!r} of {name} {_LARGE}")
    filled = [column for column, kind in kinds.items() if kind.startswith("Sparse[")]
    if not filled:
        return frame
    if missing and any(frame.dtypes[column].fill_value == 0 for column in filled):
        raise Invalid(
            f"column {filled[0]!r} of {name} is sparse with 0 for what is not stored, which may be a rating or none; "
            "pass a scipy sparse array of the ratings, or a dense frame with NaN where there is none"
        )
    if len(filled) == len(kinds) and all(frame.dtypes[column].fill_value == 0 for column in filled):
        return frame  # scikit-learn keeps it sparse
    return frame.assign(**{column: frame[column].sparse.to_dense() for column in filled})


def _types(frame: Any) -> Iterable[tuple[str, str]]:
    """Yield the names of the columns of a frame or table, and the names of their types."""
    if hasattr(frame, "column_names"):
        return ((field.name, str(field.type)) for field in frame.schema)
    kinds = getattr(frame, "dtypes", None)
    if kinds is None:
        kinds = ["unknown"] * len(frame.columns)
    return ((str(name), str(kind)) for name, kind in zip(frame.columns, kinds, strict=True))


def _plain_list(rows: Any) -> Any:
    """Return rows in a list as an array where their types matter; what is no array is left as it is."""
    if any(map(np.ma.isMaskedArray, rows)):
        return np.ma.stack(rows)
    try:
        array = np.asarray(rows)
    except (TypeError, ValueError):  # ragged, and refused by those who read it
        return rows
    return array if array.dtype.kind in "mMViuO" else rows


def _check_objects(values: NDArray[Any], name: str) -> None:
    if any(isinstance(value, np.datetime64 | np.timedelta64) for value in values.ravel()):
        raise Invalid(f"{name} holds dates or durations, which are no numbers without a rule; {_RULE}")


def _check_integers(values: Any, name: str) -> None:
    values = np.asarray(values)
    if values.size and (values.max() > _EXACT or (values.dtype.kind == "i" and values.min() < -_EXACT)):
        raise Invalid(f"{name} {_LARGE}")
