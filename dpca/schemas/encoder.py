"""The encoding of raw tables by a declared schema: one row of numbers per raw row, the same on every machine.

>>> encoder = Encoder.of({"columns": [
...     {"name": "age", "kind": "numeric", "range": [0, 100]},
...     {"name": "sex", "kind": "categorical", "values": ["f", "m"], "others": "zero"},
... ]})
>>> encoder.transform(pa.table({"sex": ["m", "?"], "age": [50, 120]}))
array([[0.5, 0. , 1. ],
       [1. , 0. , 0. ]])
>>> encoder.feature_names
('age', 'sex=f', 'sex=m')

`decode` is the reverse, for synthetic rows. They are real numbers in every feature. Each column is decoded to the
nearest value that its schema allows.

>>> decode(encoder.schema, np.array([[0.5, 0.9, 0.1], [1.7, -0.2, 0.3]])).to_pylist()
[{'age': 50.0, 'sex': 'f'}, {'age': 100.0, 'sex': 'm'}]
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpca.errors import BadSource, Invalid
from dpca.schemas.canonical import Canonical, array_of, is_number, plain_cells
from dpca.schemas.frames import column_at, column_labels, is_annotated, match_names, without_index
from dpca.schemas.kinds import OTHER, Boolean, Categorical, Column, Date, Drop, Id, Numeric, Value, Vector
from dpca.schemas.schema import Schema

_EPOCH = date(1970, 1, 1).toordinal()
_ISO = "%Y-%m-%d"
_DIGITS = 3  # a decoded number is rounded to about a thousandth of its range
_SQUARES_WELL = 1e150  # up to 65536 numbers of this size can be squared and summed without overflow
_NO_VALUE = "has a missing value; the schema refuses such rows"
_NO_NUMBER = "has a value that is not a finite number; correct or drop it"
_NO_DATE = "has a value that no declared format reads as a date; correct or drop it"
_NO_WORD = "has a value that the schema does not list; list it if it is public, or declare a rule for other values"
_OUTSIDE = "has a value outside the declared range; the schema refuses such rows"
_LENGTH = "has a list whose length differs from the declared length; correct or drop it"


class Fault(NamedTuple):
    """A broken rule of the schema: a mask of the rows that break it, the reason (without any value), and the column."""

    rows: NDArray[np.bool_]
    reason: str
    column: str


@dataclass(frozen=True, slots=True)
class Encoder:
    """The encoding of raw tables declared by a schema.

    Guarantees
    ----------
    An encoded row depends, bit for bit, only on the raw row and the schema. It does not depend on the order of columns,
    the file format, or other rows. The L2 norm of an encoded row is at most `norm_at_most`, up to rounding.
    """

    schema: Schema

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Return the encoder for a schema that is given as plain JSON values, as an artifact's manifest states it.

        Raises
        ------
        Invalid
            If the values are not a schema that this version supports.
        """
        return cls(_schema_of(json.dumps(facts, sort_keys=True)))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, in the order of an encoded row."""
        return self.schema.feature_names

    @property
    def norm_at_most(self) -> float:
        """The largest possible L2 norm of an encoded row, which follows from the public schema alone."""
        return self.schema.norm_at_most

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the schema that become features: all except dropped columns and the column of ids."""
        return tuple(column for column in self.schema.columns if not isinstance(column, Id | Drop))

    def transform(self, rows: Any) -> NDArray[np.float64]:
        """Encode a raw table as a matrix of features.

        Parameters
        ----------
        rows : Arrow table, or data frame of pandas or polars
            The raw table. Columns are matched by name, in any order. The columns that the schema drops, and the column
            with the ids of individuals, may be absent.

        Returns
        -------
        float64 array of shape (n_rows, n_features)

        Raises
        ------
        Invalid
            If a column is missing, unknown or of the wrong type, or if the schema refuses a row. The message is one
            line, and contains no value of a row.
        """
        return self.features(self.raw(rows))

    def features(self, table: pa.Table) -> NDArray[np.float64]:
        """Encode the columns that `raw` returns, with the same errors as `transform`."""
        try:
            found, faults = self.encode({column.name: table.column(column.name) for column in self.columns})
        except BadSource as error:
            raise Invalid(str(error)) from None
        for row in range(len(found)):
            for fault in faults:
                if fault.rows[row]:
                    raise Invalid(f"row {row}, column {fault.column!r}, {fault.reason}")
            if not faults:
                break
        return found

    def raw(self, rows: Any) -> pa.Table:
        """Return a raw table, as `transform` accepts it, as an Arrow table of the columns that become features.

        Raises
        ------
        Invalid
            If a column is missing, unknown, or cannot be converted.
        """
        labels = None if is_annotated(rows) else column_labels(rows)
        if labels is None:
            raise Invalid("raw rows must have column names; pass a data frame, an Arrow table, or `obs` of an AnnData")
        rows = without_index(
            rows, named=[column.name for column in self.schema.columns], drop_others=self.schema.unlisted == "drop"
        )
        if not hasattr(rows, "column_names"):
            names = [str(label) for label in labels]
            wanted = {column.name.partition(".")[0] for column in self.columns} | {c.name for c in self.columns}
            arrays = {
                name: self._arrow(name, column_at(rows, labels, at)) if name in wanted else pa.nulls(len(rows))
                for at, name in enumerate(names)
            }
            if len(arrays) < len(names):
                raise Invalid("two columns have the same name; rename one of them")
            rows = pa.table(arrays)
        rows = flat_table(rows)
        self.match(rows.column_names, needs_unit=False)
        return rows.select([column.name for column in self.columns])

    def _arrow(self, name: str, column: Any) -> Any:
        """Convert a column of a data frame to an Arrow array; objects of mixed types are converted to text."""
        kind = getattr(column, "dtype", None)
        if type(kind).__name__ == "SparseDtype":  # Arrow cannot convert a sparse column of pandas
            column = column.sparse.to_dense()
        try:
            if hasattr(column, "to_arrow"):
                return column.to_arrow()
            if hasattr(column, "iloc") and str(kind) != "object":
                return pa.Array.from_pandas(column)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
        try:
            return array_of(list(column), decimal=self.schema.text.decimal)
        except (TypeError, ValueError, OverflowError):
            raise Invalid(
                f"column {name!r} holds objects that are not text, numbers or dates; convert it first"
            ) from None

    def match(self, found: Sequence[str], *, needs_unit: bool, drop_others: bool = False) -> None:
        """Check that a table with these column names can be encoded.

        Parameters
        ----------
        found : sequence of str
            The names of the table's columns.
        needs_unit : bool
            Whether the column with the ids of individuals must be present.
        drop_others : bool
            True to ignore columns that the schema does not list, even if the schema refuses such columns.

        Raises
        ------
        Invalid
            If a column is missing, or if the table has a column that the schema neither lists nor drops.
        """
        unit = self.schema.unit
        wanted = [column.name for column in self.columns] + ([unit] if unit is not None and needs_unit else [])
        dropped = self.dropped(found) | ({unit} if not needs_unit else set())
        known = [name for name in found if name not in dropped]
        match_names(known, wanted, noun="schema", drop_others=drop_others or self.schema.unlisted == "drop")

    def dropped(self, found: Sequence[str]) -> set[str | None]:
        """Return those of the given column names that the schema drops, including the fields of dropped structs."""
        names = [column.name for column in self.schema.columns if isinstance(column, Drop)]
        return {name for name in found if any(name == one or name.startswith(f"{one}.") for one in names)}

    def encode(self, table: Mapping[str, pa.Array | pa.ChunkedArray]) -> tuple[NDArray[np.float64], list[Fault]]:
        """Encode a table of raw columns; return the matrix of features, and all faults (rows that break a rule).

        Raises
        ------
        BadSource
            If a column has a type that the declared kind of column does not accept.
        """
        faults: list[Fault] = []
        parts = []
        canonical = Canonical(decimal=self.schema.text.decimal, missing_texts=self.schema.missing_texts)
        for column in self.columns:
            try:
                cells = plain_cells(table[column.name])
                parts.append(_ENCODERS[type(column)](column, cells, canonical, faults))
            except BadSource as error:
                raise BadSource(f"column {column.name!r}: {error}") from None
            except pa.ArrowException:  # Arrow cannot convert the type of the column
                kind, wanted = table[column.name].type, type(column).__name__.lower()
                raise BadSource(f"column {column.name!r}: it holds {kind}, which is not {wanted}; convert it") from None
        return np.concatenate(parts, axis=1), faults


def flat_table(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Replace each struct column of a table by one column per field, such as ``a.b`` for field b of struct a."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


@lru_cache(maxsize=64)
def _schema_of(facts: str) -> Schema:
    try:
        return Schema.parse(json.loads(facts))
    except Invalid as error:
        raise Invalid(f"the encoder of this release is not a schema of this version: {error}") from None


def _numeric(column: Numeric, cells: pa.Array, canonical: Canonical, faults: list[Fault]) -> NDArray[np.float64]:
    numbers, missing = canonical.numbers(cells)
    _refuse(faults, ~missing & ~np.isfinite(numbers), _NO_NUMBER, column)
    numbers = _scaled(numbers, column.range, column.scale, column.outside, missing, faults, column)
    return _with_missing(numbers[:, None], column, missing, faults, lambda value: _scale(value, column))


def _date(column: Date, cells: pa.Array, canonical: Canonical, faults: list[Fault]) -> NDArray[np.float64]:
    days, missing = canonical.days(cells, column.formats, timezone=column.timezone)
    _refuse(faults, ~missing & np.isnan(days), _NO_DATE, column)
    low, high = (float(end.toordinal() - _EPOCH) for end in column.range)
    days = _scaled(days, (low, high), column.scale, column.outside, missing, faults, column)
    return _with_missing(
        days[:, None],
        column,
        missing,
        faults,
        lambda day: _scale_to(float(day.toordinal() - _EPOCH), (low, high), column.scale),
    )


def _boolean(column: Boolean, cells: pa.Array, canonical: Canonical, faults: list[Fault]) -> NDArray[np.float64]:
    places, missing = canonical.places(cells, (*column.when_true, *column.when_false))
    yes = (places >= 0) & (places < len(column.when_true))
    _refuse(faults, ~missing & (places < 0), _NO_WORD, column)
    return _with_missing(yes.astype(np.float64)[:, None], column, missing, faults, float)


def _categorical(
    column: Categorical, cells: pa.Array, canonical: Canonical, faults: list[Fault]
) -> NDArray[np.float64]:
    codes, missing = canonical.places(cells, column.values)
    other = ~missing & (codes < 0)
    if column.others == "refuse":
        _refuse(faults, other, _NO_WORD, column)
    if isinstance(column.missing, Value):
        codes = np.where(missing, column.values.index(column.missing.value), codes)
    hot = np.zeros((len(codes), len(column.values) + (column.others == "category")))
    rows = np.flatnonzero(codes >= 0)
    hot[rows, codes[rows]] = 1.0
    if column.others == "category":
        hot[other, -1] = 1.0
    return _with_missing(hot, column, missing, faults, None)


def _vector(column: Vector, cells: pa.Array, canonical: Canonical, faults: list[Fault]) -> NDArray[np.float64]:
    kind = cells.type
    if pa.types.is_null(kind):
        cells = cells.cast(pa.list_(pa.float64()))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise BadSource(f"it holds {kind}; a vector column must hold lists of numbers; convert it")
    absent = cells.is_null().to_numpy(zero_copy_only=False)
    whole = ~absent & (pc.list_value_length(cells).fill_null(0).to_numpy(zero_copy_only=False) == column.length)
    numbers = np.full((len(cells), column.length), np.nan)
    items = cells.filter(pa.array(whole)).flatten()
    if not (is_number(items.type) or pa.types.is_null(items.type)):
        raise BadSource(f"it holds {kind}; a vector column must hold lists of numbers; convert it")
    numbers[whole] = Canonical().numbers(items)[0].reshape(-1, column.length)
    _refuse(faults, ~absent & ~whole, _LENGTH, column)
    missing = absent | (whole & np.isnan(numbers).any(axis=1))
    _refuse(faults, ~missing & whole & ~np.isfinite(numbers).all(axis=1), _NO_NUMBER, column)
    if column.range is not None:
        numbers = _scaled(numbers, column.range, column.scale, column.outside, missing, faults, column)
    else:
        assert column.norm is not None
        largest = column.norm * _SQUARES_WELL
        numbers = np.clip(np.where(np.isfinite(numbers), numbers, 0.0), -largest, largest) / column.norm
        norms = np.sqrt(np.square(numbers).sum(axis=1))
        if column.outside == "refuse":
            _refuse(faults, ~missing & (norms > 1), _OUTSIDE, column)
        numbers /= np.maximum(norms, 1.0)[:, None]
    return _with_missing(numbers, column, missing, faults, None)


_ENCODERS: dict[type[Column], Callable[..., NDArray[np.float64]]] = {
    Numeric: _numeric,
    Date: _date,
    Boolean: _boolean,
    Categorical: _categorical,
    Vector: _vector,
}


def _refuse(faults: list[Fault], rows: NDArray[np.bool_], reason: str, column: Column) -> None:
    if rows.any():
        faults.append(Fault(rows, reason, column.name))


def _scaled(
    numbers: NDArray[np.float64],
    ends: tuple[float, float],
    scale: str,
    outside: str,
    missing: NDArray[np.bool_],
    faults: list[Fault],
    column: Column,
) -> NDArray[np.float64]:
    """Clip numbers to their declared range and scale them.

    NaN and infinity are replaced by the low end of the range. This value is not used: it is overwritten by the rule for
    missing values, or the row is refused.
    """
    low, high = ends
    numbers = np.where(np.isfinite(numbers), numbers, low)
    if outside == "refuse":
        beyond = (numbers < low) | (numbers > high)
        _refuse(faults, ~missing & (beyond if beyond.ndim == 1 else beyond.any(axis=1)), _OUTSIDE, column)
    return np.asarray(_scale_to(np.clip(numbers, low, high), ends, scale))


def _scale(value: float, column: Numeric) -> float:
    return float(_scale_to(value, column.range, column.scale))


def _scale_to(numbers: Any, ends: tuple[float, float], scale: str) -> Any:
    if scale == "none":
        return numbers
    parts = (numbers - ends[0]) / (ends[1] - ends[0])
    return parts if scale == "unit" else 2.0 * parts - 1.0


def _with_missing(
    numbers: NDArray[np.float64],
    column: Any,
    missing: NDArray[np.bool_],
    faults: list[Fault],
    scaled: Callable[[Any], float] | None,
) -> NDArray[np.float64]:
    """Set the features of rows with a missing value, by the rule that the schema declares for the column."""
    if isinstance(column.missing, Value):
        if scaled is not None:
            numbers[missing] = scaled(column.missing.value)
        return numbers
    if column.missing == "refuse":
        _refuse(faults, missing, _NO_VALUE, column)
    numbers[missing] = 0.0
    return np.column_stack([numbers, missing.astype(np.float64)]) if column.missing == "category" else numbers


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


def _unscaled(values: NDArray[np.float64], ends: tuple[float, float], scale: str) -> NDArray[np.float64]:
    """Return clipped and rounded numbers in the units of a range."""
    low, high = ends
    parts = values if scale == "unit" else (values + 1.0) / 2.0
    found = np.clip(values if scale == "none" else low + parts * (high - low), low, high)
    digits = _DIGITS - math.floor(math.log10(high - low))
    return np.asarray(np.clip(np.round(found, digits), low, high))


def _is_missing(column: Any, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    return values[:, -1] > 0.5 if column.missing == "category" else np.zeros(len(values), bool)


def _decoded_numeric(column: Numeric, values: NDArray[np.float64]) -> pa.Array:
    return pa.array(_unscaled(values[:, 0], column.range, column.scale), mask=_is_missing(column, values))


def _decoded_date(column: Date, values: NDArray[np.float64]) -> pa.Array:
    low, high = (float(end.toordinal() - _EPOCH) for end in column.range)
    parts = values[:, 0] if column.scale == "unit" else (values[:, 0] + 1.0) / 2.0
    days = np.rint(np.clip(low + parts * (high - low), low, high)).astype(np.int32)
    found = pa.array(days, mask=_is_missing(column, values)).cast(pa.date32())
    if _ISO in column.formats:
        return found
    return pa.array(
        [None if day is None else day.strftime(column.formats[0]) for day in found.to_pylist()], pa.string()
    )


def _decoded_boolean(column: Boolean, values: NDArray[np.float64]) -> pa.Array:
    found, missing = values[:, 0] > 0.5, _is_missing(column, values)
    if {"true", "false"} <= {*column.when_true, *column.when_false}:
        return pa.array(found, mask=missing)
    words = np.where(found, column.when_true[0], column.when_false[0])
    return pa.array(words.tolist(), pa.string(), mask=missing)


def _decoded_categorical(column: Categorical, values: NDArray[np.float64]) -> pa.Array:
    words: list[str | None] = [*column.values, *([OTHER] if column.others == "category" else [])]
    words += [None] * (values.shape[1] - len(words))
    return pa.array([words[place] for place in values.argmax(axis=1).tolist()], pa.string())


def _decoded_vector(column: Vector, values: NDArray[np.float64]) -> pa.Array:
    numbers = values[:, : column.length]
    if column.range is not None:
        numbers = _unscaled(numbers, column.range, column.scale)
    elif column.norm is not None:
        lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
        numbers = column.norm * numbers / np.maximum(lengths, 1.0)
    missing = _is_missing(column, values).tolist()
    found = [None if lost else row for lost, row in zip(missing, numbers.tolist(), strict=True)]
    return pa.array(found, pa.list_(pa.float64()))


_DECODERS: dict[type[Column], Callable[..., pa.Array]] = {
    Numeric: _decoded_numeric,
    Date: _decoded_date,
    Boolean: _decoded_boolean,
    Categorical: _decoded_categorical,
    Vector: _decoded_vector,
}
