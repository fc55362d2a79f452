"""What happens to a bad row: it ends the ingest, or it is set aside and the rest goes on.

A quarantine file says where each bad row stood and which rule it broke, never what it held.

>>> try:
...     Rejects().reject(place="line", number=3, reason="has a value that is not finite")
... except BadSource as error:
...     print(error)
line 3 has a value that is not finite
"""

import csv
import os
from pathlib import Path
from typing import TextIO

from storage.errors import BadSource

COLUMNS = ("file", "place", "number", "reason")


class Rejects:
    """Refuse the whole source at its first bad row.

    Attributes
    ----------
    file : str
        The file being read; whoever opens the next one says so here.
    count : int
        Rows set aside so far.
    """

    def __init__(self) -> None:
        self.file = ""
        self.count = 0

    def reject(self, *, place: str, number: int, reason: str, quoting: str | None = None) -> None:
        """Deal with one bad row.

        Parameters
        ----------
        place : str
            What `number` counts: "line" or "row".
        number : int
            Which one.
        reason : str
            What is wrong with it and the next move, as the rest of a sentence, free of the row's content.
        quoting : str or None
            The same with the offending text, for the user's eyes alone.

        Raises
        ------
        BadSource
            Always, unless rows are set aside.
        """
        raise BadSource(f"{place} {number} {reason}" if quoting is None else f"{place} {number}: {quoting}")

    def close(self) -> None:
        """Make what was recorded durable."""


class Quarantine(Rejects):
    """Set bad rows aside and note where they stood in a CSV file that only its owner may read."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: TextIO | None = None

    def open(self, path: Path) -> None:
        """Begin the notes, replacing those of a killed ingest."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._stream = os.fdopen(descriptor, "w", encoding="utf-8", newline="")
        csv.writer(self._stream, lineterminator="\n").writerow(COLUMNS)

    def reject(self, *, place: str, number: int, reason: str, quoting: str | None = None) -> None:
        """Note one bad row; what it held is not written down."""
        assert self._stream is not None, "rows are read after the notes are open"
        csv.writer(self._stream, lineterminator="\n").writerow((self.file, place, number, reason))
        self.count += 1

    def close(self) -> None:
        """Flush the notes to the disk."""
        if self._stream is not None and not self._stream.closed:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()


def quarantine_notes(folder: Path) -> Path:
    """Return where the notes on the bad rows of a snapshot are, if it has any: beside its folder, always local."""
    return folder.with_name(f"{folder.name}.rejected.csv")
