"""One round of a joint release: all sites of a roster are asked, and their messages opened; or asked again.

A site that stays silent voids the attempt, and nothing is opened. The same roster is asked again without charge: every
site sends the same noised integers under other masks. A smaller roster gets fresh noise, which is a charged attempt: a
sum and the same sum without one site, of the same noise, would show that site's integers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused, SiteSilent
from dpca_tasks.sites.masks import Address, Message, open_total
from dpca_tasks.sites.roster import Roster


class Party[Q](Protocol):
    """The interface of a site, in this process or behind a connection."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def message(self, query: Q, *, roster: Roster, address: Address) -> Message:
        """Return the site's masked share of a query's sum; raise `SiteSilent` if it does not answer."""

    def with_stored_inputs(self, query: Q, *, roster: Roster, index: int) -> Q:
        """Return the query of a round with the public inputs that an earlier run stored, if any."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opened[Q]:
    """An opened round: the total in grid steps, the query that was answered, and the roster that answered."""

    total: NDArray[np.int64] = field(repr=False)
    query: Q
    roster: Roster


class SumOver[Q](Protocol):
    """The interface of what opens one attempt of a round over a roster."""

    def __call__(self, query: Q, *, roster: Roster, address: Address) -> tuple[NDArray[np.int64], Roster]:
        """Return the total and the roster of those whose integers it is of.

        Raises
        ------
        SiteSilent
            With the names of those for want of whom there is no total.
        """


type AskAll = Callable[[Callable[[str], Message | None], Sequence[str]], Iterable[Message | None]]
"""What calls a function for every name: one after the other, as `map`, or at once."""


def open_round[Q](
    sites: Sequence[Party[Q]],
    query: Q,
    *,
    roster: Roster,
    index: int,
    resends: int = 1,
    ask_all: AskAll = map,
    sum_over: SumOver[Q] | None = None,
) -> Opened[Q]:
    """Ask the sites of a roster until all of one roster have answered, and open their total.

    Parameters
    ----------
    sites : sequence of Party
        All of the roster, and perhaps others.
    query
        What every site sums.
    roster : Roster
    index : int
        The round, from 0.
    resends : int
        How often a roster is asked again before it goes on without its silent sites.
    ask_all : callable
        Asks one site after the other by default.
    sum_over : callable, optional
        Opens an attempt where sites do more than send a message, as in a secure sum.

    Raises
    ------
    Refused
        When the attempts of the round are used up, or too few sites are left.
    """
    parties, attempt = {site.name: site for site in sites}, 0
    total_of = sum_over or partial(_sum_of_messages, parties, ask_all=ask_all)
    query = _with_stored_inputs([parties[name] for name in roster.names], query, roster=roster, index=index)
    for tried in range(roster.attempts):
        for _ in range(resends + 1):
            address = Address(round=index, attempt=attempt)
            try:
                total, answered = total_of(query, roster=roster, address=address)
            except SiteSilent as silence:
                silent = silence.names
                attempt += 1
            else:
                return Opened(total=total, query=query, roster=answered)
        if tried + 1 < roster.attempts:
            roster = roster.without(*silent)
    raise Refused(
        f"round {index} has {roster.attempts} charged attempts, and sites {', '.join(silent)} stayed silent in the "
        "last; run the joint release again when they are back, or reserve more attempts."
    )


def _sum_of_messages[Q](
    parties: Mapping[str, Party[Q]], query: Q, *, roster: Roster, address: Address, ask_all: AskAll
) -> tuple[NDArray[np.int64], Roster]:
    ask = partial(_ask, parties, query, roster=roster, address=address)
    answers = dict(zip(roster.names, ask_all(ask, roster.names), strict=True))
    silent = tuple(name for name, message in answers.items() if message is None)
    if silent:
        raise SiteSilent(f"sites {', '.join(silent)} did not answer; ask their roster again.", names=silent)
    messages = [message for message in answers.values() if message is not None]
    return open_total(messages, roster=roster, address=address), roster


def _ask[Q](
    parties: Mapping[str, Party[Q]], query: Q, name: str, *, roster: Roster, address: Address
) -> Message | None:
    try:
        return parties[name].message(query, roster=roster, address=address)
    except SiteSilent:
        return None


def _with_stored_inputs[Q](parties: Sequence[Party[Q]], query: Q, *, roster: Roster, index: int) -> Q:
    for party in parties:
        try:
            stored = party.with_stored_inputs(query, roster=roster, index=index)
        except SiteSilent:
            continue
        if stored is not query:
            return stored
    return query
