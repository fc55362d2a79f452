"""A fuse that kills one Dask worker in the middle of a sum, when a given number of blocks has been read."""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, WorkerPlugin

from storage.datasets.snapshot_reader import Block, Dataset

LONGEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse:
    """A folder that the workers of a cluster share; a file in it named by a number is what is left to burn."""

    folder: Path

    def lay(self, client: Client) -> None:
        """Make the workers of a cluster, and those that replace them, burn this fuse."""
        self.folder.mkdir()
        client.register_plugin(_BurnsWhenReading(self.folder))

    @contextmanager
    def lit(self, reads: int) -> Iterator[Callable[[], bool]]:
        """Light the fuse, alone; yield what tells whether a worker was killed."""
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (self.folder / str(reads)).touch()
            yield (self.folder / "0").exists
            for path in self.folder.glob("[0-9]"):
                path.unlink()


class _BurnsWhenReading(WorkerPlugin):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def setup(self, worker: Any) -> None:
        read = Dataset.read

        def burning(dataset: Dataset, block: int) -> Block:
            _burn(self.folder)
            return read(dataset, block)

        setattr(Dataset, "read", burning)  # noqa: B010 - a method is not assignable


def _burn(folder: Path) -> None:
    for left in range(LONGEST, 0, -1):
        try:
            (folder / str(left)).rename(folder / str(left - 1))
        except FileNotFoundError:
            continue
        if left == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return
