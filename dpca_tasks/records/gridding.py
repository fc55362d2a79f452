"""Put the records of a block on the integer grid: canonical, clipped, and rounded, each record by itself."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.kernels import gridding
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock

RECORDS_VERSION = 2
"""Of how records are clipped and rounded. Code that moves any bit of one is another version: it gets other noise."""


def canonical(block: Block, *, n_features: int) -> Block:
    """Merge duplicate columns, sort each row, and drop ids out of range.

    Two entries ``a`` in one column have norm ``sqrt(2) a`` but act as ``2 a``: unmerged, they would pass the
    clip and break every sensitivity. Ingest stores canonical rows; this is the check that does not trust it.
    """
    if gridding.rows_are_canonical(block.indices, block.row_ptr, n_features):
        return block
    columns = np.asarray(block.indices, np.int64)
    inside = (columns >= 0) & (columns < n_features)
    rows = np.repeat(np.arange(block.row_ptr.size - 1), np.diff(block.row_ptr))
    order = np.lexsort((columns[inside], rows[inside]))  # stable: a record's sums have one order
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
        values=gridding.grid_records(as_floats(rows.values), rows.row_ptr, rows.record_ptr, clip_norm, most),
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
