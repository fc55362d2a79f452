"""Open a snapshot and read its row blocks, from any thread of any process.

A `Dataset` is what the numerical core calls a block source. It pickles as its path alone; array handles are
opened once per process.

Examples
--------
``Dataset.open(path).read(0)`` gives the first `Block`; `verify` reads them all and recomputes the content
digest.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.array_spec import ArrayConfigParams
from zarr.core.metadata import ArrayV3Metadata

from storage.content import ContentDigest
from storage.errors import Corrupt, NotFound
from storage.snapshots import Manifest

type Stored = zarr.Array[ArrayV3Metadata]

_DAMAGED = "its files were changed or lost; restore them or ingest the source again"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Whole records of a snapshot in canonical form; its arrays are read-only.

    Attributes
    ----------
    values : array of shape (nnz,), in the stored dtype
    indices : unsigned array of shape (nnz,), columns from 0, rising within a row
    row_ptr : int64 array of shape (n_rows + 1,), where each row begins in `values`
    record_ptr : int64 array of shape (n_records + 1,), where each record begins in the rows
    first_record : int, ordinal of the first record in the snapshot
    """

    values: NDArray[Any] = field(repr=False)
    indices: NDArray[np.unsignedinteger[Any]] = field(repr=False)
    row_ptr: NDArray[np.int64] = field(repr=False)
    record_ptr: NDArray[np.int64] = field(repr=False)
    first_record: int = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """An immutable snapshot on disk.

    Attributes
    ----------
    path : Path
    manifest : Manifest
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the snapshot in a folder.

        Raises
        ------
        NotFound
            If there is no such folder.
        Corrupt
            If it is not a snapshot that this version reads.
        """
        path = Path(path).absolute()
        return cls(path=path, manifest=_open_handles(path).manifest)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        """Pickle the path alone, so that no private fact travels."""
        return type(self).open, (self.path,)

    @property
    def n_features(self) -> int:
        """Declared number of columns."""
        return self.manifest.n_features

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return self.manifest.n_blocks

    @property
    def n_records(self) -> int:
        """Number of records: private under add_remove."""
        return self.manifest.n_records

    @property
    def content(self) -> str:
        """Content digest in hex: a secret of the curator."""
        return self.manifest.content_digest

    def read(self, block: int) -> Block:
        """Read one block.

        Raises
        ------
        IndexError
            If there is no such block.
        Corrupt
            If a chunk is missing, or fails its checksum, or contradicts the others.
        """
        if not 0 <= block < self.n_blocks:
            raise IndexError(f"block {block} does not exist; there are {self.n_blocks}; ask for one of them")
        handles = _open_handles(self.path)
        n_records, n_rows, nnz = handles.extents[block].tolist()
        try:
            values = _head(handles.values, block, nnz)
            indices = _head(handles.indices, block, nnz)
            row_ptr = _bounds(_head(handles.row_nnz, block, n_rows))
            record_ptr = np.arange(n_records + 1)
            if handles.record_rows is not None:
                record_ptr = _bounds(_head(handles.record_rows, block, n_records))
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise Corrupt(f"block {block} of {self.path} cannot be read; {_DAMAGED}") from error
        if row_ptr[-1] != nnz or record_ptr[-1] != n_rows:
            raise Corrupt(f"block {block} of {self.path} contradicts its extents; {_DAMAGED}")
        for array in (values, indices, row_ptr, record_ptr):
            array.flags.writeable = False
        return Block(
            values=values,
            indices=indices,
            row_ptr=row_ptr,
            record_ptr=record_ptr,
            first_record=int(handles.first_records[block]),
        )

    def verify(self) -> str:
        """Recompute the content digest from the stored blocks and return it.

        Raises
        ------
        Corrupt
            If a block cannot be read or the digest is not the manifest's.
        """
        digest = ContentDigest(n_features=self.n_features)
        for number in range(self.n_blocks):
            block = self.read(number)
            digest.update(
                values=block.values,
                indices=block.indices,
                row_nnz=np.diff(block.row_ptr),
                record_rows=np.diff(block.record_ptr),
            )
        if digest.hexdigest() != self.content:
            raise Corrupt(f"the rows in {self.path} do not have the content digest of their manifest; {_DAMAGED}")
        return self.content


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Handles:
    manifest: Manifest
    values: Stored
    indices: Stored
    row_nnz: Stored
    record_rows: Stored | None
    extents: NDArray[np.int64]
    first_records: NDArray[np.int64]


@lru_cache(maxsize=64)
def _open_handles(path: Path) -> _Handles:
    if not path.is_dir():
        raise NotFound(f"no snapshot stands at {path}; see the list of datasets")
    strict: ArrayConfigParams = {"read_missing_chunks": False}
    try:
        group = zarr.open_group(path, mode="r", zarr_format=3)
        manifest = Manifest.from_attributes(dict(group.attrs))
        arrays = {name: cast("Stored", group[name]) for name in group.array_keys()}
        extents = np.asarray(arrays["extents"].with_config(strict)[:])
        if extents.shape != (manifest.n_blocks, 3):
            raise Corrupt(f"{path} has {len(extents)} of {manifest.n_blocks} blocks; {_DAMAGED}")
        return _Handles(
            manifest=manifest,
            values=arrays["values"].with_config(strict),
            indices=arrays["indices"].with_config(strict),
            row_nnz=arrays["row_nnz"].with_config(strict),
            record_rows=arrays.get("record_rows"),
            extents=extents,
            first_records=np.cumsum(extents[:, 0]) - extents[:, 0],
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise Corrupt(f"{path} is not a readable snapshot; {_DAMAGED}") from error


def _head(array: Stored, row: int, length: int) -> NDArray[Any]:
    return np.asarray(array[row, :length])


def _bounds(lengths: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.int64]:
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds
