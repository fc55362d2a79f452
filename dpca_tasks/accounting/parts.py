"""Privacy events as data: the closed table of names, their checks, and their cost in dp-accounting's terms.

An event never changes meaning; its cost is always recomputed from it.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpca_tasks.errors import InvalidInput

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Event = Mapping[str, Any]

NAMES: Mapping[str, tuple[str, ...]] = {
    "gaussian": ("noise_multiplier",),
    "laplace": ("noise_multiplier",),
    "approximate": ("epsilon", "delta"),
    "poisson_sampled": ("rate", "event"),
    "non_private": (),
    "composed": ("events",),
    "self_composed": ("event", "count"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """An event sorted by how its parts are accounted.

    ``gaussians`` and ``sampled`` (rate and multiplier) map a Gaussian to how often it happens; ``approximate`` maps an
    (epsilon, delta) to how often, Laplace noise being (1 / multiplier, 0) and an answer without noise (infinity, 0).
    """

    gaussians: dict[float, int] = field(default_factory=dict)
    sampled: dict[tuple[float, float], int] = field(default_factory=dict)
    approximate: dict[tuple[float, float], int] = field(default_factory=dict)


def parts_of(event: Event, *, replaced: bool = False) -> Parts:
    """Check an event against the table and sort its parts.

    A sample of rate 1 is a Gaussian, unless neighbours differ by a ``replaced`` record: then its multiplier is that for
    an emptied one, as with any sample.

    Raises
    ------
    InvalidInput
        When the event is not of the table, or a number is outside its domain.
    """
    parts = Parts()
    for leaf, count in _leaves(event, 1):
        match leaf:
            case {"name": "gaussian", "noise_multiplier": z}:
                _count(parts.gaussians, _positive(leaf, z), count)
            case {"name": "laplace", "noise_multiplier": b}:
                _count(parts.approximate, (_reciprocal_up(_positive(leaf, b)), 0.0), count)
            case {"name": "approximate", "epsilon": epsilon, "delta": delta}:
                if (epsilon := _number(leaf, epsilon)) < 0 or not 0 <= (delta := _number(leaf, delta)) < 1:
                    raise _invalid(leaf)
                _count(parts.approximate, (epsilon, delta), count)
            case {"name": "non_private"}:
                _count(parts.approximate, (math.inf, 0.0), count)
            case {
                "name": "poisson_sampled",
                "rate": rate,
                "event": {"name": "gaussian", "noise_multiplier": z, **rest},
            }:
                if rest or not 0 < (rate := _number(leaf, rate)) <= 1:
                    raise _invalid(leaf)
                if rate == 1 and not replaced:
                    _count(parts.gaussians, _positive(leaf, z), count)
                else:
                    _count(parts.sampled, (rate, _positive(leaf, z)), count)
            case _:
                raise _invalid(leaf)
    return parts


def is_private(event: Event) -> bool:
    """Tell whether every part of an event has some guarantee."""
    return all(leaf["name"] != "non_private" for leaf, _ in _leaves(event, 1))


def loss_event(parts: Parts) -> "DpEvent":
    """Return the Gaussian parts of an event, sampled and not, as dp-accounting composes them."""
    import dp_accounting as dp

    whole = [dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), count) for z, count in sorted(parts.gaussians.items())]
    sampled = [
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), count)
        for (rate, z), count in sorted(parts.sampled.items())
    ]
    return dp.ComposedDpEvent([*whole, *sampled])


def _leaves(event: Event, times: int) -> Iterator[tuple[Event, int]]:
    if not isinstance(event, Mapping) or not isinstance(name := event.get("name"), str):
        raise _invalid(event)
    if name not in NAMES or set(event) != {"name", *NAMES[name]}:
        raise _invalid(event)
    match event:
        case {"name": "composed", "events": [*events]} if events:
            for part in events:
                yield from _leaves(part, times)
        case {"name": "self_composed", "event": part, "count": int(count)} if count > 0 and count is not True:
            yield from _leaves(part, times * count)
        case {"name": "composed" | "self_composed"}:
            raise _invalid(event)
        case _:
            yield event, times


def _count[Key](table: dict[Key, int], key: Key, count: int) -> None:
    table[key] = table.get(key, 0) + count


def _positive(event: Event, value: object) -> float:
    if not (number := _number(event, value)) > 0:
        raise _invalid(event)
    return number


def _number(event: Event, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _invalid(event)
    return float(value)


def _reciprocal_up(value: float) -> float:
    """Return the smallest float that is not below ``1 / value``; infinity where no float is so large."""
    quotient = 1 / Fraction(value)
    if quotient > Fraction(sys.float_info.max):
        return math.inf
    nearest = float(quotient)
    return nearest if Fraction(nearest) >= quotient else math.nextafter(nearest, math.inf)


def _invalid(event: object) -> InvalidInput:
    return InvalidInput(f"event {event!r} is not of the ledger's table ({', '.join(NAMES)}); record one that is.")
