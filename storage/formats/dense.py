"""Read dense matrices a few rows at a time: NumPy files through a memory map, arrays of Zarr and HDF5."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from storage.errors import BadSource
from storage.formats.batch import BATCH_VALUES, RowBatch
from storage.formats.csr import LARGE, check_real, check_width, large_integers, reject_rows
from storage.formats.rejects import Rejects


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
        What is read.
    n_features : int or None
        Declared number of columns; if given, it must be that of the array.

    Raises
    ------
    BadSource
        If the array is no real matrix of this width.
    """

    def __init__(self, array: Sliceable, *, n_features: int | None) -> None:
        if len(array.shape) != 2:
            raise BadSource(f"the array has {len(array.shape)} dimensions; a matrix of rows has 2; reshape it")
        self._array, self.dtype = array, np.dtype(array.dtype)
        self.n_rows, self.n_features = array.shape
        check_width(self.n_features, n_features)
        check_real(self.dtype)
        self.size = self.n_rows * self.n_features * self.dtype.itemsize
        self.position = 0

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` counts rows from 0."""
        step = max(1, BATCH_VALUES // self.n_features)
        for first in range(0, self.n_rows, step):
            rows = np.asarray(self._array[first : first + step])
            self.position += rows.nbytes
            dropped = np.zeros(len(rows), dtype=np.bool_)
            if (large := large_integers(rows)) is not None:
                dropped = large.any(axis=1)
                reject_rows(dropped, first, rejects, reason=LARGE)
            yield sparse_rows(rows, places=np.arange(first, first + len(rows)), place="row", dropped=dropped)


class NpyReader:
    """Satisfies `storage.formats.batch.Reader` for a 2-D array in a .npy file, each row one record.

    Parameters
    ----------
    path : Path
        The file.
    n_features : int or None
        Declared number of columns; if given, it must be that of the file.
    """

    format = "npy"
    names: Sequence[str] | None = None
    scattered = False

    def __init__(self, path: Path, *, n_features: int | None) -> None:
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except (ValueError, EOFError, OverflowError):
            raise BadSource(
                "the file is no readable .npy array (cut short, corrupt, of objects or another kind); save it again"
            ) from None
        self._rows = DenseRows(array, n_features=n_features)
        self.dtype, self.n_features = self._rows.dtype, self._rows.n_features
        self.n_rows: int | None = self._rows.n_rows
        self.size = self._rows.size

    @property
    def position(self) -> int:
        """Bytes of the array read so far."""
        return self._rows.position

    def close(self) -> None:
        """Do nothing: the memory map goes with the reader."""

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` counts rows from 0."""
        return self._rows.batches(rejects)


def sparse_rows(
    rows: NDArray[Any], *, places: NDArray[np.int64], place: str, dropped: NDArray[np.bool_] | None
) -> RowBatch:
    """Keep what is not zero of some dense rows."""
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
        dropped=dropped,
    )
