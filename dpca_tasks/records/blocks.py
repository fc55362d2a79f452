"""The types of private rows: a stored block, a source of blocks, and the bounded records of one block."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Block(Protocol):
    """Stored rows: compressed rows, the bounds of each record, and the ordinal of the first record."""

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
        """The records that an ingest rejected, of shape (n_records,): they are empty. None if none was."""

    @property
    def density(self) -> float | None:
        """The declared share of stored entries: public, never counted from the data. None if not declared."""

    @property
    def first_seen(self) -> int | None:
        """The number of the ingest that brought the ids of all its records; None where that is not known."""


class BlockSource(Protocol):
    """A source of blocks that a worker can open: small, picklable, and without data in it."""

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
        """The digest of the records. Secret: only the request digest uses it."""

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
    the same bits. ``first_seen`` is that of the stored block; ``rejected`` is not kept.
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
