"""Stored blocks of private rows, sources of blocks, and records that are clipped and rounded to a grid.

This module has the types of a stored block, of a source of blocks, and of the bounded records of one block. Each record
is made canonical, clipped and rounded to integers separately. Block sources are arrays in memory, and rows that are
normalised when they are read.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels import gridding
from dpca_tasks.kernels.gridding import normalise_records


class Block(Protocol):
    """Stored rows in compressed format, with the bounds of each record and the ordinal of the first record."""

    @property
    def values(self) -> NDArray[np.generic]: ...  # noqa: D102
    @property
    def indices(self) -> NDArray[np.integer]: ...  # noqa: D102
    @property
    def row_ptr(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def record_ptr(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def first_record(self) -> int: ...  # noqa: D102
    @property
    def rejected(self) -> NDArray[np.bool_] | None:
        """Mask of the records that were rejected at ingest and are stored as empty records; None if there are none."""

    @property
    def density(self) -> float | None:
        """The declared, public share of stored entries, which is never counted from the data; None if not declared."""

    @property
    def first_seen(self) -> int | None:
        """The number of the ingest that added the ids of this block's records; None if unknown."""


class BlockSource(Protocol):
    """A small, picklable source of blocks that a worker can open; it contains no data."""

    @property
    def n_features(self) -> int: ...  # noqa: D102
    @property
    def n_blocks(self) -> int: ...  # noqa: D102
    @property
    def n_records(self) -> int: ...  # noqa: D102
    @property
    def extents(self) -> NDArray[np.int64]:
        """The numbers of records, rows and stored values of each block, of shape (n_blocks, 3). Private."""

    @property
    def content(self) -> str:
        """The digest of the records. It is secret, and used only within the digests of requests."""

    def read(self, block: int, /) -> Block:
        """Read one block."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CsrBlock:
    """A `Block` held in memory."""

    values: NDArray[np.generic] = field(repr=False)
    indices: NDArray[np.integer] = field(repr=False)
    row_ptr: NDArray[np.int64] = field(repr=False)
    record_ptr: NDArray[np.int64] = field(repr=False)
    first_record: int = field(repr=False)
    density: float | None = None
    first_seen: int | None = field(default=None, repr=False)
    rejected: NDArray[np.bool_] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Whole clipped records on the fixed-point grid.

    ``values`` are integers: a row of a record is ``values / 2^bits`` in units of the clip norm. Rows are canonical, and
    the squares of every record sum to at most ``4^bits``. The declared ``density`` selects between kernels that give
    the same bits. ``first_seen`` is copied from the stored block; ``rejected`` is not kept.
    """

    values: NDArray[np.int32] = field(repr=False)
    indices: NDArray[np.int32] = field(repr=False)
    row_ptr: NDArray[np.int64] = field(repr=False)
    record_ptr: NDArray[np.int64] = field(repr=False)
    first_record: int = field(repr=False)
    n_features: int
    bits: int
    density: float | None = None
    first_seen: int | None = field(default=None, repr=False)
    rejected: NDArray[np.bool_] | None = field(default=None, repr=False)

    @property
    def n_records(self) -> int:
        """The number of records, empty ones included."""
        return self.record_ptr.size - 1


RECORDS_VERSION = 2
"""Version of clipping and rounding. A change of any bit of a record needs a new version, which has new noise."""


def canonical(block: Block, *, n_features: int) -> Block:
    """Merge duplicate columns, sort each row, and drop column ids that are out of range.

    Two entries ``a`` of a row in the same column have norm ``sqrt(2) a``, but act in sums like one entry ``2 a``. If
    they were not merged before the clipping, a record could contribute more than every sensitivity allows. Ingest
    stores canonical rows, but privacy must not depend on that.
    """
    if gridding.rows_are_canonical(block.indices, block.row_ptr, n_features):
        return block
    columns = np.asarray(block.indices, np.int64)
    inside = (columns >= 0) & (columns < n_features)
    rows = np.repeat(np.arange(block.row_ptr.size - 1), np.diff(block.row_ptr))
    order = np.lexsort((columns[inside], rows[inside]))  # a stable sort gives sums a fixed order
    values = np.asarray(block.values, np.float64)[inside][order]
    merged, rows, columns = gridding.merge_duplicates(values, rows[inside][order], columns[inside][order])
    row_ptr = np.searchsorted(rows, np.arange(block.row_ptr.size)).astype(np.int64)
    return CsrBlock(
        values=merged,
        indices=columns,
        row_ptr=row_ptr,
        record_ptr=block.record_ptr,
        first_record=block.first_record,
        density=block.density,
        first_seen=block.first_seen,
        rejected=block.rejected,
    )


def grid_block(block: Block, *, n_features: int, clip_norm: float, bits: int, bound: int | None = None) -> RowBlock:
    """Clip every record of a block and convert it to the fixed-point grid.

    The clip norm is ``sqrt(bound)`` steps: ``2^bits`` by default, less if the record is extended by constants later.

    Guarantees
    ----------
    - Every record's integer squares sum to at most ``bound``, compared in int64. A record that satisfies the bound
      after rounding to nearest is not changed further. Any other record is scaled to the clip norm, if it is longer,
      and rounded again.
      If rounding alone makes it too long, it is rounded toward zero from ``1 - 2^-24`` of its size. This covers the
      rounding of norm and scale (relative errors of about ``2^-53`` times the number of stored values).
    - A record with a non-finite value, or with norm 0, becomes the empty record. It still counts as a record.
    - Magnitudes up to the largest float are clipped without overflow: a power of two is factored out first.
    """
    rows = canonical(block, n_features=n_features)
    most = 1 << 2 * bits if bound is None else bound
    return RowBlock(
        values=gridding.grid_records(as_floats(rows.values), rows.row_ptr, rows.record_ptr, clip_norm, most),
        indices=np.asarray(rows.indices, np.int32),
        row_ptr=rows.row_ptr,
        record_ptr=rows.record_ptr,
        first_record=rows.first_record,
        n_features=n_features,
        bits=bits,
        density=rows.density,
        first_seen=rows.first_seen,
    )


def as_floats(values: NDArray[np.generic]) -> NDArray[np.floating]:
    """Convert stored values for the kernels: float32 and float64 stay, other types become float64."""
    array = np.asarray(values)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


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
        For each record, the number of the ingest that added its id. The numbers must not decrease. A new block begins
        where the number changes.
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
            raise InvalidInput("the rows have masked values, which are missing; fill them in, or drop such rows.")
        self._density = 1.0 if density is None and not sparse.issparse(rows) else density
        matrix = sparse.csr_array(rows if sparse.issparse(rows) else np.atleast_2d(np.asarray(rows)))
        n_rows, self.n_features = (int(size) for size in matrix.shape)
        counts = np.ones(n_rows, np.int64) if record_rows is None else np.asarray(record_rows, np.int64)
        if block_records < 1 or counts.sum() != n_rows or (counts < 0).any():
            raise InvalidInput(
                f"block_records={block_records} and record_rows do not divide {n_rows} rows into records; record_rows "
                "must be counts that add up to the number of rows, block_records at least 1."
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

    Every record is scaled separately, and then clipped and rounded like any other record. So no sensitivity depends on
    the scaling. Empty records stay empty.

    Parameters
    ----------
    source : BlockSource
    length : float, data units
        The norm of every scaled record.
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
    """Return the block boundaries: after ``block_records`` records, and wherever the number of the ingest changes."""
    if seen is None:
        return np.append(np.arange(0, n_records, block_records), n_records)
    if seen.shape != (n_records,) or (np.diff(seen) < 0).any():
        raise InvalidInput("first_seen must have one number per record, never decreasing; sort the records by it.")
    ends = np.flatnonzero(np.diff(seen, append=seen[-1:] + 1)) + 1
    starts = np.concatenate([np.zeros(1, np.int64), ends])[: ends.size]
    parts = [np.arange(start, end, block_records) for start, end in zip(starts, ends, strict=True)]
    return np.append(np.concatenate([*parts, np.zeros(0, np.int64)]), n_records).astype(np.int64)


def snapshot_content(source: BlockSource) -> str:
    """Return the secret digest of the stored rows, before a row policy such as ``normalise`` is applied."""
    return snapshot_content(source.snapshot) if isinstance(source, NormalisedBlocks) else source.content
