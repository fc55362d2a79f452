"""Handling of bad rows: the first ends the ingest, or each becomes an empty record and the rest is read.

The private report of an ingest lists the position of each bad row, the rule that it broke and the column, never its
content. It is a file of mode 0600 in the home folder, next to the snapshot: `quarantine_notes`.

>>> try:
...     Rejects().reject(place="line", number=3, reason="has a value that is not finite")
... except BadSource as error:
...     print(error)
line 3 has a value that is not finite
"""

import csv
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import TextIO

from storage.errors import BadSource

COLUMNS = ("file", "place", "number", "reason", "column")
_KINDS = 1000  # reasons and columns counted apart; then reasons alone
_SHOWN = 5

type Tally = Counter[tuple[str, str]]
"""Bad rows by (reason, column); the column is empty where a row as a whole is bad."""


class Rejects:
    """Refuse the whole source at its first bad row.

    Attributes
    ----------
    file : str
        The file being read; the reader sets it whenever it opens the next one.
    names : sequence of str or None
        The names of the columns, if the source has them.
    tally : Tally
        Bad rows so far.
    is_tolerant : bool
        Whether reading continues after a bad row.
    origins : sequence of (int, str)
        Where rows of several files were brought together: the first number of each file among those of all, and its
        address. Numbers are those of all files then.
    counts_all : bool
        Whether a row is passed once for each rule that it breaks in a table, and not for the first alone.
    """

    is_tolerant = counts_all = False

    def __init__(self) -> None:
        self.file = ""
        self.origins: Sequence[tuple[int, str]] = ()
        self.names: Sequence[str] | None = None
        self.tally: Tally = Counter()

    @property
    def count(self) -> int:
        """Bad rows so far."""
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
            Which one.
        reason : str
            What is wrong with it and the next move, as the rest of a sentence, free of the row's content.
        column : str, int or None
            The first column that is bad, by name or from 0, where it is a column's fault.
        quoting : str or None
            The same with the offending text, for the user's eyes alone.

        Raises
        ------
        BadSource
            Always, unless reading is tolerant.
        """
        number, self.file = self.located(number)
        raise BadSource(f"{place} {number} {reason}" if quoting is None else f"{place} {number}: {quoting}")

    def located(self, number: int) -> tuple[int, str]:
        """Return the number of a row in its file, and the address of that file."""
        if not self.origins:
            return number, self.file
        first, file = self.origins[bisect_right(self.origins, number, key=itemgetter(0)) - 1]
        return number - first, file

    def note(self, *, place: str, number: int | None, reason: str) -> None:
        """Report something about a row that is not bad, if there is a report; arguments as for `reject`."""

    def close(self) -> None:
        """Make the report durable, if there is one."""


class SkippedRows(Rejects):
    """Continue after bad rows and keep nothing of them."""

    is_tolerant = True

    def reject(
        self, *, place: str, number: int, reason: str, column: str | int | None = None, quoting: str | None = None
    ) -> None:
        """Do nothing."""


class Quarantine(Rejects):
    """Continue after bad rows, and list their positions in a CSV file that only its owner may read."""

    is_tolerant = True

    def __init__(self) -> None:
        super().__init__()
        self._stream: TextIO | None = None

    def open(self, path: Path) -> None:
        """Start the report, replacing that of a killed ingest."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._stream = os.fdopen(descriptor, "w", encoding="utf-8", newline="")
        csv.writer(self._stream, lineterminator="\n").writerow(COLUMNS)

    def reject(
        self, *, place: str, number: int, reason: str, column: str | int | None = None, quoting: str | None = None
    ) -> None:
        """Report one bad row, without its content."""
        if isinstance(column, int):
            column = str(column) if self.names is None else self.names[column]
        self._write(place, number, reason, column)
        _count(self.tally, reason, column or "")

    def note(self, *, place: str, number: int | None, reason: str) -> None:
        """Report something about a row that is not bad."""
        self._write(place, number, reason, None)

    def _write(self, place: str, number: int | None, reason: str, column: str | None) -> None:
        assert self._stream is not None, "rows are read after the report is open"
        own, file = (number, self.file) if number is None else self.located(number)
        csv.writer(self._stream, lineterminator="\n").writerow((file, place, own, reason, column))

    def close(self) -> None:
        """Flush the report to the disk."""
        if self._stream is not None and not self._stream.closed:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()


def describe(tally: Tally) -> str:
    """Return how many rows broke which rule in which column, the most frequent first, as part of one line."""
    parts = [
        f"{count} x {reason.partition(';')[0]}" + (f" (column {column})" if column else "")
        for (reason, column), count in tally.most_common(_SHOWN)
    ]
    rest = tally.total() - sum(count for _, count in tally.most_common(_SHOWN))
    return ", ".join([*parts, *([f"{rest} x other reasons or columns"] if rest else [])])


def read_tally(notes: Path) -> Tally:
    """Count the rows that a private report lists."""
    tally: Tally = Counter()
    with notes.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            _count(tally, row["reason"], row["column"])
    return tally


def _count(tally: Tally, reason: str, column: str) -> None:
    key = (reason, column)
    tally[key if key in tally or len(tally) < _KINDS else (reason, "")] += 1


def quarantine_notes(folder: Path) -> Path:
    """Return the path of the private report on a snapshot's rows: next to its folder, always local."""
    return folder.with_name(f"{folder.name}.rejected.csv")
