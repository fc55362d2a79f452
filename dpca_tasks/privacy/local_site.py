"""A site of a joint release in this process: its own rows, ledger and noise behind its own curator."""

from dataclasses import dataclass, field

from dpca_tasks.errors import InvalidInput
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.masks import Masks
from dpca_tasks.sites.opening import Address, Message
from dpca_tasks.sites.roster import Roster
from dpca_tasks.sites.shares import SHARES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A site that answers in this process; see `dpca_tasks.sites.rounds.Party`.

    Parameters
    ----------
    name : str
    curator : Curator
        Over its rows and its reservation of the joint event, one step for each attempt of each round.
    seeds : Masks
    """

    name: str
    curator: Curator = field(repr=False)
    seeds: Masks = field(repr=False)

    def message(self, query: RowSum, *, roster: Roster, address: Address) -> Message:
        """Return the site's masked share of a query's sum."""
        kind = SHARES.get(query.layout.kind)
        if kind is None:
            raise InvalidInput(
                f"a statistic of layout {query.layout.kind} has no shares; ask for one of {', '.join(SHARES)}."
            )
        return self.curator.share(query, kind(roster=roster, site=self.name), address=address, seeds=self.seeds)

    def with_stored_inputs[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Q:
        """Return the query of a round with the public inputs that an earlier run stored, if any."""
        return self.curator.with_stored_inputs(query, step=index * roster.attempts)
