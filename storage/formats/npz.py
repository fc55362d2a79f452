"""Read matrices that ``scipy.sparse.save_npz`` wrote in csr format, without loading a whole array.

The members `indptr`, `indices` and `data` of the zip archive are read side by side, one batch of rows at a
time.
"""

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import BadSource
from storage.formats.batch import RowBatch
from storage.formats.broken import reading
from storage.formats.csr import CsrRows
from storage.formats.declared import Declared
from storage.formats.files import SourceFile
from storage.formats.npy import NpyRows, read_header
from storage.formats.rejects import Rejects

_SMALL = 1 << 12  # bytes that the members `format` and `shape` may take
_DRAIN = 1 << 20
_KIND = ".npz archive"
_ARRAYS = ("indptr", "indices", "data")
_MEMBERS = {f"{name}.npy" for name in (*_ARRAYS, "format", "shape", "_is_array")}


class NpzReader:
    """A `storage.formats.batch.Reader` of a csr matrix in a .npz file, each row one record.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations; a declared number of columns must be that of the file.
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
        """Bytes of the three arrays."""
        return self._rows.size

    @property
    def position(self) -> int:
        """Bytes of the three arrays read so far."""
        return self._rows.position

    def close(self) -> None:
        """Close the file."""
        self._open.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` counts rows from 0.

        Raises
        ------
        BadSource
            Where the archive is cut short or corrupt, or its row pointers are not in order.
        """
        with reading(_KIND):
            yield from self._rows.batches(rejects)
            for column in self._columns:
                column.drain()

    def _archive(self, file: SourceFile) -> zipfile.ZipFile:
        return self._open.enter_context(zipfile.ZipFile(self._open.enter_context(file.open())))

    def _member(self, file: SourceFile, name: str) -> tuple[IO[bytes], zipfile.ZipInfo]:
        """Open one member in a stream of its own, as the members are read side by side."""
        archive = self._archive(file)
        return self._open.enter_context(_open_member(archive, name)), archive.getinfo(f"{name}.npy")


class _Column:
    """One 1-D array of the archive, read from front to back."""

    def __init__(self, stream: IO[bytes], member: zipfile.ZipInfo) -> None:
        self._stream = stream
        shape, _, dtype = read_header(stream)
        if len(shape) != 1:
            raise ValueError(f"{shape} array of {dtype}")
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
        """Read to the end, where the archive checks its checksum."""
        while raw := self._stream.read(_DRAIN):
            self.position += len(raw)


def _check_members(archive: zipfile.ZipFile) -> None:
    """Refuse arrays that would be ignored."""
    names = archive.namelist()
    for name in names:
        said = repr(name.removesuffix(".npy"))
        if name not in _MEMBERS and f"{_ARRAYS[0]}.npy" in names:
            raise BadSource(
                f"the .npz holds {said} besides a csr matrix, which would be ignored; save the matrix alone"
            )
        if names.count(name) > 1:
            raise BadSource(f"the .npz holds {said} twice; save it again with scipy.sparse.save_npz")


def _open_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    try:
        return archive.open(f"{name}.npy")
    except KeyError:
        raise BadSource(
            f"the .npz has no array {name!r}; it must be a csr matrix written by scipy.sparse.save_npz"
        ) from None


def _read_shape(archive: zipfile.ZipFile) -> tuple[int, int]:
    """Return the shape of the csr matrix; refuse other sparse formats."""
    small = {}
    for name in ("format", "shape"):
        with _open_member(archive, name) as stream:
            content = stream.read(_SMALL)
            small[name] = NpyRows(io.BytesIO(content), size=len(content)).whole()
    kind = small["format"].item()
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if kind != "csr":
        raise BadSource(f"the .npz holds a {kind!r} matrix; rows are read from csr only; convert with .tocsr()")
    shape = small["shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or min(shape.tolist()) < 0:
        raise BadSource(f"the matrix has shape {shape.tolist()!r}; it must be rows by columns; save it as 2-D")
    n_rows, n_features = shape.tolist()
    return n_rows, n_features
