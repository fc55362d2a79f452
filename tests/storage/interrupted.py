"""A reader of progress that stops an ingest half-way, as a user does."""


class Interrupted:
    """Interrupts an ingest once so many batches were read."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, phase: str, done: int, size: int, rows: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
