"""Named places between two durable effects, where a test can stop the process.

>>> "reserve.key_written" in POINTS
True
"""

from collections.abc import Callable

POINTS = (
    "reserve.key_written",
    "reserve.row_committed",
    "begin.row_committed",
    "keep.file_written",
    "keep.row_committed",
    "artifact.written",
    "commit.row_committed",
    "commit.key_erased",
    "commit.staging_removed",
    "pointer.written",
)

hook: Callable[[str], None] | None = None


def reached(point: str) -> None:
    """Tell a test that a point was reached; nothing happens in production."""
    if point not in POINTS:
        raise ValueError(f"crash point {point!r} is not one of {POINTS}; add it to the table.")
    if hook is not None:
        hook(point)
