"""Block sources: arrays in memory, and rows that are normalised when they are read."""

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.norms import normalise_records
from dpca_tasks.records.blocks import BlockSource, CsrBlock
from dpca_tasks.records.gridding import as_floats, canonical

RowPolicy = Literal["clip", "normalise"]


class ArrayBlocks:
    """A NumPy array or a SciPy sparse array as a block source.

    Parameters
    ----------
    rows : array-like or sparse array of shape (n_rows, n_features)
    record_rows : int array of shape (n_records,), optional
        The number of consecutive rows of each record; one by default.
    block_records : int
        Records per block: a performance setting without effect on results.
    density : float, optional
        The publicly known share of nonzero entries: another performance setting. By default a NumPy array counts as
        full.
    first_seen : int array of shape (n_records,), optional
        The number of the ingest that brought each record's id, never falling; a block has records of one number.
    """

    def __init__(
        self,
        rows: ArrayLike | sparse.sparray | sparse.spmatrix,
        *,
        record_rows: ArrayLike | None = None,
        block_records: int = 4096,
        density: float | None = None,
        first_seen: ArrayLike | None = None,
    ) -> None:
        if np.ma.is_masked(rows):
            raise InvalidInput("rows has masked values, and a mask is missing data; fill them in, or drop their rows.")
        self._density = 1.0 if density is None and not sparse.issparse(rows) else density
        matrix = sparse.csr_array(rows if sparse.issparse(rows) else np.atleast_2d(np.asarray(rows)))
        n_rows, self.n_features = (int(size) for size in matrix.shape)
        counts = np.ones(n_rows, np.int64) if record_rows is None else np.asarray(record_rows, np.int64)
        if block_records < 1 or counts.sum() != n_rows or (counts < 0).any():
            raise InvalidInput(
                f"block_records={block_records} and record_rows do not cut {n_rows} rows into records; "
                "record_rows must be counts that add up to the number of rows, block_records at least 1."
            )
        self._record_ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        stored = CsrBlock(
            values=matrix.data,
            indices=matrix.indices,
            row_ptr=matrix.indptr.astype(np.int64),
            record_ptr=self._record_ptr,
            first_record=0,
        )
        canonical_rows = canonical(stored, n_features=self.n_features)
        self._values, self._indices, self._row_ptr = (
            canonical_rows.values,
            canonical_rows.indices,
            canonical_rows.row_ptr,
        )
        self.n_records = counts.size
        self._seen = None if first_seen is None else np.asarray(first_seen, np.int64)
        self._bounds = _block_bounds(counts.size, block_records, self._seen)
        self.n_blocks = self._bounds.size - 1
        digest = hashlib.sha256(repr((n_rows, self.n_features)).encode())
        for array in (self._record_ptr, self._row_ptr, self._indices.astype(np.int64), self._values):
            digest.update(np.ascontiguousarray(array).tobytes())
        if self._seen is not None:
            digest.update(b"first seen" + self._seen.tobytes())
        self.content = digest.hexdigest()

    @property
    def extents(self) -> NDArray[np.int64]:
        """The numbers of records, rows and stored values of each block."""
        rows = self._record_ptr[self._bounds]
        return np.diff(np.stack([self._bounds, rows, self._row_ptr[rows]], axis=1), axis=0)

    def read(self, block: int, /) -> CsrBlock:
        """Read one block as views of the array."""
        first, last = int(self._bounds[block]), int(self._bounds[block + 1])
        bounds = self._record_ptr[first : last + 1]
        row_ptr = self._row_ptr[bounds[0] : bounds[-1] + 1]
        stored = slice(row_ptr[0], row_ptr[-1])
        return CsrBlock(
            values=self._values[stored],
            indices=self._indices[stored],
            row_ptr=row_ptr - row_ptr[0],
            record_ptr=bounds - bounds[0],
            first_record=first,
            density=self._density,
            first_seen=None if self._seen is None else int(self._seen[first]),
        )


class NormalisedBlocks:
    """A block source whose records are scaled to one norm: the row policy ``normalise``.

    Every record is scaled by itself, and then clipped and gridded like any other, so no sensitivity depends on the
    scaling. Empty records stay empty.

    Parameters
    ----------
    source : BlockSource
    length : float, data units
        The norm that every record gets.
    """

    def __init__(self, source: BlockSource, *, length: float) -> None:
        self.snapshot, self._length = source, length
        self.n_features, self.n_blocks, self.n_records = source.n_features, source.n_blocks, source.n_records
        self.extents = source.extents
        self.content = hashlib.sha256(f"normalised to {length.hex()}: {source.content}".encode()).hexdigest()

    def read(self, block: int, /) -> CsrBlock:
        """Read one block and scale its records."""
        rows = canonical(self.snapshot.read(block), n_features=self.n_features)
        values = as_floats(rows.values)
        return CsrBlock(
            values=normalise_records(values, rows.row_ptr, rows.record_ptr, self._length),
            indices=rows.indices,
            row_ptr=rows.row_ptr,
            record_ptr=rows.record_ptr,
            first_record=rows.first_record,
            density=rows.density,
            first_seen=rows.first_seen,
            rejected=rows.rejected,
        )


def _block_bounds(n_records: int, block_records: int, seen: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return where blocks begin and end: after so many records, and wherever the number of the ingest changes."""
    if seen is None:
        return np.append(np.arange(0, n_records, block_records), n_records)
    if seen.shape != (n_records,) or (np.diff(seen) < 0).any():
        raise InvalidInput("first_seen must have one number a record, never falling; sort the records by it.")
    ends = np.flatnonzero(np.diff(seen, append=seen[-1:] + 1)) + 1
    starts = np.concatenate([np.zeros(1, np.int64), ends])[: ends.size]
    parts = [np.arange(start, end, block_records) for start, end in zip(starts, ends, strict=True)]
    return np.append(np.concatenate([*parts, np.zeros(0, np.int64)]), n_records).astype(np.int64)


def snapshot_content(source: BlockSource) -> str:
    """Return the content digest of the stored rows, without the row policy of the source. Secret."""
    return snapshot_content(source.snapshot) if isinstance(source, NormalisedBlocks) else source.content
