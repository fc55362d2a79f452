"""The gridding of records: each record is made canonical, clipped and rounded to integers by itself."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.kernels import gridding
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock

RECORDS_VERSION = 2
"""The version of clipping and rounding. Code that changes any bit of a record needs a new version, and so new noise."""


def canonical(block: Block, *, n_features: int) -> Block:
    """Merge duplicate columns, sort each row, and drop ids out of range.

    Two entries ``a`` in one column have norm ``sqrt(2) a`` but act as ``2 a``: without the merge they would pass the
    clip and break every sensitivity. Ingest stores canonical rows, but privacy must not depend on that.
    """
    if gridding.rows_are_canonical(block.indices, block.row_ptr, n_features):
        return block
    columns = np.asarray(block.indices, np.int64)
    inside = (columns >= 0) & (columns < n_features)
    rows = np.repeat(np.arange(block.row_ptr.size - 1), np.diff(block.row_ptr))
    order = np.lexsort((columns[inside], rows[inside]))  # stable, so that the sums of a record have a fixed order
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
    """Clip every record of a block and put it on the fixed-point grid.

    The clip norm is ``sqrt(bound)`` steps: ``2^bits`` by default, less if the record is extended by constants later.

    Guarantees
    ----------
    - Every record's integer squares sum to at most ``bound``, compared in int64. A record that meets the bound after
      rounding to nearest is kept so. Any other is scaled to the clip norm, if it is longer, and rounded again. If
      rounding alone makes it too long, it is rounded toward zero from ``1 - 2^-24`` of its size, which covers the
      rounding of norm and scale (relative errors of about ``2^-53`` times the number of stored values).
    - A record with a non-finite value becomes the empty record, and so does one of norm 0. Both still count as records.
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
