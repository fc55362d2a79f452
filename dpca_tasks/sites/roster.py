"""The roster of a joint release: who takes part, and the public facts that everyone computes the noise from.

>>> members = tuple(Member(name=name, records=1000, noise_multiplier=4.0) for name in ("a", "b", "c", "d"))
>>> roster = Roster(session="spring", members=members, colluders=1)
>>> roster.honest, roster.without("c").honest
(3, 2)
"""

import hashlib
import math
from dataclasses import dataclass, replace

from dpca_tasks.errors import InvalidInput, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One site of a roster.

    Parameters
    ----------
    name : str
    records : int
        The public number of its records, or a bound on it; it only bounds how large a total can be.
    noise_multiplier : float
        ``1 / mu`` of one charged step of this site, for all that the others see together.
    weight : int
        By how much the site multiplies its sum, before noise and mask.
    """

    name: str
    records: int
    noise_multiplier: float
    weight: int = 1

    def __post_init__(self) -> None:
        """Check the facts."""
        if not self.name:
            raise InvalidInput("a site's name is empty, and names tell sites apart; give each a name of its own.")
        if self.records < 1 or self.weight < 1 or int(self.weight) != self.weight:
            raise InvalidInput(
                f"site {self.name!r} has records={self.records} and weight={self.weight}, which must be whole numbers "
                "from 1; leave a site without weight out."
            )
        if not 0 < self.noise_multiplier < math.inf:
            raise InvalidInput(
                f"site {self.name!r} has noise_multiplier={self.noise_multiplier}, which must be positive and finite; "
                "calibrate it from its epsilon and delta."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The sites of a joint release, and how many of them may fail the others.

    Parameters
    ----------
    session : str
        The public name of the joint release: one name for all its rounds, also of a resumed run, and never used again.
    members : tuple of Member
        In any order.
    colluders : int
        C, the number of sites that may show all they know to the one who adds up.
    dropouts : int
        D, the number of further sites whose noise may be missing.
    attempts : int
        The charged steps of each round: one for each roster that is tried in it.
    """

    session: str
    members: tuple[Member, ...]
    colluders: int
    dropouts: int = 0
    attempts: int = 1

    def __post_init__(self) -> None:
        """Check that there are several sites, told apart, of which some are honest."""
        if self.size < 2:
            raise InvalidInput(
                f"a roster of {self.size} sites must have at least 2: the sum of one is its own; fit it by itself."
            )
        if len(set(self.names)) < self.size:
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise InvalidInput(f"sites {', '.join(twice)} are named twice; give each site a name of its own.")
        if self.colluders < 0 or self.dropouts < 0 or self.honest < 1:
            raise InvalidInput(
                f"colluders={self.colluders} and dropouts={self.dropouts} must be at least 0 and leave one of "
                f"{self.size} sites: someone's noise has to stay unknown; tolerate fewer."
            )
        if self.attempts < 1 or not self.session:
            raise InvalidInput(
                f"session={self.session!r} must be a name and attempts={self.attempts} at least 1; correct them."
            )

    @property
    def size(self) -> int:
        """The number S of sites."""
        return len(self.members)

    @property
    def honest(self) -> int:
        """The number ``H = S - C - D`` of sites whose noise nobody else knows."""
        return self.size - self.colluders - self.dropouts

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return tuple(sorted(member.name for member in self.members))

    @property
    def digest(self) -> bytes:
        """A hash of all its facts but the order of the members."""
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
        """The roster with the fewest honest sites that a round may go on with, of those members that need most noise.

        Every site of it adds at least as much noise as any site of any other roster that the attempts allow.
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
        raise InvalidInput(f"site {name!r} is not in the roster ({', '.join(self.names)}); ask one that is.")

    def without(self, *names: str) -> "Roster":
        """Return the roster without some sites; who is missing is no longer expected to drop out.

        Raises
        ------
        Refused
            When no roster is left in which someone's noise stays unknown.
        """
        left = tuple(member for member in self.members if member.name not in names)
        dropouts = max(0, self.dropouts - (self.size - len(left)))
        if len(left) < 2 or len(left) - self.colluders - dropouts < 1:
            raise Refused(
                f"{len(left)} sites are left, of which {self.colluders} may collude: nobody's noise would stay "
                "unknown, so nothing is opened; run the joint release again when the missing sites are back."
            )
        return replace(self, members=left, dropouts=dropouts)
