"""Read matrices from Zarr and HDF5: a dense array, a sparse csr group, or the ``X`` of an AnnData store.

A group is csr when it holds `indptr`, `indices` and `data` and tells its `shape` as an attribute, as AnnData
writes it. The arrays are sliced in place, so the whole row pointer is never loaded.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from storage.errors import BadSource, Invalid, StorageError
from storage.formats.batch import RowBatch
from storage.formats.csr import CsrRows
from storage.formats.dense import DenseRows
from storage.formats.rejects import Rejects

ZARR_FILES = ("zarr.json", ".zgroup", ".zarray")


class GroupReader:
    """Satisfies `storage.formats.batch.Reader` for a matrix in a Zarr store or an HDF5 file.

    Parameters
    ----------
    path : Path
        A Zarr folder, or an .h5ad file.
    format : str
        "zarr" or "h5ad".
    n_features : int or None
        Declared number of columns; if given, it must be that of the matrix.
    """

    scattered = False

    def __init__(self, path: Path, *, format: str, n_features: int | None) -> None:  # noqa: A002
        self.format = format
        self._file: Any = None
        try:
            with _one_line_errors(format):
                root = self._open(path)
                matrix = root
                if not hasattr(root, "shape") and "X" in root:
                    matrix = root["X"]
                self.names = _names(root) if matrix is not root else None
                self._rows = _rows(matrix, n_features=n_features)
        except BaseException:
            self.close()
            raise
        self.dtype: np.dtype[Any] = self._rows.dtype
        self.n_features = n_features if n_features is not None else int(_shape(matrix)[1])
        self.n_rows: int | None = int(_shape(matrix)[0])

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return int(self._rows.size)

    @property
    def position(self) -> int:
        """Bytes of the arrays read so far."""
        return self._rows.position

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` counts rows from 0.

        Raises
        ------
        BadSource
            Where an array is cut short or corrupt.
        """
        with _one_line_errors(self.format):
            yield from self._rows.batches(rejects)

    def _open(self, path: Path) -> Any:
        if self.format == "zarr":
            return zarr.open(path, mode="r")
        if find_spec("h5py") is None:
            raise Invalid("reading .h5ad needs h5py; install the extra: pip install 'dpca-pipeline[anndata]'")
        import h5py

        self._file = h5py.File(path, mode="r")
        return self._file


class _SlicedColumn:
    """One 1-D array, read from front to back."""

    def __init__(self, array: Any) -> None:
        if len(array.shape) != 1:
            raise BadSource("indptr, indices and data of a csr matrix have one dimension; save the matrix again")
        self._array = array
        self._at = 0
        self.dtype = np.dtype(array.dtype)
        self.position = 0

    def __len__(self) -> int:
        return int(self._array.shape[0])

    @property
    def size(self) -> int:
        return len(self) * int(self.dtype.itemsize)

    def take(self, count: int) -> NDArray[Any]:
        """Read the next `count` items."""
        items = np.asarray(self._array[self._at : self._at + count])
        if len(items) != count:
            raise EOFError
        self._at += count
        self.position += items.nbytes
        return items


def _rows(matrix: Any, *, n_features: int | None) -> CsrRows | DenseRows:
    if hasattr(matrix, "shape"):
        return DenseRows(matrix, n_features=n_features)
    kind = str(matrix.attrs.get("encoding-type", "csr_matrix"))
    if kind != "csr_matrix" or not {"indptr", "indices", "data"} <= set(matrix):
        raise BadSource(f"the store holds no matrix of rows but {kind!r}; save a dense array or a csr matrix as X")
    columns = (_SlicedColumn(matrix[name]) for name in ("indptr", "indices", "data"))
    return CsrRows(*columns, shape=_shape(matrix), n_features=n_features)


def _shape(matrix: Any) -> tuple[int, int]:
    shape = matrix.shape if hasattr(matrix, "shape") else matrix.attrs.get("shape", ())
    if len(shape) != 2:
        raise BadSource("the matrix does not tell its rows and columns; save it again with anndata")
    return int(shape[0]), int(shape[1])


def _names(root: Any) -> Sequence[str] | None:
    """Read the names of the variables of an AnnData store."""
    if "var" not in root or "_index" not in root["var"].attrs:
        return None
    index = root["var"][str(root["var"].attrs["_index"])]
    names = np.asarray((index if hasattr(index, "shape") else index["values"])[:])
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]


@contextmanager
def _one_line_errors(kind: str) -> Iterator[None]:
    """Turn whatever a broken store raises into one BadSource."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, TypeError, AttributeError):
        raise BadSource(
            f"this is no readable {kind} store (cut short, corrupt or another kind); save it again"
        ) from None
