"""Stable sort of the stored values (entries) of rows, by the ids of individual and row.

An external merge sort. Entries are collected in memory up to a bounded number, called a part. A source that fits into
one part is sorted in memory. For a larger source, each part is sorted and written to disk, and the sorted parts are
then merged. The merge reads a piece of each part. For each piece that is not the end of its part, take its last id.
Records with ids below the least of these last ids are complete in memory. Ids are 64-bit integers, sorted by a radix
sort.

>>> sort = EntrySort(Path("nothing-is-written"), by_line=False)
>>> sort.add(
...     units=np.array([7, 3]), lines=np.array([7, 3]), row_ptr=np.array([0, 1, 2]), indices=np.array([4, 5]),
...     values=np.array([1.0, 2.0]),
... )
>>> [(entries["unit"].tolist(), entries["column"].tolist()) for entries in sort.records()]
[([3, 7], [5, 4])]
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca.backends.atomic_files import make_folder
from storage.formats.batch import BATCH_VALUES

NO_COLUMN = -1
"""Column number of an entry without a value, which only marks that its row exists."""
REJECTED = -2
"""Column number of an entry without a value, which marks its row as bad."""

ENTRY = np.dtype(
    [("unit", np.int64), ("line", np.int64), ("value", np.float64), ("column", np.int32), ("place", np.int32)]
)
"""An entry: a stored value, the ids of its individual (unit) and row (line), its column, and its line in the source."""
LAST_PLACE = np.iinfo(np.int32).max

PART = 1 << 20  # number of entries in one part of the sort, 32 MiB; sorting them takes another 24 MiB
_LEAST_PIECE = 1 << 10  # least number of entries that are read from a sorted part at a time
_DIGIT = 11  # bits
_SIGN = np.uint64(1 << 63)

type Entries = NDArray[Any]


class EntrySort:
    """External sort of entries (stored values) by individual (unit) and row (line); equal entries keep their order.

    Memory is bounded by a constant plus the size of the largest record.

    Parameters
    ----------
    folder : Path
        A private folder, created if a part must be written to disk. The caller removes the folder.
    by_line : bool
        Whether entries are sorted by line (the id of the row) within a unit. If not, rows keep the order in which they
        were added.
    most : int
        Largest number of entries in a part; a part may exceed it if one row alone has more entries.
    provisional : bool
        Whether the added ids are provisional. Parts are then written unsorted, and sorted when `translate` has replaced
        the ids.
    """

    def __init__(self, folder: Path, *, by_line: bool, most: int = PART, provisional: bool = False) -> None:
        self._folder, self._by_line, self._most, self._provisional = folder, by_line, most, provisional
        self._buffer: Entries = np.empty(most, ENTRY)
        self._filled = 0
        self._files: list[Path] = []
        self._order: NDArray[np.int32] | None = None  # sorted order of the entries in the buffer, computed once
        self.size = 0

    def add(
        self,
        *,
        units: NDArray[np.int64],
        lines: NDArray[np.int64],
        row_ptr: NDArray[np.int64],
        indices: NDArray[np.int64],
        values: NDArray[np.float64],
        places: NDArray[np.int64] | None = None,
        rejected: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add rows in source order.

        A row without values becomes one entry with column `NO_COLUMN`. If the row is rejected, this column is
        `REJECTED`.

        Raises
        ------
        OSError
            If the disk is full or cannot be used.
        """
        needed = len(indices) + int(np.count_nonzero(row_ptr[1:] == row_ptr[:-1]))
        self._make_room(needed)
        nothing = np.zeros(len(units), dtype=np.int64)
        places = nothing if places is None else np.minimum(places, LAST_PLACE)
        columns = nothing + NO_COLUMN if rejected is None else np.where(rejected, REJECTED, NO_COLUMN)
        _fill(self._buffer[self._filled :], units, lines, row_ptr, indices, values, places, columns)
        self._filled += needed
        self.size += needed

    def add_entries(self, entries: Entries) -> None:
        """Add entries (stored values with their ids) unchanged."""
        self._make_room(len(entries))
        self._buffer[self._filled : self._filled + len(entries)] = entries
        self._filled += len(entries)
        self.size += len(entries)

    def translate(self, replace: Callable[[Entries], None]) -> None:
        """Replace the provisional ids of all entries (stored values) by final ids, then sort each part on disk.

        `replace` is called with the entries of one part at a time, in source order, and modifies them in place.

        Raises
        ------
        OSError
            If the disk is full or cannot be used.
        """
        for file in self._files:
            entries = np.fromfile(file, ENTRY)
            replace(entries)
            self._write_sorted(file, entries)
        replace(self._buffer[: self._filled])
        self._provisional = False

    def records(self) -> Iterator[Entries]:
        """Yield all entries in sorted order, in chunks that never split a record.

        The method may be called again, but no entries may be added after the first call.

        Raises
        ------
        OSError
            If the disk cannot be used.
        """
        assert not self._provisional, "call translate before records"
        if not self._files:
            held = self._buffer[: self._filled]
            if self._order is None:
                self._order = _sorted_order(held, by_line=self._by_line)
            yield from _in_batches(held, self._order)
            return
        if self._filled:
            self._spill()
        self._buffer = np.empty(0, ENTRY)
        yield from self._merged()

    def _make_room(self, needed: int) -> None:
        if self._filled + needed <= len(self._buffer):
            return
        if self._filled:
            self._spill()
        if needed > len(self._buffer):
            self._buffer = np.empty(needed, ENTRY)

    def _spill(self) -> None:
        make_folder(self._folder)
        file, held = self._folder / f"{len(self._files)}", self._buffer[: self._filled]
        if self._provisional:
            _write(file, [held])
        else:
            self._write_sorted(file, held)
        self._files.append(file)
        self._filled = 0

    def _write_sorted(self, file: Path, entries: Entries) -> None:
        order = _sorted_order(entries, by_line=self._by_line)
        starts = range(0, len(order), BATCH_VALUES)
        _write(file, (_take(entries, order[start : start + BATCH_VALUES]) for start in starts))

    def _merged(self) -> Iterator[Entries]:
        """Merge the sorted part files; a longer piece of each file is read if no record is complete in memory yet."""
        step = max(self._most // (4 * len(self._files)), _LEAST_PIECE)
        parts = [_SortedPart(file) for file in self._files]
        while parts := [part for part in parts if part.refill(step)]:
            open_ends = [int(part.piece["unit"][-1]) for part in parts if part.is_open]
            least = min(open_ends, default=None)
            whole = [part.take_below(least) for part in parts]
            if any(map(len, whole)):
                entries = np.concatenate(whole)
                yield from _in_batches(entries, _sorted_order(entries, by_line=self._by_line))
            else:
                for part in parts:
                    if part.is_open and int(part.piece["unit"][-1]) == least:
                        part.lengthen()


class _SortedPart:
    """A sorted part file on disk, with the piece in memory that was read from the file but not yet merged."""

    def __init__(self, file: Path) -> None:
        self._file, self._at, self._size = file, 0, file.stat().st_size // ENTRY.itemsize
        self.piece: Entries = np.empty(0, ENTRY)

    @property
    def is_open(self) -> bool:
        """True if the part file has entries that were not read yet."""
        return self._at < self._size

    def refill(self, count: int) -> bool:
        """Read entries until `count` are in memory or the file ends; return whether any entries are in memory."""
        if self.is_open and len(self.piece) < count:
            self._read(count - len(self.piece))
        return len(self.piece) > 0

    def lengthen(self) -> None:
        """Read as many further entries from the file as are in memory, which doubles the piece in memory."""
        self._read(len(self.piece))

    def take_below(self, unit: int | None) -> Entries:
        """Remove the entries with unit ids below `unit` from memory and return them; for None, all entries."""
        cut = len(self.piece) if unit is None else _count_below(self.piece, unit)
        taken, self.piece = self.piece[:cut], self.piece[cut:]
        return taken

    def _read(self, count: int) -> None:
        more = np.fromfile(self._file, ENTRY, count, offset=self._at * ENTRY.itemsize)
        self._at += len(more)
        self.piece = np.concatenate([self.piece, more])


def _write(file: Path, pieces: Iterable[Entries]) -> None:
    with file.open("wb") as stream:
        for piece in pieces:
            stream.write(piece.view(np.uint8).data)


def _in_batches(entries: Entries, order: NDArray[np.int32]) -> Iterator[Entries]:
    """Yield entries (stored values) in the given sorted order, in batches that never split a record."""
    start = 0
    while start < len(order):
        stop = _end_of_record(entries, order, min(start + BATCH_VALUES, len(order)))
        yield _take(entries, order[start:stop])
        start = stop


def _sorted_order(entries: Entries, *, by_line: bool) -> NDArray[np.int32]:
    """Return the stable sorting permutation of entries, by (id of individual, id of row) or by the first alone."""
    order = np.arange(len(entries), dtype=np.int32)
    for name in ("line", "unit") if by_line else ("unit",):
        keys, least, most, rises = _keys(entries[name], order)
        if not rises:
            order = _radix_sort(keys, order, np.uint64(least), (most - least).bit_length())
    return order


@njit(cache=True, nogil=True)
def _keys(ids, order):  # type: ignore[no-untyped-def]
    """Map the int64 ids at the positions `order` to uint64 keys that sort in the same order.

    Returns (keys, least key, greatest key, whether the keys are already sorted).
    """
    keys = np.empty(len(order), np.uint64)
    least, most, rises, previous = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0), True, np.uint64(0)
    for at in range(len(order)):
        key = np.uint64(ids[order[at]]) ^ _SIGN
        keys[at] = key
        least, most = min(least, key), max(most, key)
        rises = bool(rises and previous <= key)
        previous = key
    return keys, least, most, rises


@njit(cache=True, nogil=True)
def _radix_sort(keys, order, least, bits):  # type: ignore[no-untyped-def]
    """Sort the positions `order` by their keys and return them; a radix sort from the lowest digit to the highest.

    The digits are taken from ``key - least``, a number of `bits` bits.
    """
    passes = max(1, (bits + _DIGIT - 1) // _DIGIT)
    digit = np.uint64((bits + passes - 1) // passes)
    mask = (np.uint64(1) << digit) - np.uint64(1)
    starts = np.empty(int(mask) + 1, np.int64)
    other_keys, other_order = np.empty_like(keys), np.empty_like(order)
    for each in range(passes):
        shift = np.uint64(each) * digit
        starts[:] = 0
        for key in keys:
            starts[((key - least) >> shift) & mask] += 1
        total = 0
        for bucket in range(len(starts)):
            starts[bucket], total = total, total + starts[bucket]
        for at in range(len(keys)):
            bucket = ((keys[at] - least) >> shift) & mask
            to = starts[bucket]
            starts[bucket] = to + 1
            other_keys[to] = keys[at]
            other_order[to] = order[at]
        keys, other_keys = other_keys, keys
        order, other_order = other_order, order
    return order


@njit(cache=True, nogil=True)
def _fill(buffer, units, lines, row_ptr, indices, values, places, empty):  # type: ignore[no-untyped-def]
    """Write CSR rows into a buffer of entries; a row without values becomes one entry in column ``empty[row]``."""
    at = 0
    for row in range(len(row_ptr) - 1):
        start, stop = row_ptr[row], row_ptr[row + 1]
        for value in range(start, max(stop, start + 1)):
            buffer[at].unit = units[row]
            buffer[at].line = lines[row]
            buffer[at].value = values[value] if start < stop else 0.0
            buffer[at].column = indices[value] if start < stop else empty[row]
            buffer[at].place = places[row]
            at += 1


@njit(cache=True, nogil=True)
def _take(entries, order):  # type: ignore[no-untyped-def]
    taken = np.empty(len(order), entries.dtype)
    for at in range(len(order)):
        taken[at] = entries[order[at]]
    return taken


@njit(cache=True, nogil=True)
def _end_of_record(entries, order, at):  # type: ignore[no-untyped-def]
    """Return the position after the last entry of the record that contains position ``at - 1`` of the sorted order."""
    while at < len(order) and entries[order[at]].unit == entries[order[at - 1]].unit:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _count_below(entries, unit):  # type: ignore[no-untyped-def]
    """Count the entries with an id of individual below `unit`, by bisection in sorted entries."""
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        if entries[middle].unit < unit:
            low = middle + 1
        else:
            high = middle
    return low
