"""Rows of a compressed sparse row (CSR) matrix, and checks of a matrix file before its rows are read.

The three arrays of a CSR matrix are read in parallel, from front to back. The checks refuse broken files, and declared
shapes that are implausible for the size of the file. They are needed because libraries raise many kinds of errors for
broken files, and accept any declared shape.
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from tokenize import TokenError
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpca.errors import BadSource, StorageError
from storage.formats.batch import BATCH_VALUES, MAX_FEATURES, MAX_INTEGER, Rejects, RowBatch

MAX_CHUNK = 1 << 30
"""Largest chunk of a stored array in bytes; a whole chunk must fit into memory."""

_RAISED = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, SyntaxError),
    *(RuntimeError, TokenError, zlib.error, BadZipFile, pa.ArrowException),
)
_ROWS, _ROWS_A_BYTE = 1 << 22, 16
_CELLS, _CELLS_A_BYTE = 1 << 28, 1 << 12


@contextmanager
def reading(kind: str) -> Iterator[None]:
    """Convert every error that a library raises for a broken file into one BadSource error.

    An ``OSError`` with an error number comes from the disk, and is raised unchanged.
    """
    try:
        yield
    except StorageError:
        raise
    except _RAISED as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise BadSource(f"this is not a readable {kind} (cut short, corrupt or another kind); save it again") from None


def check_width(width: int, n_features: int | None) -> None:
    """Refuse a matrix whose number of columns is out of range, or differs from the declared number.

    Raises
    ------
    BadSource
        If the number of columns is outside 1..`MAX_FEATURES`, or differs from `n_features`.
    """
    if not 1 <= width <= MAX_FEATURES:
        raise BadSource(
            f"the matrix has {width} columns; a dataset has 1 to {MAX_FEATURES} columns; reshape the matrix"
        )
    if n_features is not None and n_features != width:
        raise BadSource(
            f"the matrix has {width} columns, but {n_features} features are declared; declare the same number, or "
            "omit the declaration"
        )


def check_rows(n_rows: int, *, stored: int, width: int = 0) -> None:
    """Refuse a declared shape in which almost all rows must be empty, because reading it would take hours.

    Parameters
    ----------
    n_rows : int
        Declared number of rows.
    stored : int
        Number of bytes in which the rows are stored.
    width : int
        Declared number of columns of a dense matrix, in which every cell is read; 0 for a sparse matrix.

    Raises
    ------
    BadSource
        If there are more than four million rows and more than 16 rows per stored byte. Also if there are more than 2^28
        cells and more than 4,096 cells per stored byte, or if the number of rows is negative.
    """
    if n_rows < 0:
        raise BadSource(f"the matrix has {n_rows} rows; a matrix has 0 or more rows; save the matrix again")
    if n_rows > max(_ROWS, _ROWS_A_BYTE * stored) or n_rows * width > max(_CELLS, _CELLS_A_BYTE * stored):
        raise BadSource(
            f"{n_rows} rows are declared in {stored} bytes, so almost all are empty; correct the declared shape"
        )


def check_chunks(chunk: tuple[int, ...] | None, dtype: np.dtype[Any]) -> None:
    """Refuse an array whose chunks are too large for memory.

    Raises
    ------
    BadSource
        If a chunk takes more than `MAX_CHUNK` bytes.
    """
    size = math.prod(chunk or ()) * dtype.itemsize
    if size > MAX_CHUNK:
        raise BadSource(f"an array is stored in chunks of {size} bytes; save it in chunks of at most {MAX_CHUNK} bytes")


def check_real(dtype: np.dtype[Any]) -> None:
    """Refuse values that are not real numbers.

    Raises
    ------
    BadSource
        If the type of the values is not boolean, integer or float.
    """
    if dtype.kind not in "biuf":
        raise BadSource(f"values have dtype {dtype}; values must be real numbers; convert them")


BATCH_ROWS = 1 << 16


class Column(Protocol):
    """A 1-D array that is read once, from front to back."""

    dtype: np.dtype[Any]
    position: int

    @property
    def size(self) -> int:
        """Total number of bytes."""

    def __len__(self) -> int:
        """Return the total number of items."""

    def take(self, count: int) -> NDArray[Any]:
        """Read the next `count` items."""


class CsrRows:
    """Reader of the rows of a CSR matrix from its arrays `indptr`, `indices` and `data`.

    Parameters
    ----------
    indptr, indices, data : Column
    shape : tuple of int
        Numbers of rows and columns that the source declares.
    stored : int
        Number of bytes in which the arrays are stored.
    n_features : int or None
        Number of columns that the user declared; if given, it must equal the number in the source.

    Raises
    ------
    BadSource
        If the arrays cannot form a matrix of real numbers with this shape.
    """

    def __init__(
        self,
        indptr: Column,
        indices: Column,
        data: Column,
        *,
        shape: tuple[int, int],
        stored: int,
        n_features: int | None,
    ) -> None:
        self._indptr, self._indices, self._data = indptr, indices, data
        self._n_rows, width = shape
        check_width(width, n_features)
        check_rows(self._n_rows, stored=stored)
        check_real(data.dtype)
        if {indptr.dtype.kind, indices.dtype.kind} - {"i", "u"}:
            raise BadSource("indptr and indices must hold integers; save the matrix again with scipy")
        if len(indptr) != self._n_rows + 1 or len(indices) != len(data):
            raise BadSource("indptr, indices, data and shape disagree in length; save the matrix again with scipy")
        self.dtype = data.dtype

    @property
    def size(self) -> int:
        """Total number of bytes of the three arrays."""
        return sum(column.size for column in (self._indptr, self._indices, self._data))

    @property
    def position(self) -> int:
        """Number of bytes of the three arrays that were read so far."""
        return sum(column.position for column in (self._indptr, self._indices, self._data))

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` holds row numbers from 0.

        Raises
        ------
        BadSource
            If the row pointers decrease, or do not end at the number of values.
        """
        last = int(self._indptr.take(1)[0])
        if last != 0:
            raise BadSource(f"indptr starts with {last}; it must start with 0; save the matrix again")
        for first in range(0, self._n_rows, BATCH_ROWS):
            ends = self._indptr.take(min(BATCH_ROWS, self._n_rows - first)).astype(np.int64)
            bounds = np.concatenate(([last], ends))
            broken = np.flatnonzero((bounds[1:] < bounds[:-1]) | (bounds[1:] > len(self._indices)))
            if broken.size:
                raise BadSource(
                    f"indptr is out of order or too large at row {first + broken[0]}; save the matrix again"
                )
            at = 0
            while at < len(ends):
                stop = max(at + 1, int(np.searchsorted(bounds, bounds[at] + BATCH_VALUES, side="right")) - 1)
                yield self._take(bounds[at : stop + 1], first + at, rejects)
                at = stop
            last = int(bounds[-1])
        if last != len(self._indices):
            raise BadSource(
                f"indptr ends with {last}, but {len(self._indices)} values are stored; save the matrix again with scipy"
            )

    def _take(self, bounds: NDArray[np.int64], first_row: int, rejects: Rejects) -> RowBatch:
        row_ptr = bounds - bounds[0]
        nnz, n_rows = int(row_ptr[-1]), len(row_ptr) - 1
        indices, values = self._indices.take(nnz), self._data.take(nnz)
        rejected = np.zeros(n_rows, dtype=np.bool_)
        if (large := large_integers(values)) is not None:
            rejected[np.searchsorted(row_ptr, np.flatnonzero(large), side="right") - 1] = True
            reject_rows(rejected, first_row, rejects, reason=LARGE)
        return RowBatch(
            values=values.astype(np.float64),
            indices=indices.astype(np.int64),
            row_ptr=row_ptr,
            record_ptr=np.arange(n_rows + 1),
            places=np.arange(first_row, first_row + n_rows),
            place="row",
            rejected=rejected,
        )


LARGE = (
    "has a whole number of 2^53 or more, which float64 cannot represent; rescale it, or drop the column if it is an id"
)


def large_integers(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Mark integers beyond ±(2^53 - 1), which float64 may round to another integer.

    Return None if there are none.
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return None
    large = (values > MAX_INTEGER) | (values < -MAX_INTEGER)
    return large if large.any() else None


def reject_rows(bad: NDArray[np.bool_], first_row: int, rejects: Rejects, *, reason: str) -> None:
    """Pass each marked row of a matrix to `rejects`; rows are numbered from `first_row`."""
    for row in np.flatnonzero(bad).tolist():
        rejects.reject(place="row", number=first_row + row, reason=reason)
