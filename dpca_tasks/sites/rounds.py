r"""One round of a joint release: each site's share of the noise, and the sum of the sites' masked messages.

*Shares of noise.* Each site adds a share of noise to its sum. The shares of all honest sites together protect every
record.

A site sends the sum of three terms: its integers times the weight of the site, its share of noise, and a mask. The
share is a discrete Gaussian. Its parameter (squared scale) is ``w^2 s^2`` in a coordinate whose noise has the relative
std w. Masks are uniform, so all messages together reveal only their sum. An aggregator that colludes with C sites knows
the integers and the noise of these sites, but the sum still contains the shares of H honest sites. Let Delta be the
largest change of the weighted integers by one record of a site, in the l2 norm after each coordinate is divided by its
w. Then the sum is mu-GDP for this site, with

    mu = Delta / sqrt(H s^2 - 16 / w_min^2),    s w_min >= 4,

where w_min is the least w. The proof is in `dpca_tasks.accounting.calibration.shares_mu`. The ledger of the site is
charged a Gaussian event of noise multiplier ``1 / mu``: the event of all honest shares together, not of the site's
share alone. All sites use the same ``s^2``, the value that the most demanding site requires.

>>> from dpca_tasks.sites.roster import Member, Roster
>>> members = tuple(Member(name=name, records=1000, noise_multiplier=4.0) for name in "abcd")
>>> share = SymmetricShare(roster=Roster(session="spring", members=members, colluders=1), site="a")
>>> share.event, share.squared_scale(30.0)
({'name': 'gaussian', 'noise_multiplier': 4.0}, 4812)

*One round.* All sites of a roster are queried. If all of them answer, their messages are summed (the total is opened).

If a site stays silent, the attempt is void, and no total is opened. The same roster is then queried again without a
charge: every site sends the same noised integers under other masks. A smaller roster needs fresh noise, which is a
charged attempt. With the same noise, the difference of the two totals would reveal the integers of the missing site.
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
"""The largest number of bits of a unit of the statistic: a unit has at most ``2^28`` grid steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(ABC):
    """The share of noise that one site adds in a joint release, for one kind of statistic (vector, matrix or tensor).

    Parameters
    ----------
    roster : Roster
    site : str
        The name of the site, which must be in the roster.
    """

    roster: Roster
    site: str

    name: ClassVar[str]
    layout: ClassVar[str]
    least_weight: ClassVar[float]
    """The least relative std of the noise in a coordinate (the w_min of this module); 1 on a diagonal."""
    parts: ClassVar[int] = 2
    """The squared scale is a multiple of this number, so that coordinates of smaller variance can be drawn too."""
    norm: ClassVar[str] = "l2"

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier ``1 / mu`` that a step of the site has for an observer of all messages."""
        return self.roster.member(self.site).noise_multiplier

    @property
    def weight(self) -> int:
        """The factor by which the site multiplies its sum."""
        return self.roster.member(self.site).weight

    @property
    def event(self) -> events.Event:
        """The event that is charged to the site: Gaussian noise of all honest shares together."""
        return events.gaussian(self.noise_multiplier)

    def squared_scale(self, sensitivity_in_steps: float) -> int:
        """Return the least squared scale ``s^2`` that can be drawn and gives every site of the roster its mu.

        Parameters
        ----------
        sensitivity_in_steps : float, grid steps
            The largest change of a site's unweighted sum by one record, in the l2 norm after each coordinate is divided
            by its relative std.
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
        """Draw the share of noise for all packed coordinates of a statistic of the given order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorShare(Share):
    """A share of the noise of a vector; all entries have the same variance."""

    name: ClassVar[str] = "VectorShare"
    layout: ClassVar[str] = "vector"
    least_weight: ClassVar[float] = 1.0

    def draw(self, key: SecretKey, order: int, *, squared_scale: int) -> NDArray[np.int64]:
        """Draw the share of noise for all coordinates."""
        return wide_discrete_gaussians(key, size=order, squared_scale=squared_scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetricShare(Share):
    """A share of the noise of a symmetric matrix; entries off the diagonal have half the variance of the diagonal."""

    name: ClassVar[str] = "SymmetricShare"
    layout: ClassVar[str] = "symmetric"
    least_weight: ClassVar[float] = math.nextafter(math.sqrt(0.5), 0.0)

    def draw(self, key: SecretKey, order: int, *, squared_scale: int) -> NDArray[np.int64]:
        """Draw the share of noise for the packed upper triangle."""
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

    Entries with exactly two equal indices have a third of the variance of the diagonal. Entries without equal indices
    have a sixth of this variance.
    """

    name: ClassVar[str] = "CubeShare"
    layout: ClassVar[str] = "cube"
    least_weight: ClassVar[float] = math.nextafter(math.sqrt(1 / 6), 0.0)
    parts: ClassVar[int] = 6

    def draw(self, key: SecretKey, order: int, *, squared_scale: int) -> NDArray[np.int64]:
        """Draw the share of noise for the packed coordinates of the tensor."""
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
"""The classes of shares, by the layout of the statistic: vector, symmetric matrix or cube."""


def share_bits(roster: Roster, *, sensitivity: float, degree: int, layout: str = "symmetric") -> int:
    """Return the bits of the finest grid for records on which shares can be drawn and no total overflows.

    Parameters
    ----------
    roster : Roster
        The roster of all sites. A round may continue with a smaller roster on the same grid, if the attempts allow it.
    sensitivity : float
        A bound, for all grids, on the change of the statistic by one record, in units in which records have norm 1.
    degree : int
        The number of entries of a record that are multiplied in a coordinate, such as 2 for a second moment.
    layout : str
        The layout of the statistic. A grid for a symmetric matrix is also valid for a vector.

    Raises
    ------
    InvalidInput
        When the noise of the roster, or of a smaller roster, is too large for any grid.

    Notes
    -----
    The noise of a share is larger if fewer sites are honest, or if the strictest site requires more noise. So if the
    sites of `Roster.smallest` can draw their shares, the sites of every other roster can too. The total is largest for
    the roster of all sites, so overflow is checked for this roster.
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
    among = "" if smallest is roster else f", after its attempts reduce it to {smallest.size} sites"
    raise InvalidInput(
        f"the noise or the total of this roster is too large for integers{among}; choose a larger epsilon or delta, "
        f"{'' if smallest is roster else 'fewer attempts, '}or smaller weights."
    )


class Party[Q](Protocol):
    """The interface through which one site is queried, in this process or over a network."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def message(self, query: Q, *, roster: Roster, address: Address) -> Message:
        """Return the site's masked message for a query; raise `SiteSilent` if the site does not answer."""

    def with_stored_inputs(self, query: Q, *, roster: Roster, index: int) -> Q:
        """Return the query of a round; if an earlier run stored its public inputs, with these inputs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opened[Q]:
    """The result of a round: the total in grid steps, the query, and the roster of the sites in the total."""

    total: NDArray[np.int64] = field(repr=False)
    query: Q
    roster: Roster


class SumOver[Q](Protocol):
    """The interface of a function that computes the total of one attempt of a round over a roster."""

    def __call__(self, query: Q, *, roster: Roster, address: Address) -> tuple[NDArray[np.int64], Roster]:
        """Return the total, and the roster of the sites whose integers are in the total.

        Raises
        ------
        SiteSilent
            When sites do not answer without which there is no total; the error contains their names.
        """


type CallAll = Callable[[Callable[[str], Message | None], Sequence[str]], Iterable[Message | None]]
"""A function that calls another function for the name of each site, one after the other (`map`) or concurrently."""


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
    """Query all sites of a roster, and return the total of their answers; if sites stay silent, try a smaller roster.

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
        The number of times that a roster is queried again before the round continues without its silent sites.
    call_all : callable
        Queries the sites; by default one after the other.
    sum_over : callable, optional
        Computes the total of an attempt if sites exchange several messages, as in a secure sum. By default each site
        sends one masked message, and the messages are summed.

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
        "last attempt; run the joint release again when they are back, or reserve more attempts."
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
