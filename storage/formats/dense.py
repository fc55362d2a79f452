"""Readers of dense matrices, and of sparse CSR matrices in .npz files.

Arrays in the .npy format are read a few rows at a time from any seekable stream. The sizes in a header are checked
against the size of the file before memory is allocated.

>>> import io
>>> stream = io.BytesIO()
>>> np.save(stream, np.arange(6.0).reshape(3, 2))
>>> NpyRows(stream, size=stream.tell())[1:3].tolist()
[[2.0, 3.0], [4.0, 5.0]]

Dense matrices come from NumPy files, and from arrays in Zarr or HDF5. CSR matrices come from archives written by
``scipy.sparse.save_npz``. The members `indptr`, `indices` and `data` of an archive are read in parallel, one batch of
rows at a time, so that no whole array is in memory.
"""

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpca.errors import BadSource
from storage.formats.batch import BATCH_VALUES, Rejects, RowBatch
from storage.formats.csr import (
    LARGE,
    CsrRows,
    check_chunks,
    check_real,
    check_rows,
    check_width,
    large_integers,
    reading,
    reject_rows,
)
from storage.formats.declared import Declared
from storage.formats.files import SourceFile

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read (shape, whether the array is in column-major order, dtype) from the header of a .npy array.

    Raises
    ------
    ValueError
        If the stream does not begin with a .npy header, or the header declares an array of objects.
    """
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"the .npy version {version} is not supported")
    shape, by_columns, dtype = _HEADERS[version](stream)
    if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} cannot be read")
    return shape, by_columns, dtype


class NpyRows:
    """A .npy array in a seekable stream, read as a whole or a few rows at a time.

    Parameters
    ----------
    stream : file of bytes, at its beginning
    size : int, size of the file in bytes

    Raises
    ------
    ValueError
        If the file is not a .npy array, or is shorter than its header declares.
    BadSource
        If the file is longer than its header declares, for example because it contains two arrays.
    """

    def __init__(self, stream: BinaryIO, *, size: int) -> None:
        self._stream = stream
        stream.seek(0)
        self.shape, by_columns, self.dtype = read_header(stream)
        self._start = stream.tell()
        declared = self._start + math.prod(self.shape) * self.dtype.itemsize
        if size < declared:
            raise ValueError("the file is shorter than its header declares")
        if size > declared:
            raise BadSource(
                f"the file has {size - declared} more bytes than its header declares; save one array per file"
            )
        self.is_by_columns = by_columns and len(self.shape) > 1

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Read consecutive rows."""
        first, stop, _ = rows.indices(self.shape[0])
        count, width = max(stop - first, 0), math.prod(self.shape[1:])
        if not self.is_by_columns:
            return self._read(first * width, count * width).reshape(count, *self.shape[1:])
        found = np.empty((count, width), dtype=self.dtype)
        for column in range(width):
            found[:, column] = self._read(column * self.shape[0] + first, count)
        return found

    def whole(self) -> NDArray[Any]:
        """Read the whole array, which must be small."""
        order: Literal["C", "F"] = "F" if self.is_by_columns else "C"
        return self._read(0, math.prod(self.shape)).reshape(self.shape, order=order)

    def _read(self, first: int, count: int) -> NDArray[Any]:
        self._stream.seek(self._start + first * self.dtype.itemsize)
        raw = self._stream.read(count * self.dtype.itemsize)
        return np.frombuffer(raw, dtype=self.dtype, count=count)


_SLAB = 1 << 26  # largest number of bytes of rows read at once; large reads decompress each chunk only once


class Sliceable(Protocol):
    """Interface of a 2-D array of NumPy, Zarr or h5py, which is read by slices of rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Read consecutive rows."""


class DenseRows:
    """Reader of the rows of a dense matrix as sparse rows: zeros are left out.

    Parameters
    ----------
    array : Sliceable
        The array to read.
    stored : int
        Number of bytes in which the array is stored.
    n_features : int or None
        Number of columns that the user declared; if given, it must equal the number in the array.

    Raises
    ------
    BadSource
        If the array is not a 2-D array of real numbers with this number of columns.
    """

    def __init__(self, array: Sliceable, *, stored: int, n_features: int | None) -> None:
        if len(array.shape) != 2:
            raise BadSource(f"the array has {len(array.shape)} dimensions; a matrix of rows has 2; reshape the array")
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
        """Yield the rows in order; `places` holds row numbers from 0."""
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
    """Reader of a 2-D array in a .npy file, where each row is one record; a `storage.formats.batch.Reader`.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations. A declared number of columns must equal the number in the file.

    Raises
    ------
    BadSource
        If the file does not contain a 2-D array of real numbers. Also if the array is stored in column-major order in
        an object store, because each read of rows would need a request for each column.
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
                raise BadSource(
                    "the array is in column-major order; save it in row-major (C) order to read it from an object store"
                )
            self._rows = DenseRows(array, stored=size, n_features=declared.width)
        except BaseException:
            self.close()
            raise
        self.dtype, self.n_features = self._rows.dtype, self._rows.n_features
        self.n_rows: int | None = self._rows.n_rows
        self.size = self._rows.size

    @property
    def position(self) -> int:
        """Number of bytes of the array that were read so far."""
        return self._rows.position

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` holds row numbers from 0."""
        with reading(".npy array"):
            yield from self._rows.batches(rejects)


def sparse_rows(
    rows: NDArray[Any], *, places: NDArray[np.int64], place: str, rejected: NDArray[np.bool_] | None
) -> RowBatch:
    """Return a batch with the nonzero values of dense rows."""
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


_SMALL = 1 << 12  # largest number of bytes read of the archive members `format` and `shape`
_DRAIN = 1 << 20
_KIND = ".npz archive"
_ARRAYS = ("indptr", "indices", "data")
_MEMBERS = {f"{name}.npy" for name in (*_ARRAYS, "format", "shape", "_is_array")}


class NpzReader:
    """Reader of a CSR matrix in a .npz file, where each row is one record; a `storage.formats.batch.Reader`.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations. A declared number of columns must equal the number in the file.
    """

    format = "npz"
    names: Sequence[str] | None = None
    scattered = False
    repeats = True

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        self._open = ExitStack()
        try:
            with reading(_KIND):
                archive = self._archive(file)
                _check_members(archive)
                shape = _read_shape(archive)
                self._columns = [_Column(*self._member(file, name)) for name in _ARRAYS]
            self._rows = CsrRows(*self._columns, shape=shape, stored=file.version()[0], n_features=declared.width)
        except BaseException:
            self._open.close()
            raise
        self.n_rows: int | None
        self.n_rows, self.n_features = shape
        self.dtype: np.dtype[Any] = self._rows.dtype

    @property
    def size(self) -> int:
        """Total number of bytes of the three arrays."""
        return self._rows.size

    @property
    def position(self) -> int:
        """Number of bytes of the three arrays that were read so far."""
        return self._rows.position

    def close(self) -> None:
        """Close the file."""
        self._open.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` holds row numbers from 0.

        Raises
        ------
        BadSource
            If the archive is cut short or corrupt, or if row pointers of the matrix decrease.
        """
        with reading(_KIND):
            yield from self._rows.batches(rejects)
            for column in self._columns:
                column.drain()

    def _archive(self, file: SourceFile) -> zipfile.ZipFile:
        return self._open.enter_context(zipfile.ZipFile(self._open.enter_context(file.open())))

    def _member(self, file: SourceFile, name: str) -> tuple[IO[bytes], zipfile.ZipInfo]:
        """Open one array of the archive as a separate stream, because the arrays are read in parallel."""
        archive = self._archive(file)
        return self._open.enter_context(_open_member(archive, name)), archive.getinfo(f"{name}.npy")


class _Column:
    """A 1-D array in an .npz archive, read once from front to back."""

    def __init__(self, stream: IO[bytes], member: zipfile.ZipInfo) -> None:
        self._stream = stream
        shape, _, dtype = read_header(stream)
        if len(shape) != 1:
            raise ValueError(f"the array has shape {shape}, but one dimension is required")
        self.dtype: np.dtype[Any] = dtype
        self.position = 0
        self._length = shape[0]
        if member.file_size != self._stream.tell() + self.size:
            raise EOFError

    def __len__(self) -> int:
        return int(self._length)

    @property
    def size(self) -> int:
        return int(self._length * self.dtype.itemsize)

    def take(self, count: int) -> NDArray[Any]:
        """Read the next `count` items."""
        raw = self._stream.read(count * self.dtype.itemsize)
        self.position += len(raw)
        if len(raw) != count * self.dtype.itemsize:
            raise EOFError
        return np.frombuffer(raw, dtype=self.dtype)

    def drain(self) -> None:
        """Read the rest of the array's file in the archive, because its checksum is verified only at the end."""
        while raw := self._stream.read(_DRAIN):
            self.position += len(raw)


def _check_members(archive: zipfile.ZipFile) -> None:
    """Refuse an archive with arrays that do not belong to the CSR matrix, because these would be ignored."""
    names = archive.namelist()
    for name in names:
        text = repr(name.removesuffix(".npy"))
        if name not in _MEMBERS and f"{_ARRAYS[0]}.npy" in names:
            raise BadSource(
                f"the .npz has {text} in addition to a csr matrix, and that array would be ignored; save only the "
                "matrix"
            )
        if names.count(name) > 1:
            raise BadSource(f"the .npz has {text} twice; save the matrix again with scipy.sparse.save_npz")


def _open_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    try:
        return archive.open(f"{name}.npy")
    except KeyError:
        raise BadSource(
            f"the .npz has no array {name!r}; it must be a csr matrix written by scipy.sparse.save_npz"
        ) from None


def _read_shape(archive: zipfile.ZipFile) -> tuple[int, int]:
    """Return the shape of the CSR matrix in an archive; refuse other sparse formats."""
    small = {}
    for name in ("format", "shape"):
        with _open_member(archive, name) as stream:
            content = stream.read(_SMALL)
            small[name] = NpyRows(io.BytesIO(content), size=len(content)).whole()
    kind = small["format"].item()
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if kind != "csr":
        raise BadSource(
            f"the .npz holds a {kind!r} matrix; rows are read only from csr; convert the matrix with .tocsr()"
        )
    shape = small["shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or min(shape.tolist()) < 0:
        raise BadSource(f"the matrix has shape {shape.tolist()!r}; it must be (rows, columns); save the matrix as 2-D")
    n_rows, n_features = shape.tolist()
    return n_rows, n_features
