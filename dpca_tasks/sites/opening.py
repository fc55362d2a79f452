"""Messages that are added up modulo ``2^64``, where their masks cancel, and read as one signed integer total.

A message is a site's integers plus its mask; the masks of a roster add up to 0. The sum of all messages is therefore
the sum of the integers, in any order, as long as that fits 63 bits and a sign: `check_room` bounds it by public facts.
A sum that misses one message is uniform noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import IncompleteSum, InvalidInput
from dpca_tasks.sites.roster import Roster

NOISE_BOUND = 2**44
"""More than any draw of a share's noise, in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The place of a message in a joint release: its round, and which attempt at it, both from 0."""

    round: int
    attempt: int = 0

    def __post_init__(self) -> None:
        """Check that both count from 0."""
        if not (0 <= self.round < 2**63 and 0 <= self.attempt < 2**63):
            raise InvalidInput(f"round={self.round} and attempt={self.attempt} must be at least 0; count from 0.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """What a site sends: its noised integers under a mask, for one attempt of one roster."""

    site: str
    address: Address
    roster_digest: bytes = field(repr=False)
    words: NDArray[np.uint64] = field(repr=False)


def masked(integers: NDArray[np.int64], mask: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return integers plus a mask, modulo ``2^64``."""
    return integers.view(np.uint64) + mask


def open_total(messages: Sequence[Message], *, roster: Roster, address: Address) -> NDArray[np.int64]:
    """Add up the messages of a roster, in any order.

    Returns
    -------
    int64 array
        The sum of the sites' weighted and noised integers, in grid steps.

    Raises
    ------
    IncompleteSum
        When a message is missing, doubled, or of another attempt or roster. Nothing is opened: ask all again.
    """
    if sorted(message.site for message in messages) != list(roster.names):
        raise IncompleteSum(
            f"messages of {len(messages)} sites were added up, which must be those of all {roster.size} of the roster, "
            "each once; ask all of them again."
        )
    for message in messages:
        if (message.address, message.roster_digest) != (address, roster.digest):
            raise IncompleteSum(
                f"the message of site {message.site!r} is of another attempt or roster, and only masks of one add up "
                "to 0; ask all sites again."
            )
    if len({message.words.shape for message in messages}) > 1:
        raise IncompleteSum("the messages have unlike lengths, so the sites were asked unlike things; ask all again.")
    total = np.zeros_like(messages[0].words)
    for message in messages:
        total += message.words
    return total.view(np.int64)


def check_room(roster: Roster, *, steps_per_unit: int) -> None:
    """Check by public facts that no total leaves 63 bits and a sign.

    Parameters
    ----------
    roster : Roster
    steps_per_unit : int
        A bound, in grid steps, on a coordinate of what one record adds.
    """
    records = sum(member.weight * member.records for member in roster.members)
    if records * steps_per_unit + roster.size * NOISE_BOUND >= 2**63:
        raise InvalidInput(
            f"{records} weighted records on a grid of {steps_per_unit} steps may add up to more than 2^63; "
            "take a coarser grid or smaller weights."
        )
