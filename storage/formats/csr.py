"""The rows of a compressed sparse row matrix whose three arrays are read side by side, from front to back."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from storage.errors import BadSource
from storage.formats.batch import BATCH_VALUES, MAX_INTEGER, RowBatch
from storage.formats.broken import check_real, check_rows, check_width
from storage.formats.rejects import Rejects

BATCH_ROWS = 1 << 16


class Column(Protocol):
    """One 1-D array, read from front to back."""

    dtype: np.dtype[Any]
    position: int

    @property
    def size(self) -> int:
        """Bytes in all."""

    def __len__(self) -> int:
        """Items in all."""

    def take(self, count: int) -> NDArray[Any]:
        """Read the next `count` items."""


class CsrRows:
    """Rows made of `indptr`, `indices` and `data`.

    Parameters
    ----------
    indptr, indices, data : Column
    shape : tuple of int
        Rows and columns that the source declares.
    stored : int
        Bytes that hold the arrays.
    n_features : int or None
        Declared number of columns; if given, it must be that of the source.

    Raises
    ------
    BadSource
        If the arrays cannot be those of a real matrix of this shape.
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
        """Bytes of the three arrays."""
        return sum(column.size for column in (self._indptr, self._indices, self._data))

    @property
    def position(self) -> int:
        """Bytes of the three arrays read so far."""
        return sum(column.position for column in (self._indptr, self._indices, self._data))

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` counts rows from 0.

        Raises
        ------
        BadSource
            Where row pointers are not in order, or end before the values do.
        """
        last = int(self._indptr.take(1)[0])
        if last != 0:
            raise BadSource(f"indptr begins with {last}; it must begin with 0; save the matrix again")
        for first in range(0, self._n_rows, BATCH_ROWS):
            ends = self._indptr.take(min(BATCH_ROWS, self._n_rows - first)).astype(np.int64)
            bounds = np.concatenate(([last], ends))
            broken = np.flatnonzero((bounds[1:] < bounds[:-1]) | (bounds[1:] > len(self._indices)))
            if broken.size:
                raise BadSource(f"indptr is out of order or too large at row {first + broken[0]}; save it again")
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
    "has a whole number of 2^53 or more, which float64 cannot hold; rescale it, or leave the column out if it is an id"
)


def large_integers(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Mark whole numbers that float64 rounds to a neighbour; None if there is none."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return None
    large = (values > MAX_INTEGER) | (values < -MAX_INTEGER)
    return large if large.any() else None


def reject_rows(bad: NDArray[np.bool_], first_row: int, rejects: Rejects, *, reason: str) -> None:
    """Reject the marked rows of a matrix, counted from `first_row`."""
    for row in np.flatnonzero(bad).tolist():
        rejects.reject(place="row", number=first_row + row, reason=reason)
