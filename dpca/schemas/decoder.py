"""The decoding of numbers by a declared schema: the reverse of `dpca.schemas.encoder`, for synthetic rows.

Synthetic rows are real numbers in every feature. Each column is decoded to the nearest value that its schema allows.

>>> schema = Schema.parse({"columns": [
...     {"name": "age", "kind": "numeric", "range": [0, 100]},
...     {"name": "sex", "kind": "categorical", "values": ["f", "m"], "others": "zero"},
... ]})
>>> decode(schema, np.array([[0.5, 0.9, 0.1], [1.7, -0.2, 0.3]])).to_pylist()
[{'age': 50.0, 'sex': 'f'}, {'age': 100.0, 'sex': 'm'}]
"""

import math
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpca.errors import Invalid
from dpca.schemas.kinds import OTHER, Boolean, Categorical, Column, Date, Numeric, Vector
from dpca.schemas.schema import Schema

_DIGITS = 3
_ISO = "%Y-%m-%d"
_EPOCH = date(1970, 1, 1).toordinal()


def decode(schema: Schema, rows: NDArray[np.float64]) -> pa.Table:
    """Return a raw table from encoded rows.

    Parameters
    ----------
    schema : Schema
    rows : float64 array of shape (n_rows, n_features)

    Returns
    -------
    Arrow table with the encoded columns of the schema
        A category is the value with the largest feature. Numbers and dates are clipped to their range. Numbers are
        rounded to about a thousandth of the range, and dates to days. If the schema does not accept the texts true and
        false, a boolean is returned as the first declared text. If it does not accept ISO dates, a date is returned in
        the first declared format. A value is null if its feature for missing values is above one half. A category is
        null if this feature is the largest.

    Raises
    ------
    Invalid
        If the rows have another number of columns than the schema has features.
    """
    if rows.ndim != 2 or rows.shape[1] != len(schema.feature_names):
        raise Invalid(
            f"rows have shape {rows.shape}, but the schema has {len(schema.feature_names)} features; pass one column "
            "per feature"
        )
    arrays, start = {}, 0
    for column in schema.columns:
        width = len(column.features())
        if width:
            arrays[column.name] = _DECODERS[type(column)](column, rows[:, start : start + width])
        start += width
    return pa.table(arrays)


def _numbers(values: NDArray[np.float64], ends: tuple[float, float], scale: str) -> NDArray[np.float64]:
    """Return clipped and rounded numbers in the units of a range."""
    low, high = ends
    parts = values if scale == "unit" else (values + 1.0) / 2.0
    found = np.clip(values if scale == "none" else low + parts * (high - low), low, high)
    digits = _DIGITS - math.floor(math.log10(high - low))
    return np.asarray(np.clip(np.round(found, digits), low, high))


def _missing(column: Any, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    return values[:, -1] > 0.5 if column.missing == "category" else np.zeros(len(values), bool)


def _numeric(column: Numeric, values: NDArray[np.float64]) -> pa.Array:
    return pa.array(_numbers(values[:, 0], column.range, column.scale), mask=_missing(column, values))


def _date(column: Date, values: NDArray[np.float64]) -> pa.Array:
    low, high = (float(end.toordinal() - _EPOCH) for end in column.range)
    parts = values[:, 0] if column.scale == "unit" else (values[:, 0] + 1.0) / 2.0
    days = np.rint(np.clip(low + parts * (high - low), low, high)).astype(np.int32)
    found = pa.array(days, mask=_missing(column, values)).cast(pa.date32())
    if _ISO in column.formats:
        return found
    return pa.array(
        [None if day is None else day.strftime(column.formats[0]) for day in found.to_pylist()], pa.string()
    )


def _boolean(column: Boolean, values: NDArray[np.float64]) -> pa.Array:
    found, missing = values[:, 0] > 0.5, _missing(column, values)
    if {"true", "false"} <= {*column.when_true, *column.when_false}:
        return pa.array(found, mask=missing)
    words = np.where(found, column.when_true[0], column.when_false[0])
    return pa.array(words.tolist(), pa.string(), mask=missing)


def _categorical(column: Categorical, values: NDArray[np.float64]) -> pa.Array:
    words: list[str | None] = [*column.values, *([OTHER] if column.others == "category" else [])]
    words += [None] * (values.shape[1] - len(words))
    return pa.array([words[place] for place in values.argmax(axis=1).tolist()], pa.string())


def _vector(column: Vector, values: NDArray[np.float64]) -> pa.Array:
    numbers = values[:, : column.length]
    if column.range is not None:
        numbers = _numbers(numbers, column.range, column.scale)
    elif column.norm is not None:
        lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
        numbers = column.norm * numbers / np.maximum(lengths, 1.0)
    missing = _missing(column, values).tolist()
    found = [None if lost else row for lost, row in zip(missing, numbers.tolist(), strict=True)]
    return pa.array(found, pa.list_(pa.float64()))


_DECODERS: dict[type[Column], Callable[..., pa.Array]] = {
    Numeric: _numeric,
    Date: _date,
    Boolean: _boolean,
    Categorical: _categorical,
    Vector: _vector,
}
