"""Tables that users pass to estimators, checked as in scikit-learn, and their rows as blocks.

Rows are in memory or are read piece by piece. The chunks of a Dask array, and the rows of an AnnData backed by its
file, are never read all at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

from dpca.errors import Invalid
from dpca.schemas.encoder import Encoder
from dpca.schemas.frames import plain_rows, without_index
from dpca.schemas.schema import Schema, read_schema
from dpca_tasks.errors import InvalidInput
from dpca_tasks.records.blocks import CsrBlock
from storage.datasets.content_digest import ContentDigest

_PIECE_VALUES = 1 << 22
"""Approximate number of stored values in a piece of rows in memory or in a file."""

_NO_NUMBERS = "X contains values that are not numbers; convert or drop their columns."

type Piece = Callable[[], Any]
"""A function that returns some rows, as a float64 array or a canonical csr array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Interpretation of the entries of a table.

    Attributes
    ----------
    missing : bool
        If true, NaN is a missing entry, and a stored zero of a sparse table is a value. If false, NaN is refused, and
        zeros are not stored.
    duplicates : str
        Policy for several entries of the same row and column of a sparse table if ``missing`` is true, one of
        `DUPLICATES`. If ``missing`` is false, such entries are added up, as scipy defines.
    """

    missing: bool = False
    duplicates: str = "refuse"

    def check(self, values: Any, **least: int) -> Any:
        """Return rows in memory as an array or a csr array of float64.

        Raises
        ------
        ValueError
            As in scikit-learn.
        """
        with quoting_no_value():
            return self.canonical(check_array(self.plain(values), input_name="X", **self.conversion(), **least))

    def plain(self, values: Any) -> Any:
        """Return values that can be converted to float64 without loss; masked values become missing entries.

        Raises
        ------
        Invalid
            As in `dpca.schemas.frames.plain_rows`, and when an entry is masked but no entry may be missing.
        """
        return plain_rows(values, name="X", missing=self.missing)

    def conversion(self) -> dict[str, Any]:
        """Return the arguments with which scikit-learn converts and checks values."""
        return {
            # if entries may be missing, duplicates are not added up, as a conversion to csr would do
            "accept_sparse": ["csr", "coo", "csc", "bsr"] if self.missing else "csr",
            "dtype": np.float64,
            "ensure_all_finite": "allow-nan" if self.missing else True,
        }

    def canonical(self, checked: Any) -> Any:
        """Return checked rows with each value stored once, as a csr array if sparse or if entries may be missing."""
        if not sparse.issparse(checked):
            return _rated(checked) if self.missing else checked
        if self.missing:
            return _merged(checked, self.duplicates)
        matrix = sparse.csr_array(checked, copy=True)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Public facts of a table, which are the number of its columns and their names, if any."""

    n_features: int
    names: tuple[str, ...] | None = None

    @classmethod
    def learned(cls, estimator: BaseEstimator, table: Any) -> Self:
        """Set the fitted column attributes of an estimator from a table; no value is read.

        Raises
        ------
        ValueError
            When the table does not have rows and columns, or a column looks like an index.
        """
        table = without_index(_as_table(table))
        names, shape = _names_of(table), _shape_of(table)
        if len(shape) != 2:
            raise ValueError(f"Expected 2D array, got {len(shape)}D array instead; reshape it to rows.") from None
        width = int(shape[1])
        is_plain = names is None and not hasattr(table, "__dask_graph__")
        validate_data(estimator, table if is_plain else _header(names, width=width), reset=True, skip_check_array=True)
        learned = getattr(estimator, "feature_names_in_", None)
        return cls(n_features=width, names=None if learned is None else tuple(learned.tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A checked table.

    Attributes
    ----------
    n_features : int
    pieces : sequence of callables
        Functions that return the rows, in order.
    whole : array or csr array, optional
        All rows, if they are in memory.
    chunked : Dask array, optional
        All rows, if they are the chunks of a Dask array.
    entries : Entries
    """

    n_features: int
    pieces: Sequence[Piece]
    whole: Any = None
    chunked: Any = None
    entries: Entries = field(default_factory=Entries)

    @classmethod
    def checked(cls, estimator: BaseEstimator, table: Any, *, reset: bool, entries: Entries) -> Self:
        """Check a table, and compare its columns with the columns of the estimator.

        Parameters
        ----------
        estimator : estimator
            With ``reset``, it gets ``n_features_in_``, and ``feature_names_in_`` if the columns have names.
        table : array-like, scipy sparse array or matrix, DataFrame (pandas or polars), AnnData, Dask array or DataFrame
        reset : bool
            If true, the columns are learned, as in ``fit``; otherwise they are compared.
        entries : Entries

        Raises
        ------
        ValueError
            As in scikit-learn, when the columns differ, when ``fit`` gets fewer than two rows or columns, or when
            values are not finite numbers. For pieces that are read later, the error occurs when they are read.
        """
        names, values = _columns_of(entries.plain(without_index(_as_table(table))))
        chunked = values if hasattr(values, "__dask_graph__") else None
        least = {"ensure_min_samples": 2, "ensure_min_features": 2} if reset else {}
        if names is None and chunked is None:
            with quoting_no_value():
                checked = validate_data(estimator, entries.plain(values), reset=reset, **entries.conversion(), **least)
            return cls.in_memory(entries.canonical(checked), entries=entries)
        if len(values.shape) != 2:
            raise ValueError(f"Expected 2D array, got {len(values.shape)}D array instead; reshape it to rows.")
        width = int(values.shape[1])
        validate_data(estimator, _header(names, width=width), reset=reset, skip_check_array=True)
        if chunked is not None:
            chunked = values if len(values.chunks[1]) == 1 else values.rechunk({1: -1})
            return cls(
                n_features=width,
                pieces=[partial(_computed, chunked.blocks[at], entries) for at in range(chunked.numblocks[0])],
                chunked=chunked,
                entries=entries,
            )
        if isinstance(values, np.ndarray) or sparse.issparse(values):
            return cls.in_memory(entries.check(values, **least), entries=entries)
        slices = _slices(int(values.shape[0]), width=width)
        return cls(n_features=width, pieces=[partial(_read, values, rows, entries) for rows in slices], entries=entries)

    @classmethod
    def in_memory(cls, rows: Any, *, entries: Entries) -> Self:
        """Return a table of checked rows in memory."""
        n_rows, width = (int(size) for size in rows.shape)
        held = int(rows.nnz / max(n_rows, 1)) + 1 if sparse.issparse(rows) else width
        return cls(
            n_features=width,
            pieces=[partial(rows.__getitem__, part) for part in _slices(n_rows, width=held)],
            whole=rows,
            entries=entries,
        )

    def copied(self) -> Self:
        """Return the table with a copy of the rows that are in memory."""
        return self if self.whole is None else self.in_memory(self.whole.copy(), entries=self.entries)

    def map(self, function: Callable[[Any], NDArray[np.float64]], *, width: int) -> Any:
        """Apply a function to the rows; return an array with ``width`` columns, or a lazy Dask array for chunks."""
        if self.chunked is not None:
            return self.chunked.map_blocks(
                partial(_on_chunk, function, self.entries),
                chunks=(self.chunked.chunks[0], (width,)),
                dtype=np.float64,
                meta=np.empty((0, 0)),
            )
        if self.whole is not None:
            return function(self.whole)
        return np.concatenate([np.empty((0, width)), *(function(piece()) for piece in self.pieces)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A raw table, and the encoder that turns it into numbers."""

    encoder: Encoder
    raw: pa.Table

    @classmethod
    def of(cls, schema: Any, table: Any) -> Self:
        """Read a raw table by a schema: a `Schema`, its parsed document, or the file that holds it.

        Raises
        ------
        Invalid
            When the schema is not valid, or the table has other columns.
        """
        if isinstance(schema, str | Path):
            schema = read_schema(schema)
        encoder = Encoder(schema if isinstance(schema, Schema) else Schema.parse(schema))
        if encoder.schema.unit is not None:
            raise Invalid(
                f"the schema declares the ids of individuals, {encoder.schema.unit!r}, but each row of X is the data "
                "of one person; declare this column as dropped, or ingest the table and release the dataset."
            )
        return cls(encoder=encoder, raw=encoder.raw(table))

    @property
    def facts(self) -> dict[str, Any]:
        """The schema as plain JSON values."""
        return self.encoder.schema.facts()

    def header(self) -> pa.Table:
        """Return the named columns of the features without rows."""
        return _header(self.encoder.feature_names, width=len(self.encoder.feature_names))

    def frame(self) -> pa.Table:
        """Return the features as a table of named columns."""
        features = self.encoder.features(self.raw)
        return pa.table(dict(zip(self.encoder.feature_names, features.T, strict=True)))


class TableRows:
    """Rows of a table as a source of blocks, with one record per row.

    Guarantees
    ----------
    Equal rows have equal ``content``, whatever container holds them. It is also the content of a snapshot of these
    rows. ``has_zeros`` is true if a stored zero is a value.
    """

    def __init__(
        self, table: Table, *, feature_names: Sequence[str] | None = None, encoded: "Encoded | None" = None
    ) -> None:
        self.has_zeros, self._names, self.encoded = table.entries.missing, feature_names, encoded
        digest, extents, pieces = ContentDigest(n_features=table.n_features), [], []
        for piece in table.pieces:
            rows = sparse.csr_array(piece())
            n_rows = rows.shape[0]
            if n_rows:
                digest.update(
                    values=rows.data,
                    indices=rows.indices,
                    row_nnz=np.diff(rows.indptr),
                    record_rows=np.ones(n_rows, np.int64),
                )
                extents.append((n_rows, n_rows, rows.nnz))
                pieces.append(piece)
        self.pieces: Sequence[Piece] = pieces
        self.extents = np.array(extents, np.int64).reshape(-1, 3)
        self.content = digest.hexdigest()
        self.n_features, self.n_blocks = table.n_features, len(pieces)
        self.n_records = int(self.extents[:, 0].sum())
        if self.n_records < 2:
            raise ValueError("Found fewer than two samples, and a minimum of 2 is required; fit on more rows.")

    def feature_names(self) -> Sequence[str] | None:
        """Return the names of the columns, which are public; None if they have no names."""
        return self._names

    def encoder(self) -> dict[str, Any] | None:
        """Return the schema by which the rows were encoded, as plain JSON values; None without a schema."""
        return None if self.encoded is None else self.encoded.facts

    def read(self, block: int, /) -> CsrBlock:
        """Read one piece as a block."""
        made = self.pieces[block]()
        rows = sparse.csr_array(made)
        n_rows = rows.shape[0]
        if (n_rows, n_rows, rows.nnz) != tuple(self.extents[block]):
            raise Invalid("the rows of the table changed while they were read; fit on a table that does not change.")
        return CsrBlock(
            values=rows.data,
            indices=rows.indices,
            row_ptr=rows.indptr.astype(np.int64),
            record_ptr=np.arange(n_rows + 1, dtype=np.int64),
            first_record=int(self.extents[:block, 0].sum()),
            density=None if sparse.issparse(made) else 1.0,
        )


@contextmanager
def quoting_no_value() -> Iterator[None]:
    """Replace error messages of other libraries that may quote values of a table; other errors pass unchanged."""
    try:
        yield
    except TypeError as error:
        if str(error).startswith("float() argument must be"):
            raise TypeError(
                "X contains objects that are not numbers (float() argument must be a string or a real "
                "number); convert or drop their columns."
            ) from None
        # these errors of scikit-learn quote no value
        if "argument must be" in str(error) or str(error).startswith("Sparse data"):
            raise
        raise ValueError(_NO_NUMBERS) from None
    except ValueError as error:
        text = str(error)
        if text.startswith("Complex data not supported"):
            raise ValueError("Complex data not supported; pass real numbers.") from None
        if text.startswith("Expected 2D array"):
            found = text.partition(":")[0]
            raise ValueError(f"{found}. Reshape your data to rows, such as by X.reshape(1, -1) for one row.") from None
        if isinstance(error, pa.ArrowException) or text.startswith(("could not convert", "Unable to parse")):
            raise ValueError(_NO_NUMBERS) from None
        raise
    except OverflowError:
        raise ValueError("X contains a number beyond the range of float64; rescale or drop its column.") from None


def _as_table(table: Any) -> Any:
    """Return an Arrow record batch as a table, in which scikit-learn finds the column names."""
    return pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table


def _columns_of(table: Any) -> tuple[Any, Any]:
    """Return the column names if scikit-learn would not find them, else None; and the values of the table."""
    names = _names_of(table)
    if hasattr(table, "var_names"):
        values = table.X
        if values is None:
            raise ValueError(
                "The AnnData object has no X, the matrix of rows; set it, as by adata.X = adata.layers[NAME]."
            )
        if getattr(table, "isbacked", False) and (table.is_view or getattr(values, "format", "csr") != "csr"):
            values = table.to_memory().X
        return names, values
    if hasattr(table, "__dask_graph__") and hasattr(table, "to_dask_array"):
        return names, table.to_dask_array()
    if names is not None:
        return names, table.to_numpy()
    if hasattr(table, "__dask_graph__") and not hasattr(table, "chunks"):
        return None, table.compute()
    return None, table


def _names_of(table: Any) -> Any:
    """Return the column names that scikit-learn does not find by itself, or None."""
    if hasattr(table, "var_names"):
        return table.var_names
    if hasattr(table, "__dask_graph__") and hasattr(table, "to_dask_array"):
        return table.columns if all(isinstance(name, str) for name in table.columns) else None
    if hasattr(table, "to_numpy") and hasattr(table, "columns") and not hasattr(table, "iloc"):  # polars
        return table.columns
    return None


def _shape_of(table: Any) -> tuple[Any, ...]:
    """Return the shape of a table; for a list, the shape of the table of its first row."""
    if hasattr(table, "shape"):
        return tuple(table.shape)
    with quoting_no_value():
        rows: NDArray[Any] = np.asarray(table[:1] if isinstance(table, list | tuple) else table)
    return rows.shape


def _header(names: Any, *, width: int) -> Any:
    """Return an empty table with these columns."""
    if names is None:
        return np.empty((0, width))
    return pa.Table.from_arrays([pa.array([], pa.float64())] * len(names), names=[str(name) for name in names])


def _slices(n_rows: int, *, width: int) -> list[slice]:
    step = max(_PIECE_VALUES // max(width, 1), 1)
    return [slice(first, min(first + step, n_rows)) for first in range(0, n_rows, step)]


def _rated(values: NDArray[np.float64]) -> Any:
    """Return the non-missing entries of an array as a csr array."""
    given = ~np.isnan(values)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(given.sum(axis=1))])
    return sparse.csr_array((values[given], np.nonzero(given)[1], ends), shape=values.shape)


def _merged(table: Any, duplicates: str) -> Any:
    """Return the stored non-missing entries of a sparse table, including zeros, with duplicates merged."""
    found = table.tocoo()
    given = np.flatnonzero(~np.isnan(found.data))
    given = given[np.lexsort((found.col[given], found.row[given]))]  # stable, so duplicates keep their order
    rows, columns, values = found.row[given], found.col[given], found.data[given]
    starts = np.flatnonzero(np.diff(rows, prepend=-1) | np.diff(columns, prepend=-1))
    if len(starts) < len(values):
        if duplicates == "refuse":
            raise InvalidInput(
                "X contains two ratings of one user and item; drop one, or pass duplicates='last' (the "
                "newest counts), 'mean' or 'sum'."
            )
        stops = np.append(starts[1:], len(values))
        merged = values[stops - 1] if duplicates == "last" else np.add.reduceat(values, starts)
        values = merged / (stops - starts) if duplicates == "mean" else merged
        rows, columns = rows[starts], columns[starts]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(rows, minlength=table.shape[0]))])
    return sparse.csr_array((values, columns, ends), shape=table.shape)


def _read(values: Any, rows: slice, entries: Entries) -> Any:
    return entries.check(values[rows], ensure_min_samples=0)


def _computed(chunk: Any, entries: Entries) -> Any:
    return entries.check(chunk.compute(), ensure_min_samples=0)


def _on_chunk(function: Callable[[Any], NDArray[np.float64]], entries: Entries, chunk: Any) -> NDArray[np.float64]:
    return function(entries.check(chunk, ensure_min_samples=0))
