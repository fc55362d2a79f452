"""Fuse that kills one Dask worker during a sum, after a given number of block reads."""

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
    """A counter of block reads that kills one Dask worker when it reaches zero.

    The workers of a cluster share a folder; the name of one file in the folder is the number of remaining reads.
    """

    folder: Path

    def lay(self, client: Client) -> None:
        """Install the fuse on the workers of a cluster, including replacement workers."""
        self.folder.mkdir()
        client.register_plugin(_BurnsWhenReading(self.folder))

    @contextmanager
    def lit(self, reads: int) -> Iterator[Callable[[], bool]]:
        """Start the counter at ``reads``, under a lock; yield a function that returns whether a worker was killed."""
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
