"""Images of gridded records under a public map, in exact integers.

A record of p rows q, in steps of ``2^-b``, is shifted by a public mean and multiplied by a public matrix. The mean M
has steps of ``2^-16``, and the matrices U and W have steps of ``2^-12``::

    z = 2^16 q - floor(2^b / sqrt p) M
    y = 2^12 z - floor(2^-12 z U) W^T        in steps of 2^-(b + 28)

BLAS multiplies in float64. All entries are integers, and every sum of products stays below ``2^53``. So BLAS may add in
any order: the image of a record is the same in every block, next to any other records. The notes of
`dpca_tasks.queries.mapped_moment` bound the sums.

The image is clipped by `dpca_tasks.kernels.gridding.grid_records`, which compares integers after all rounding.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.kernels.dense_products import densify, strip_rows
from dpca_tasks.kernels.gridding import SHIFT_BITS, grid_records, shared_constant
from dpca_tasks.threads import one_thread

MAP_BITS = 12
"""U and W are on a grid of step ``2^-12``."""


def mapped_strips(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    bits: int,
    directions: NDArray[np.int64],
    reductions: NDArray[np.int64],
    shift: NDArray[np.int64],
    clip_norm: float,
    bound: int,
    square: int | None,
) -> Iterator[NDArray[np.float64]]:
    """Yield the clipped images of records as dense rows of integers, a strip of whole records at a time.

    A strip has at most `dpca_tasks.kernels.dense_products.CELLS` cells, or one longer record. BLAS has one thread
    while this runs.

    Parameters
    ----------
    values, indices, row_ptr, record_ptr
        Records on the grid of step ``2^-bits``.
    bits : int
        b.
    directions, reductions : int64 arrays of shape (d, r)
        U and W.
    shift : int64 array of shape (d,)
        M.
    clip_norm : float
        The norm to which images are clipped, in units of ``2^bits`` steps of a record. It is ``sqrt(bound)`` steps of
        the image.
    bound, square : int
        The largest sum of squares of an image, and of its constants. There are no constants if ``square`` is None.
    """
    n_features = len(shift)
    public = directions.astype(np.float64), reductions.T.astype(np.float64), shift.astype(np.float64)
    unit = clip_norm * 2.0 ** (bits + SHIFT_BITS + MAP_BITS)
    with one_thread():
        for first, last in _strips(record_ptr, strip_rows(n_features + 1)):
            rows = slice(record_ptr[first], record_ptr[last])
            cells = np.empty((rows.stop - rows.start, n_features))
            densify(values, indices, row_ptr[rows.start : rows.stop + 1], cells)
            counts = np.diff(record_ptr[first : last + 1])
            map_rows(cells, np.repeat(_shares(counts, bits), counts), *public)
            line_ptr = np.arange(len(cells) + 1, dtype=np.int64) * n_features
            records = record_ptr[first : last + 1] - rows.start
            clipped = grid_records(cells.ravel(), line_ptr, records, unit, bound).reshape(cells.shape)
            if square is not None:
                constants = [shared_constant(square, int(count)) for count in counts]
                cells = np.empty((len(cells), n_features + 1))
                cells[:, -1] = np.repeat(np.array(constants, np.float64), counts)
            cells[:, :n_features] = clipped
            yield cells


def map_rows(
    cells: NDArray[np.float64],
    shares: NDArray[np.float64],
    directions: NDArray[np.float64],
    reductions: NDArray[np.float64],
    shift: NDArray[np.float64],
) -> None:
    """Replace rows on the grid by their images, in place; ``shares`` are the multiples of the mean, one a row."""
    cells *= 2.0**SHIFT_BITS
    if shift.any():
        cells -= np.multiply.outer(shares, shift)
    scores = cells @ directions
    scores *= 2.0**-MAP_BITS
    np.floor(scores, out=scores)
    cells *= 2.0**MAP_BITS
    cells -= scores @ reductions


def _shares(counts: NDArray[np.int64], bits: int) -> NDArray[np.float64]:
    """Return ``floor(2^bits / sqrt p)`` for the row counts p of records; records without rows have no share."""
    return np.floor(2.0**bits / np.sqrt(np.maximum(counts, 1)))


def _strips(record_ptr: NDArray[np.int64], at_once: int) -> Iterator[tuple[int, int]]:
    """Cut records into strips of at most ``at_once`` rows, or of one longer record."""
    first, n_records = 0, record_ptr.size - 1
    while first < n_records:
        last = int(np.searchsorted(record_ptr, record_ptr[first] + at_once, side="right")) - 1
        yield first, max(first + 1, last)
        first = max(first + 1, last)
