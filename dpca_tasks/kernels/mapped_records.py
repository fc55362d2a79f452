"""Images of records under a public affine map, computed in exact integers.

The map subtracts a public mean and multiplies rows by ``I - U W^T`` for public matrices U and W. A record has p rows q
of integers, in steps of ``2^-b``. The mean M is in steps of ``2^-16``, and U and W are in steps of ``2^-12``. The image
of a row q is y::

    z = 2^16 q - floor(2^b / sqrt p) M
    y = 2^12 z - floor(2^-12 z U) W^T        in steps of 2^-(b + 28)

BLAS multiplies in float64. All entries are integers, and every sum of products stays below ``2^53``, as the notes of
`dpca_tasks.queries.mapped_moment` prove. So BLAS may add in any order, and the image of a record does not depend on the
other records of its block. `clip_images` then clips the images, and compares integers after all rounding.
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
"""The matrices U and W of a public map are on a grid of step ``2^-12``."""
PIECE = 1 << 16
"""Largest number of cells that are mapped at a time, unless a single record has more: 512 KiB."""


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
    """Yield the clipped images of records under a public map as dense rows, a strip of whole records at a time.

    A strip has at most `dpca_tasks.kernels.dense_products.CELLS` cells, unless a single record has more. Each strip is
    mapped in smaller pieces, which fit the cache of a processor. The formulas are in the module's docstring.

    Parameters
    ----------
    values, indices, row_ptr, record_ptr
        Records on the grid of step ``2^-bits``, in compressed sparse format.
    bits : int
        The bits b of that grid.
    directions, reductions : int64 arrays of shape (d, r)
        The matrices U and W of the map, in steps of ``2^-12``.
    shift : int64 array of shape (d,)
        The public mean M, in steps of ``2^-16``.
    clip_norm : float
        The norm to which images are clipped, in units of ``2^bits`` grid steps of the records. On the grid of the
        yielded images this norm is ``sqrt(bound)`` steps.
    bound : int
        The largest sum of squares of the image of a record, in squared steps.
    square : int or None
        The largest sum of squares of the constants that are appended to the rows of a record; None for no constants.
    """
    n_features = len(shift)
    public = directions.astype(np.float64), reductions.astype(np.float64), shift.astype(np.float64)
    unit = clip_norm * 2.0 ** (bits + SHIFT_BITS + MAP_BITS)
    for start, stop in _strips(record_ptr, strip_rows(n_features + 1)):
        records = record_ptr[start : stop + 1]
        made = np.empty((records[-1] - records[0], n_features + (square is not None)), np.int32)
        for first, last in _strips(records, max(1, PIECE // n_features)):
            rows = records[first : last + 1]
            if rows[0] == rows[-1]:  # no record of this piece has a row
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
    """Write each sparse row minus ``share`` times the mean as a dense row, in steps of ``2^-(b + 16)``.

    The sparse rows are in steps of ``2^-b``, and the mean ``shift`` in steps of ``2^-16``. ``shares`` contains one
    integer per row.
    """
    unit = 2.0**SHIFT_BITS
    for row in range(cells.shape[0]):
        cell, share = cells[row], shares[row]
        for column in range(shift.size):
            cell[column] = -share * shift[column]
        for at in range(row_ptr[row], row_ptr[row + 1]):
            cell[np.uint64(indices[at])] += values[at] * unit


def map_rows(cells: NDArray[np.float64], directions: NDArray[np.float64], reductions: NDArray[np.float64]) -> None:
    """Replace each dense row z by ``y = 2^12 z - floor(2^-12 z U) W^T`` in place, on one thread.

    U are the ``directions``, and W the ``reductions``.
    """
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
    """Clip the images of records to norm ``clip_norm``, and round them to a grid.

    One ``clip_norm`` is ``sqrt(bound)`` steps of that grid.

    Guarantees
    ----------
    The squares of every record sum to at most ``bound``, compared in integers after all rounding. A record that is
    longer than the clip norm is scaled down to the clip norm. The record is then rounded to nearest. If the rounded
    record is too long, it is instead multiplied by ``1 - 2^-24`` and rounded toward zero, where the factor leaves room
    for the rounding of the norm. Entries are integers below ``2^53``, so no norm overflows. The order of additions
    depends only on the shape of the record.
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
        else:  # impossible by the guarantee in the docstring, but checked
            for row in range(first, last):
                clipped[row, :width] = 0


@njit(cache=True, nogil=True)
def write_constants(record_ptr: NDArray[np.int64], square: int, constants: NDArray[np.int32]) -> None:
    """Write the constant `shared_constant` of each record for all rows of that record."""
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        constants[first:last] = shared_constant(square, last - first)


@njit(cache=True, nogil=True)
def row_square(cell: NDArray[np.float64]) -> float:
    """Return the sum of squares of a row, accumulated in eight partial sums so that the compiler can vectorize it."""
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
    """Return ``floor(2^bits / sqrt(p))`` for each record of p rows: the multiple of the mean subtracted from a row."""
    return np.floor(2.0**bits / np.sqrt(np.maximum(counts, 1)))


def _strips(record_ptr: NDArray[np.int64], at_once: int) -> Iterator[tuple[int, int]]:
    """Yield ranges ``(first, stop)`` of records with at most ``at_once`` rows together, or with one longer record."""
    first, n_records = 0, record_ptr.size - 1
    while first < n_records:
        last = int(np.searchsorted(record_ptr, record_ptr[first] + at_once, side="right")) - 1
        yield first, max(first + 1, last)
        first = max(first + 1, last)
