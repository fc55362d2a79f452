"""The arithmetic model of a round: the constants of a machine and of rows, and the task graph of a sum.

>>> Tree.of(partitions=8, size=8_000_000, near=True)
Tree(levels=(8, 2))
>>> Tree.of(partitions=8, size=60_000, near=True)
Tree(levels=(8,))
"""

from dataclasses import dataclass
from typing import Self

from dpca_tasks.sums.cluster_sum import FAN_IN, NEAR_TOTALS, SMALL_TOTALS
from dpca_tasks.sums.partial_sums import PARTITIONS_PER_WORKER


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The constants of a machine that do not depend on rows, in seconds.

    Attributes
    ----------
    start, task : float
        The time of any round, and of each of its tasks.
    touch, add, move : float
        The time per byte of a total: to allocate it, to add it to another total, and to transfer it to the client while
        another worker also transfers one.
    """

    start: float
    task: float
    touch: float
    add: float
    move: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCost:
    """The cost of a row in seconds of a core, while a stated number of cores do the same work on one memory.

    Attributes
    ----------
    read, grid : float
        The time to read a row from the store, and to put it on the grid.
    moment, product : float
        The time to add it to a second moment, and to a product with a stated number of directions, while it is in
        cache.
    kept : float
        The time of the product if gridded rows are kept in memory.
    """

    read: float
    grid: float
    moment: float
    product: float
    kept: float

    def of(self, kind: str) -> float:
        """Return the total cost of a row in a round of a kind: moment, product or kept."""
        return self.kept if kind == "kept" else self.read + self.grid + float(getattr(self, kind))


@dataclass(frozen=True, slots=True)
class Tree:
    """The numbers of totals in a round, for the partitions and for each level of merges."""

    levels: tuple[int, ...]

    @classmethod
    def of(cls, *, partitions: int, size: int, near: bool) -> Self:
        """Return the tree for totals of ``size`` bytes; ``near`` states that workers are on the client's machine."""
        levels, most = [partitions], SMALL_TOTALS
        while levels[-1] > 1 and size * levels[-1] > most:
            levels.append(-(-levels[-1] // FAN_IN))
            most = NEAR_TOTALS if near else SMALL_TOTALS
        return cls(tuple(levels))


def round_seconds(
    machine: Machine, *, rows: float, row: float, size: int, workers: int, network: float | None = None
) -> float:
    """Predict the seconds of a round.

    Parameters
    ----------
    machine : Machine
    rows : float
        The rows of all workers.
    row : float
        The cost of a row in seconds of a core, with all workers busy.
    size : int
        The bytes of a total.
    workers : int
        The number of workers, each with one thread and four partitions.
    network : float, optional
        Bytes per second between machines. Merges above the first level, and the client, wait for the network. None
        means one machine, on which the totals merged above the first level move as they do to the client.
    """
    tree = Tree.of(partitions=PARTITIONS_PER_WORKER * workers, size=size, near=network is None)
    move = machine.move if network is None else machine.move + 1 / network
    computing = rows * row / workers + PARTITIONS_PER_WORKER * size * machine.touch
    merging = 0.0
    for level, totals in enumerate(tree.levels[1:]):
        others = min(FAN_IN, tree.levels[level]) - 1
        merging += others * size * (machine.add + (move if level else 0.0)) * max(1.0, totals / workers)
    gathering = tree.levels[-1] * size * (move + machine.add)
    return machine.start + sum(tree.levels) * machine.task + computing + merging + gathering
