"""The shapes of private rows: a block as stored, a source of blocks, and the bounded records of one block."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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
