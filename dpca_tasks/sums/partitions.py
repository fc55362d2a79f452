"""Partitions of the blocks of a source, and the worker of each partition, its home."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PARTITIONS_PER_WORKER = 4


def first_homes(workers: Sequence[str]) -> list[str]:
    """Assign neighbouring partitions to each worker."""
    return [worker for worker in workers for _ in range(PARTITIONS_PER_WORKER)]


def settle_homes(homes: Sequence[str], workers: Sequence[str]) -> list[str]:
    """Move partitions from workers that are gone, or have too many, to those that have the fewest.

    A restarted worker has a new address, and gets back partitions that another worker took over.
    """
    most = -(-len(homes) // len(workers))
    loads = dict.fromkeys(workers, 0)
    stays = []
    for home in homes:
        stays.append(loads.get(home, most) < most)
        if stays[-1]:
            loads[home] += 1
    settled = list(homes)
    for at, stay in enumerate(stays):
        if not stay:
            settled[at] = min(loads, key=loads.__getitem__)
            loads[settled[at]] += 1
    return settled


def cut(extents: NDArray[np.int64], partitions: int) -> list[int]:
    """Cut blocks into contiguous partitions of nearly equal numbers of stored values and rows; return their bounds.

    The number of partitions is public. The bounds are not, and stay with the workers and the scheduler.
    """
    weights = extents[:, 1] + extents[:, 2]
    middles = np.cumsum(weights) - weights / 2
    targets = weights.sum() * np.arange(1, partitions) / partitions
    return [0, *np.searchsorted(middles, targets).tolist(), len(extents)]
