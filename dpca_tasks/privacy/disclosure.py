"""A separate curator that answers without noise, for reference results.

`Curator` has no such method, and no noise distribution has std 0. An exact sum leaves only if all four hold: the target
sets ``i_know_this_is_not_private``; the step was reserved as ``non_private``, which a ledger grants on explicit request
only and which voids the budget; this class was built with the acknowledgement; and `disclose` is called.

>>> from dpca_tasks.accounting import events
>>> from dpca_tasks.records.sources import ArrayBlocks
>>> from dpca_tasks.privacy.reservation import InMemoryReservation
>>> from dpca_tasks.queries.second_moment import SecondMoment
>>> reservation = InMemoryReservation(event=events.non_private())
>>> curator = DisclosingCurator(ArrayBlocks(np.eye(2)), reservation, i_know_this_is_not_private=True)
>>> curator.disclose(SecondMoment(n_features=2, clip_norm=1.0, relation="add_remove", bits=12))
array([[1., 0.],
       [0., 1.]])
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import Reservation
from dpca_tasks.privacy.ways.disclose import disclose
from dpca_tasks.privacy.ways.disclose_parts import disclose_parts
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import JointSum
from dpca_tasks.records.blocks import BlockSource


class DisclosingCurator(Curator):
    """A curator that can also answer without noise, in steps that were reserved as not private.

    Parameters
    ----------
    source, reservation, **others
        As for `Curator`.
    i_know_this_is_not_private : bool
        The acknowledgement; must be True.

    Raises
    ------
    Refused
        When the acknowledgement is missing.
    """

    def __init__(
        self, source: BlockSource, reservation: Reservation, *, i_know_this_is_not_private: bool, **others: Any
    ) -> None:
        if i_know_this_is_not_private is not True:
            raise Refused("an answer without noise is not private; acknowledge that, or use a mechanism with noise.")
        super().__init__(source, reservation, **others)

    def disclose(self, query: RowSum) -> NDArray[np.float64]:
        """Answer the next step with the exact sum, without noise.

        Returns
        -------
        float64 array, data units
            As from `Curator.release`, without the noise. Records are still clipped and on the query's grid.

        Raises
        ------
        StepMismatch
            When the step was reserved for another event, or was already answered for a different request.
        """
        return self._answered(disclose(self._gate, self._rows, query))

    def disclose_parts(self, query: JointSum) -> dict[str, NDArray[np.float64]]:
        """Answer the next step with the exact parts of a statistic, without noise.

        Returns
        -------
        dict of str to float64 array, data units
            As from `Curator.release_parts`, without the noise; ratings are still clipped, counted and on their grids.

        Raises
        ------
        StepMismatch
            As for `disclose`.
        """
        parts = disclose_parts(self._gate, self._rows, query)
        self._free_rows()
        return parts
