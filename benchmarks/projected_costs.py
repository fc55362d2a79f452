"""Predicted costs of a round (one distributed sum over all rows) on one machine, and projected costs on a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.scaling_model import Machine, RowCost, round_seconds
from dpca_tasks.sums.partial_sums import fits

WIDTH, PASSES = 20, 24
"""The number of directions of a product, and of products of one release."""
WORKERS = (1, 2)
KINDS = ("moment", "product", "kept")
ROWS, MACHINES, CORES = 1_000_000_000, 8, 16
NETWORK = 1.25e9
"""Bytes per second that a machine reads from the store, or sends to another machine: 10 Gbit/s."""
MEMORY = 64 << 30
"""The memory of a machine in bytes; its workers, one per core, declare equal parts of it."""
HUGE_ROWS = 1_000_000_000
"""The number of a9a-like rows in the largest run of `benchmarks.huge`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one input: its sizes, its measured rounds, and the time of noise and eigenvectors of a release."""

    name: str
    n_rows: int
    n_features: int
    extents: tuple[int, int, int]
    """Records, rows and stored values, which determine the memory of gridded rows."""
    stored: float
    """Bytes of a row in the store."""
    rows: Mapping[int, RowCost]
    """The cost of a row, by the number of busy cores."""
    measured: Mapping[tuple[str, int], float]
    """Measured seconds of a round, by its kind and the number of workers."""
    noise: float
    eigenpairs: float

    def size(self, kind: str) -> int:
        """Return the bytes of the result of a round of a kind: a second moment, or a product with directions."""
        moment = 4 * self.n_features * (self.n_features + 1)
        return moment if kind == "moment" else 8 * self.n_features * WIDTH

    def predicted(self, machine: Machine, kind: str, workers: int) -> float:
        """Return the predicted duration of a round that was also measured, in seconds."""
        row = self.rows[workers].of(kind)
        return round_seconds(machine, rows=self.n_rows, row=row, size=self.size(kind), workers=workers)

    def off(self, machine: Machine) -> dict[tuple[str, int], float]:
        """Return the ratio of predicted to measured seconds of a round, by kind and number of workers."""
        return {case: self.predicted(machine, *case) / taken for case, taken in self.measured.items()}

    def projected(self, machine: Machine, kind: str) -> float:
        """Return the projected seconds of a round over `ROWS` rows on a cluster of `MACHINES` machines.

        Each machine reads at most `NETWORK` bytes per second from the store.
        """
        row, cores = self.rows[max(self.rows)].of(kind), MACHINES * CORES
        whole = round_seconds(machine, rows=ROWS, row=row, size=self.size(kind), workers=cores, network=NETWORK)
        loading = 0.0 if kind == "kept" else ROWS * self.stored / (MACHINES * NETWORK)
        return whole + max(0.0, loading - ROWS * row / cores)

    @property
    def rows_remain(self) -> bool:
        """True if `ROWS` gridded rows fit in the part of the projected cluster's memory that a release may use."""
        declared = {str(worker): MEMORY // CORES for worker in range(MACHINES * CORES)}
        return fits(np.array([self.extents]) * ROWS // self.n_rows, declared)

    def passes(self, machine: Machine) -> float:
        """Return the projected seconds of a release with `PASSES` products on the cluster.

        After the first product, the gridded rows remain in memory if they fit; otherwise each product reads them again.
        """
        later = self.projected(machine, "kept" if self.rows_remain else "product")
        return self.projected(machine, "product") + (PASSES - 1) * later

    def huge(self, machine: Machine) -> float:
        """Return the predicted seconds of a release of `HUGE_ROWS` rows by their second moment, on local workers."""
        return replace(self, n_rows=HUGE_ROWS).predicted(machine, "moment", max(WORKERS)) + self.noise + self.eigenpairs
