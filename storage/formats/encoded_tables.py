"""Row batches from the Arrow record batches of a raw table, encoded by its declared schema."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.errors import BadSource, Invalid
from storage.formats.batch import RowBatch
from storage.formats.declared import Declared
from storage.formats.dense import sparse_rows
from storage.formats.rejects import Rejects
from storage.formats.tables import MAX_COLUMNS, Faults, ids_of, wide_columns
from storage.schemas.encoder import Encoder, flat_table


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTable:
    """A raw table as its schema encodes it; what a `storage.formats.tables.TableSchema` is to a table of numbers.

    Attributes
    ----------
    encoder : Encoder
    unit : str or None, the column with the individual behind each row
    found : tuple of str, the raw columns in the order of the file
    """

    encoder: Encoder
    unit: str | None
    found: tuple[str, ...]
    triplet: None = None

    @property
    def n_features(self) -> int:
        """The number of encoded features."""
        return len(self.encoder.feature_names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the encoded features."""
        return self.encoder.feature_names

    @property
    def read(self) -> list[str]:
        """The names of the raw columns that are read."""
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
        """Make a batch; rows that the schema refuses are passed to `rejects`, and so were ``bad`` ones."""
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
    """Match the columns of a table with its declared schema.

    Parameters
    ----------
    columns : sequence of str
        The names in the file, those of fields of a struct as ``a.b``.
    declared : Declared
        The user's declarations, with a schema. The id of an individual is read where `unit_column` names it, or where
        the file has it.
    index : sequence of str
        The columns that the file calls the index of its rows.

    Raises
    ------
    BadSource
        If a column is missing, superfluous or occurs twice.
    """
    assert declared.schema is not None
    if len(columns) > MAX_COLUMNS:
        raise BadSource(f"the table has {len(columns)} columns, more than {MAX_COLUMNS}; leave out what is not wanted")
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
        raise BadSource(f"{error}; check the delimiter too") from None
    return EncodedTable(encoder=encoder, unit=unit, found=found)
