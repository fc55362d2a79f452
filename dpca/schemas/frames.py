"""Matching of data frame columns by name, and checks of numeric rows in memory.

The columns of a table are matched by name with the required columns. So a table with another order of columns never
gives wrong numbers. This module imports only NumPy, because it is imported whenever an artifact is loaded.

>>> match_names(["b", "a"], ["a", "b"], noun="release").tolist()
[1, 0]
>>> match_names(["a", "b"], ["a", "b"], noun="release") is None
True

Columns are read through the attributes that pandas, polars, Arrow and AnnData share, so none of these libraries is
imported.

The index of a data frame numbers or names the rows, so it is not a feature. The metadata of Arrow and Parquet state
which columns are a stored index. In other formats, only the name of a column suggests that it is an index. A column
with such a name is refused unless it is declared.

Rows in memory are checked for information that `numpy.asarray` would drop silently: masks, units, dates, categories.

>>> plain_rows(np.ma.masked_array([[1.0, 2.0]], mask=[[False, True]]), missing=True)
array([[ 1., nan]])
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.errors import Invalid


def match_names(
    found: Sequence[str], wanted: Sequence[str], *, noun: str, drop_others: bool = False
) -> NDArray[np.intp] | None:
    """Return the position of each required column in a table; None if the table has exactly these columns in order.

    Parameters
    ----------
    found : sequence of str
        The names of the columns of a table.
    wanted : sequence of str
        The public names of the required columns.
    noun : str
        The word for the object that requires the columns in messages, such as "schema".
    drop_others : bool
        True to leave out columns that are not required; False to refuse them.

    Raises
    ------
    Invalid
        If a required column is missing, if a column is present that is not required, or if a name occurs twice.

    Notes
    -----
    If a required column is missing, the message names no column of the table. The reason: the table's first line may be
    a row of private values instead of a header.
    """
    if len(found) == len(wanted) and all(one == other for one, other in zip(found, wanted, strict=True)):
        return None
    positions = {name: column for column, name in enumerate(found)}
    known = set(wanted)
    missing = [name for name in wanted if name not in positions]
    others = [name for name in positions if name not in known]
    if missing:
        strange = f" ({len(others)} of the {len(found)} columns have other names)" if others else ""
        raise Invalid(
            f"column {_first(missing)} missing{strange}; this {noun} finds its {len(wanted)} columns by name; add or "
            "rename the missing columns"
        )
    if len(positions) < len(found) or len(known) < len(wanted):
        raise Invalid(
            f"a column name occurs twice, so this {noun} cannot find its columns by name; rename one of the two "
            f"columns, or pass the columns in the order of this {noun}"
        )
    if others and not drop_others:
        raise Invalid(f"column {_first(others)} not among the {len(wanted)} of this {noun}; drop all other columns")
    return np.array([positions[name] for name in wanted], dtype=np.intp)


def meaning(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of a schema, as plain JSON values, that determines how values become features.

    This part excludes the format of CSV text, and the columns that do not become features.
    """
    if facts is None:
        return None
    columns = [column for column in facts["columns"] if column["kind"] not in ("id", "drop")]
    return {"missing_texts": sorted(facts["missing_texts"]), "columns": columns}


def changed_columns(saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns that two schemas declare differently, or that only one of them declares."""
    one, other = ({column["name"]: column for column in meaning(facts)["columns"]} for facts in (saved, found))  # type: ignore[index]
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _first(names: Sequence[str]) -> str:
    return f"{names[0]!r}{' is' if len(names) == 1 else f' and {len(names) - 1} more are'}"


_INDEX = re.compile(r"|Unnamed: \d+(_level_\d+)?|__index_level_\d+__")
"""The names that pandas gives to a column with an unnamed index, when it writes and when it reads one."""


def feature_columns(
    found: Sequence[str], *, index: Sequence[str] = (), named: Sequence[str] = (), drop_others: bool = False
) -> list[str]:
    """Return the columns of a table that may be features, in the order of the table, without the index.

    Parameters
    ----------
    found : sequence of str
        The names of the table's columns.
    index : sequence of str
        The columns that the table's metadata describe as its index. They are left out.
    named : sequence of str
        The columns that a schema or a list of feature names declares. They are returned even if their name is typical
        of an index.
    drop_others : bool
        What to do with an undeclared column whose name is typical of an index: True to leave it out, False to refuse
        it.

    Raises
    ------
    Invalid
        If an undeclared column has a name that is typical of an index, and `drop_others` is False.
    """
    kept, known, stored = [], set(named), set(index)
    for at, name in enumerate(found):
        if name not in known and (name in stored or _INDEX.fullmatch(name)):
            if name in stored or drop_others:
                continue
            text = f"column {name!r} has the name of" if name else f"column {at + 1} has no name, like"
            raise Invalid(
                f"{text} the index of a data frame, which is not a feature; if it is an index, drop it (index=False, "
                "or a --table-schema or --feature-names without it); if it is a feature, rename it; if it holds ids, "
                "name it by --unit-column"
            )
        kept.append(name)
    return kept


def index_columns(schema: Any) -> tuple[str, ...]:
    """Return the columns of an Arrow schema that its metadata describe as the index of a data frame."""
    declared = (schema.pandas_metadata or {}).get("index_columns", ())
    return tuple(
        name for name in declared if isinstance(name, str)
    )  # a range index is described by a dict, and is no column


def without_index(rows: Any, *, named: Sequence[str] = (), drop_others: bool = False) -> Any:
    """Return a data frame or table without the columns of a stored index; return anything else unchanged.

    Raises
    ------
    Invalid
        If an undeclared column has a name that is typical of an index (see `feature_columns`).
    """
    labels = list(rows.columns) if hasattr(rows, "to_dask_array") and hasattr(rows, "columns") else column_labels(rows)
    if labels is None or is_annotated(rows):
        return rows
    names = [str(label) for label in labels]
    index = index_columns(rows.schema) if hasattr(rows, "column_names") else ()
    kept = feature_columns(names, index=index, named=named, drop_others=drop_others)
    return rows.select(kept) if index and len(kept) < len(names) else rows


def column_labels(rows: Any) -> list[Any] | None:
    """Return the column labels of a data frame, an Arrow table or an AnnData object; None for anything else."""
    if is_annotated(rows):
        return list(rows.var_names)
    if hasattr(rows, "column_names"):  # an Arrow table
        return list(rows.column_names)
    if hasattr(rows, "columns") and hasattr(rows, "to_numpy"):
        return list(rows.columns)
    return None


def is_annotated(rows: Any) -> bool:
    """Return whether rows are an AnnData object, that is, a matrix with names of rows and columns."""
    return hasattr(rows, "var_names") and hasattr(rows, "X")


def column_at(rows: Any, labels: Sequence[Any], at: int) -> Any:
    """Return the column at position `at` of a data frame or table, also if several columns have the same label."""
    if hasattr(rows, "iloc"):
        return rows.iloc[:, at]
    return rows.column(at) if hasattr(rows, "column_names") else rows[labels[at]]


_NO_NUMBERS = re.compile(r"date|time|duration|period|interval|month|categor|enum|dictionary|pint\[", re.IGNORECASE)
"""Column types of pandas, polars and Arrow that NumPy would convert to time counts, codes or unitless numbers."""
_EXACT = 1 << 53
_LARGE = "holds an integer beyond 2**53, which float64 rounds; scale or drop its column"
_RULE = "declare it in a schema and pass the output of its encoder (see `dpca schema draft`), or convert it first"


def plain_rows(rows: Any, *, name: str = "rows", missing: bool = False) -> Any:
    """Check that rows lose no information when they are converted to float64, and return them.

    Parameters
    ----------
    rows : array-like, scipy sparse, data frame, Arrow table, AnnData or Dask collection
        The rows. The values of lazy rows (AnnData, Dask) are not checked here, only their types. The caller must check
        each piece of lazy rows when it is computed.
    name : str
        The name of the rows in error messages.
    missing : bool
        True if missing entries are allowed and represented by NaN; masked entries are then replaced by NaN. If False,
        masked entries are refused.

    Raises
    ------
    Invalid
        If a column holds dates, durations or categories. Also if values are masked, have a physical unit, or are
        integers that float64 cannot represent.
    """
    if is_annotated(rows):
        return rows
    if hasattr(rows, "columns") and not isinstance(rows, np.ndarray):
        return _plain_frame(rows, name, missing=missing)
    if isinstance(rows, list | tuple):
        rows = _plain_list(rows)
    kind = getattr(getattr(rows, "dtype", None), "kind", "f")
    if kind in "mMV":
        raise Invalid(f"{name} holds {rows.dtype}, which needs a rule to become a number; {_RULE}")
    unit = getattr(rows, "units", getattr(rows, "unit", None))  # attributes of arrays of astropy, pint and unyt
    if unit is not None:
        raise Invalid(f"{name} has the unit {unit}, but a release stores no units; pass plain numbers without a unit")
    if np.ma.isMaskedArray(rows):
        if missing:
            return np.ma.filled(rows.astype(np.float64), np.nan)
        if np.ma.getmaskarray(rows).any():
            raise Invalid(f"{name} has masked values, which are missing data; impute them, or drop their rows")
        rows = rows.data
    if kind == "O" and isinstance(rows, np.ndarray):
        _check_objects(rows, name)
    if kind in "iu" and rows.dtype.itemsize > 4 and not hasattr(rows, "__dask_graph__"):
        _check_integers(rows.data if hasattr(rows, "tocsr") else rows, name)
    return rows


def _plain_frame(frame: Any, name: str, *, missing: bool) -> Any:
    """Check the column types of a data frame, and make sparse columns dense.

    A frame in which all columns are sparse with fill value 0 stays sparse.
    """
    kinds = dict(_types(frame))
    if len(kinds) < len(frame.columns):
        return frame  # the caller refuses frames with repeated column names later
    for column, kind in kinds.items():
        if _NO_NUMBERS.match(kind):
            raise Invalid(f"column {column!r} of {name} holds {kind}, which needs a rule to become a number; {_RULE}")
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
            f"column {filled[0]!r} of {name} is sparse with 0 for entries that are not stored, which may be ratings "
            "or missing ratings; pass a scipy sparse array of the ratings, or a dense frame with NaN for missing "
            "ratings"
        )
    if len(filled) == len(kinds) and all(frame.dtypes[column].fill_value == 0 for column in filled):
        return frame  # stay sparse, as scikit-learn converts such a frame to a sparse matrix
    return frame.assign(**{column: frame[column].sparse.to_dense() for column in filled})


def _types(frame: Any) -> Iterable[tuple[str, str]]:
    """Yield the name of each column of a data frame or table, with the name of its type."""
    if hasattr(frame, "column_names"):
        return ((field.name, str(field.type)) for field in frame.schema)
    kinds = getattr(frame, "dtypes", None)
    if kinds is None:
        kinds = ["unknown"] * len(frame.columns)
    return ((str(name), str(kind)) for name, kind in zip(frame.columns, kinds, strict=True))


def _plain_list(rows: Any) -> Any:
    """Convert a list of rows to an array if it holds masks, integers, dates or objects, which have to be checked.

    A list of floats, or of rows of unequal length, is returned unchanged.
    """
    if any(map(np.ma.isMaskedArray, rows)):
        return np.ma.stack(rows)
    try:
        array = np.asarray(rows)
    except (TypeError, ValueError):  # the rows of the list have unequal lengths, which the caller refuses later
        return rows
    return array if array.dtype.kind in "mMViuO" else rows


def _check_objects(values: NDArray[Any], name: str) -> None:
    if any(isinstance(value, np.datetime64 | np.timedelta64) for value in values.ravel()):
        raise Invalid(f"{name} holds dates or durations, which need a rule to become numbers; {_RULE}")


def _check_integers(values: Any, name: str) -> None:
    values = np.asarray(values)
    if values.size and (values.max() > _EXACT or (values.dtype.kind == "i" and values.min() < -_EXACT)):
        raise Invalid(f"{name} {_LARGE}")
