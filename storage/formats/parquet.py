"""Read Parquet, a piece of a row group at a time: triplets, or wide rows whose schema declares the columns."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import BadSource
from storage.formats.batch import BATCH_VALUES, RowBatch, stored_dtype
from storage.formats.broken import reading
from storage.formats.declared import Declared
from storage.formats.encoded_tables import EncodedTable, encoded_table
from storage.formats.files import SourceFile
from storage.formats.rejects import Rejects
from storage.formats.tables import TableSchema, column_text, id_types, table_schema
from storage.schemas.encoder import flat_table
from storage.schemas.frames import index_columns

_KIND = "Parquet file"


class ParquetReader:
    """A `storage.formats.batch.Reader` of a Parquet file.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations; triplets need a width, a wide schema declares its own.
    """

    format = "parquet"
    n_rows: int | None = None

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        self._stream = file.open()
        try:
            with reading(_KIND):
                self._file = pq.ParquetFile(self._stream, pre_buffer=False)  # else it keeps all that it has read
                schema = self._file.schema_arrow
                index = index_columns(schema)
            if declared.schema is not None:  # which names what is in a struct
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
        """Bytes of the file read so far, as if all rows took the same."""
        return int(self.size * self._row // self._n_rows)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` counts rows from 0.

        Raises
        ------
        BadSource
            Where the file is cut short or corrupt.
        """
        for table in self._tables(self._schema.read):
            places = np.arange(self._row - table.num_rows, self._row)
            yield self._schema.batch(table, places=places, place="row", rejects=rejects)

    def items(self, rejects: Rejects) -> Iterator[pa.Array]:
        """Yield the column ids of triplets, each once a piece, as text."""
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
    """Return the dtype that a column of values is stored in."""
    kind = column.type
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind) or pa.types.is_string(kind):
        return np.dtype(np.float64)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return stored_dtype(kind.to_pandas_dtype())
    raise BadSource(f"column {column.name!r} holds {kind}; values must be real numbers; convert or drop it")
