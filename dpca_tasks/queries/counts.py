"""Counts of records, by norm or by whether the ingest accepted them.

From a noisy histogram of record norms over public bins, a clip norm can be chosen privately. Noisy counts of the
records that were rejected and accepted at ingest give the share of rejected records.
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
    """Return public upper edges of the bins of record norms: four per octave, from ``2^-20`` to ``2^20`` data units."""
    return np.exp2(np.arange(_LOWEST * _PER_OCTAVE, _HIGHEST * _PER_OCTAVE + 1) / _PER_OCTAVE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NormHistogram(RowSum):
    """Histogram of record norms.

    Bin j counts the records with a norm above edge j - 1 and at most edge j. The last bin also counts larger norms. A
    record that is empty or not finite is in no bin. ``clip_norm`` must be 1, because records are counted before any
    clipping.

    Parameters
    ----------
    edges : float64 array of shape (n_bins,), data units
        Upper edges of the bins, increasing.

    Notes
    -----
    Sensitivity. A record adds 1 to at most one bin, and an empty record to none. If a record is added, removed or
    emptied, the histogram changes by at most 1 in l1 and l2. A replaced record leaves one bin and enters another, so
    the histogram changes by at most 2 in l1 and ``sqrt 2`` in l2.
    """

    edges: NDArray[np.float64]

    name: ClassVar[str] = "norm_histogram"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the edges of the bins and the clip norm."""
        RowSum.__post_init__(self)
        if self.clip_norm != 1.0 or self.edges.ndim != 1 or not (np.diff(self.edges, prepend=0.0) > 0).all():
            raise InvalidInput("edges must be positive and increasing, clip_norm must be 1; pass edges=norm_grid().")

    @property
    def layout(self) -> Layout:
        """The layout of the histogram: a vector with one coordinate per bin."""
        return Layout(kind="vector", order=self.edges.size)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity in a norm, as proved in the Notes section of the class."""
        if norm not in ("l1", "l2"):
            raise InvalidInput(
                f"a histogram has no sensitivity in norm={norm!r}; use Laplace noise (l1) or Gaussian noise (l2)."
            )
        if self.relation != "replace_one":
            return 1.0
        return SQRT_2_UP if norm == "l2" else 2.0

    def grid(self, block: Block) -> RowBlock:
        """Replace every record, without clipping, by a row with one entry, at the index of the record's norm bin."""
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
    """Count the records that were rejected at ingest and the records that were accepted, in this order.

    A record is rejected if one of its rows is invalid; it is then stored as an empty record. This depends only on the
    rows of that record. ``clip_norm`` must be 1.

    Notes
    -----
    Sensitivity. Each record adds 1 to exactly one of the two counts. If a record is added or removed, the counts change
    by 1 in l1 and in l2. If a record is replaced, it may leave one count and enter the other, a change of 2 in l1 and
    ``sqrt 2`` in l2. The same bounds hold for an emptied record, since an empty record counts as rejected or accepted.
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
        """The layout of the sum: a vector with the count of rejected records, then of accepted records."""
        return Layout(kind="vector", order=2)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity in a norm, as proved in the Notes section of the class."""
        if norm not in ("l1", "l2"):
            raise InvalidInput(
                f"counts have no sensitivity in norm={norm!r}; use Laplace noise (l1) or Gaussian noise (l2)."
            )
        if self.relation == "add_remove":
            return 1.0
        return SQRT_2_UP if norm == "l2" else 2.0

    def grid(self, block: Block) -> RowBlock:
        """Replace every record by a row with one entry: at index 0 if the record was rejected, otherwise at index 1."""
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
