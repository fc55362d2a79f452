"""Counts of records by norm, and by whether an ingest accepted them.

A histogram of record norms on a public geometric grid is the basis of a private clip norm. The counts of records that
an ingest rejected and accepted give the share of lost records.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import norm_bins
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.records.blocks import Block, RowBlock, as_floats, canonical

_LOWEST, _HIGHEST, _PER_OCTAVE = -20, 20, 4


def norm_grid() -> NDArray[np.float64]:
    """Return the public upper edges of the bins: four per octave from ``2^-20`` to ``2^20`` data units."""
    return np.exp2(np.arange(_LOWEST * _PER_OCTAVE, _HIGHEST * _PER_OCTAVE + 1) / _PER_OCTAVE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NormHistogram(RowSum):
    """Count records by norm: bin j holds norms above edge j - 1 and at most edge j; the last bin holds larger ones too.

    Empty and non-finite records are in no bin. ``clip_norm`` must be 1: records are counted before any clipping.

    Parameters
    ----------
    edges : float64 array of shape (n_bins,), data units
        Upper edges, increasing.

    Notes
    -----
    Sensitivity. A record adds 1 to at most one bin. In l1 and l2 the sum moves by at most 1 when a record is added,
    removed, or emptied (an empty one is in no bin). A replaced record leaves one bin and enters another: 2 in l1,
    ``sqrt 2`` in l2.
    """

    edges: NDArray[np.float64]

    name: ClassVar[str] = "norm_histogram"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the edges."""
        RowSum.__post_init__(self)
        if self.clip_norm != 1.0 or self.edges.ndim != 1 or not (np.diff(self.edges, prepend=0.0) > 0).all():
            raise InvalidInput("edges must be positive and increasing, and clip_norm 1; pass norm_grid().")

    @property
    def layout(self) -> Layout:
        """One coordinate per bin."""
        return Layout(kind="vector", order=self.edges.size)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm not in ("l1", "l2"):
            raise InvalidInput(f"norm={norm!r} is not stated for a histogram; use Laplace (l1) or Gaussian noise (l2).")
        if self.relation != "replace_one":
            return 1.0
        return SQRT_2_UP if norm == "l2" else 2.0

    def grid(self, block: Block) -> RowBlock:
        """Replace every record by one row whose feature index is its bin, without clipping."""
        rows = canonical(block, n_features=self.n_features)
        bins = norm_bins(as_floats(rows.values), rows.row_ptr, rows.record_ptr, self.edges)
        counted = bins >= 0
        return RowBlock(
            values=np.full(np.count_nonzero(counted), 1 << self.bits, np.int32),
            indices=bins[counted].astype(np.int32),
            row_ptr=np.concatenate([np.zeros(1, np.int64), np.cumsum(counted)]),
            record_ptr=np.arange(bins.size + 1),
            first_record=block.first_record,
            n_features=self.edges.size,
            bits=self.bits,
        )

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the counts of the bins, in steps of ``2^-bits``."""
        total += np.bincount(block.indices, minlength=self.layout.size).astype(np.int64) << self.bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RejectedRecords(RowSum):
    """Sum ``(1, 0)`` over rejected records and ``(0, 1)`` over all others. ``clip_norm`` must be 1.

    A rejected record is empty, because one of its rows was bad. Whether a record is rejected depends on its own rows.

    Notes
    -----
    Sensitivity. Each record adds 1 to exactly one of two counts. An added or removed record moves the sum by 1 in l1
    and in l2. A replaced record may leave one count and enter the other: 2 in l1, ``sqrt 2`` in l2. The same holds for
    an emptied record: the record that takes its place is empty, and rejected or not.
    """

    name: ClassVar[str] = "rejected_records"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the clip norm."""
        RowSum.__post_init__(self)
        if self.clip_norm != 1.0:
            raise InvalidInput(f"clip_norm={self.clip_norm!r} must be 1, because records are only counted; omit it.")

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
        """Replace every record by one row whose only feature is the index of its count."""
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

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the two counts, in steps of ``2^-bits``."""
        total += np.bincount(block.indices, minlength=2).astype(np.int64) << self.bits
