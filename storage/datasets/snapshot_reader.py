"""Reader of the row blocks of one snapshot, or of several nightly snapshots as one source.

A `Dataset` provides the row blocks of a snapshot to the numerical core, from a local folder or an object store. Any
thread of any process may read blocks. A pickled `Dataset` contains only the snapshot's address. Array handles are
opened once per process.

`NightRows` chains the snapshots of several nights, for streams (releases that are repeated at every tick) over rows
without ids of individuals. Individuals cannot be recognized from night to night, so each row of each night counts as a
separate individual. The answer of tick t covers all rows so far: the snapshots assigned to ticks 1 to t. Each row has
the age of its snapshot.

Examples
--------
``Dataset.open(address).read(0)`` returns the first `Block`; `verify` reads all blocks and recomputes the content
digest.

::

    source = NightRows.of([(catalog.open(entry), entry.number) for entry in bound])
    source.read(0).first_seen                  # the ingest number of the first snapshot
"""

import errno
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from dpca.backends.base import Place
from dpca.backends.local import open_place
from dpca.errors import Conflict, Corrupt, Invalid, NotFound, StorageError, Unavailable
from storage.datasets.content_digest import MARKER, ContentDigest, Manifest

if TYPE_CHECKING:
    import zarr
    from zarr.core.array_spec import ArrayConfigParams
    from zarr.core.metadata import ArrayV3Metadata

import struct
from collections.abc import Mapping

import google_crc32c

_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedArray:
    """Reader of a 2-D Zarr array with one row per block.

    Rows are padded at the end, and each chunk is part of a single row.

    Attributes
    ----------
    place : Place, the store that contains the Zarr group of the array
    name : str, the name of the array in the group
    dtype : numpy dtype
    width : int, the number of items in a chunk
    """

    place: Place
    name: str
    dtype: np.dtype[Any]
    width: int

    def head(self, row: int, length: int) -> tuple[NDArray[Any], bytes]:
        """Return the first `length` items of a row, without the padding.

        Also return the checksums of the chunks that contain these items, joined.

        Raises
        ------
        OSError
            If a chunk is missing or cannot be read.
        ValueError, RuntimeError
            If a chunk was changed after it was written.
        """
        chunks = [self._chunk(row, column) for column in range(-(-length // self.width))]
        parts = [items for items, _ in chunks]
        items = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])
        return items[:length], b"".join(checksum for _, checksum in chunks)

    def _chunk(self, row: int, column: int) -> tuple[NDArray[Any], bytes]:
        # imported here, because processes that read no rows do not need numcodecs
        from numcodecs import blosc  # type: ignore[import-untyped]

        payload = np.frombuffer(self.place.read(f"{self.name}/c/{row}/{column}").payload, dtype=np.uint8)
        packed, checksum = payload[: -_CHECKSUM.size], payload[-_CHECKSUM.size :].tobytes()
        if _CHECKSUM.pack(google_crc32c.value(packed)) != checksum:
            raise ValueError("the content of a chunk does not match its checksum")
        items: NDArray[Any] = np.frombuffer(blosc.decompress(packed), dtype=self.dtype)
        if len(items) != self.width:
            raise ValueError("the length of a chunk differs from the chunk length of its array")
        return items, checksum


def checksum_of(chunks: Mapping[str, bytes]) -> int:
    """Return one checksum for a block, computed from the checksums of its chunks in each array.

    Arrays without a chunk in this block are left out. A chunk's own checksum does not cover the position of the chunk
    in the dataset. The checksum of the block does: it is stored with the sizes of the block, and reveals a lost chunk,
    an outdated chunk, or a chunk from another block.
    """
    joined = b"".join(name.encode() + b"\0" + chunks[name] for name in sorted(chunks) if chunks[name])
    return int(google_crc32c.value(joined))


type Stored = zarr.Array[ArrayV3Metadata]

_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_DAMAGED = "its files were changed or lost; restore them or ingest the source again"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """One block of a snapshot: whole records in canonical form, in read-only arrays.

    Attributes
    ----------
    values : array of shape (nnz,), the stored values of all rows, in the stored dtype
    indices : unsigned array of shape (nnz,), the column of each value from 0, increasing within a row
    row_ptr : int64 array of shape (n_rows + 1,), where each row begins in `values`
    record_ptr : int64 array of shape (n_records + 1,), the first row of each record
    first_record : int, the number in the snapshot of the block's first record, from 0
    rejected : bool array of shape (n_records,), true for a record that was emptied because it had a bad row
    density : float or None, the share of entries that are stored, as declared by the user; public, since it is not
        counted
    first_seen : int or None, the number of the ingest in which the ids of the block's individuals first appeared, the
        same for all records; None if it is unknown, for example without ids
    """

    values: NDArray[Any] = field(repr=False)
    indices: NDArray[np.unsignedinteger[Any]] = field(repr=False)
    row_ptr: NDArray[np.int64] = field(repr=False)
    record_ptr: NDArray[np.int64] = field(repr=False)
    first_record: int = field(repr=False)
    rejected: NDArray[np.bool_] = field(repr=False)
    density: float | None = field(default=None, repr=False)
    first_seen: int | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """An immutable snapshot of a dataset, opened for reading.

    Attributes
    ----------
    address : str, the path of a folder, or ``s3://bucket/...``
    manifest : Manifest
    """

    address: str
    manifest: Manifest

    @classmethod
    def open(cls, address: str | Path) -> Self:
        """Open the snapshot in a folder, or below ``s3://bucket/...``.

        Raises
        ------
        NotFound
            If there is no such snapshot.
        Corrupt
            If the files are not a snapshot that this version of dpca can read.
        Unavailable
            If the object store cannot be used.
        """
        address = open_place(address).address
        return cls(address=address, manifest=_open_handles(address).manifest)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Pickle only the address, so that no private fact and no credential is transferred."""
        return type(self).open, (self.address,)

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
        """Number of records; private if neighboring datasets differ by adding or removing a record (add_remove)."""
        return self.manifest.n_records

    @property
    def extents(self) -> NDArray[np.int64]:
        """Numbers of records, rows and stored values of each block, an array of shape (n_blocks, 3); private."""
        return _open_handles(self.address).extents[:, :3]

    @property
    def content(self) -> str:
        """Content digest in hex; private, because it could confirm a guess of all rows."""
        return self.manifest.content_digest

    def read(self, block: int) -> Block:
        """Read one block.

        Raises
        ------
        IndexError
            If the block number is out of range.
        Corrupt
            If a chunk is missing, fails its checksum, or was written for another block or at another time.
        Unavailable
            If the object store cannot be used.
        """
        if not 0 <= block < self.n_blocks:
            raise IndexError(f"block {block} does not exist; there are {self.n_blocks} blocks; request one of them")
        handles = _open_handles(self.address)
        n_records, n_rows, nnz, checksum, _ = handles.extents[block].tolist()
        chunks: dict[str, bytes] = {}

        def head(array: PaddedArray, length: int) -> NDArray[Any]:
            items, chunks[array.name] = array.head(block, length)
            return items

        with _reading(handles.place, f"block {block} of {self.address} cannot be read"):
            values, indices = head(handles.values, nnz), head(handles.indices, nnz)
            row_ptr = _bounds(head(handles.row_nnz, n_rows))
            record_ptr = np.arange(n_records + 1)
            if handles.record_rows is not None:
                with suppress(FileNotFoundError):  # a missing chunk means that each record of this block has one row
                    record_ptr = _bounds(head(handles.record_rows, n_records))
            rejected = np.zeros(n_records, dtype=np.bool_)
            if handles.rejected is not None:
                with suppress(FileNotFoundError):  # a missing chunk means that no record of this block is rejected
                    rejected = head(handles.rejected, n_records) != 0
        if (int(row_ptr[-1]), int(record_ptr[-1]), checksum_of(chunks)) != (nnz, n_rows, checksum):
            raise Corrupt(f"block {block} of {self.address} does not match the recorded sizes or checksum; {_DAMAGED}")
        for array in (values, indices, row_ptr, record_ptr, rejected):
            array.flags.writeable = False
        return Block(
            values=values,
            indices=indices,
            row_ptr=row_ptr,
            record_ptr=record_ptr,
            first_record=int(handles.first_records[block]),
            rejected=rejected,
            density=self.manifest.density,
            first_seen=None if handles.first_seen is None else int(handles.first_seen[block]),
        )

    def owners(self, block: int) -> NDArray[np.uint64] | None:
        """Return the keyed hash of each record's id in a block, as an array of shape (n_records, 2).

        Return None if the records have no ids.

        Raises
        ------
        Corrupt, Unavailable
            If the block cannot be read; see `read`.
        """
        handles = _open_handles(self.address)
        if self.manifest.owners is None or handles.owners is None:
            return None
        n_records = int(handles.extents[block, 0])
        found, chunks = np.zeros(2 * n_records, np.uint64), dict[str, bytes]()
        failure = f"the hashed ids in block {block} of {self.address} cannot be read"
        # a missing chunk means that no record of this block has an id
        with _reading(handles.place, failure), suppress(FileNotFoundError):
            found, chunks["owners"] = handles.owners.head(block, 2 * n_records)
        if checksum_of(chunks) != handles.extents[block, 4]:
            raise Corrupt(f"the hashed ids in block {block} of {self.address} do not match their checksum; {_DAMAGED}")
        return found.reshape(-1, 2)

    def feature_names(self) -> tuple[str, ...] | None:
        """Return the names of the columns, or None if none were declared.

        Raises
        ------
        Corrupt
            If the stored names differ from the ingested names.
        """
        text = self._declared_text("feature_names", self.manifest.feature_names)
        return None if text is None else tuple(text.split("\n"))

    def encoder(self) -> dict[str, Any] | None:
        """Return the declared schema by which the raw rows were encoded, as plain JSON values.

        Return None if the rows were ingested without a schema.

        Raises
        ------
        Corrupt
            If the stored schema differs from the declared schema.
        """
        text = self._declared_text("encoder", self.manifest.encoder)
        return None if text is None else dict(json.loads(text))

    def scale(self) -> NDArray[np.float64] | None:
        """Return the public factors by which the columns were multiplied, or None if no factors were declared.

        Raises
        ------
        Corrupt
            If the stored factors differ from the declared factors.
        """
        if self.manifest.scale is None:
            return None
        return self._declared("scale", np.dtype(np.float64), self.manifest.scale)

    def verify(self) -> str:
        """Recompute the content digest from the stored blocks and return it.

        The declared arrays (feature names, scale and schema) are checked too.

        Raises
        ------
        Corrupt
            If a block cannot be read, or the digest differs from the manifest's digest.
        """
        digest = ContentDigest(n_features=self.n_features)
        for number in range(self.n_blocks):
            block = self.read(number)
            digest.update(
                values=block.values,
                indices=block.indices,
                row_nnz=np.diff(block.row_ptr),
                record_rows=np.diff(block.record_ptr),
                rejected=block.rejected,
            )
        if digest.hexdigest() != self.content:
            raise Corrupt(f"the rows in {self.address} do not match the content digest of their manifest; {_DAMAGED}")
        self.feature_names()
        self.scale()
        self.encoder()
        return self.content

    def _declared_text(self, name: str, digest: str | None) -> str | None:
        """Read declared text, such as feature names, from its array; return None if none was declared."""
        return None if digest is None else self._declared(name, np.dtype(np.uint8), digest).tobytes().decode()

    def _declared(self, name: str, dtype: np.dtype[Any], digest: str) -> NDArray[Any]:
        """Read a declared array, such as the scale, which is stored next to the rows."""
        import zarr  # imported here, because processes that read no rows do not need Zarr

        place = _open_handles(self.address).place
        with _reading(place, f"{name} of {self.address} cannot be read"):
            array = cast("Stored", zarr.open_group(place.zarr_store(), mode="r", zarr_format=3)[name])
            return _checked(array, dtype, digest, where=f"{name} in {self.address}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Handles:
    place: Place
    manifest: Manifest
    values: PaddedArray
    indices: PaddedArray
    row_nnz: PaddedArray
    record_rows: PaddedArray | None
    rejected: PaddedArray | None
    owners: PaddedArray | None
    extents: NDArray[np.int64]
    first_records: NDArray[np.int64]
    first_seen: NDArray[np.int64] | None


def read_manifest(address: str) -> Manifest:
    """Read the manifest of the snapshot at an address, without arrays; raises the errors of `Dataset.open`."""
    place = open_place(address)
    if not place.holds("", marker=MARKER):
        raise NotFound(f"there is no snapshot at {address}; see `dpca dataset list`")
    with _reading(place, f"{address} is not a readable snapshot"):
        return Manifest.from_attributes(json.loads(place.read(MARKER).payload)["attributes"])


@lru_cache(maxsize=64)
def _open_handles(address: str) -> _Handles:
    import zarr  # imported here, because processes that read no rows do not need Zarr

    place, manifest = open_place(address), read_manifest(address)
    strict: ArrayConfigParams = {"read_missing_chunks": False}
    with _reading(place, f"{address} is not a readable snapshot"):
        group = zarr.open_group(place.zarr_store(), mode="r", zarr_format=3)
        arrays = {name: cast("Stored", group[name]) for name in group.array_keys()}
        extents = np.asarray(arrays["extents"].with_config(strict)[:])
        sizes = manifest.n_records, manifest.n_rows, manifest.nnz
        if extents.shape != (manifest.n_blocks, 5) or (*extents[:, :3].sum(axis=0),) != sizes:
            raise Corrupt(
                f"the sizes of the {manifest.n_blocks} blocks of {address} do not match the manifest; {_DAMAGED}"
            )
        if str(arrays["values"].dtype) != manifest.dtype:
            raise Corrupt(f"the values of {address} are not of type {manifest.dtype}; {_DAMAGED}")
        extents.flags.writeable = False
        first_seen = None
        if manifest.first_seen is not None:
            stored = arrays["first_seen"].with_config(strict)
            first_seen = _checked(stored, np.dtype(np.int64), manifest.first_seen, where=f"first_seen in {address}")
            if first_seen.shape != (manifest.n_blocks,):
                raise Corrupt(f"first_seen in {address} does not have one number for each block; {_DAMAGED}")

        def padded(name: str) -> PaddedArray:
            array = arrays[name]
            return PaddedArray(place=place, name=name, dtype=np.dtype(array.dtype), width=array.chunks[1])

        return _Handles(
            place=place,
            manifest=manifest,
            values=padded("values"),
            indices=padded("indices"),
            row_nnz=padded("row_nnz"),
            record_rows=padded("record_rows") if "record_rows" in arrays else None,
            rejected=padded("rejected") if "rejected" in arrays else None,
            owners=padded("owners") if "owners" in arrays else None,
            extents=extents,
            first_records=np.cumsum(extents[:, 0]) - extents[:, 0],
            first_seen=first_seen,
        )


def _checked(array: Stored, dtype: np.dtype[Any], digest: str, *, where: str) -> NDArray[Any]:
    """Read a whole array, and check that its SHA-256 equals `digest` from the manifest."""
    items = np.asarray(array[:], dtype=dtype)
    if hashlib.sha256(items.tobytes()).hexdigest() != digest:
        raise Corrupt(f"{where} does not match the manifest; {_DAMAGED}")
    return items


@contextmanager
def _reading(place: Place, failure: str) -> Iterator[None]:
    """Convert errors while reading: raise Corrupt if files were changed or lost, and Unavailable if the store fails."""
    with place.reaching():
        try:
            yield
        except StorageError:
            raise
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            if isinstance(error, OSError) and error.errno in _SHORT:
                raise Unavailable(
                    f"{failure} ({error.strerror}); close other programs, or raise the limit of open files or memory"
                ) from error
            raise Corrupt(f"{failure}; {_DAMAGED}") from error


def _bounds(lengths: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.int64]:
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


_LABEL = b"dpca night rows 1\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class NightRows:
    """Several snapshots as one source of row blocks, for a stream; pickled as their addresses and ingest numbers.

    Attributes
    ----------
    nights : tuple of (Dataset, int or None), the snapshots without repetition, each with the number of its ingest
    """

    nights: tuple[tuple[Dataset, int | None], ...]

    @classmethod
    def of(cls, bound: Sequence[tuple[Dataset, int | None]]) -> Self:
        """Chain the snapshots that are assigned to the ticks (versions) of a stream, in the order of the ticks.

        A snapshot assigned to several ticks is read only once, with the age of the first of these ticks, because its
        rows arrived only once.

        Raises
        ------
        Invalid
            If no snapshot is given, or the snapshots have different numbers of columns.
        Conflict
            If an ingest number is lower than the preceding ingest number.
        """
        nights = tuple({dataset.manifest.snapshot: (dataset, number) for dataset, number in bound}.values())
        if len({dataset.n_features for dataset, _ in nights}) != 1:
            raise Invalid(
                "a stream needs at least one snapshot, and all snapshots must have the same columns; give such "
                "snapshots"
            )
        numbers = [-1 if number is None else number for _, number in nights]
        if numbers != sorted(numbers):
            raise Conflict(
                "the ingest numbers of a stream's snapshots never decrease from one version to the next; use the "
                "newest snapshot"
            )
        return cls(nights=nights)

    @property
    def n_features(self) -> int:
        """Declared number of columns."""
        return self.nights[0][0].n_features

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return sum(dataset.n_blocks for dataset, _ in self.nights)

    @property
    def n_records(self) -> int:
        """Number of rows of all snapshots; private if neighboring datasets differ by adding or removing a row."""
        return sum(dataset.n_records for dataset, _ in self.nights)

    @property
    def extents(self) -> NDArray[np.int64]:
        """Numbers of records, rows and stored values of each block, an array of shape (n_blocks, 3); private."""
        return np.concatenate([dataset.extents for dataset, _ in self.nights])

    @property
    def content(self) -> str:
        """Digest of the ingest numbers and contents of all nightly snapshots, in hex; private."""
        digest = hashlib.sha256(_LABEL)
        for dataset, number in self.nights:
            digest.update(f"{number} {dataset.content}\n".encode())
        return digest.hexdigest()

    def read(self, block: int) -> Block:
        """Read one of the blocks of all snapshots; records are numbered from the first row of the first snapshot.

        Raises
        ------
        IndexError
            If the block number is out of range.
        Corrupt, Unavailable
            If the block cannot be read; see `Dataset.read`.
        """
        if not 0 <= block < self.n_blocks:
            raise IndexError(f"block {block} does not exist; there are {self.n_blocks} blocks; request one of them")
        before = 0
        for dataset, number in self.nights:
            if block < dataset.n_blocks:
                found = dataset.read(block)
                return replace(found, first_record=before + found.first_record, first_seen=number)
            block -= dataset.n_blocks
            before += dataset.n_records
        raise AssertionError("every block below n_blocks belongs to a night")
