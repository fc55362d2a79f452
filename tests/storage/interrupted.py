"""A progress callback that stops an ingest halfway, as a user does."""


class Interrupted:
    """Interrupts an ingest after a given number of batches."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, phase: str, done: int, size: int, rows: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
