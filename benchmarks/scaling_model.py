"""What a round takes by arithmetic: the constants of a machine and of rows, and the graph of a sum on a cluster.

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
    """Seconds that do not depend on rows.

    Attributes
    ----------
    start, task : float
        Of any round, and of each of its tasks.
    touch, add, move : float
        Of a byte of a total: to allocate it, to add it to another, and to bring it to the client while another worker
        brings one.
    """

    start: float
    task: float
    touch: float
    add: float
    move: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCost:
    """Seconds of a core a row, while a stated number of cores do the same on one memory.

    Attributes
    ----------
    read, grid : float
        Of a row from the store, and of putting it on the grid.
    moment, product : float
        Of adding it to a second moment, and to a product with a stated number of directions, while it is in cache.
    kept : float
        Of the product where gridded rows are kept in memory.
    """

    read: float
    grid: float
    moment: float
    product: float
    kept: float

    def of(self, kind: str) -> float:
        """Return all that a row takes in a round of a kind: moment, product or kept."""
        return self.kept if kind == "kept" else self.read + self.grid + float(getattr(self, kind))


@dataclass(frozen=True, slots=True)
class Tree:
    """The numbers of totals of a round: those of its partitions, and of each level of merges."""

    levels: tuple[int, ...]

    @classmethod
    def of(cls, *, partitions: int, size: int, near: bool) -> Self:
        """Return the tree of totals of ``size`` bytes; ``near`` workers are on the client's machine."""
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
        Of all workers.
    row : float
        Seconds of a core a row, with all workers busy.
    size : int
        Bytes of a total.
    workers : int
        Of one thread each, and four partitions.
    network : float, optional
        Bytes a second between machines. Merges above the first level, and the client, wait for it. None is one
        machine, where the totals that are merged above the first level move as they do to the client.
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
