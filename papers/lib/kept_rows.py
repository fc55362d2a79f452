"""Public rows in memory whose sums and eigenpairs are computed once and reused by many releases.

Each release still runs through the curator, with a separate event, key and noise. Sums are exact, so a stored sum has
the same bits as a new sum. Sums of private rows are never stored in this way.

>>> KeptRows(source=along_axes([2, 1, 0])).form_moment().diagonal().tolist()
[2.0, 1.0, 0.0]
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.privacy.curator import Curator, Rows
from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.privacy.gate import InMemoryReservation, Reservation
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import check_covered
from dpca_tasks.sums.partial_sums import Gridded, fold_gridded, grid

FINEST = 14
"""Bits of the grid on which the noise-free moment is formed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptRows(Rows):
    """Rows of norm at most 1, with a cache of results that many releases share.

    The cache has the rows rounded to an integer grid, the second moment on each grid, and eigenpairs.
    """

    gridded: dict[int, Gridded] = field(default_factory=dict, repr=False)
    moments: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)
    pairs: dict[bytes, Eigenpairs] = field(default_factory=dict, repr=False)

    def sum(self, query: RowSum, *, keep: bool) -> NDArray[np.int64]:
        """Return the exact sum of a query over the rows; ``keep`` is ignored."""
        if type(query) is not SecondMoment:
            return self._sum(query)
        if query.bits not in self.moments:
            self.moments[query.bits] = self._sum(query)
        return self.moments[query.bits].copy()  # a copy, because the curator adds noise in place

    def solve(self, solver: Eigensolver, start: SecretKey) -> Eigenpairs:
        """Return the eigenpairs that a solver finds; repeated calls return the cached result of the first call."""
        requested = solver.digest()
        if requested not in self.pairs:
            self.pairs[requested] = solver.solve(self.source, start)
        return self.pairs[requested]

    def form_moment(self) -> NDArray[np.float64]:
        """Return the second moment of the rows without noise."""
        query = SecondMoment(n_features=self.source.n_features, clip_norm=1.0, relation="replace_one", bits=FINEST)
        return query.matrix(self.sum(query, keep=False))

    def _sum(self, query: RowSum) -> NDArray[np.int64]:
        if query.bits not in self.gridded:
            self.gridded.clear()
            self.gridded[query.bits] = grid(self.source, query, 0, self.source.n_blocks)
        return check_covered(self.source, fold_gridded(self.gridded[query.bits], query))


class KeptCurator(Curator):
    """A curator that uses the cached sums of `KeptRows`, so that many releases share them."""

    def __init__(self, rows: KeptRows, reservation: Reservation) -> None:
        super().__init__(rows.source, reservation)
        self._rows = rows


def along_axes(counts: Sequence[int]) -> ArrayBlocks:
    """Return records that are unit vectors along the axes: ``counts[j]`` records along axis j.

    All such blocks have the same content digest, so a seed gives the same noise for all counts.
    """
    along = np.repeat(np.arange(len(counts)), counts)
    shape = (along.size, len(counts))
    blocks = ArrayBlocks(sparse.csr_array((np.ones(along.size), along, np.arange(along.size + 1)), shape=shape))
    blocks.content = "00" * 32
    return blocks


def release(mechanism: Any, target: PrivacyTarget, rows: KeptRows, *, seed: tuple[object, ...]) -> Any:
    """Run a mechanism on cached rows under the relation ``add_remove``, with a key that is derived from a seed."""
    problem = Problem(n_features=rows.source.n_features, clip_norm=1.0, records_at_most=rows.source.n_records)
    plan = mechanism.plan(problem, target)
    key = hashlib.sha256(repr(seed).encode()).digest()
    reservation = InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=key)
    return mechanism.run(KeptCurator(rows, reservation), plan)
