"""The way out without noise, for reference results: a curator of its own, which nobody meets by accident.

`Curator` has no such method, and no noise law has std 0. Four things must come together before a sum leaves as it is:
a target that says ``i_know_this_is_not_private``, a step reserved as ``non_private``, which a ledger grants only to
who insists and then voids the budget, this class, built with the acknowledgement, and the call itself.

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
from dpca_tasks.queries.base import RowSum
from dpca_tasks.records.blocks import BlockSource


class DisclosingCurator(Curator):
    """A curator that can also answer without noise, in steps reserved as not private.

    Parameters
    ----------
    source, reservation, **others
        As for `Curator`.
    i_know_this_is_not_private : bool
        The acknowledgement; nothing else than True will do.

    Raises
    ------
    Refused
        Without the acknowledgement.
    """

    def __init__(
        self, source: BlockSource, reservation: Reservation, *, i_know_this_is_not_private: bool, **others: Any
    ) -> None:
        if i_know_this_is_not_private is not True:
            raise Refused("an answer without noise is not private; acknowledge that, or use a mechanism with noise.")
        super().__init__(source, reservation, **others)

    def disclose(self, query: RowSum) -> NDArray[np.float64]:
        """Return an exact sum, without noise: the answer to the next step of the release.

        Returns
        -------
        float64 array, data units
            As `Curator.release`, but for the noise. Records are clipped and on the query's grid all the same.

        Raises
        ------
        StepMismatch
            When the step was reserved for anything else, or an unlike question was already answered in it.
        """
        return self._answered(disclose(self._gate, self._rows, query))
