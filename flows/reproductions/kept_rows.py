"""Rows of a reproduction under many releases: put on a grid once, and their second moment added up once.

Each release still passes the curator, with an event, a key and noise of its own; sums are exact, so a kept one has the
same bits as a new one. The rows are made or public: private ones are not held in this way.

>>> import numpy as np
>>> from dpca_tasks.records.sources import ArrayBlocks
>>> rows = KeptRows(source=ArrayBlocks(np.eye(2)))
>>> rows.form_moment()
array([[1., 0.],
       [0., 1.]])
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import Reservation
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.sums.exact_sum import check_covered
from dpca_tasks.sums.partial_sums import Gridded, fold_gridded, grid

FINEST = 14
"""Bits of the grid on which the moment without noise is formed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptRows(Rows):
    """Rows in this process, of norm at most 1; one grid of them stays in memory, and the moment of each grid."""

    gridded: dict[int, Gridded] = field(default_factory=dict, repr=False)
    moments: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    def sum(self, query: RowSum, *, stay: bool) -> NDArray[np.int64]:
        """Sum a query exactly; ``stay`` has no meaning here."""
        if type(query) is not SecondMoment:
            return self._sum(query)
        if query.bits not in self.moments:
            self.moments[query.bits] = self._sum(query)
        return self.moments[query.bits].copy()  # noise is added in place

    def form_moment(self) -> NDArray[np.float64]:
        """Return the second moment without noise."""
        query = SecondMoment(n_features=self.source.n_features, clip_norm=1.0, relation="replace_one", bits=FINEST)
        return query.matrix(self.sum(query, stay=False))

    def _sum(self, query: RowSum) -> NDArray[np.int64]:
        if query.bits not in self.gridded:
            self.gridded.clear()
            self.gridded[query.bits] = grid(self.source, query, 0, self.source.n_blocks)
        return check_covered(self.source, fold_gridded(self.gridded[query.bits], query))


class KeptCurator(Curator):
    """A curator of kept rows, which other releases use too."""

    def __init__(self, rows: KeptRows, reservation: Reservation) -> None:
        super().__init__(rows.source, reservation)
        self._rows = rows
