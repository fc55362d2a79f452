"""Handling of bad rows: one ends the ingest, or each is set aside and the rest is read.

A quarantine file lists the position of each bad row, the rule it broke and the column, never its content.

>>> try:
...     Rejects().reject(place="line", number=3, reason="has a value that is not finite")
... except BadSource as error:
...     print(error)
line 3 has a value that is not finite
"""

import csv
import os
from collections import Counter
from collections.abc import Sequence
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
        Rows set aside so far.
    """

    def __init__(self) -> None:
        self.file = ""
        self.names: Sequence[str] | None = None
        self.tally: Tally = Counter()

    @property
    def count(self) -> int:
        """Rows set aside so far."""
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
            Always, unless rows are set aside.
        """
        raise BadSource(f"{place} {number} {reason}" if quoting is None else f"{place} {number}: {quoting}")

    def close(self) -> None:
        """Make the notes durable, if there are any."""


class Quarantine(Rejects):
    """Set bad rows aside and list their positions in a CSV file that only its owner may read."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: TextIO | None = None

    def open(self, path: Path) -> None:
        """Start the notes, replacing those of a killed ingest."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._stream = os.fdopen(descriptor, "w", encoding="utf-8", newline="")
        csv.writer(self._stream, lineterminator="\n").writerow(COLUMNS)

    def reject(
        self, *, place: str, number: int, reason: str, column: str | int | None = None, quoting: str | None = None
    ) -> None:
        """Note one bad row, without its content."""
        assert self._stream is not None, "rows are read after the notes are open"
        if isinstance(column, int):
            column = str(column) if self.names is None else self.names[column]
        csv.writer(self._stream, lineterminator="\n").writerow((self.file, place, number, reason, column))
        _count(self.tally, reason, column or "")

    def close(self) -> None:
        """Flush the notes to the disk."""
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
    """Count the rows that a quarantine file lists."""
    tally: Tally = Counter()
    with notes.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            _count(tally, row["reason"], row.get("column") or "")  # notes of older versions name no column
    return tally


def _count(tally: Tally, reason: str, column: str) -> None:
    key = (reason, column)
    tally[key if key in tally or len(tally) < _KINDS else (reason, "")] += 1


def quarantine_notes(folder: Path) -> Path:
    """Return the path of the notes on a snapshot's bad rows: beside its folder, always local."""
    return folder.with_name(f"{folder.name}.rejected.csv")
