"""Read dense matrices a few rows at a time: NumPy files, arrays of Zarr and HDF5."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from storage.errors import BadSource
from storage.formats.batch import BATCH_VALUES, RowBatch
from storage.formats.broken import check_chunks, check_real, check_rows, check_width, reading
from storage.formats.csr import LARGE, large_integers, reject_rows
from storage.formats.declared import Declared
from storage.formats.files import SourceFile
from storage.formats.npy import NpyRows
from storage.formats.rejects import Rejects

_SLAB = 1 << 26  # bytes of rows read at once, so that a chunk is unpacked once


class Sliceable(Protocol):
    """A 2-D array of numpy, zarr or h5py."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Read some rows."""


class DenseRows:
    """The rows of a dense matrix; zeros are not stored.

    Parameters
    ----------
    array : Sliceable
        The array to read.
    stored : int
        Bytes that hold it.
    n_features : int or None
        Declared number of columns; if given, it must be that of the array.

    Raises
    ------
    BadSource
        If the array is no real matrix of this width.
    """

    def __init__(self, array: Sliceable, *, stored: int, n_features: int | None) -> None:
        if len(array.shape) != 2:
            raise BadSource(f"the array has {len(array.shape)} dimensions; a matrix of rows has 2; reshape it")
        self._array, self.dtype = array, np.dtype(array.dtype)
        self.n_rows, self.n_features = array.shape
        check_width(self.n_features, n_features)
        check_real(self.dtype)
        check_rows(self.n_rows, stored=stored, width=self.n_features)
        self._chunk: tuple[int, ...] | None = getattr(array, "chunks", None)
        check_chunks(self._chunk, self.dtype)
        self.size = self.n_rows * self.n_features * self.dtype.itemsize
        self.position = 0

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` counts rows from 0."""
        step = max(1, BATCH_VALUES // self.n_features)
        rows_of_slab = max(1, _SLAB // (self.n_features * self.dtype.itemsize))
        slab = step if self._chunk is None else max(step, min(self._chunk[0], rows_of_slab))
        for at in range(0, self.n_rows, slab):
            rows = np.asarray(self._array[at : at + slab])
            for first in range(0, len(rows), step):
                yield self._batch(rows[first : first + step], at + first, rejects)

    def _batch(self, rows: NDArray[Any], first: int, rejects: Rejects) -> RowBatch:
        self.position += rows.nbytes
        rejected = np.zeros(len(rows), dtype=np.bool_)
        if (large := large_integers(rows)) is not None:
            rejected = large.any(axis=1)
            reject_rows(rejected, first, rejects, reason=LARGE)
        return sparse_rows(rows, places=np.arange(first, first + len(rows)), place="row", rejected=rejected)


class NpyReader:
    """A `storage.formats.batch.Reader` of a 2-D array in a .npy file, each row one record.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations; a declared number of columns must be that of the file.

    Raises
    ------
    BadSource
        If it is no such array, or would be read by jumps in an object store.
    """

    format = "npy"
    names: Sequence[str] | None = None
    scattered = False
    repeats = False

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        size, _ = file.version()
        self._stream = file.open()
        try:
            with reading(".npy array"):
                array = NpyRows(self._stream, size=size)
            if array.is_by_columns and file.is_far:
                raise BadSource("the array is stored column by column; save it row by row to read it from a store")
            self._rows = DenseRows(array, stored=size, n_features=declared.width)
        except BaseException:
            self.close()
            raise
        self.dtype, self.n_features = self._rows.dtype, self._rows.n_features
        self.n_rows: int | None = self._rows.n_rows
        self.size = self._rows.size

    @property
    def position(self) -> int:
        """Bytes of the array read so far."""
        return self._rows.position

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` counts rows from 0."""
        with reading(".npy array"):
            yield from self._rows.batches(rejects)


def sparse_rows(
    rows: NDArray[Any], *, places: NDArray[np.int64], place: str, rejected: NDArray[np.bool_] | None
) -> RowBatch:
    """Return the nonzero values of dense rows as a batch."""
    filled, indices = np.nonzero(rows)
    row_ptr = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(np.bincount(filled, minlength=len(rows)), out=row_ptr[1:])
    return RowBatch(
        values=rows[filled, indices].astype(np.float64),
        indices=indices,
        row_ptr=row_ptr,
        record_ptr=np.arange(len(rows) + 1),
        places=places,
        place=place,
        rejected=rejected,
    )
