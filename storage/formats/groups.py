"""Reader of matrices in Zarr and HDF5 stores.

The matrix of a store is a dense array, a group with a sparse CSR matrix, the ``X`` of an AnnData store, or the matrix
of a 10x file (10x Genomics). A group contains a CSR matrix if it has the arrays `indptr`, `indices` and `data`, and the
attribute `shape`, as AnnData writes it. Slices of the arrays are read when needed, so no whole array is in memory.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray

from dpca.errors import BadSource
from storage.formats.batch import Rejects, RowBatch
from storage.formats.csr import CsrRows, check_chunks, reading
from storage.formats.declared import Declared
from storage.formats.dense import DenseRows
from storage.formats.files import SourceFile
from storage.formats.hdf5 import CSR, as_texts, find_index, find_matrix, open_hdf5, read_names

_ANNDATA = frozenset(
    ("X", "obs", "var", "obsm", "varm", "obsp", "varp", "layers", "uns", "raw", "raw.X", "raw.var", "raw.varm")
)
_PACKED = {"scale_factor": 1, "add_offset": 0, "_FillValue": np.nan, "missing_value": np.nan}


class GroupReader:
    """Reader of a matrix in a Zarr store or an HDF5 file; a `storage.formats.batch.Reader`.

    Parameters
    ----------
    file : SourceFile
        A Zarr store, or an .h5ad file or 10x .h5 file.
    format : str
        "zarr" or "h5ad".
    n_features : int or None
        Declared number of columns; if given, it must equal the number in the matrix.
    """

    scattered = False

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        n_features = declared.width
        self.format = declared.format or "zarr"
        self._opened = ExitStack()
        try:
            with warnings.catch_warnings(action="ignore"), reading(f"{self.format} store"):
                root = self._open(file)
                matrix, self._frames = find_matrix(root)
                _check_attributes(matrix)
                _check_members(self._frames, matrix)
                self._rows = _rows(matrix, n_features=n_features)
                self._check_names(*_shape(matrix))
        except BaseException:
            self.close()
            raise
        self.dtype: np.dtype[Any] = self._rows.dtype
        self.repeats = isinstance(self._rows, CsrRows)
        self.n_features = n_features if n_features is not None else int(_shape(matrix)[1])
        self.n_rows: int | None = int(_shape(matrix)[0])

    @property
    def size(self) -> int:
        """Total number of bytes of the matrix's arrays."""
        return int(self._rows.size)

    @property
    def position(self) -> int:
        """Number of bytes of the matrix's arrays that were read so far."""
        return self._rows.position

    def row_names(self) -> Sequence[str] | None:
        """Read the names of the rows of an AnnData store; return None if the rows have no names."""
        with warnings.catch_warnings(action="ignore"), reading(f"{self.format} store"):
            return read_names(self._frames, "obs")

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows in order; `places` holds row numbers from 0.

        Raises
        ------
        BadSource
            If an array is cut short or corrupt.
        """
        with reading(f"{self.format} store"):
            names, at = find_index(self._frames, "obs"), 0
            for batch in self._rows.batches(rejects):
                stop = at + len(batch.places)
                yield (
                    batch
                    if names is None
                    else replace(batch, row_names=pa.array(as_texts(names[at:stop]), pa.string()))
                )
                at = stop

    def _check_names(self, n_rows: int, width: int) -> None:
        """Read the column names; refuse names of columns or rows whose number differs from the shape of the matrix."""
        for frame, length, noun in (("var", width, "columns"), ("obs", n_rows, "rows")):
            index = find_index(self._frames, frame)
            if index is not None and index.shape[0] != length:
                raise BadSource(
                    f"there are {index.shape[0]} names in {frame}, but {length} {noun} in X; save the store again"
                )
        self.names: Sequence[str] | None = read_names(self._frames, "var")

    def _open(self, file: SourceFile) -> Any:
        if self.format == "zarr":
            return zarr.open(file.zarr_store(), mode="r")
        return open_hdf5(file, self._opened)


class _SlicedColumn:
    """A 1-D array of Zarr or HDF5, read once from front to back."""

    def __init__(self, array: Any) -> None:
        if len(array.shape) != 1:
            raise BadSource("indptr, indices and data of a csr matrix must have one dimension; save the matrix again")
        check_chunks(array.chunks, np.dtype(array.dtype))
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


def _check_attributes(matrix: Any) -> None:
    """Refuse a matrix whose attributes contradict its arrays, or change the meaning of its values."""
    attributes = dict(matrix.attrs)
    if hasattr(matrix, "shape"):
        encoding, given = str(attributes.get("encoding-type", "array")), attributes.get("shape", matrix.shape)
        if encoding != "array":
            raise BadSource(f"X is a dense array, but its attribute `encoding-type` is {encoding!r}; save it again")
        if tuple(np.ravel(given)) != tuple(matrix.shape):
            raise BadSource(
                f"X has shape {tuple(matrix.shape)}, but its attribute `shape` is {tuple(np.ravel(given).tolist())}; "
                "save it again"
            )
        _check_packing(attributes, "X")
        return
    for name in set(CSR) & set(matrix.keys()):
        _check_packing(dict(matrix[name].attrs), f"{name} of X")
    if "encoding-type" not in attributes and len(set(_shape(matrix))) == 1:
        raise BadSource(
            "a square matrix needs the attribute encoding-type, because it may be csr or csc; save it with anndata"
        )
    if old := sorted(name for name in attributes if name.startswith("h5sparse")):
        raise BadSource(f"X has the attribute {old[0]} of an older layout next to encoding-type; save it again")


def _check_packing(attributes: Mapping[str, Any], noun: str) -> None:
    for name, neutral in _PACKED.items():
        if name in attributes and not np.array_equal(np.ravel(attributes[name]), [neutral], equal_nan=True):
            raise BadSource(
                f"{noun} has the attribute {name}, which the reader would not apply to the values; apply it, and save "
                "the values again"
            )


def _check_members(frames: Any, matrix: Any) -> None:
    """Refuse a store with members that would be ignored, except members that AnnData defines for other purposes."""
    extra = set(frames.keys()) - _ANNDATA
    if not hasattr(matrix, "shape") and set(CSR) <= set(matrix.keys()):
        extra |= set(matrix.keys()) - set(CSR)
    if extra:
        raise BadSource(f"the store has {min(extra)!r} in addition to X, and that would be ignored; save X without it")


def _rows(matrix: Any, *, n_features: int | None) -> CsrRows | DenseRows:
    if hasattr(matrix, "shape"):
        return DenseRows(matrix, stored=_stored(matrix), n_features=n_features)
    kind = str(matrix.attrs.get("encoding-type", "csr_matrix"))
    if kind != "csr_matrix" or not all(name in matrix for name in CSR):
        raise BadSource(f"the store has {kind!r} instead of a matrix of rows; save a dense array or a csr matrix as X")
    arrays = [matrix[name] for name in CSR]
    columns, stored = map(_SlicedColumn, arrays), sum(map(_stored, arrays))
    return CsrRows(*columns, shape=_shape(matrix), stored=stored, n_features=n_features)


def _stored(array: Any) -> int:
    """Return the number of bytes that store an array."""
    return int(array.nbytes_stored() if isinstance(array, zarr.Array) else array.id.get_storage_size())


def _shape(matrix: Any) -> tuple[int, int]:
    shape = matrix.shape if hasattr(matrix, "shape") else matrix.attrs.get("shape", ())
    if len(shape) != 2 or any(int(side) != side for side in shape):
        raise BadSource(
            "the matrix has no attribute `shape` with its numbers of rows and columns; save it again with anndata"
        )
    return int(shape[0]), int(shape[1])
