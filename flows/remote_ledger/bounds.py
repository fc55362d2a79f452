"""The bounds of what a remote ledger prices for others, compared before anything is computed.

A price takes a grid of privacy losses and exact fractions, whose cost grows with the numbers of an event, whoever sends
it. Every mechanism of dpca plans far inside these bounds; what lies outside is released where the ledger runs.
"""

import math
from itertools import islice
from typing import Any

from dpca_tasks.accounting.events import leaves
from dpca_tasks.accounting.parts import parts_of, spread_of_losses
from flows.remote_ledger.messages import Priced, written
from storage.errors import Invalid

MOST_PLACES = 20_000
"""Places of steps in an event as it is written, each of which may stand for many steps."""
MOST_STEPS = 1_000_000
MOST_SAMPLED = 100_000
"""Steps of an event, and steps on samples among them."""
MOST_PARTS = 32
"""Different steps of an event."""
MULTIPLIERS = (1e-3, 2.0**30)
SAMPLED_MULTIPLIERS = (0.2, 2.0**30)
LEAST_RATE = 1e-12
LEAST_DELTA = 1e-60
LARGEST_EPSILON = 1000.0
"""Of a step that is known only by its (epsilon, delta)."""
WIDEST = 256.0
"""How far the privacy losses of an event may spread; an epsilon of 100 is the most of any budget."""
LONGEST_REQUEST = 1 << 18
"""Bytes of a stored request."""


def check_bounds(asked: Priced, *, replaced: bool) -> None:
    """Check that an event and its guarantee can be priced in bounded time and memory.

    Raises
    ------
    InvalidInput
        When the event is none of the ledger's table.
    Invalid
        With the first bound that it exceeds.
    """
    places = list(islice(leaves(asked.event), MOST_PLACES + 1))
    _within("places of steps in the event", len(places), most=MOST_PLACES)
    _within("steps of the event", sum(count for _, count in places), most=MOST_STEPS)
    if asked.delta:
        _within("delta", asked.delta, least=LEAST_DELTA)
    parts = parts_of(asked.event, replaced=replaced)
    different = len(parts.gaussians) + len(parts.sampled) + len(parts.approximate)
    _within("different steps", different, most=MOST_PARTS)
    _within("steps on samples", sum(parts.sampled.values()), most=MOST_SAMPLED)
    for multiplier in parts.gaussians:
        _within("noise_multiplier", multiplier, *MULTIPLIERS)
    for rate, multiplier in parts.sampled:
        _within("rate", rate, least=LEAST_RATE)
        _within("noise_multiplier on samples", multiplier, *SAMPLED_MULTIPLIERS)
    for epsilon, delta in parts.approximate:
        if math.isfinite(epsilon):  # else it has no noise
            _within("epsilon of a step", epsilon, most=LARGEST_EPSILON)
        if delta:
            _within("delta of a step", delta, least=LEAST_DELTA)
        if not (epsilon or delta):
            raise Invalid("a step of epsilon 0 and delta 0 tells nothing and is charged nothing; leave it out.")
    if parts.sampled:
        _within("spread of the privacy losses", spread_of_losses(parts), most=WIDEST)


def check_length(request: Any) -> None:
    """Check that a stored request is of bounded length.

    Raises
    ------
    Invalid
        When it is longer.
    """
    _within("bytes of the request", len(written(request)), most=LONGEST_REQUEST)


def _within(what: str, found: float, least: float = 0.0, most: float = math.inf) -> None:
    if not least <= found <= most:
        rule = f"at most {most:g}" if found > most else f"at least {least:g}"
        shown = f"{found:g}" if found < 1e300 else "far more"
        raise Invalid(
            f"{what}: {shown} was asked, and a remote ledger takes {rule}; ask for less, or release it where the "
            "ledger runs."
        )
