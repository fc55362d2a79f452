"""The roster of a joint release (the list of its sites), and masked messages of sites, whose masks cancel in the sum.

*Roster.* A roster lists the participating sites, and the public facts from which every site computes its noise.

>>> members = tuple(Member(name=name, records=1000, noise_multiplier=4.0) for name in ("a", "b", "c", "d"))
>>> roster = Roster(session="spring", members=members, colluders=1)
>>> roster.honest, roster.without("c").honest
(3, 2)

*Messages.* A message contains the integers of a site plus a mask, modulo ``2^64``. The masks of all sites of a roster
sum to 0. So the sum of all messages, in any order, is the sum of the integers. It is read as signed 64-bit integers;
`check_room` checks, from public facts, that they cannot overflow. A sum that lacks a message is uniform noise.

*Masks.* There are two kinds of masks that sum to zero over a roster: uniform integers modulo ``2^64``, and, only for
reproductions, the Gaussian masks of the paper on CAPE.

For uniform masks, a dealer gives each pair of sites a common seed. Both sites expand the seed into the same
pseudorandom words, which are different for each attempt of each roster. One site adds these words to its mask, and the
other site subtracts them. To an observer who lacks the seeds of two or more sites, the masks of these sites are uniform
and independent, except that all masks sum to 0. This holds if ChaCha20 words cannot be distinguished from uniform
words. The dealer is trusted: the dealer must delete the seeds, and must never see a message.

>>> from dpca_tasks.sites.roster import Address
>>> from dpca_tasks.sites.roster import Member, Roster
>>> members = tuple(Member(name=name, records=1000, noise_multiplier=4.0) for name in ("a", "b", "c"))
>>> roster = Roster(session="spring", members=members, colluders=0)
>>> dealt = deal_masks(roster)
>>> sum(one.mask(Address(round=0), roster=roster, size=2) for one in dealt.values()).tolist()
[0, 0]
"""

import hashlib
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import IncompleteSum, InvalidInput, Refused
from dpca_tasks.noise.keystream import SecretKey, normals, subkey, words


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One site of a roster, with its public facts.

    Parameters
    ----------
    name : str
    records : int
        The public number of the site's records, or a bound on this number. It only serves to bound a total.
    noise_multiplier : float
        The noise multiplier ``1 / mu`` that one charged step of this site has for an observer of all messages.
    weight : int
        The factor by which the site multiplies its sum, before noise and mask are added.
    """

    name: str
    records: int
    noise_multiplier: float
    weight: int = 1

    def __post_init__(self) -> None:
        """Refuse an empty name, and numbers outside their domains."""
        if not self.name:
            raise InvalidInput("a site's name is empty; give each site a unique name.")
        if self.records < 1 or self.weight < 1 or int(self.weight) != self.weight:
            raise InvalidInput(
                f"site {self.name!r} has records={self.records} and weight={self.weight}, which must be whole numbers "
                "of at least 1; correct them, or omit the site."
            )
        if not 0 < self.noise_multiplier < math.inf:
            raise InvalidInput(
                f"site {self.name!r} has noise_multiplier={self.noise_multiplier}, which must be positive and finite; "
                "calibrate it from its epsilon and delta."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The sites of a joint release, and how many of them may collude or drop out.

    Parameters
    ----------
    session : str
        The public name of the joint release. All its rounds have this name, also after the release is resumed. No
        other joint release may have the name.
    members : tuple of Member
        The sites, in any order.
    colluders : int
        The number C of sites that may reveal everything they know to the aggregator.
    dropouts : int
        The number D of further sites whose noise may be missing.
    attempts : int
        The number of charged steps of each round. If sites stay silent, the round is tried again with a smaller roster,
        which takes one more charged step.
    """

    session: str
    members: tuple[Member, ...]
    colluders: int
    dropouts: int = 0
    attempts: int = 1

    def __post_init__(self) -> None:
        """Check that there are several sites with distinct names, some of which are honest."""
        if self.size < 2:
            raise InvalidInput(
                f"the roster has {self.size} sites and needs at least 2, because a sum over one site hides nothing; "
                "fit a single site without a roster."
            )
        if len(set(self.names)) < self.size:
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise InvalidInput(f"sites {', '.join(twice)} are named twice; give each site a unique name.")
        if self.colluders < 0 or self.dropouts < 0 or self.honest < 1:
            raise InvalidInput(
                f"colluders={self.colluders} and dropouts={self.dropouts} must be at least 0, and at least one of the "
                f"{self.size} sites must be neither, so that its noise remains unknown; tolerate fewer."
            )
        if self.attempts < 1 or not self.session:
            raise InvalidInput(
                f"session={self.session!r} must not be empty, and attempts={self.attempts} must be at least 1; "
                "correct them."
            )

    @property
    def size(self) -> int:
        """The number S of sites."""
        return len(self.members)

    @property
    def honest(self) -> int:
        """The number ``H = S - C - D`` of sites whose noise is unknown to every other party."""
        return self.size - self.colluders - self.dropouts

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return tuple(sorted(member.name for member in self.members))

    @property
    def digest(self) -> bytes:
        """A hash of all facts of the roster; the order of the members does not matter."""
        hasher = hashlib.sha256()
        members = sorted(self.members, key=lambda member: member.name)
        facts: list[str | int] = ["roster 1", self.session, self.colluders, self.dropouts, self.attempts]
        for member in members:
            facts += [member.name, member.records, float(member.noise_multiplier).hex(), member.weight]
        for fact in facts:
            part = str(fact).encode()
            hasher.update(len(part).to_bytes(8, "little") + part)
        return hasher.digest()

    @property
    def smallest(self) -> "Roster":
        """The smallest roster with which a round may continue, made of the members that require the most noise.

        Each of its sites adds at least as much noise as any site of any other roster with which the round may continue.
        """
        kept = max(2, self.colluders + 1)
        if self.attempts == 1 or kept >= self.size:
            return self
        strictest = sorted(self.members, key=lambda member: (-member.weight * member.noise_multiplier, member.name))
        return self.without(*(member.name for member in strictest[kept:]))

    def member(self, name: str) -> Member:
        """Return a site by its name."""
        for member in self.members:
            if member.name == name:
                return member
        raise InvalidInput(f"site {name!r} is not in the roster ({', '.join(self.names)}); use one of these.")

    def without(self, *names: str) -> "Roster":
        """Return the roster without some sites; each missing site reduces the number of tolerated dropouts by one.

        Raises
        ------
        Refused
            When so few sites remain that no site's noise would be unknown to all other parties.
        """
        left = tuple(member for member in self.members if member.name not in names)
        dropouts = max(0, self.dropouts - (self.size - len(left)))
        if len(left) < 2 or len(left) - self.colluders - dropouts < 1:
            raise Refused(
                f"{len(left)} sites are left, of which {self.colluders} may collude: no noise would remain unknown, so "
                "nothing is unmasked; run the joint release again when the missing sites are back."
            )
        return replace(self, members=left, dropouts=dropouts)


NOISE_BOUND = 2**44
"""An upper bound on the noise that a site's share adds to one coordinate, in grid steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The round and the attempt to which a message of a joint release belongs, both counted from 0."""

    round: int
    attempt: int = 0

    def __post_init__(self) -> None:
        """Check that neither number is negative."""
        if not (0 <= self.round < 2**63 and 0 <= self.attempt < 2**63):
            raise InvalidInput(f"round={self.round} and attempt={self.attempt} must be at least 0; count from 0.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """A site's noised and masked integers, for one attempt of one roster."""

    site: str
    address: Address
    roster_digest: bytes = field(repr=False)
    words: NDArray[np.uint64] = field(repr=False)


def masked(integers: NDArray[np.int64], mask: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return integers plus a mask, modulo ``2^64``."""
    return integers.view(np.uint64) + mask


def open_total(messages: Sequence[Message], *, roster: Roster, address: Address) -> NDArray[np.int64]:
    """Sum the masked messages of all sites of a roster, in any order, so that the masks cancel.

    Returns
    -------
    int64 array
        The sum of the sites' weighted and noised integers, in grid steps.

    Raises
    ------
    IncompleteSum
        When a message is missing, repeated, or of another attempt or roster. No total is computed then.
    """
    if sorted(message.site for message in messages) != list(roster.names):
        raise IncompleteSum(
            f"{len(messages)} messages arrived, and a sum needs one message of each of the {roster.size} sites of the "
            "roster; request all messages again."
        )
    for message in messages:
        if (message.address, message.roster_digest) != (address, roster.digest):
            raise IncompleteSum(
                f"the message of site {message.site!r} is of another attempt or roster, so the masks do not cancel; "
                "request all messages again."
            )
    if len({message.words.shape for message in messages}) > 1:
        raise IncompleteSum(
            "the messages have different lengths, so the sites answered different requests; request all messages again."
        )
    total = np.zeros_like(messages[0].words)
    for message in messages:
        total += message.words
    return total.view(np.int64)


def check_room(roster: Roster, *, steps_per_unit: int) -> None:
    """Refuse a roster whose totals may overflow signed 64-bit integers, by public facts.

    Parameters
    ----------
    roster : Roster
    steps_per_unit : int
        A bound on each coordinate of one record's contribution, in grid steps.
    """
    records = sum(member.weight * member.records for member in roster.members)
    if records * steps_per_unit + roster.size * NOISE_BOUND >= 2**63:
        raise InvalidInput(
            f"{records} weighted records on a grid of {steps_per_unit} steps may add up to more than 2^63; use a "
            "coarser grid or smaller weights."
        )


class Masks(Protocol):
    """The interface of a site's masks, for any method by which sites agree on masks."""

    @property
    def site(self) -> str: ...  # noqa: D102

    def mask(self, address: Address, *, roster: Roster, size: int) -> NDArray[np.uint64]:
        """Return the mask of one attempt; each attempt, round, roster and session has a different mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSeeds:
    """The seeds of one site's masks: for each other site, the seed that both sites have."""

    site: str
    shared: Mapping[str, SecretKey] = field(repr=False)

    def mask(self, address: Address, *, roster: Roster, size: int) -> NDArray[np.uint64]:
        """Return the mask of one attempt; each attempt, round, roster and session has a different mask."""
        others = [name for name in roster.names if name != self.site]
        if strangers := [name for name in (self.site, *others) if name not in {self.site, *self.shared}]:
            raise InvalidInput(
                f"site {self.site!r} shares no seed with {', '.join(strangers)}; deal new seeds to all sites."
            )
        if len(others) == roster.size:
            raise InvalidInput(f"site {self.site!r} is not in the roster, whose masks cancel without it; omit it.")
        info = roster.digest + address.round.to_bytes(8, "little") + address.attempt.to_bytes(8, "little")
        mask = np.zeros(size, np.uint64)
        for other in others:
            of_pair = words(subkey(self.shared[other].secret, label="mask", info=info), stream=0, start=0, stop=size)
            if self.site < other:
                mask += of_pair
            else:
                mask -= of_pair
        return mask


def deal_masks(roster: Roster, *, secret: bytes | None = None) -> dict[str, MaskSeeds]:
    """Draw a mask seed for each pair of sites of a roster, and return the seeds of each site by its name.

    The seeds also serve smaller rosters of these sites.

    Parameters
    ----------
    roster : Roster
    secret : bytes of length 32, optional
        The dealer's secret, from which all seeds are derived. By default it is drawn by the operating system; only
        tests may pass a secret.
    """
    root = os.urandom(32) if secret is None else secret
    shared: dict[str, dict[str, SecretKey]] = {name: {} for name in roster.names}
    for one, other in itertools.combinations(roster.names, 2):
        info = len(one.encode()).to_bytes(8, "little") + f"{one}{other}".encode()
        shared[one][other] = shared[other][one] = subkey(root, label="pair of sites", info=info)
    return {name: MaskSeeds(site=name, shared=seeds) for name, seeds in shared.items()}


def gaussian_masks(key: SecretKey, *, sites: int, size: int, variance: float) -> NDArray[np.float64]:
    """Return the Gaussian masks of the paper on CAPE, for reproductions: normal numbers minus their mean over sites.

    Each coordinate has covariance ``variance (I - 1 1^T / S)`` over the sites. The variance determines how well the
    masks hide a message (`dpca_tasks.accounting.closed_brackets.view_mu`). The masks sum to 0 up to floating-point
    rounding.
    """
    drawn = normals(key, start=0, stop=sites * size).reshape(sites, size) * np.sqrt(variance)
    return np.asarray(drawn - drawn.mean(axis=0))
