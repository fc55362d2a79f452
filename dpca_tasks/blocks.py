"""Private rows become bounded integer records here, and nowhere else.

A *record* is everything one individual contributed: one row or several. `grid_block` makes it canonical
(duplicate columns merged, ids in range), clips it to Frobenius norm ``clip_norm``, divides by ``clip_norm``
and rounds it to the grid of step ``2^-bits``. The result is a `RowBlock` of integers whose squared norm is at
most ``4^bits`` for every record, checked in integer arithmetic. All of it looks at that record alone, so it
holds for every neighbouring relation.

>>> import numpy as np
>>> source = ArrayBlocks(np.array([[3.0, 4.0], [0.0, 1.0]]))
>>> grid_block(source.read(0), n_features=2, clip_norm=1.0, bits=4).values
array([ 9, 12, 16], dtype=int32)
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpca_tasks import kernels
from dpca_tasks.errors import InvalidInput
from dpca_tasks.record_norms import normalise_records

MAX_NOISE_STEPS = 2.0**28
MIN_NOISE_STEPS = 2.0**4
MAX_STEPS_PER_UNIT = 2**28

RECORDS_VERSION = 2
"""Of how records are clipped and rounded. Code that moves any bit of one is another version: it gets other noise."""

RowPolicy = Literal["clip", "normalise"]


class Block(Protocol):
    """Rows as stored: compressed rows, the bounds of each record, and the first record's ordinal."""

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
    def density(self) -> float | None:
        """The share of entries that are stored, as declared: public, never counted. None where nothing is."""


class BlockSource(Protocol):
    """Rows in blocks that a worker can open: small, picklable, without data of its own."""

    @property
    def n_features(self) -> int: ...  # noqa: D102
    @property
    def n_blocks(self) -> int: ...  # noqa: D102
    @property
    def n_records(self) -> int: ...  # noqa: D102
    @property
    def extents(self) -> NDArray[np.int64]:
        """Records, rows and stored values of each block, of shape (n_blocks, 3). Private, as the blocks are."""

    @property
    def content(self) -> str:
        """The digest of the records. Secret: it enters the noise's digest and nothing else."""

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Whole records, clipped, on the fixed-point grid.

    ``values`` are integers: a record's row is ``values / 2^bits`` in units of the clip norm. Rows are
    canonical, and every record's squares sum to at most ``4^bits``. The declared ``density`` chooses between kernels
    that give the same bits.
    """

    values: NDArray[np.int32] = field(repr=False)
    indices: NDArray[np.int32] = field(repr=False)
    row_ptr: NDArray[np.int64] = field(repr=False)
    record_ptr: NDArray[np.int64] = field(repr=False)
    first_record: int = field(repr=False)
    n_features: int
    bits: int
    density: float | None = None

    @property
    def n_records(self) -> int:
        """The number of records, empty ones included."""
        return self.record_ptr.size - 1


class ArrayBlocks:
    """A NumPy array or a SciPy sparse array as a block source.

    Parameters
    ----------
    rows : array-like or sparse array of shape (n_rows, n_features)
    record_rows : int array of shape (n_records,), optional
        How many consecutive rows belong to each record; one each when left out.
    block_records : int
        Records in a block: a performance setting, without effect on any result.
    density : float, optional
        The share of entries that are not 0, as far as is publicly known: another such setting. A NumPy array is taken
        to be full when it is left out.
    """

    def __init__(
        self,
        rows: ArrayLike | sparse.sparray | sparse.spmatrix,
        *,
        record_rows: ArrayLike | None = None,
        block_records: int = 4096,
        density: float | None = None,
    ) -> None:
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
        self._block_records = block_records
        self.n_records = counts.size
        self.n_blocks = -(-counts.size // block_records)
        digest = hashlib.sha256(repr((n_rows, self.n_features)).encode())
        for array in (self._record_ptr, self._row_ptr, self._indices.astype(np.int64), self._values):
            digest.update(np.ascontiguousarray(array).tobytes())
        self.content = digest.hexdigest()

    @property
    def extents(self) -> NDArray[np.int64]:
        """Records, rows and stored values of each block."""
        bounds = np.append(np.arange(0, self._record_ptr.size - 1, self._block_records), self._record_ptr.size - 1)
        rows = self._record_ptr[bounds]
        return np.diff(np.stack([bounds, rows, self._row_ptr[rows]], axis=1), axis=0)

    def read(self, block: int, /) -> CsrBlock:
        """Read one block as views of the array."""
        first = block * self._block_records
        bounds = self._record_ptr[first : first + self._block_records + 1]
        row_ptr = self._row_ptr[bounds[0] : bounds[-1] + 1]
        stored = slice(row_ptr[0], row_ptr[-1])
        return CsrBlock(
            values=self._values[stored],
            indices=self._indices[stored],
            row_ptr=row_ptr - row_ptr[0],
            record_ptr=bounds - bounds[0],
            first_record=first,
            density=self._density,
        )


class NormalisedBlocks:
    """A block source whose records are scaled to one norm: the row policy ``normalise``.

    Every record is scaled by itself, and clipped and gridded afterwards as any other, so no sensitivity depends on
    it. Empty records stay empty.

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
        )


def snapshot_content(source: BlockSource) -> str:
    """Return the content digest of the rows as they are stored, whatever policy the source puts on them. A secret."""
    return snapshot_content(source.snapshot) if isinstance(source, NormalisedBlocks) else source.content


def canonical(block: Block, *, n_features: int) -> Block:
    """Merge duplicate columns, sort each row, and drop ids out of range.

    Two entries ``a`` in one column have norm ``sqrt(2) a`` but act as ``2 a``: unmerged, they would pass the
    clip and break every sensitivity. Ingest stores canonical rows; this is the check that does not trust it.
    """
    if kernels.rows_are_canonical(block.indices, block.row_ptr, n_features):
        return block
    columns = np.asarray(block.indices, np.int64)
    inside = (columns >= 0) & (columns < n_features)
    rows = np.repeat(np.arange(block.row_ptr.size - 1), np.diff(block.row_ptr))
    order = np.lexsort((columns[inside], rows[inside]))  # stable: a record's sums have one order
    values = np.asarray(block.values, np.float64)[inside][order]
    merged, rows, columns = kernels.merge_duplicates(values, rows[inside][order], columns[inside][order])
    row_ptr = np.searchsorted(rows, np.arange(block.row_ptr.size)).astype(np.int64)
    return CsrBlock(
        values=merged,
        indices=columns,
        row_ptr=row_ptr,
        record_ptr=block.record_ptr,
        first_record=block.first_record,
        density=block.density,
    )


def grid_block(block: Block, *, n_features: int, clip_norm: float, bits: int, bound: int | None = None) -> RowBlock:
    """Clip every record of a block and put it on the fixed-point grid.

    The clip norm is ``sqrt(bound)`` steps; ``2^bits``, unless a record is only a part of what has that norm.

    Guarantees
    ----------
    - Every record's integer squares sum to at most ``bound``, compared in int64. A record that is within that bound
      once it is rounded to nearest, as it stands, stays so. Any other is scaled to the clip norm, if it is longer, and
      rounded again; where rounding alone makes it too long, toward zero from ``1 - 2^-24`` of its size, which covers
      the rounding of norm and scale (relative errors below ``2^-53`` times the number of stored values and a few).
    - A record with a non-finite value becomes the empty record; so does one of norm 0. Both still count as
      records.
    - Magnitudes up to the largest float are clipped without overflow: a power of two is taken out first.
    """
    rows = canonical(block, n_features=n_features)
    most = 1 << 2 * bits if bound is None else bound
    return RowBlock(
        values=kernels.grid_records(as_floats(rows.values), rows.row_ptr, rows.record_ptr, clip_norm, most),
        indices=np.asarray(rows.indices, np.int32),
        row_ptr=rows.row_ptr,
        record_ptr=rows.record_ptr,
        first_record=rows.first_record,
        n_features=n_features,
        bits=bits,
        density=rows.density,
    )


def as_floats(values: NDArray[np.generic]) -> NDArray[np.floating]:
    """Return stored values as the kernels take them: float32 and float64 as they are, others as float64."""
    array = np.asarray(values)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def grid_bits(*, noise_std: float, degree: int) -> int:
    """Choose the finest safe grid from public facts alone.

    Parameters
    ----------
    noise_std : float
        The largest standard deviation of a coordinate, in units where a clipped record has norm 1.
    degree : int
        How many record entries a contribution multiplies: 1 for values, 2 for second moments, 3 for third
        moments.

    Returns
    -------
    int
        The largest b with ``noise_std * 2^(degree b) <= 2^28`` steps and ``2^(degree b) <= 2^28``.

    Raises
    ------
    InvalidInput
        When the noise is so large that no grid holds it.
    """
    if not noise_std > 0 or math.isinf(noise_std):
        raise InvalidInput(f"noise_std={noise_std!r} must be positive and finite; choose a larger epsilon.")
    limit = min(MAX_NOISE_STEPS / noise_std, MAX_STEPS_PER_UNIT)
    bits = math.floor(math.log2(limit) / degree) if limit >= 1 else 0
    while bits and 2.0 ** (degree * bits) > limit:  # log2 may round up
        bits -= 1
    if bits < 1:
        raise InvalidInput(f"noise_std={noise_std!r} is beyond any grid of integers; choose a larger epsilon or delta.")
    return bits
