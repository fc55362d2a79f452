"""Writer of snapshots: row blocks and a manifest in a Zarr v3 group.

Any Zarr reader can open the group. In each 2-D array, a block of records is one row, padded at the end, and usually one
chunk. M and R are the padded lengths, which fit the largest number of values, and of rows or records, of any block:

* ``values (n_blocks, M)`` and ``indices (n_blocks, M)``: the stored values of the block's rows, and the columns of
  these values;
* ``row_nnz (n_blocks, R)``: the number of stored values of each row;
* ``record_rows (n_blocks, R)``: the number of rows of each record; absent when every record is one row;
* ``rejected (n_blocks, R)``: 1 for each record that was emptied because it had a bad row; absent without such records;
* ``owners (n_blocks, 2 R)``: a keyed hash of the id of each record, in two 64-bit words; absent without ids;
* ``feature_names``: UTF-8 text, one name per line; ``scale``: float64 factors of the columns; ``encoder``: the schema
  of the raw table as JSON. Each of the three arrays is present only if it was declared;
* ``first_seen (n_blocks)``: for each block, the number of the ingest in which the ids of the block's individuals first
  appeared; absent if it is unknown;
* ``extents (n_blocks, 5)``: the numbers of records, rows and stored values of each block, which show where the padding
  begins, then two checksums. The first covers the checksums of the block's chunks, so that a chunk from another block
  is detected. The second does the same for the chunks of ``owners``.

A record larger than a block gets a separate block, which spans several chunks. Each chunk ends with a CRC-32C
checksum.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import Blosc  # type: ignore[import-untyped]
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec

from dpca.backends.local import LocalPlace
from dpca.errors import Conflict, Invalid
from storage.datasets.content_digest import ContentDigest, Manifest
from storage.datasets.snapshot_reader import PaddedArray, checksum_of
from storage.datasets.staging import Extent
from storage.formats.batch import RowBatch

COMPRESSORS = (BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec())
"""Zarr codecs of each array: a chunk is compressed with Blosc, followed by a CRC-32C checksum."""


_PACKING = Blosc(cname="lz4", clevel=1, shuffle=Blosc.SHUFFLE)


def write_chunk(array: Path, *, row: int, column: int, items: NDArray[Any]) -> bytes:
    """Write one chunk of a Zarr array in which each chunk is part of a single row, and return the checksum.

    The write is not atomic: a concurrent reader of the array may see a part of the chunk.

    Parameters
    ----------
    array : Path
        The folder of the array.
    row, column : int
        Position of the chunk, counted in chunks.
    items : array of shape (width,), little-endian

    Raises
    ------
    OSError
        If the disk is full or cannot be used.
    """
    folder = array / "c" / str(row)
    folder.mkdir(parents=True, exist_ok=True)
    packed = _PACKING.encode(items)
    checksum = struct.pack("<I", google_crc32c.value(packed))
    with (folder / str(column)).open("wb") as file:
        file.write(packed)
        file.write(checksum)
    return checksum


BLOCK_NNZ = 1 << 20
BLOCK_ROWS = 1 << 18
MAX_BLOCK_NNZ = 1 << 27  # with at most this many values, a float64 chunk stays below 2 GiB, the limit of Blosc

_DECLARED_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sizes and digest of all rows that a `SnapshotWriter` has written."""

    n_records: int = field(repr=False)
    n_rows: int = field(repr=False)
    nnz: int = field(repr=False)
    n_blocks: int = field(repr=False)
    content_digest: str = field(repr=False)


class SnapshotWriter:
    """Writer that divides batches of canonical rows into blocks, and writes each block when it is full.

    Memory is bounded by one block.

    Parameters
    ----------
    folder : Path
        The folder to write the Zarr group to. It must not exist yet, unless `written` is given. The caller publishes
        the finished folder.
    n_features : int
        Declared number of columns.
    dtype : numpy dtype
        Type of the stored values.
    block_nnz : int
        A block is written before it would exceed this many stored values. A number below `n_features` is raised to the
        smaller of `n_features` and the default, so that a dense row fits.
    written : sequence of Extent
        Extents (sizes and checksums) of the blocks that a killed writer left in the folder. The caller must append all
        records again from the start. Records that are in these blocks are compared with them, not written again.
    on_block : callable or None
        Called with the extent (sizes and checksums) of each block once the block is written.

    Guarantees
    ----------
    Records keep their order and are never split between blocks. The block boundaries depend only on the records, their
    first-seen numbers and `block_nnz`. They do not depend on the division into batches.
    """

    def __init__(
        self,
        folder: Path,
        *,
        n_features: int,
        dtype: np.dtype[Any],
        block_nnz: int = BLOCK_NNZ,
        written: Sequence[Extent] = (),
        on_block: Callable[[Extent], None] | None = None,
    ) -> None:
        self._block_nnz = max(check_block_nnz(block_nnz), min(n_features, BLOCK_NNZ))
        self._group = (
            zarr.open_group(folder, mode="r+", zarr_format=3) if written else zarr.create_group(folder, zarr_format=3)
        )
        self._n_features = n_features
        self._digest = ContentDigest(n_features=n_features)
        self._extents = list(written)
        self._to_compare = sum(records for records, *_ in written)
        # number of the first record of each block that a killed writer left
        self._bounds = np.cumsum([0, *(records for records, *_ in written)])
        self._first_seen: list[int | None] = []  # for each block, the ingest in which its ids first appeared
        self._number: int | None = None  # the same number for the block being filled
        self._on_block = on_block
        index, count = np.min_scalar_type(n_features - 1), np.min_scalar_type(n_features)
        padded = partial(_PaddedRows, folder, self._group)
        self._values = padded("values", dtype=dtype, chunk=self._block_nnz)
        self._indices = padded("indices", dtype=index, chunk=self._block_nnz)
        self._row_nnz = padded("row_nnz", dtype=count, chunk=BLOCK_ROWS)
        self._record_rows = padded("record_rows", dtype=np.dtype(np.uint32), chunk=BLOCK_ROWS, fill=1)
        self._rejected = padded("rejected", dtype=np.dtype(np.uint8), chunk=BLOCK_ROWS)
        self._owners = padded("owners", dtype=np.dtype(np.uint64), chunk=2 * BLOCK_ROWS)

    def append(self, batch: RowBatch) -> None:
        """Append whole records in canonical form; their values must be exact in the stored dtype.

        Raises
        ------
        Conflict
            If a killed writer left other records than the appended ones.
        """
        if self._to_compare:
            count = min(self._to_compare, len(batch.record_ptr) - 1)
            known, batch = _split(batch, count)
            self._add_to_digest(known)
            self._recognise(count, batch.first_seen)
            self._to_compare -= count
            if not self._to_compare and self._digest.hexdigest() != self._digest_of_written():
                raise _other_rows()
        row_nnz, record_rows = self._add_to_digest(batch)
        rows, values = batch.record_ptr, batch.row_ptr[batch.record_ptr]
        at = 0
        if len(record_rows):
            if batch.first_seen != self._number and len(self._record_rows):
                self._flush()
            self._number = batch.first_seen
        while at < len(record_rows):
            end_of_values, end_of_rows = values[at] + self._block_nnz, rows[at] + BLOCK_ROWS
            stop = min(
                int(np.searchsorted(values, end_of_values - len(self._values), side="right")),
                int(np.searchsorted(rows, end_of_rows - len(self._row_nnz), side="right")),
            )
            stop -= 1  # the records from `at` to `stop` still fit into the current block
            if stop <= at:
                if len(self._record_rows):
                    self._flush()
                    continue
                stop = at + 1  # a record larger than a block gets a separate block
            self._values.extend(batch.values[values[at] : values[stop]])
            self._indices.extend(batch.indices[values[at] : values[stop]])
            self._row_nnz.extend(row_nnz[rows[at] : rows[stop]])
            self._record_rows.extend(record_rows[at:stop])
            self._rejected.extend(_flags(batch)[at:stop])
            if batch.owners is not None:
                self._owners.extend(batch.owners[at:stop].ravel())
            at = stop

    def finish(self) -> Totals:
        """Write the last block and the arrays' metadata, and return the totals; then call `describe` with the manifest.

        Raises
        ------
        Conflict
            If the killed writer had left more records than were appended.
        """
        if self._to_compare:
            raise Conflict(
                "the source has fewer rows than the killed ingest wrote, so it has changed; ingest it again without "
                "--resume"
            )
        if len(self._record_rows) or not self._extents:
            self._flush(alone=not self._extents)
        extents = np.array(self._extents, dtype=np.int64)
        n_records, n_rows, nnz, *_ = extents.sum(axis=0).tolist()
        most_records, most_rows, most_nnz, *_ = extents.max(axis=0).tolist()
        for array, most in ((self._values, most_nnz), (self._indices, most_nnz), (self._row_nnz, most_rows)):
            array.describe(len(extents), most)
        for array in (self._record_rows, self._rejected):
            if array.is_written:
                array.describe(len(extents), most_records)
        if self._owners.is_written:
            self._owners.describe(len(extents), 2 * most_records)
        self._write_whole("extents", extents, chunks=extents.shape)
        return Totals(
            n_records=n_records,
            n_rows=n_rows,
            nnz=nnz,
            n_blocks=len(self._extents),
            content_digest=self._digest.hexdigest(),
        )

    def first_seen(self) -> NDArray[np.int64]:
        """Return the first-seen number of each block, which must be known for all blocks.

        It is the number of the ingest in which the ids of the block's individuals first appeared.
        """
        # a block without records has no ingest, so its number is 0
        return np.array([number or 0 for number in self._first_seen], dtype=np.int64)

    def declare(self, name: str, items: NDArray[Any]) -> str:
        """Write a declared array, such as feature names, next to the rows; return the array's SHA-256."""
        if len(items):
            self._write_whole(name, items, chunks=(min(len(items), _DECLARED_CHUNK),))
        return hashlib.sha256(items.tobytes()).hexdigest()

    def describe(self, manifest: Manifest) -> None:
        """Complete the snapshot by writing the manifest into the attributes of the Zarr group."""
        self._group.update_attributes(manifest.to_attributes())

    def _write_whole(self, name: str, items: NDArray[Any], *, chunks: tuple[int, ...]) -> None:
        """Write an array with all its chunks, including chunks of zeros.

        By default, Zarr omits chunks of zeros. Here all chunks are written, so a missing chunk means a lost file.
        """
        self._group.create_array(
            name,
            data=items,
            chunks=chunks,
            compressors=COMPRESSORS,
            overwrite=True,
            config={"write_empty_chunks": True},
        )

    def _add_to_digest(self, batch: RowBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add a batch to the content digest.

        Return the number of stored values of each row, and the number of rows of each record.
        """
        row_nnz, record_rows = np.diff(batch.row_ptr), np.diff(batch.record_ptr)
        self._digest.update(
            values=batch.values,
            indices=batch.indices,
            row_nnz=row_nnz,
            record_rows=record_rows,
            rejected=batch.rejected,
        )
        return row_nnz, record_rows

    def _recognise(self, count: int, first_seen: int | None) -> None:
        """While the records of a killed writer are appended again, record when the ids of its blocks first appeared.

        The ids of the next `count` records first appeared in the ingest with number `first_seen`. This number is
        recorded for each block that begins among these records.
        """
        start = int(self._bounds[-1]) - self._to_compare
        begin, end = np.searchsorted(self._bounds[:-1], (start, start + count)).tolist()
        if self._bounds[begin] != start and self._first_seen[-1] != first_seen:
            raise _other_rows()
        self._first_seen += [first_seen] * (end - begin)

    def _digest_of_written(self) -> str:
        """Recompute the content digest of the blocks that a killed writer left."""
        digest = ContentDigest(n_features=self._n_features)
        try:
            for block, (n_records, n_rows, nnz, *_) in enumerate(self._extents):
                digest.update(
                    values=self._values.read(block, nnz),
                    indices=self._indices.read(block, nnz),
                    row_nnz=self._row_nnz.read(block, n_rows),
                    record_rows=self._record_rows.read(block, n_records),
                    rejected=self._rejected.read(block, n_records) != 0,
                )
        except (OSError, ValueError, RuntimeError, KeyError):
            return "unreadable"
        return digest.hexdigest()

    def _flush(self, *, alone: bool = False) -> None:
        """Write the filled block.

        With `alone`, this is the only block of a small dataset, and its chunks are made as short as the content.
        """
        block = len(self._extents)
        sizes = len(self._record_rows), len(self._row_nnz), len(self._values)
        self._first_seen.append(self._number)
        chunks = {}
        for array in (self._values, self._indices, self._row_nnz):
            chunks[array.name] = array.write(block, alone=alone)
        for array in (self._record_rows, self._rejected, self._owners):
            if array.differs_from_fill():
                chunks[array.name] = array.write(block, alone=alone)
        owners = {name: chunks.pop(name) for name in (self._owners.name,) if name in chunks}
        self._extents.append((*sizes, checksum_of(chunks), checksum_of(owners)))
        for array in (self._values, self._indices, self._row_nnz, self._record_rows, self._rejected, self._owners):
            array.clear()
        if self._on_block is not None:
            self._on_block(self._extents[block])


class _PaddedRows:
    """Writer of one 2-D array with one row per block; the row of the current block is in memory."""

    def __init__(
        self, folder: Path, group: zarr.Group, name: str, *, dtype: np.dtype[Any], chunk: int, fill: int = 0
    ) -> None:
        self._folder, self._group, self.name = folder, group, name
        self._chunk, self._fill = chunk, fill
        self._row: NDArray[Any] = np.empty(chunk, dtype=dtype)
        self._length = 0
        self._array: zarr.Array[Any] | None = None
        if self.is_written and isinstance(found := group.get(name), zarr.Array):
            self._array, self._chunk = found, found.chunks[1]

    def __len__(self) -> int:
        return self._length

    @property
    def is_written(self) -> bool:
        """True if the array has a written chunk."""
        return (self._folder / self.name).is_dir()

    def extend(self, items: NDArray[Any]) -> None:
        end = self._length + len(items)
        if end > len(self._row):
            longer = np.empty(_round_up(end, self._chunk), dtype=self._row.dtype)
            longer[: self._length] = self._row[: self._length]
            self._row = longer
        self._row[self._length : end] = items
        self._length = end

    def clear(self) -> None:
        self._length = 0

    def differs_from_fill(self) -> bool:
        return bool((self._row[: self._length] != self._fill).any())

    def write(self, block: int, *, alone: bool) -> bytes:
        """Write the row in memory as row `block` of the array, padded to whole chunks.

        Return the joined checksums of the chunks. With `alone`, the chunks are made as short as the row.
        """
        if alone:
            self._chunk = max(min(self._length, self._chunk), 1)
            # the metadata is written now, so that a resuming writer reads the changed width of chunks
            self.describe(1, self._length)
        end = _round_up(self._length, self._chunk)
        self._row[self._length : end] = self._fill
        return b"".join(
            write_chunk(
                self._folder / self.name, row=block, column=column, items=self._row[start : start + self._chunk]
            )
            for column, start in enumerate(range(0, end, self._chunk))
        )

    def read(self, block: int, length: int) -> NDArray[Any]:
        """Read the first `length` items of a block's row, which are not padding."""
        stored = PaddedArray(place=LocalPlace(self._folder), name=self.name, dtype=self._row.dtype, width=self._chunk)
        try:
            return stored.head(block, length)[0]
        except FileNotFoundError:
            return np.full(length, self._fill)

    def describe(self, n_blocks: int, longest: int) -> None:
        """Write the metadata of the array, which has one row per block, as wide as the longest row in whole chunks."""
        shape = n_blocks, max(_round_up(longest, self._chunk), self._chunk)
        if self._array is None:
            self._array = self._group.create_array(
                self.name,
                shape=shape,
                chunks=(1, self._chunk),
                dtype=self._row.dtype,
                compressors=COMPRESSORS,
                fill_value=self._fill,
            )
        elif self._array.shape != shape:
            self._array.resize(shape)


def _flags(batch: RowBatch) -> NDArray[np.uint8]:
    """Return one number for each record of a batch: 1 if the record is rejected, else 0."""
    n_records = len(batch.record_ptr) - 1
    return np.zeros(n_records, np.uint8) if batch.rejected is None else batch.rejected.astype(np.uint8)


def _split(batch: RowBatch, at: int) -> tuple[RowBatch, RowBatch]:
    """Split a batch before record number `at`."""
    row, value = int(batch.record_ptr[at]), int(batch.row_ptr[batch.record_ptr[at]])
    head = replace(
        batch,
        values=batch.values[:value],
        indices=batch.indices[:value],
        row_ptr=batch.row_ptr[: row + 1],
        record_ptr=batch.record_ptr[: at + 1],
        places=batch.places[:row],
        rejected=None if batch.rejected is None else batch.rejected[:at],
        owners=None if batch.owners is None else batch.owners[:at],
    )
    tail = replace(
        batch,
        values=batch.values[value:],
        indices=batch.indices[value:],
        row_ptr=batch.row_ptr[row:] - value,
        record_ptr=batch.record_ptr[at:] - row,
        places=batch.places[row:],
        rejected=None if batch.rejected is None else batch.rejected[at:],
        owners=None if batch.owners is None else batch.owners[at:],
    )
    return head, tail


def _other_rows() -> Conflict:
    return Conflict(
        "the blocks that the killed ingest wrote do not match the start of this source; ingest it again without "
        "--resume"
    )


def check_block_nnz(block_nnz: int) -> int:
    """Check the largest number of stored values per block, and return it.

    Raises
    ------
    Invalid
        If the number is outside 1..`MAX_BLOCK_NNZ`.
    """
    if not 1 <= block_nnz <= MAX_BLOCK_NNZ:
        raise Invalid(f"block_nnz={block_nnz} must be in 1..{MAX_BLOCK_NNZ}; the default is {BLOCK_NNZ}")
    return block_nnz


def _round_up(length: int, step: int) -> int:
    return -(-length // step) * step
