r"""One round of a joint release, with each site's share of the noise and the opening of the sum.

Each site adds a share of the noise to its sum. All honest shares together protect every record.

Site s sends its integers times its weight, plus a discrete Gaussian of parameter ``w^2 s^2`` in a coordinate of weight
w, plus a mask. Since masks are uniform, the view of all messages is the sum alone. This also holds for an aggregator
that colludes with C sites and knows their parts: the sum contains the noise of the H honest shares. Let Delta be the
largest shift by one record of site s, in steps of isometric coordinates, times the site's weight. Then that view is
``mu_s``-GDP with

    mu_s = Delta / sqrt(H s^2 - 16 / w_min^2),    s w_min >= 4,

as `dpca_tasks.accounting.calibration.shares_mu` proves. The ledger of site s is charged ``1 / mu_s``: the event of all
honest shares together, not of the site's share alone. One ``s^2`` serves all sites: the value for the most demanding
site.

>>> from dpca_tasks.sites.roster import Member, Roster
>>> members = tuple(Member(name=name, records=1000, noise_multiplier=4.0) for name in "abcd")
>>> share = SymmetricShare(roster=Roster(session="spring", members=members, colluders=1), site="a")
>>> share.event, share.squared_scale(30.0)
({'name': 'gaussian', 'noise_multiplier': 4.0}, 4812)

*One round.* All sites of a roster are queried and their messages opened, or all are queried again.

If a site stays silent, the attempt is void and nothing is opened. The same roster is queried again without charge:
every site sends the same noised integers under other masks. A smaller roster gets fresh noise, which is a charged
attempt. With the same noise, a sum and the same sum without one site would reveal that site's integers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import shares_squared_scale
from dpca_tasks.errors import InvalidInput, Refused, SiteSilent
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.discrete_gaussian import drawable, wide_discrete_gaussians
from dpca_tasks.noise.distributions import cube_weights, symmetric_weights
from dpca_tasks.noise.keystream import SecretKey, subkey
from dpca_tasks.sites.roster import Address, Message, Roster, check_room, open_total

FINEST = 28
"""Largest number of bits in one unit of a statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(ABC):
    """One site's share of the noise of a roster, for one kind of layout.

    Parameters
    ----------
    roster : Roster
    site : str
        The site, one of the roster.
    """

    roster: Roster
    site: str

    name: ClassVar[str]
    layout: ClassVar[str]
    least_weight: ClassVar[float]
    """The least relative std of a coordinate of the layout."""
    parts: ClassVar[int] = 2
    """The number by which the parameter can be divided."""
    norm: ClassVar[str] = "l2"

    @property
    def noise_multiplier(self) -> float:
        """``1 / mu`` of the site, for the view of all messages."""
        return self.roster.member(self.site).noise_multiplier

    @property
    def weight(self) -> int:
        """The factor of the site's sum."""
        return self.roster.member(self.site).weight

    @property
    def event(self) -> events.Event:
        """The joint event of the noise of all honest shares."""
        return events.gaussian(self.noise_multiplier)

    def squared_scale(self, sensitivity_in_steps: float) -> int:
        """Return the least drawable parameter ``s^2`` that gives every site of the roster its mu.

        Parameters
        ----------
        sensitivity_in_steps : float, grid steps
            How far one record moves a site's sum before its weight, in the l2 norm of isometric coordinates.
        """
        return drawable(
            max(
                shares_squared_scale(
                    sensitivity=member.weight * sensitivity_in_steps,
                    shares=self.roster.honest,
                    mu=math.nextafter(1 / member.noise_multiplier, 0.0),
                    least_weight=self.least_weight,
                )
                for member in self.roster.members
            ),
            parts=self.parts,
        )

    @abstractmethod
    def draw(self, key: SecretKey, order: int, *, squared_scale: int) -> NDArray[np.int64]:
        """Return the noise of all packed coordinates of a layout of a given order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorShare(Share):
    """A share of the noise of a vector; all entries have the same variance."""

    name: ClassVar[str] = "VectorShare"
    layout: ClassVar[str] = "vector"
    least_weight: ClassVar[float] = 1.0

    def draw(self, key: SecretKey, order: int, *, squared_scale: int) -> NDArray[np.int64]:
        """Return the noise of all coordinates."""
        return wide_discrete_gaussians(key, size=order, squared_scale=squared_scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetricShare(Share):
    """A share of the noise of a symmetric matrix; entries off the diagonal have half the variance of the diagonal."""

    name: ClassVar[str] = "SymmetricShare"
    layout: ClassVar[str] = "symmetric"
    least_weight: ClassVar[float] = math.nextafter(math.sqrt(0.5), 0.0)

    def draw(self, key: SecretKey, order: int, *, squared_scale: int) -> NDArray[np.int64]:
        """Return the noise of the packed upper triangle."""
        diagonal, off_diagonal = (subkey(key.secret, label=label, info=b"") for label in ("diagonal", "off_diagonal"))
        is_diagonal = symmetric_weights(order, start=0, stop=order * (order + 1) // 2) == 1.0
        noise = np.empty(is_diagonal.size, np.int64)
        noise[is_diagonal] = wide_discrete_gaussians(diagonal, size=order, squared_scale=squared_scale)
        rest = noise.size - order
        noise[~is_diagonal] = wide_discrete_gaussians(off_diagonal, size=rest, squared_scale=squared_scale, part=2)
        return noise


@dataclass(frozen=True, slots=True, kw_only=True)
class CubeShare(Share):
    """A share of the noise of a symmetric tensor of order 3.

    Entries with two equal indices have a third of the variance of the diagonal, entries without equal indices a sixth.
    """

    name: ClassVar[str] = "CubeShare"
    layout: ClassVar[str] = "cube"
    least_weight: ClassVar[float] = math.nextafter(math.sqrt(1 / 6), 0.0)
    parts: ClassVar[int] = 6

    def draw(self, key: SecretKey, order: int, *, squared_scale: int) -> NDArray[np.int64]:
        """Return the noise of the packed cube."""
        times = np.rint(cube_weights(order, start=0, stop=Layout(kind="cube", order=order).size) ** -2.0)
        noise = np.empty(times.size, np.int64)
        for part in (1, 3, 6):
            of_part = times == part
            own = subkey(key.secret, label=f"1/{part}", info=b"")
            noise[of_part] = wide_discrete_gaussians(
                own, size=int(of_part.sum()), squared_scale=squared_scale, part=part, parts=6
            )
        return noise


SHARES: Mapping[str, type[Share]] = {kind.layout: kind for kind in (VectorShare, SymmetricShare, CubeShare)}
"""Shares by the layout of the statistic."""


def share_bits(roster: Roster, *, sensitivity: float, degree: int, layout: str = "symmetric") -> int:
    """Return the bits of the finest grid of the records on which shares can be drawn and totals have room.

    Parameters
    ----------
    roster : Roster
        The largest roster: rounds may continue with any smaller roster that its attempts allow, on the same grid.
    sensitivity : float
        How far one record moves the statistic, in units where a clipped record has norm 1; a bound over all grids.
    degree : int
        The number of record entries that a contribution multiplies.
    layout : str
        The kind of the statistic's layout. If a matrix has a grid, so has a vector.

    Raises
    ------
    InvalidInput
        When the noise of one of these rosters is too large for any grid.

    Notes
    -----
    A site's share grows as the number of honest sites falls, and with the noise of the strictest site. So if
    `Roster.smallest` can draw its shares, every other roster can. The total needs most room for the largest roster.
    """
    smallest = roster.smallest
    share = SHARES[layout](roster=smallest, site=smallest.names[0])
    for bits in range(FINEST // degree, 0, -1):
        steps = 2 ** (degree * bits)
        try:
            check_room(roster, steps_per_unit=steps)
            share.squared_scale(sensitivity * steps)
        except InvalidInput:
            continue
        return bits
    among = "" if smallest is roster else f" among {smallest.size} sites, to which its attempts may reduce it"
    raise InvalidInput(
        f"no grid of integers holds this roster's noise and total{among}; choose a larger epsilon or delta, "
        f"{'' if smallest is roster else 'fewer attempts, '}or smaller weights."
    )


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
    """An opened round with the total in grid steps, the query, and the roster that answered."""

    total: NDArray[np.int64] = field(repr=False)
    query: Q
    roster: Roster


class SumOver[Q](Protocol):
    """The interface of a function that opens one attempt of a round over a roster."""

    def __call__(self, query: Q, *, roster: Roster, address: Address) -> tuple[NDArray[np.int64], Roster]:
        """Return the total, and the roster of the sites whose integers it contains.

        Raises
        ------
        SiteSilent
            With the names of the sites without which there is no total.
        """


type CallAll = Callable[[Callable[[str], Message | None], Sequence[str]], Iterable[Message | None]]
"""Function that calls another for every name: one after the other, like `map`, or concurrently."""


def open_round[Q](
    sites: Sequence[Party[Q]],
    query: Q,
    *,
    roster: Roster,
    index: int,
    resends: int = 1,
    call_all: CallAll = map,
    sum_over: SumOver[Q] | None = None,
) -> Opened[Q]:
    """Query the sites of a roster until all sites of one roster have answered, and open their total.

    Parameters
    ----------
    sites : sequence of Party
        All sites of the roster, and possibly others.
    query
        The query that every site sums.
    roster : Roster
    index : int
        The round, from 0.
    resends : int
        How often a roster is queried again before the round continues without its silent sites.
    call_all : callable
        Queries the sites; by default one after the other.
    sum_over : callable, optional
        Opens an attempt where sites do more than send a message, as in a secure sum.

    Raises
    ------
    Refused
        When the attempts of the round are used up, or too few sites are left.
    """
    parties, attempt = {site.name: site for site in sites}, 0
    total_of = sum_over or partial(_sum_of_messages, parties, call_all=call_all)
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
        f"round {index} has {roster.attempts} charged attempts, and sites {', '.join(silent)} did not answer in the "
        "last; run the joint release again when they are back, or reserve more attempts."
    )


def _sum_of_messages[Q](
    parties: Mapping[str, Party[Q]], query: Q, *, roster: Roster, address: Address, call_all: CallAll
) -> tuple[NDArray[np.int64], Roster]:
    call = partial(_call, parties, query, roster=roster, address=address)
    answers = dict(zip(roster.names, call_all(call, roster.names), strict=True))
    silent = tuple(name for name, message in answers.items() if message is None)
    if silent:
        raise SiteSilent(f"sites {', '.join(silent)} did not answer; request the round again.", names=silent)
    messages = [message for message in answers.values() if message is not None]
    return open_total(messages, roster=roster, address=address), roster


def _call[Q](
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
