"""Row batches: what every reader yields, and the one canonical form in which rows are stored.

In canonical form the columns of a row rise strictly, duplicates are merged, explicit zeros are gone, and each
value is one that the stored dtype holds.

>>> batch = RowBatch(
...     values=np.array([1.0, 0.0, 2.0]), indices=np.array([4, 2, 4]), row_ptr=np.array([0, 3]),
...     record_ptr=np.array([0, 1]), places=np.array([1]), place="line",
... )
>>> rows = make_canonical(batch, n_features=5, dtype=np.dtype(np.uint8))
>>> rows.indices.tolist(), rows.values.tolist(), rows.row_ptr.tolist()
([4], [3.0], [0, 1])
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from storage.errors import BadSource, Invalid

MAX_FEATURES = 2**31 - 1
MAX_INTEGER = 2**53 - 1  # up to here float64 tells every integer from the next
_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
STORED_DTYPES = tuple(np.dtype(kind) for kind in (np.bool_, *_INTEGERS, np.float32, np.float64))

_FINE, _COLUMN, _NOT_FINITE, _NOT_WHOLE, _RANGE = range(5)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBatch:
    """Some whole records in source order. Its arrays hold until the reader is asked for the next batch.

    Attributes
    ----------
    values : float64 array of shape (nnz,)
    indices : int64 array of shape (nnz,), columns from 0
    row_ptr : int64 array of shape (n_rows + 1,), where each row begins in `values`
    record_ptr : int64 array of shape (n_records + 1,), where each record begins in the rows
    places : int64 array of shape (n_rows,), the number of the line or row that each row came from
    place : str, what `places` counts: "line" or "row"
    """

    values: NDArray[np.float64]
    indices: NDArray[np.int64]
    row_ptr: NDArray[np.int64]
    record_ptr: NDArray[np.int64]
    places: NDArray[np.int64]
    place: str


class Reader(Protocol):
    """One opened source: what it declares, and its rows in order."""

    format: str
    n_features: int
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes to read in all."""

    @property
    def position(self) -> int:
        """Bytes read so far."""

    def batches(self) -> Iterator[RowBatch]:
        """Yield batches of whole records; raise BadSource at the first bad row."""

    def close(self) -> None:
        """Close the source."""


def check_features(n_features: int) -> None:
    """Refuse a declared number of columns outside 1..`MAX_FEATURES`.

    Raises
    ------
    Invalid
        If it is outside.
    """
    if not 1 <= n_features <= MAX_FEATURES:
        raise Invalid(f"n_features={n_features} must lie in 1..{MAX_FEATURES}; declare the number of columns")


def stored_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype that values are stored in, in native byte order.

    Raises
    ------
    Invalid
        If it is not one of `STORED_DTYPES`.
    """
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = None
    if wanted is None or wanted.newbyteorder("=") not in STORED_DTYPES:
        names = ", ".join(str(known) for known in STORED_DTYPES)
        raise Invalid(f"dtype {str(dtype)!r} is not stored; values are one of {names}; name one of these as dtype")
    return wanted.newbyteorder("=")


def make_canonical(batch: RowBatch, *, n_features: int, dtype: np.dtype[Any]) -> RowBatch:
    """Sort columns, merge duplicates, round to `dtype`, drop zeros; the batch's own arrays are overwritten.

    Raises
    ------
    BadSource
        At the first row with a column outside 0..n_features-1, a value that is not finite, or one that
        `dtype` cannot hold: it overflows, or is no whole number where `dtype` is bool or integer.

    Guarantees
    ----------
    Duplicates are added in float64 in source order, whole numbers exactly; the sum is rounded once, to
    `dtype`. Rows that are canonical already keep their bits.
    """
    low, high = _bounds(dtype)
    row, verdict, nnz = _canonicalise(
        batch.values,
        batch.indices,
        batch.row_ptr,
        n_features,
        low,
        high,
        dtype.kind != "f",
        dtype == np.float32,
    )
    if verdict != _FINE:
        rule = {
            _COLUMN: f"has a column outside 0..{n_features - 1}; correct it or declare more features",
            _NOT_FINITE: "has a value that is not finite; correct or drop it",
            _NOT_WHOLE: f"has a value that is not whole, so {dtype} cannot hold it; choose a float dtype",
            _RANGE: f"has a value or sum of duplicates outside the range of {dtype}; choose a wider dtype",
        }[verdict]
        raise BadSource(f"{batch.place} {batch.places[row]} {rule}")
    return replace(batch, values=batch.values[:nnz], indices=batch.indices[:nnz])


def _bounds(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "f":
        return -float(np.finfo(dtype).max), float(np.finfo(dtype).max)
    if dtype.kind == "b":
        return 0.0, 1.0
    limits = np.iinfo(dtype)
    return float(max(limits.min, -MAX_INTEGER)), float(min(limits.max, MAX_INTEGER))


@njit(cache=True, nogil=True)
def _canonicalise(values, indices, row_ptr, n_features, low, high, whole, single):  # type: ignore[no-untyped-def]
    """Canonicalise in place: (last row looked at, verdict, values kept)."""
    kept, start = 0, row_ptr[0]
    for row in range(len(row_ptr) - 1):
        stop = row_ptr[row + 1]
        previous, sorted_already = -1, True
        for at in range(start, stop):
            if indices[at] < 0 or indices[at] >= n_features:
                return row, _COLUMN, kept
            if not np.isfinite(values[at]):
                return row, _NOT_FINITE, kept
            if whole and values[at] != np.floor(values[at]):
                return row, _NOT_WHOLE, kept
            sorted_already = sorted_already and indices[at] > previous
            previous = indices[at]
        if not sorted_already:
            order = np.argsort(indices[start:stop], kind="mergesort")
            indices[start:stop] = indices[start:stop][order]
            values[start:stop] = values[start:stop][order]
        at = start
        while at < stop:
            column, value = indices[at], values[at]
            at += 1
            while at < stop and indices[at] == column:
                value += values[at]
                at += 1
                if whole and abs(value) > MAX_INTEGER:
                    return row, _RANGE, kept
            if single:
                value = np.float64(np.float32(value))
            if not low <= value <= high:
                return row, _RANGE, kept
            if value != 0.0:
                indices[kept] = column
                values[kept] = value
                kept += 1
        start = stop
        row_ptr[row + 1] = kept
    return 0, _FINE, kept
