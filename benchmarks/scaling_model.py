"""A cost model of a round, which is one distributed sum over all rows.

The time of a round follows from constants of the machine, the cost of a row, and the tree in which partial sums merge.

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
    """The constants of the cost model that depend on the machine and not on rows, in seconds.

    Attributes
    ----------
    start, task : float
        The fixed time of a round, and the time of each task of the round.
    touch, add, move : float
        The time per byte of a partial sum: to allocate it, to add it to another partial sum, and to transfer it to the
        client while another worker also transfers a partial sum.
    """

    start: float
    task: float
    touch: float
    add: float
    move: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCost:
    """The cost of one row in seconds of a core.

    It is measured for a given number of busy cores, because cores of one machine share its memory bandwidth.

    Attributes
    ----------
    read, grid : float
        The time to read a row from the store, and to round it to the integer grid.
    moment, product : float
        The time to add a row, which is in the cache, to a second moment or to a product with directions.
    kept : float
        The time to add a row to a product with directions, if gridded rows are kept in memory between rounds.
    """

    read: float
    grid: float
    moment: float
    product: float
    kept: float

    def of(self, kind: str) -> float:
        """Return the total cost of a row in a round of this kind (``"moment"``, ``"product"`` or ``"kept"``)."""
        return self.kept if kind == "kept" else self.read + self.grid + float(getattr(self, kind))


@dataclass(frozen=True, slots=True)
class Tree:
    """The merge tree of a round: the number of partial sums of the partitions, and after each level of merges."""

    levels: tuple[int, ...]

    @classmethod
    def of(cls, *, partitions: int, size: int, near: bool) -> Self:
        """Return the merge tree for partial sums of ``size`` bytes.

        ``near`` states that the workers are on the client's machine, which then merges larger partial sums itself.
        """
        levels, most = [partitions], SMALL_TOTALS
        while levels[-1] > 1 and size * levels[-1] > most:
            levels.append(-(-levels[-1] // FAN_IN))
            most = NEAR_TOTALS if near else SMALL_TOTALS
        return cls(tuple(levels))


def round_seconds(
    machine: Machine, *, rows: float, row: float, size: int, workers: int, network: float | None = None
) -> float:
    """Predict the seconds of a round, which is one distributed sum over all rows.

    Parameters
    ----------
    machine : Machine
    rows : float
        The number of rows of all workers together.
    row : float
        The cost of a row in seconds of a core, with all workers busy.
    size : int
        The bytes of a partial sum.
    workers : int
        The number of workers, each with one thread and four partitions.
    network : float, optional
        Bytes per second between machines. Merges above the first level, and the transfer to the client, then wait for
        the network. With None, all workers are on one machine, and partial sums move between processes at the rate
        ``machine.move``.
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
