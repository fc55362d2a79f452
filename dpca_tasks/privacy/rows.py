"""The private rows of a release, summed in this process or on a cluster whose workers may keep them in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.tiled_sum import Tile, TiledSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.exact_sum import exact_sum, tile_sum
from dpca_tasks.sums.resident_rows import Residency

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Private rows and the cluster that sums them; the parameters are those of `Curator`."""

    source: BlockSource = field(repr=False)
    client: "Client | None" = None
    progress: Callable[[int, int], None] | None = None
    residency: Residency = field(default_factory=Residency, repr=False)

    def sum(self, query: RowSum, *, stay: bool) -> NDArray[np.int64]:
        """Sum a query exactly. With ``stay`` the workers keep the rows in memory for later sums."""
        kept = self.residency if stay or self.residency.holds(self.source, query) else None
        return exact_sum(self.source, query, client=self.client, progress=self.progress, residency=kept)

    def sum_tile(self, query: TiledSum, tile: Tile, *, of: bytes) -> NDArray[np.int64]:
        """Sum the items of a tile exactly; see `dpca_tasks.sums.exact_sum.tile_sum`."""
        return tile_sum(self.source, query, tile, of=of, client=self.client, residency=self.residency)

    def solve(self, solver: Eigensolver, start: SecretKey) -> Eigenpairs:
        """Compute leading eigenpairs from a keyed random start."""
        return solver.solve(self.source, start, client=self.client, progress=self.progress, residency=self.residency)
