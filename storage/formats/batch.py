"""Batches of rows, their canonical form, and the handling of bad rows and of duplicate values.

A bad row either ends the ingest, or the record that contains the row becomes empty and reading continues. In the second
case, a private report lists the position of each bad row, the rule that the row breaks, and the column, but never the
row's content. The report is a file of mode 0600 in the home folder, next to the snapshot.

>>> try:
...     Rejects().reject(place="line", number=3, reason="has a value that is not finite")
... except BadSource as error:
...     print(error)
line 3 has a value that is not finite

Every reader of a source yields row batches. Rows are stored in canonical form: the columns of a row increase strictly,
duplicates (values of the same row and column) are merged, and each value is exact in the stored dtype. Explicit zeros
are dropped, unless the user chose to keep zeros.

>>> batch = RowBatch(
...     values=np.array([1.0, 0.0, 2.0]), indices=np.array([4, 2, 4]), row_ptr=np.array([0, 3]),
...     record_ptr=np.array([0, 1]), places=np.array([1]), place="line",
... )
>>> rows = make_canonical(batch, n_features=5, dtype=np.dtype(np.uint8), rejects=Rejects())
>>> rows.indices.tolist(), rows.values.tolist(), rows.row_ptr.tolist()
([4], [3.0], [0, 1])
"""

import csv
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from dpca.errors import BadSource, Invalid
from storage.formats.registry import DUPLICATES

if TYPE_CHECKING:
    import pyarrow as pa


COLUMNS = ("file", "place", "number", "reason", "column")
_KINDS = 1000  # at most this many pairs (reason, column) are counted; further bad rows are counted by reason only
_SHOWN = 5

type Tally = Counter[tuple[str, str]]
"""Numbers of bad rows by (reason, column); the column is "" if no single column is at fault."""


class Rejects:
    """Handler of bad rows that raises an error at the first one; base class of handlers that continue.

    Attributes
    ----------
    file : str
        The address of the file being read. The reader sets this attribute whenever it opens the next file.
    names : sequence of str or None
        The names of the columns, if the source has them.
    tally : Tally
        Numbers of bad rows so far.
    is_tolerant : bool
        Whether reading continues after a bad row (a tolerant handler).
    origins : sequence of (int, str)
        Set if rows of several files were grouped together: for each file, the number of its first row, and the file's
        address. Row numbers then count over all files.
    counts_all : bool
        Whether `reject` is called for each rule that a row of a table breaks, rather than only for the first.
    """

    is_tolerant = counts_all = False

    def __init__(self) -> None:
        self.file = ""
        self.origins: Sequence[tuple[int, str]] = ()
        self.names: Sequence[str] | None = None
        self.tally: Tally = Counter()

    @property
    def count(self) -> int:
        """Number of bad rows so far."""
        return self.tally.total()

    def reject(
        self, *, place: str, number: int, reason: str, column: str | int | None = None, quoting: str | None = None
    ) -> None:
        """Handle one bad row.

        Parameters
        ----------
        place : str
            What `number` counts: "line" or "row".
        number : int
            Number of the bad line or row.
        reason : str
            What is wrong with the row and how to correct it, without the row's content. The text continues a sentence
            that begins with the place, such as "line 3".
        column : str, int or None
            Name, or number from 0, of the first bad column; None if no single column is at fault.
        quoting : str or None
            A reason that may quote the row, for the error message only, which the user alone sees.

        Raises
        ------
        BadSource
            Always, unless the handler is tolerant (`is_tolerant`).
        """
        number, self.file = self.located(number)
        raise BadSource(f"{place} {number} {reason}" if quoting is None else f"{place} {number}: {quoting}")

    def located(self, number: int) -> tuple[int, str]:
        """Return a row's number within its file, and the file's address, for a row `number` counted over all files."""
        if not self.origins:
            return number, self.file
        first, file = self.origins[bisect_right(self.origins, number, key=itemgetter(0)) - 1]
        return number - first, file

    def note(self, *, place: str, number: int | None, reason: str) -> None:
        """Add a remark about a row that is not bad to the report, if there is a report.

        `place`, `number` and `reason` have the same meaning as in `reject`.
        """

    def close(self) -> None:
        """Flush the report on bad rows to the disk and close it, if there is a report."""


class SkippedRows(Rejects):
    """Handler of bad rows that ignores them, so that reading continues."""

    is_tolerant = True

    def reject(
        self, *, place: str, number: int, reason: str, column: str | int | None = None, quoting: str | None = None
    ) -> None:
        """Ignore the bad row."""


class Quarantine(Rejects):
    """Handler of bad rows that continues, and lists their positions in a private CSV report of mode 0600."""

    is_tolerant = True

    def __init__(self) -> None:
        super().__init__()
        self._stream: TextIO | None = None

    def open(self, path: Path) -> None:
        """Create the report file, and overwrite a file that a killed ingest left."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._stream = os.fdopen(descriptor, "w", encoding="utf-8", newline="")
        csv.writer(self._stream, lineterminator="\n").writerow(COLUMNS)

    def reject(
        self, *, place: str, number: int, reason: str, column: str | int | None = None, quoting: str | None = None
    ) -> None:
        """Add one bad row to the report, without the row's content."""
        if isinstance(column, int):
            column = str(column) if self.names is None else self.names[column]
        self._write(place, number, reason, column)
        _count(self.tally, reason, column or "")

    def note(self, *, place: str, number: int | None, reason: str) -> None:
        """Add a remark about a row that is not bad to the report."""
        self._write(place, number, reason, None)

    def _write(self, place: str, number: int | None, reason: str, column: str | None) -> None:
        assert self._stream is not None, "open the report before reading rows"
        own, file = (number, self.file) if number is None else self.located(number)
        csv.writer(self._stream, lineterminator="\n").writerow((file, place, own, reason, column))

    def close(self) -> None:
        """Flush the report on bad rows to the disk, and close it."""
        if self._stream is not None and not self._stream.closed:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()


def describe(tally: Tally) -> str:
    """Summarize bad rows in one line: the numbers by broken rule and column, most frequent first."""
    parts = [
        f"{count} x {reason.partition(';')[0]}" + (f" (column {column})" if column else "")
        for (reason, column), count in tally.most_common(_SHOWN)
    ]
    rest = tally.total() - sum(count for _, count in tally.most_common(_SHOWN))
    return ", ".join([*parts, *([f"{rest} x other reasons or columns"] if rest else [])])


def read_tally(notes: Path) -> Tally:
    """Count the rows listed in a private report by (reason, column)."""
    tally: Tally = Counter()
    with notes.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            _count(tally, row["reason"], row["column"])
    return tally


def _count(tally: Tally, reason: str, column: str) -> None:
    key = (reason, column)
    tally[key if key in tally or len(tally) < _KINDS else (reason, "")] += 1


BATCH_VALUES = 1 << 18  # largest number of values in one batch of a reader, unless a single row has more
MAX_FEATURES = 2**31 - 1
# the largest integer up to which float64 represents every integer, without ambiguity by rounding
MAX_INTEGER = 2**53 - 1
_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
STORED_DTYPES = tuple(np.dtype(kind) for kind in (np.bool_, *_INTEGERS, np.float32, np.float64))
_INSERTED = 64  # rows with at most this many entries are sorted by insertion sort

_FINE, _COLUMN, _NOT_FINITE, _NOT_WHOLE, _RANGE, _DUPLICATE = range(6)
_SUM, _MEAN, _LAST, _REFUSE = range(len(DUPLICATES))
_CHOICE = "drop one, or choose --duplicates mean, last or sum"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBatch:
    """A batch of rows in source order; its arrays are valid only until the reader yields the next batch.

    A reader yields each row as a separate record. If the entries of a row are scattered over the source, each row of
    the batch is only a fragment. Fragments with equal `row_ids` belong to the same row, and `storage.datasets.grouping`
    merges them.

    Attributes
    ----------
    values : float64 array of shape (nnz,)
    indices : int64 array of shape (nnz,), columns from 0
    row_ptr : int64 array of shape (n_rows + 1,), where each row begins in `values`
    record_ptr : int64 array of shape (n_records + 1,), the first row of each record
    places : int64 array of shape (n_rows,), the number of each row's line (or row) in the source
    place : str, what `places` counts: "line" or "row"
    row_ids : Arrow array of n_rows integers or strings, the ids of the rows, or None if no row is a fragment
    unit_ids : Arrow array of n_rows integers or strings, the id of each row's individual, or None without individuals
    surplus : bool array of shape (n_rows,), or None: true for rows beyond the bound on rows per individual, which are
        not stored
    rejected : bool array of shape (n_records,), or None: true for records with a bad row, which are empty in canonical
        form. An unreadable id of such a row is null
    first_seen : int or None, the number of the ingest in which the ids of all the batch's individuals first appeared
    entry_places : int64 array of shape (nnz,), or None: the line of each value, if the values of one row come from
        different lines
    row_names : Arrow array of n_rows strings, or None: names of rows in the source, which are not ids
    owners : uint64 array of shape (n_records, 2), or None: a keyed hash of the id of each record
    is_canonical : bool, whether the rows are known to be in canonical form (sorted, merged) for float64; False if
        unchecked
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
    """Interface of the readers: an opened source with a declared shape, and its rows in order.

    Attributes
    ----------
    format : str, the name of the source format
    n_features : int
    dtype : numpy dtype of the values
    names : sequence of str, or None: the names of the columns, if the source has them
    n_rows : int or None, the number of rows if the source declares it
    scattered : bool, whether the entries of a row are scattered over the source, as in triplets
    repeats : bool, whether a row may have several values of one column
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
        """Total number of bytes to read."""

    @property
    def position(self) -> int:
        """Number of bytes read so far."""

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield all rows, and pass each bad row to `rejects`; raise BadSource for a fault of the file."""

    def close(self) -> None:
        """Close the source."""


def check_features(n_features: int) -> None:
    """Refuse a declared number of columns outside 1..`MAX_FEATURES`.

    Raises
    ------
    Invalid
        If the number is outside this range.
    """
    if not 1 <= n_features <= MAX_FEATURES:
        raise Invalid(f"n_features={n_features} must be in 1..{MAX_FEATURES}; declare the number of columns")


def stored_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Check a dtype for stored values, and return it in native byte order.

    Raises
    ------
    Invalid
        If the dtype is not one of `STORED_DTYPES`.
    """
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = None
    if wanted is None or wanted.newbyteorder("=") not in STORED_DTYPES:
        names = ", ".join(str(known) for known in STORED_DTYPES)
        raise Invalid(f"dtype {str(dtype)!r} is not stored; the allowed types are {names}; choose one of these")
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
    """Convert a batch to canonical form; the arrays of the given batch are overwritten.

    The columns of each row are sorted, duplicates are merged, and values are scaled and rounded to `dtype`. Zeros are
    dropped unless `keep_zeros` is set. A row is bad if a column is outside 0..n_features-1, if a value is not finite,
    or if `dtype` cannot represent a value. `dtype` cannot represent an overflow and, if it is bool or an integer type,
    a fraction. A row with duplicates is bad if `duplicates` is "refuse".

    Parameters
    ----------
    batch : RowBatch
    n_features : int
    dtype : numpy dtype
        Type of the stored values.
    rejects : Rejects
        Receives each bad row. If its method `reject` does not raise, the record of the bad row becomes empty.
    scale : float64 array of shape (n_features,), or None
        Public factors by which the columns are multiplied.
    duplicates : str
        What happens to several values of one row and column: "sum", "mean", "last" or "refuse".
    keep_zeros : bool
        Whether values of 0 are kept.

    Guarantees
    ----------
    Every record and row of the batch is in the result. A bad row changes only its own record, which becomes empty and
    still counts as a record. Hence the rows of one individual change only one record of the snapshot, whatever bytes
    they contain. Duplicates are added in float64 in source order, and whole numbers are added exactly. A mean is this
    sum divided by the number of values. The sum or mean is multiplied by the column's factor and then rounded to
    `dtype`. Values of rows that are already canonical keep their exact bits.
    """
    if batch.is_canonical and dtype == np.float64 and scale is None:
        return batch
    low, high = _bounds(dtype)
    batch = replace(
        batch,
        is_canonical=False,
        # arrays from Arrow are read-only, so writable copies are made
        values=np.require(batch.values, np.float64, ["C", "W"]),
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
                where, number, text = None if verdict == _COLUMN else int(column), int(batch.places[row]), None
                if verdict == _DUPLICATE and given is not None and batch.entry_places is not None:
                    held = slice(*given[0][row : row + 2].tolist())
                    first, number = batch.entry_places[held][given[1][held] == column][:2].tolist()
                    text = f"it has the same row and column as {_place(batch.place, first, number, rejects)}; {_CHOICE}"
                rejects.reject(place=batch.place, number=number, reason=reason, column=where, quoting=text)
            bad[row] = True
            row += 1
    canonical = replace(batch, values=batch.values[:nnz], indices=batch.indices[:nnz], rejected=None, entry_places=None)
    return _emptied(canonical, bad) if bad.any() else canonical


def _place(place: str, number: int, nearby: int, rejects: Rejects) -> str:
    """Return text such as "line 3" for the line or row `number`, or "line 3 of FILE".

    The file is named only if it differs from the file that contains the line or row `nearby`.
    """
    (own, file), (_, other) = rejects.located(number), rejects.located(nearby)
    return f"{place} {own}" if file == other else f"{place} {own} of {file}"


def without_surplus(batch: RowBatch) -> RowBatch:
    """Return the batch without its surplus rows (rows beyond the bound on rows per individual)."""
    return batch if batch.surplus is None else replace(without_rows(batch, batch.surplus), surplus=None)


def without_rows(batch: RowBatch, dropped: NDArray[np.bool_]) -> RowBatch:
    """Remove the marked rows, and records that have no rows left."""
    import pyarrow as pa  # imported here, because processes that read no rows do not need Arrow

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
    """Remove the values of all records that have a bad row; these records keep their rows, without values."""
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
        return f"{dtype}, or beyond 2^53, which float64 cannot represent; rescale it"
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
    """Convert rows to canonical form in place, up to the first bad row.

    Return (index of the bad row, verdict, the bad column, start of the next row, number of entries kept so far).
    """
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
                values[kept] = value + 0.0  # -0.0 becomes 0.0
                kept += 1
        start = stop
        row += 1
        row_ptr[row] = kept
    return row, _FINE, -1, start, kept


@njit(cache=True, nogil=True)
def _sort_by_column(values, indices):  # type: ignore[no-untyped-def]
    """Sort the entries of one row by column in place; entries of the same column keep their order."""
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
