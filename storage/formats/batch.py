"""Row batches, which every reader yields, and the one canonical form in which rows are stored.

In canonical form the columns of a row rise strictly, duplicates are merged, explicit zeros are gone unless they are
kept, and each value is one that the stored dtype holds.

>>> batch = RowBatch(
...     values=np.array([1.0, 0.0, 2.0]), indices=np.array([4, 2, 4]), row_ptr=np.array([0, 3]),
...     record_ptr=np.array([0, 1]), places=np.array([1]), place="line",
... )
>>> rows = make_canonical(batch, n_features=5, dtype=np.dtype(np.uint8), rejects=Rejects())
>>> rows.indices.tolist(), rows.values.tolist(), rows.row_ptr.tolist()
([4], [3.0], [0, 1])
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from storage.errors import Invalid
from storage.formats.duplicates import DUPLICATES
from storage.formats.rejects import Rejects

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_VALUES = 1 << 18  # numbers that a reader puts into one batch, unless one row holds more
MAX_FEATURES = 2**31 - 1
MAX_INTEGER = 2**53 - 1  # float64 holds every integer up to here, and the next as well
_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
STORED_DTYPES = tuple(np.dtype(kind) for kind in (np.bool_, *_INTEGERS, np.float32, np.float64))
_INSERTED = 64  # entries of a row that are sorted by insertion

_FINE, _COLUMN, _NOT_FINITE, _NOT_WHOLE, _RANGE, _DUPLICATE = range(6)
_SUM, _MEAN, _LAST, _REFUSE = range(len(DUPLICATES))
_CHOICE = "drop one, or choose --duplicates mean, last or sum"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBatch:
    """Some rows in source order. Its arrays are valid until the reader yields the next batch.

    A reader gives each row as a record of its own; where rows are scattered, each is a piece of the row that
    `row_ids` names. `storage.datasets.grouping` brings the pieces of a row together.

    Attributes
    ----------
    values : float64 array of shape (nnz,)
    indices : int64 array of shape (nnz,), columns from 0
    row_ptr : int64 array of shape (n_rows + 1,), where each row begins in `values`
    record_ptr : int64 array of shape (n_records + 1,), where each record begins in the rows
    places : int64 array of shape (n_rows,), the number of the line or row that each row came from
    place : str, what `places` counts: "line" or "row"
    row_ids : Arrow array of n_rows integers or strings, or None when every row is whole
    unit_ids : Arrow array of n_rows integers or strings, or None: the individual behind each row
    surplus : bool array of shape (n_rows,), or None: rows beyond the bound of their individual, which are not stored
    rejected : bool array of shape (n_records,), or None: the records that have a bad row; in canonical form they are
        empty. Ids of their rows are null where they cannot be read
    first_seen : int or None, the number of the ingest that first saw the individuals of all its records
    entry_places : int64 array of shape (nnz,), or None: the place of each value, where those of a row have several
    row_names : Arrow array of n_rows strings, or None: the names that a source gives its rows, apart from any id
    owners : uint64 array of shape (n_records, 2), or None: a keyed hash of the id of each record
    is_canonical : bool, whether the rows are known to be in canonical form, as float64; False where nobody looked
    """

    values: NDArray[np.float64]
    indices: NDArray[np.int64]
    row_ptr: NDArray[np.int64]
    record_ptr: NDArray[np.int64]
    places: NDArray[np.int64]
    place: str
    row_ids: "pa.Array | None" = None
    unit_ids: "pa.Array | None" = None
    surplus: NDArray[np.bool_] | None = None
    rejected: NDArray[np.bool_] | None = None
    first_seen: int | None = None
    entry_places: NDArray[np.int64] | None = None
    row_names: "pa.Array | None" = None
    owners: NDArray[np.uint64] | None = None
    is_canonical: bool = False


class Reader(Protocol):
    """One opened source: its declared shape, and its rows in order.

    Attributes
    ----------
    format : str
    n_features : int
    dtype : numpy dtype of the values
    names : sequence of str, or None: the names of the columns, if the source has them
    n_rows : int or None, if the source declares it
    scattered : bool, whether rows come in pieces, in any order
    repeats : bool, whether a row may hold several values of one column
    """

    format: str
    n_features: int
    dtype: np.dtype[Any]
    names: Sequence[str] | None
    n_rows: int | None
    scattered: bool
    repeats: bool

    @property
    def size(self) -> int:
        """Bytes to read in all."""

    @property
    def position(self) -> int:
        """Bytes read so far."""

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows, bad ones too; pass each bad one to `rejects`; raise BadSource for a fault of the file."""

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


def make_canonical(
    batch: RowBatch,
    *,
    n_features: int,
    dtype: np.dtype[Any],
    rejects: Rejects,
    scale: NDArray[np.float64] | None = None,
    duplicates: str = "sum",
    keep_zeros: bool = False,
) -> RowBatch:
    """Sort columns, merge duplicates, scale, round to `dtype`, drop zeros; the batch's arrays are overwritten.

    A bad row has a column outside 0..n_features-1, a value that is not finite, or one that `dtype` cannot
    hold: it overflows, or is no whole number where `dtype` is bool or integer. So has one with duplicates that are
    refused.

    Parameters
    ----------
    batch : RowBatch
    n_features : int
    dtype : numpy dtype
        Type of the stored values.
    rejects : Rejects
        Receives each bad row. If it returns, the record of the row becomes empty.
    scale : float64 array of shape (n_features,), or None
        Public factors of the columns.
    duplicates : str
        One of `DUPLICATES`.
    keep_zeros : bool
        Whether a value of 0 stays.

    Guarantees
    ----------
    Every record and row of the batch is in the result. A bad row changes its own record alone, which becomes the empty
    record and still counts: so one individual's rows, whatever bytes they are, change one record of the snapshot.
    Duplicates are added in float64 in source order, whole numbers exactly, and a mean is their sum divided by their
    number; the result is multiplied by its factor and rounded once more, to `dtype`. Rows that are canonical already
    keep their bits.
    """
    if batch.is_canonical and dtype == np.float64 and scale is None:
        return batch
    low, high = _bounds(dtype)
    batch = replace(
        batch,
        is_canonical=False,
        values=np.require(batch.values, np.float64, ["C", "W"]),  # Arrow's arrays are read-only
        indices=np.require(batch.indices, np.int64, ["C", "W"]),
    )
    n_rows = len(batch.row_ptr) - 1
    bad = np.zeros(n_rows, dtype=np.bool_)
    if batch.rejected is not None:
        bad |= np.repeat(batch.rejected, np.diff(batch.record_ptr))
    factors = np.empty(0) if scale is None else scale
    is_traced = duplicates == "refuse" and batch.entry_places is not None
    given = (batch.row_ptr.copy(), batch.indices.copy()) if is_traced else None
    row, start, nnz = 0, int(batch.row_ptr[0]), 0
    batch.row_ptr[0] = 0
    while row < n_rows:
        row, verdict, column, start, nnz = _canonicalise(
            batch.values,
            batch.indices,
            batch.row_ptr,
            (row, start, nnz),
            n_features,
            factors,
            (low, high),
            dtype.kind != "f",
            dtype == np.float32,
            DUPLICATES.index(duplicates),
            keep_zeros,
        )
        if verdict != _FINE:
            reason = {
                _COLUMN: f"has a column outside 0..{n_features - 1}; correct it or declare more features",
                _NOT_FINITE: "has a value that is not finite; correct or drop it",
                _NOT_WHOLE: f"has a value that is not whole, so {dtype} cannot hold it; choose a float dtype",
                _RANGE: f"has a value or sum of duplicates outside the range of {_range_of(dtype)}",
                _DUPLICATE: f"has two values in one column; {_CHOICE}",
            }[verdict]
            if not bad[row]:
                where, number, said = None if verdict == _COLUMN else int(column), int(batch.places[row]), None
                if verdict == _DUPLICATE and given is not None and batch.entry_places is not None:
                    held = slice(*given[0][row : row + 2].tolist())
                    first, number = batch.entry_places[held][given[1][held] == column][:2].tolist()
                    said = f"it has the row and column of {_place(batch.place, first, number, rejects)}; {_CHOICE}"
                rejects.reject(place=batch.place, number=number, reason=reason, column=where, quoting=said)
            bad[row] = True
            row += 1
    canonical = replace(batch, values=batch.values[:nnz], indices=batch.indices[:nnz], rejected=None, entry_places=None)
    return _emptied(canonical, bad) if bad.any() else canonical


def _place(place: str, number: int, beside: int, rejects: Rejects) -> str:
    """Name a place in the file of another one, or with its file."""
    (own, file), (_, other) = rejects.located(number), rejects.located(beside)
    return f"{place} {own}" if file == other else f"{place} {own} of {file}"


def without_surplus(batch: RowBatch) -> RowBatch:
    """Return the rows that are stored."""
    return batch if batch.surplus is None else replace(without_rows(batch, batch.surplus), surplus=None)


def without_rows(batch: RowBatch, dropped: NDArray[np.bool_]) -> RowBatch:
    """Leave rows out, and records without any row left."""
    import pyarrow as pa  # at use: whoever plans reads no row

    kept = ~dropped
    starts, counts = batch.row_ptr[:-1][kept], np.diff(batch.row_ptr)[kept]
    before = np.concatenate(([0], np.cumsum(counts)))
    chosen = np.repeat(starts - before[:-1], counts) + np.arange(before[-1])
    record_ptr = np.concatenate(([0], np.cumsum(kept)))[batch.record_ptr]
    whole = pa.array(kept)
    return replace(
        batch,
        values=batch.values[chosen],
        indices=batch.indices[chosen],
        row_ptr=before,
        record_ptr=np.unique(record_ptr),
        places=batch.places[kept],
        row_ids=None if batch.row_ids is None else batch.row_ids.filter(whole),
        unit_ids=None if batch.unit_ids is None else batch.unit_ids.filter(whole),
        row_names=None if batch.row_names is None else batch.row_names.filter(whole),
        surplus=None if batch.surplus is None else batch.surplus[kept],
    )


def _emptied(batch: RowBatch, bad: NDArray[np.bool_]) -> RowBatch:
    """Empty the records that have a bad row; each keeps its rows, without any value."""
    rows_of = np.diff(batch.record_ptr)
    rejected = np.bincount(np.repeat(np.arange(len(rows_of)), rows_of), weights=bad, minlength=len(rows_of)) > 0
    empty = np.repeat(rejected, rows_of)
    counts = np.diff(batch.row_ptr)
    kept = ~np.repeat(empty, counts)
    row_ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(np.where(empty, 0, counts), out=row_ptr[1:])
    return replace(batch, values=batch.values[kept], indices=batch.indices[kept], row_ptr=row_ptr, rejected=rejected)


def _range_of(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "iu" and dtype.itemsize == 8:
        return f"{dtype}, or beyond 2^53, where float64 does not hold it; rescale it"
    return f"{dtype}; choose a wider dtype"


def _bounds(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "f":
        return -float(np.finfo(dtype).max), float(np.finfo(dtype).max)
    if dtype.kind == "b":
        return 0.0, 1.0
    limits = np.iinfo(dtype)
    return float(max(limits.min, -MAX_INTEGER)), float(min(limits.max, MAX_INTEGER))


@njit(cache=True, nogil=True)
def _canonicalise(  # type: ignore[no-untyped-def]
    values, indices, row_ptr, progress, n_features, scale, bounds, whole, single, merge, keep_zeros
):
    """Canonicalise in place from row to end: (row of the first bad one, verdict, column, start of its next, kept)."""
    row, start, kept = progress
    low, high = bounds
    n_rows = len(row_ptr) - 1
    while row < n_rows:
        stop = row_ptr[row + 1]
        row_ptr[row + 1] = kept
        previous, sorted_already = -1, True
        for at in range(start, stop):
            if indices[at] < 0 or indices[at] >= n_features:
                return row, _COLUMN, -1, stop, kept
            if not np.isfinite(values[at]):
                return row, _NOT_FINITE, indices[at], stop, kept
            if whole and values[at] != np.floor(values[at]):
                return row, _NOT_WHOLE, indices[at], stop, kept
            sorted_already = sorted_already and indices[at] > previous
            previous = indices[at]
        if not sorted_already:
            _sort_by_column(values[start:stop], indices[start:stop])
        at, first = start, kept
        while at < stop:
            column, value = indices[at], values[at]
            at, met = at + 1, at
            while at < stop and indices[at] == column:
                if merge == _REFUSE:
                    return row, _DUPLICATE, column, stop, first
                value = values[at] if merge == _LAST else value + values[at]
                at += 1
                if whole and abs(value) > MAX_INTEGER:
                    return row, _RANGE, column, stop, first
            if merge == _MEAN and at > met + 1:
                value /= at - met
                if whole and value != np.floor(value):
                    return row, _NOT_WHOLE, column, stop, first
            if len(scale):
                value *= scale[column]
            if single:
                value = np.float64(np.float32(value))
            if not low <= value <= high:
                return row, _RANGE, column, stop, first
            if value != 0.0 or keep_zeros:
                indices[kept] = column
                values[kept] = value + 0.0  # no negative zero
                kept += 1
        start = stop
        row += 1
        row_ptr[row] = kept
    return row, _FINE, -1, start, kept


@njit(cache=True, nogil=True)
def _sort_by_column(values, indices):  # type: ignore[no-untyped-def]
    """Sort the entries of one row in place; those of one column keep their order."""
    if len(indices) > _INSERTED:
        order = np.argsort(indices, kind="mergesort")
        indices[:] = indices[order]
        values[:] = values[order]
        return
    for at in range(1, len(indices)):
        column, value = indices[at], values[at]
        to = at
        while to > 0 and indices[to - 1] > column:
            indices[to], values[to] = indices[to - 1], values[to - 1]
            to -= 1
        indices[to], values[to] = column, value
