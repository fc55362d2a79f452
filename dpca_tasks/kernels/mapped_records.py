"""Images of gridded records under a public map, in exact integers.

A record of p rows q, in steps of ``2^-b``, is shifted by a public mean and multiplied by a public matrix. The mean M
has steps of ``2^-16``, and the matrices U and W have steps of ``2^-12``::

    z = 2^16 q - floor(2^b / sqrt p) M
    y = 2^12 z - floor(2^-12 z U) W^T        in steps of 2^-(b + 28)

BLAS multiplies in float64. All entries are integers, and every sum of products stays below ``2^53``. So BLAS may add in
any order: the image of a record is the same in every block, next to any other records. The notes of
`dpca_tasks.queries.mapped_moment` bound the sums.

The image is clipped by `clip_images`, which compares integers after all rounding.
"""

from collections.abc import Iterator

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm

from dpca_tasks.kernels.dense_products import strip_rows
from dpca_tasks.kernels.gridding import SHIFT_BITS, shared_constant
from dpca_tasks.threads import one_thread

MAP_BITS = 12
"""U and W are on a grid of step ``2^-12``."""
PIECE = 1 << 16
"""Cells that are mapped at a time: 512 KiB."""


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
) -> Iterator[NDArray[np.int32]]:
    """Yield the clipped images of records as dense rows, a strip of whole records at a time.

    A strip has at most `dpca_tasks.kernels.dense_products.CELLS` cells, or one longer record. It is mapped in smaller
    pieces, which stay in a processor's cache.

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
    public = directions.astype(np.float64), reductions.astype(np.float64), shift.astype(np.float64)
    unit = clip_norm * 2.0 ** (bits + SHIFT_BITS + MAP_BITS)
    for start, stop in _strips(record_ptr, strip_rows(n_features + 1)):
        records = record_ptr[start : stop + 1]
        made = np.empty((records[-1] - records[0], n_features + (square is not None)), np.int32)
        for first, last in _strips(records, max(1, PIECE // n_features)):
            rows = records[first : last + 1]
            if rows[0] == rows[-1]:  # records without rows
                continue
            counts = np.diff(rows)
            cells = np.empty((rows[-1] - rows[0], n_features))
            shares = np.repeat(_shares(counts, bits), counts)
            write_rows(values, indices, row_ptr[rows[0] : rows[-1] + 1], shares, public[2], cells)
            map_rows(cells, *public[:2])
            piece = made[rows[0] - records[0] : rows[-1] - records[0]]
            clip_images(cells, rows - rows[0], unit, bound, piece)
            if square is not None:
                write_constants(rows - rows[0], square, piece[:, -1])
        yield made


@njit(cache=True, nogil=True)
def write_rows(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    shares: NDArray[np.float64],
    shift: NDArray[np.float64],
    cells: NDArray[np.float64],
) -> None:
    """Write rows minus multiples of the mean as dense rows, in steps of ``2^-(b + 16)``."""
    unit = 2.0**SHIFT_BITS
    for row in range(cells.shape[0]):
        cell, share = cells[row], shares[row]
        for column in range(shift.size):
            cell[column] = -share * shift[column]
        for at in range(row_ptr[row], row_ptr[row + 1]):
            cell[np.uint64(indices[at])] += values[at] * unit


def map_rows(cells: NDArray[np.float64], directions: NDArray[np.float64], reductions: NDArray[np.float64]) -> None:
    """Replace rows z by their images y in place, on one thread."""
    with one_thread():
        scores = cells @ directions
        scores *= 2.0**-MAP_BITS
        np.floor(scores, out=scores)
        dgemm(-1.0, reductions, scores.T, beta=2.0**MAP_BITS, c=cells.T, overwrite_c=True)


@njit(cache=True, nogil=True)
def clip_images(
    cells: NDArray[np.float64],
    record_ptr: NDArray[np.int64],
    clip_norm: float,
    bound: int,
    clipped: NDArray[np.int32],
) -> None:
    """Clip the images of records to ``clip_norm``, and write them on the grid on which it is ``sqrt(bound)`` steps.

    Guarantees
    ----------
    The squares of every record sum to at most ``bound``, compared in integers after all rounding. A record is scaled
    to the clip norm, if it is longer, and rounded to nearest. If that is too long, it is rounded toward zero from
    ``1 - 2^-24`` of its size, which leaves room for the rounding of its norm. Entries are integers below ``2^53``, so
    no norm overflows. The order of additions depends only on the shape of the record.
    """
    half_range = np.sqrt(np.float64(bound))
    width = cells.shape[1]
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        squares = 0.0
        for row in range(first, last):
            squares += row_square(cells[row])
        weight = half_range / max(np.sqrt(squares), clip_norm)
        shrunk = weight * (1.0 - 2.0**-24)
        for attempt in range(2):
            total = np.int64(0)
            for row in range(first, last):
                cell, out = cells[row], clipped[row]
                for column in range(width):
                    part = np.rint(cell[column] * weight) if attempt == 0 else np.trunc(cell[column] * shrunk)
                    point = np.int32(part)
                    out[column] = point
                    total += np.int64(point) * np.int64(point)
            if total <= bound:
                break
        else:  # impossible by the analysis above, but checked
            for row in range(first, last):
                clipped[row, :width] = 0


@njit(cache=True, nogil=True)
def write_constants(record_ptr: NDArray[np.int64], square: int, constants: NDArray[np.int32]) -> None:
    """Write `shared_constant` for each of the rows of each record."""
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        constants[first:last] = shared_constant(square, last - first)


@njit(cache=True, nogil=True)
def row_square(cell: NDArray[np.float64]) -> float:
    """Return the sum of squares of a row, in eight sums that a processor adds at the same time."""
    sums = np.zeros(8)
    whole = cell.size - cell.size % 8
    for start in range(0, whole, 8):
        for lane in range(8):
            sums[lane] += cell[start + lane] * cell[start + lane]
    rest = 0.0
    for at in range(whole, cell.size):
        rest += cell[at] * cell[at]
    return rest + sums.sum()


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
