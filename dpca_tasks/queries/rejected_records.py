"""Count the records that an ingest rejected and those that it accepted: the share of lost records follows."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.records.blocks import Block, RowBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RejectedRecords(RowSum):
    """Sum ``(1, 0)`` over rejected records and ``(0, 1)`` over all others. ``clip_norm`` must be 1.

    A rejected record is empty, because one of its rows was bad. Whether a record is rejected depends on its own rows.

    Notes
    -----
    Sensitivity. Each record adds 1 to exactly one of two counts. An added or removed record moves the sum by 1 in l1
    and in l2. A replaced record may leave one count and enter the other: 2 in l1, ``sqrt 2`` in l2. So may an emptied
    one: the record that takes its place is empty, and rejected or not.
    """

    name: ClassVar[str] = "rejected_records"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the clip norm."""
        RowSum.__post_init__(self)
        if self.clip_norm != 1.0:
            raise InvalidInput(f"clip_norm={self.clip_norm!r} must be 1: records are counted, whatever they hold.")

    @property
    def layout(self) -> Layout:
        """Rejected records, then accepted ones."""
        return Layout(kind="vector", order=2)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm not in ("l1", "l2"):
            raise InvalidInput(f"norm={norm!r} is not stated for counts; use Laplace (l1) or Gaussian noise (l2).")
        if self.relation == "add_remove":
            return 1.0
        return SQRT_2_UP if norm == "l2" else 2.0

    def grid(self, block: Block) -> RowBlock:
        """Replace every record by one row whose only feature is the count that it belongs to."""
        n_records = block.record_ptr.size - 1
        rejected = np.zeros(n_records, np.bool_) if block.rejected is None else block.rejected
        return RowBlock(
            values=np.full(n_records, 1 << self.bits, np.int32),
            indices=np.where(rejected, 0, 1).astype(np.int32),
            row_ptr=np.arange(n_records + 1),
            record_ptr=np.arange(n_records + 1),
            first_record=block.first_record,
            n_features=2,
            bits=self.bits,
        )

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the two counts, in steps of ``2^-bits``."""
        return np.bincount(block.indices, minlength=2).astype(np.int64) << self.bits
