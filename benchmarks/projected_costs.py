"""What a round over an input takes: as the model predicts it on one machine, and on the cluster projected to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.scaling_model import Machine, RowCost, round_seconds
from dpca_tasks.sums.partial_sums import fits

WIDTH, PASSES = 20, 24
"""Directions of a product, and the products of one release."""
WORKERS = (1, 2)
KINDS = ("moment", "product", "kept")
ROWS, MACHINES, CORES = 1_000_000_000, 8, 16
NETWORK = 1.25e9
"""Bytes a second that a machine reads from the store, or sends to another: 10 Gbit/s."""
MEMORY = 64 << 30
"""Bytes of a machine; its workers, one a core, declare equal parts."""
HUGE_ROWS = 1_000_000_000
"""The a9a-like rows of the largest run of `benchmarks.huge`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What an input takes, the seconds of its rounds as measured, and what is done once on the released matrix."""

    name: str
    n_rows: int
    n_features: int
    extents: tuple[int, int, int]
    """Records, rows and stored values, of which gridded rows take memory."""
    stored: float
    """Bytes of a row in the store."""
    rows: Mapping[int, RowCost]
    """By the number of busy cores."""
    measured: Mapping[tuple[str, int], float]
    """Seconds of a round, by its kind and the number of workers."""
    noise: float
    eigenpairs: float

    def size(self, kind: str) -> int:
        """Return the bytes of a total."""
        moment = 4 * self.n_features * (self.n_features + 1)
        return moment if kind == "moment" else 8 * self.n_features * WIDTH

    def predicted(self, machine: Machine, kind: str, workers: int) -> float:
        """Return the seconds of a round that was measured."""
        row = self.rows[workers].of(kind)
        return round_seconds(machine, rows=self.n_rows, row=row, size=self.size(kind), workers=workers)

    def off(self, machine: Machine) -> dict[tuple[str, int], float]:
        """Return predicted over measured seconds, by kind and workers."""
        return {case: self.predicted(machine, *case) / taken for case, taken in self.measured.items()}

    def projected(self, machine: Machine, kind: str) -> float:
        """Return the seconds of a round over `ROWS` rows on the stated cluster, whose stores are no faster than it."""
        row, cores = self.rows[max(self.rows)].of(kind), MACHINES * CORES
        whole = round_seconds(machine, rows=ROWS, row=row, size=self.size(kind), workers=cores, network=NETWORK)
        loading = 0.0 if kind == "kept" else ROWS * self.stored / (MACHINES * NETWORK)
        return whole + max(0.0, loading - ROWS * row / cores)

    @property
    def rows_stay(self) -> bool:
        """Whether `ROWS` gridded rows fit in the part of the stated cluster's memory that a release may keep."""
        declared = {str(worker): MEMORY // CORES for worker in range(MACHINES * CORES)}
        return fits(np.array([self.extents]) * ROWS // self.n_rows, declared)

    def passes(self, machine: Machine) -> float:
        """Return the seconds of `PASSES` products on the stated cluster, all of which read rows that are not kept."""
        later = self.projected(machine, "kept" if self.rows_stay else "product")
        return self.projected(machine, "product") + (PASSES - 1) * later

    def huge(self, machine: Machine) -> float:
        """Return the seconds of a release of `HUGE_ROWS` rows by their moment on local workers."""
        return replace(self, n_rows=HUGE_ROWS).predicted(machine, "moment", max(WORKERS)) + self.noise + self.eigenpairs
