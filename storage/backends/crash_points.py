"""Named points between two durable effects, at which a test can stop the process.

A row is *written* inside a transaction that may still fail, and *committed* after it. Every writer of a file, a
folder or a record passes ``file``, ``folder``, ``record`` or ``witness``, so a release passes them several times.

>>> "reserve.key_written" in POINTS
True
"""

from collections.abc import Callable

POINTS = (
    "file.synced",
    "file.renamed",
    "folder.synced",
    "folder.renamed",
    "record.committed",
    "witness.synced",
    "reserve.key_written",
    "reserve.row_written",
    "reserve.row_committed",
    "begin.row_written",
    "begin.row_committed",
    "keep.file_written",
    "keep.row_written",
    "keep.row_committed",
    "artifact.staged",
    "artifact.written",
    "commit.row_written",
    "commit.row_committed",
    "commit.key_erased",
    "commit.staging_removed",
    "pointer.signed",
    "pointer.written",
    "pointer.row_written",
)

STREAM_POINTS = (
    "stream.row_written",
    "stream.row_committed",
    "tick.key_written",
    "tick.row_written",
    "tick.row_committed",
    "answer.file_written",
    "answer.row_written",
    "answer.row_committed",
)
"""What a stream passes besides `POINTS`; each of its ticks passes most of both."""

INGEST_POINTS = ("arrivals.key_written", "arrivals.planned", "arrivals.published", "arrivals.recorded")
"""What an ingest with ids of individuals passes besides."""

hook: Callable[[str], None] | None = None


def reached(point: str) -> None:
    """Report to a test that a point was reached; do nothing in production."""
    known = (*POINTS, *STREAM_POINTS, *INGEST_POINTS)
    if point not in known:
        raise ValueError(f"crash point {point!r} is not one of {', '.join(known)}; add it to the table.")
    if hook is not None:
        hook(point)
