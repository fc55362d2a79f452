"""Row batches from the Arrow record batches of a table, wide or triplets, in CSV or Parquet.

A table with the row, column and value columns holds triplets; any other is wide, each row one record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.errors import BadSource, Invalid
from storage.formats.batch import RowBatch
from storage.formats.csr import LARGE
from storage.formats.declared import Declared
from storage.formats.dense import sparse_rows
from storage.formats.rejects import Rejects
from storage.schemas.cells import cast_cells
from storage.schemas.frames import feature_columns
from storage.schemas.matching import match_names
from storage.schemas.unit_ids import NO_ID, id_cells, id_type

MAX_COLUMNS = 1 << 16  # each has a name and a buffer of its own

_ID = "has no whole number or text as an id; correct or drop it"
_NUMBER = (
    "has a value that is missing or not a number; correct or drop it, or declare in a schema what it means: begin with "
    "`dpca schema draft FILE`"
)
_ITEM = "has a column that the feature names do not list; list it or drop the row"
_INDEX = "has a column that is no whole number; correct it, or give a file of feature names"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The columns of a table that are read, and their roles.

    Attributes
    ----------
    n_features : int
    names : tuple of str or None, the columns that hold values if wide; the dictionary if triplets
    triplet : tuple of str or None, the names of row, column and value; without the last, every value is 1
    unit : str or None, the column with the individual behind each row
    found : tuple of str, the columns of a wide table in the order of the file, without that one
    """

    n_features: int
    names: tuple[str, ...] | None
    triplet: tuple[str, ...] | None
    unit: str | None
    found: tuple[str, ...] = ()

    @property
    def read(self) -> list[str]:
        """The names of the columns that are read."""
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
        """Make a batch; rows that break a rule are passed to `rejects`, and so were ``bad`` ones. Both are rejected."""
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
    """Decide from the names of its columns whether a table is wide or triplets.

    Parameters
    ----------
    columns : sequence of str
        The names in the file.
    declared : Declared
        The user's declarations.
    declares_width : bool
        Whether a wide file of this format may declare its own columns.
    index : sequence of str
        The columns that the file calls the index of its rows.

    Raises
    ------
    BadSource
        If a column is missing, superfluous or occurs twice.
    Invalid
        If the width is declared nowhere.
    """
    if len(columns) > MAX_COLUMNS:
        raise BadSource(
            f"the table has {len(columns)} columns, more than {MAX_COLUMNS}; give triplets or svmlight text"
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
                "triplets declare no width and it is never inferred; declare the number of features, or their names"
            )
        return TableSchema(n_features=declared.width, names=declared.names, triplet=roles, unit=unit)
    names, is_listed = declared.names or (), declared.names is not None
    found = wide_columns(columns, unit=unit, index=index, named=names, drop_others=is_listed)
    if declared.names is not None:
        try:
            match_names(found, declared.names, noun="declaration", drop_others=declared.drop_others)
        except Invalid as error:
            raise BadSource(f"{error}; check the delimiter too") from None
        return TableSchema(n_features=len(declared.names), names=declared.names, triplet=None, unit=unit, found=found)
    if declared.width is None and not declares_width:
        raise Invalid(
            "CSV text declares no width and it is never inferred; declare the number of features, or their names; for "
            "names, dates, categories or missing values, begin with `dpca schema draft FILE`"
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
    """Return the columns of a wide table that may be features; see `storage.schemas.frames.feature_columns`.

    Raises
    ------
    BadSource
        If one looks like an index, and no declaration settles what it is.
    """
    others = [name for name in columns if name != unit]
    try:
        return tuple(feature_columns(others, index=index, named=named, drop_others=drop_others))
    except Invalid as error:
        raise BadSource(str(error)) from None


def column_text(ids: pa.Array) -> pa.Array:
    """Return the ids of items as text."""
    return id_cells(ids, missing=()).cast(pa.string())


class Faults:
    """The bad rows of one batch, each with the first rule that it breaks and the column of the fault."""

    def __init__(
        self, places: NDArray[np.int64], place: str, rejects: Rejects, bad: NDArray[np.bool_] | None = None
    ) -> None:
        self.bad = np.zeros(len(places), dtype=np.bool_) if bad is None else bad.copy()
        self._reasons: list[tuple[int, str, str]] = []
        self._hides = self.bad if not rejects.counts_all else self.bad.copy()  # rows whose further faults are not noted
        self._places, self._place, self._rejects = places, place, rejects

    def add(self, rows: NDArray[np.bool_], reason: str, column: str) -> None:
        """Note rows that break a rule, if they broke none before or every rule counts."""
        self._reasons += [(row, reason, column) for row in np.flatnonzero(rows & ~self._hides).tolist()]
        self.bad |= rows

    def reject(self, *, naming_columns: bool = False) -> None:
        """Pass the bad rows to `rejects`, in order; perhaps with the column in the message too."""
        for row, reason, column in sorted(self._reasons, key=itemgetter(0)):
            said = f"column {column!r} {reason}" if naming_columns else None
            number = int(self._places[row])
            self._rejects.reject(place=self._place, number=number, reason=reason, column=column, quoting=said)


def ids_of(
    array: pa.Array, faults: Faults, column: str, *, missing: Sequence[str] = (), decimal: str = "."
) -> pa.Array:
    """Return ids as `storage.schemas.unit_ids` reads them; missing ones are faults, and null."""
    ids = id_cells(array, missing=(*NO_ID, *missing), decimal=decimal)
    faults.add(ids.is_null().to_numpy(zero_copy_only=False), _ID, column)
    return ids


def id_types(kinds: Mapping[str, pa.DataType], *, unit: str | None, triplet: Sequence[str] | None) -> dict[str, Any]:
    """Return the types of the ids of individuals ("unit") and rows ("row") that a table has, from those of its columns.

    Raises
    ------
    BadSource
        If a column of ids holds no ids.
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
    if found.null_count and pa.types.is_integer(array.type):  # a number of 64 bits may fit no float64
        faults.add(pc.and_(found.is_null(), array.is_valid()).to_numpy(zero_copy_only=False), LARGE, column)
    elif pa.types.is_decimal(array.type) and array.type.scale <= 0:  # whole numbers, which are rounded
        numbers = found.to_numpy(zero_copy_only=False)
        faults.add(np.abs(numbers) >= 1 << 53, LARGE, column)
    return _filled(found, faults, _NUMBER, column)


def _filled(array: pa.Array, faults: Faults, reason: str, column: str) -> NDArray[Any]:
    """Return a numpy array; nulls are faults."""
    if array.null_count:
        faults.add(pc.is_null(array).to_numpy(zero_copy_only=False), reason, column)
        array = array.fill_null(0)
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found
