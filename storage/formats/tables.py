"""Conversion of tables in CSV or Parquet, read as Arrow record batches, to row batches.

A table with columns for the row, the column and the value of each entry contains triplets. Any other table is wide: it
has one column per feature, and each row is one record. A raw table contains text, dates or categories, which its
declared schema encodes as numbers. Parquet files are read a part of a row group at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpca.errors import BadSource, Invalid
from dpca.schemas.canonical import NO_ID, cast_cells, id_cells, id_type
from dpca.schemas.encoder import Encoder, flat_table
from dpca.schemas.frames import feature_columns, index_columns, match_names
from storage.formats.batch import BATCH_VALUES, Rejects, RowBatch, stored_dtype
from storage.formats.csr import LARGE, reading
from storage.formats.declared import Declared
from storage.formats.dense import sparse_rows
from storage.formats.files import SourceFile

MAX_COLUMNS = 1 << 16  # a limit, because each column of a table needs a name and a buffer

_ID = "has an id that is neither a whole number nor text; correct or drop it"
_NUMBER = (
    "has a value that is missing or not a number; correct or drop it, or declare its meaning in a schema, which "
    "`dpca schema draft FILE` drafts"
)
_ITEM = "has a column that is not in the feature names; add it or drop the row"
_INDEX = "has a column that is not a whole number; correct it, or give a file of feature names"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The columns that are read from a table of numbers, with their roles.

    Attributes
    ----------
    n_features : int
    names : tuple of str or None, the names of the features: the columns of a wide table, or the declared column ids of
        triplets
    triplet : tuple of str or None, for triplets the names of the row, column and value columns; if it has only two
        names, every value is 1
    unit : str or None, the column with the id of each row's individual
    found : tuple of str, the columns of a wide table in the order of the file, without the unit column
    """

    n_features: int
    names: tuple[str, ...] | None
    triplet: tuple[str, ...] | None
    unit: str | None
    found: tuple[str, ...] = ()

    @property
    def read(self) -> list[str]:
        """Names of the columns to read from the file."""
        columns = list(self.triplet if self.triplet is not None else self.names or ())
        return columns + ([self.unit] if self.unit is not None else [])

    def batch(
        self,
        table: pa.RecordBatch,
        *,
        places: NDArray[np.int64],
        place: str,
        rejects: Rejects,
        bad: NDArray[np.bool_] | None = None,
    ) -> RowBatch:
        """Convert an Arrow record batch to a row batch, in which rows that break a rule are rejected.

        Rows that break a rule are passed to `rejects`. The rows marked by ``bad`` are rejected too, but were passed to
        `rejects` before.
        """
        faults = Faults(places, place, rejects, bad)
        unit_ids = None if self.unit is None else ids_of(table.column(self.unit), faults, self.unit)
        if self.triplet is None:
            names = self.names or ()
            rows = np.empty((table.num_rows, len(names)))
            positions = {name: column for column, name in enumerate(table.schema.names)}
            for column, name in enumerate(names):
                rows[:, column] = _numbers(table.column(positions[name]), faults, name)
            found = sparse_rows(rows, places=places, place=place, rejected=faults.bad)
            row_ids = None
        else:
            row, column_ids, *value = (table.column(name) for name in self.triplet)
            row_ids = ids_of(row, faults, self.triplet[0])
            found = RowBatch(
                values=_numbers(value[0], faults, self.triplet[2]) if value else np.ones(table.num_rows),
                indices=self._indices(column_ids, faults, self.triplet[1]),
                row_ptr=np.arange(table.num_rows + 1),
                record_ptr=np.arange(table.num_rows + 1),
                places=places,
                place=place,
                rejected=faults.bad,
            )
        faults.reject()
        return RowBatch(
            values=found.values,
            indices=found.indices,
            row_ptr=found.row_ptr,
            record_ptr=found.record_ptr,
            places=places,
            place=place,
            row_ids=row_ids,
            unit_ids=unit_ids,
            rejected=faults.bad,
        )

    def _indices(self, column_ids: pa.Array, faults: "Faults", column: str) -> NDArray[np.int64]:
        if self.names is not None:
            text = column_text(column_ids)
            found = pc.index_in(text, value_set=column_text(pa.array(self.names, pa.string())))
            return _filled(found, faults, _ITEM, column).astype(np.int64)
        return _filled(cast_cells(column_ids, pa.int64()), faults, _INDEX, column)


def table_schema(
    columns: Sequence[str], declared: Declared, *, declares_width: bool, index: Sequence[str] = ()
) -> TableSchema:
    """Determine from the column names whether a table is wide or contains triplets, and which columns are read.

    Parameters
    ----------
    columns : sequence of str
        The column names in the file.
    declared : Declared
        The user's declarations.
    declares_width : bool
        Whether the columns of a wide file in this format count as declared, so that the user need not declare them.
    index : sequence of str
        The columns that the file marks as the index of its rows.

    Raises
    ------
    BadSource
        If a column is missing, is not declared, or occurs twice.
    Invalid
        If neither the user nor the file declares the number of features.
    """
    if len(columns) > MAX_COLUMNS:
        raise BadSource(
            f"the table has {len(columns)} columns, more than the allowed {MAX_COLUMNS}; give triplets or svmlight text"
        )
    if len(set(columns)) < len(columns):
        raise BadSource("two columns have the same name; rename one")
    unit, known = declared.unit_column, set(columns)
    roles: tuple[str, ...] = declared.columns
    if declared.columns_named and not declared.value_named and roles[2] not in known:
        roles = roles[:2]
    needed = (*roles, unit) if declared.columns_named else (unit,)
    missing = [name for name in needed if name is not None and name not in known]
    if missing:
        raise BadSource(
            f"the table has no column {missing[0]!r} among its {len(columns)}; check the names and the delimiter"
        )
    if not set(roles) - known:
        if declared.width is None:
            raise Invalid(
                "triplets do not declare the number of columns, which is never inferred; declare the number of "
                "features, or their names"
            )
        return TableSchema(n_features=declared.width, names=declared.names, triplet=roles, unit=unit)
    names, is_listed = declared.names or (), declared.names is not None
    found = wide_columns(columns, unit=unit, index=index, named=names, drop_others=is_listed)
    if declared.names is not None:
        try:
            match_names(found, declared.names, noun="declaration", drop_others=declared.drop_others)
        except Invalid as error:
            raise BadSource(f"{error}; also check the delimiter") from None
        return TableSchema(n_features=len(declared.names), names=declared.names, triplet=None, unit=unit, found=found)
    if declared.width is None and not declares_width:
        raise Invalid(
            "CSV text does not declare its number of columns, which is never inferred; declare the number of features, "
            "or their names; for names, dates, categories or missing values, start with `dpca schema draft FILE`"
        )
    if declared.width not in (None, len(found)) or not found:
        raise BadSource(
            f"the table has {len(found)} columns of values, but {declared.width or 'no'} features are declared; "
            "check the number and the delimiter"
        )
    return TableSchema(n_features=len(found), names=found, triplet=None, unit=unit, found=found)


def wide_columns(
    columns: Sequence[str], *, unit: str | None, index: Sequence[str], named: Sequence[str], drop_others: bool
) -> tuple[str, ...]:
    """Return the feature columns of a wide table; see `dpca.schemas.frames.feature_columns` for the rules.

    Raises
    ------
    BadSource
        If a column looks like an index of rows, and no declaration states whether it is one.
    """
    others = [name for name in columns if name != unit]
    try:
        return tuple(feature_columns(others, index=index, named=named, drop_others=drop_others))
    except Invalid as error:
        raise BadSource(str(error)) from None


def column_text(ids: pa.Array) -> pa.Array:
    """Return column ids of triplets as text in a uniform spelling."""
    return id_cells(ids, missing=()).cast(pa.string())


class Faults:
    """Collector of the bad rows of one batch.

    For each bad row, it stores the first rule that the row breaks and the column; with `Rejects.counts_all`, all rules.
    """

    def __init__(
        self, places: NDArray[np.int64], place: str, rejects: Rejects, bad: NDArray[np.bool_] | None = None
    ) -> None:
        self.bad = np.zeros(len(places), dtype=np.bool_) if bad is None else bad.copy()
        self._reasons: list[tuple[int, str, str]] = []
        # true for rows in which further broken rules are not recorded
        self._hides = self.bad if not rejects.counts_all else self.bad.copy()
        self._places, self._place, self._rejects = places, place, rejects

    def add(self, rows: NDArray[np.bool_], reason: str, column: str) -> None:
        """Mark rows as bad because they break a rule.

        If a row breaks several rules, only the first is passed to `rejects` later, unless `rejects` counts all broken
        rules.
        """
        self._reasons += [(row, reason, column) for row in np.flatnonzero(rows & ~self._hides).tolist()]
        self.bad |= rows

    def reject(self, *, naming_columns: bool = False) -> None:
        """Pass the bad rows to `rejects` in row order; `naming_columns` adds the column name to the error message."""
        for row, reason, column in sorted(self._reasons, key=itemgetter(0)):
            message = f"column {column!r} {reason}" if naming_columns else None
            number = int(self._places[row])
            self._rejects.reject(place=self._place, number=number, reason=reason, column=column, quoting=message)


def ids_of(
    array: pa.Array, faults: Faults, column: str, *, missing: Sequence[str] = (), decimal: str = "."
) -> pa.Array:
    """Return ids in a uniform spelling (`dpca.schemas.canonical`); rows with a missing id are marked as bad."""
    ids = id_cells(array, missing=(*NO_ID, *missing), decimal=decimal)
    faults.add(ids.is_null().to_numpy(zero_copy_only=False), _ID, column)
    return ids


def id_types(kinds: Mapping[str, pa.DataType], *, unit: str | None, triplet: Sequence[str] | None) -> dict[str, Any]:
    """Return the types of the id columns: "unit" for individuals' ids, and "row" for rows' ids.

    Raises
    ------
    BadSource
        If the type of an id column is not allowed for ids.
    """
    columns = {"unit": unit, "row": None if triplet is None else triplet[0]}
    found = {}
    for role, name in columns.items():
        if name is not None:
            try:
                found[role] = id_type(kinds[name])
            except BadSource as error:
                raise BadSource(f"column {name!r}: {error}") from None
    return found


def _numbers(array: pa.Array, faults: Faults, column: str) -> NDArray[np.float64]:
    found = cast_cells(array, pa.float64())
    # the cast returns null for 64-bit integers that float64 cannot represent
    if found.null_count and pa.types.is_integer(array.type):
        faults.add(pc.and_(found.is_null(), array.is_valid()).to_numpy(zero_copy_only=False), LARGE, column)
    # decimals without fraction digits are integers, which the cast to float64 may have rounded
    elif pa.types.is_decimal(array.type) and array.type.scale <= 0:
        numbers = found.to_numpy(zero_copy_only=False)
        faults.add(np.abs(numbers) >= 1 << 53, LARGE, column)
    return _filled(found, faults, _NUMBER, column)


def _filled(array: pa.Array, faults: Faults, reason: str, column: str) -> NDArray[Any]:
    """Return a NumPy array in which nulls are replaced by 0; rows with a null are marked as bad."""
    if array.null_count:
        faults.add(pc.is_null(array).to_numpy(zero_copy_only=False), reason, column)
        array = array.fill_null(0)
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTable:
    """The columns of a raw table that a declared schema encodes as numbers, with their roles.

    It has the same interface as `TableSchema`, which is for tables of numbers.

    Attributes
    ----------
    encoder : Encoder
    unit : str or None, the column with the id of each row's individual
    found : tuple of str, the raw columns in the order of the file
    """

    encoder: Encoder
    unit: str | None
    found: tuple[str, ...]
    triplet: None = None

    @property
    def n_features(self) -> int:
        """Number of encoded features."""
        return len(self.encoder.feature_names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encoded features."""
        return self.encoder.feature_names

    @property
    def read(self) -> list[str]:
        """Names of the raw columns to read from the file."""
        return [column.name for column in self.encoder.columns] + ([self.unit] if self.unit is not None else [])

    def batch(
        self,
        table: pa.RecordBatch,
        *,
        places: NDArray[np.int64],
        place: str,
        rejects: Rejects,
        bad: NDArray[np.bool_] | None = None,
    ) -> RowBatch:
        """Encode an Arrow record batch as a row batch, in which rows that break a rule of the schema are rejected.

        Rows that break a rule are passed to `rejects`. The rows marked by ``bad`` are rejected too, but were passed to
        `rejects` before.
        """
        faults = Faults(places, place, rejects, bad)
        flat = flat_table(table)
        unit_ids = None
        if self.unit is not None:
            schema, ids = self.encoder.schema, flat.column(self.unit)
            unit_ids = ids_of(ids, faults, self.unit, missing=schema.missing_texts, decimal=schema.text.decimal)
        rows, found = self.encoder.encode({name: flat.column(name) for name in self.read})
        for fault in found:
            faults.add(fault.rows, fault.reason, fault.column)
        faults.reject(naming_columns=True)
        batch = sparse_rows(rows, places=places, place=place, rejected=faults.bad)
        return RowBatch(
            values=batch.values,
            indices=batch.indices,
            row_ptr=batch.row_ptr,
            record_ptr=batch.record_ptr,
            places=places,
            place=place,
            unit_ids=unit_ids,
            rejected=faults.bad,
        )


def encoded_table(columns: Sequence[str], declared: Declared, *, index: Sequence[str] = ()) -> EncodedTable:
    """Match the columns of a raw table to the declared schema.

    Parameters
    ----------
    columns : sequence of str
        The column names in the file; fields of a struct have names such as ``a.b``.
    declared : Declared
        The user's declarations, with a schema. Ids of individuals are read from the column `unit_column` or, if it is
        None, from the schema's unit column if the file has that column.
    index : sequence of str
        The columns that the file marks as the index of its rows.

    Raises
    ------
    BadSource
        If a column is missing, is not declared, or occurs twice.
    """
    assert declared.schema is not None
    if len(columns) > MAX_COLUMNS:
        raise BadSource(
            f"the table has {len(columns)} columns, more than the allowed {MAX_COLUMNS}; drop unused columns"
        )
    if len(set(columns)) < len(columns):
        raise BadSource("two columns have the same name; rename one")
    encoder = Encoder(declared.schema)
    unit = declared.unit_column or (declared.schema.unit if declared.schema.unit in columns else None)
    if unit is not None and unit not in columns:
        raise BadSource(f"the table has no column {unit!r} among its {len(columns)}; check the names and the delimiter")
    listed, drop_others = [column.name for column in declared.schema.columns], declared.schema.unlisted == "drop"
    drop_others = drop_others or declared.drop_others
    found = wide_columns(columns, unit=unit, index=index, named=listed, drop_others=drop_others)
    try:
        encoder.match(found, needs_unit=False, drop_others=declared.drop_others)
    except Invalid as error:
        raise BadSource(f"{error}; also check the delimiter") from None
    return EncodedTable(encoder=encoder, unit=unit, found=found)


_KIND = "Parquet file"


class ParquetReader:
    """Reader of a Parquet file, which implements `storage.formats.batch.Reader`.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations. For triplets, the number of features must be declared. For a wide table, the file's
        columns declare it.
    """

    format = "parquet"
    n_rows: int | None = None

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        self._stream = file.open()
        try:
            with reading(_KIND):
                # without pre-buffering, because pre-buffered data would stay in memory
                self._file = pq.ParquetFile(self._stream, pre_buffer=False)
                schema = self._file.schema_arrow
                index = index_columns(schema)
            if declared.schema is not None:  # a declared schema may name fields inside struct columns
                schema = flat_table(schema.empty_table()).schema
            self._schema: TableSchema | EncodedTable = (
                table_schema(schema.names, declared, declares_width=True, index=index)
                if declared.schema is None
                else encoded_table(schema.names, declared, index=index)
            )
            values = self._schema.triplet[2:] if self._schema.triplet else self._schema.names or ()
            kinds = dict(zip(schema.names, schema.types, strict=True))
            self.id_types = id_types(kinds, unit=self._schema.unit, triplet=self._schema.triplet)
            found = set() if declared.schema is not None else {_numpy_dtype(schema.field(name)) for name in values}
            self.dtype: np.dtype[Any] = np.result_type(*found) if found else np.dtype(np.float64)
        except BaseException:
            self.close()
            raise
        self.n_features = self._schema.n_features
        self.names: Sequence[str] | None = self._schema.names
        self.found_names = self._schema.found
        self.unit_type = None if self._schema.unit is None else schema.field(self._schema.unit).type
        if isinstance(self.unit_type, pa.DictionaryType):
            self.unit_type = self.unit_type.value_type
        self.scattered = self.repeats = self._schema.triplet is not None
        self.size, _ = file.version()
        self._row, self._n_rows = 0, max(self._file.metadata.num_rows, 1)

    @property
    def position(self) -> int:
        """Estimated number of bytes of the file read so far, as if all rows had the same size."""
        return int(self.size * self._row // self._n_rows)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` holds row numbers from 0.

        Raises
        ------
        BadSource
            If the file is cut short or corrupt.
        """
        for table in self._tables(self._schema.read):
            places = np.arange(self._row - table.num_rows, self._row)
            yield self._schema.batch(table, places=places, place="row", rejects=rejects)

    def items(self, rejects: Rejects) -> Iterator[pa.Array]:
        """Yield arrays of the column ids of triplets, as text; several arrays may contain the same id."""
        if self._schema.triplet is not None:
            name = self._schema.triplet[1]
            for table in self._tables([name]):
                yield pc.unique(column_text(table.column(name)))

    def _tables(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        step = max(1, BATCH_VALUES // max(len(wanted), 0 if self.scattered else self.n_features))
        with reading(_KIND):
            for table in self._file.iter_batches(batch_size=step, columns=wanted, use_threads=False):
                self._row += table.num_rows
                yield table


def _numpy_dtype(column: pa.Field) -> np.dtype[Any]:
    """Return the NumPy dtype in which the values of a Parquet column are stored."""
    kind = column.type
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind) or pa.types.is_string(kind):
        return np.dtype(np.float64)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return stored_dtype(kind.to_pandas_dtype())
    raise BadSource(f"column {column.name!r} holds {kind}; values must be real numbers; convert or drop the column")
