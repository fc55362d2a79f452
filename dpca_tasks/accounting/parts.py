"""The steps of an event, counted and sorted by the way in which they are accounted for.

>>> from dpca_tasks.accounting import events
>>> parts_of(events.composed(events.gaussian(2.0), events.self_composed(events.gaussian(2.0), 3))).gaussians
{2.0: 4}
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpca_tasks.accounting.events import Event, kind_of, leaves

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld import PLDAccountant

_TAIL = 10.0  # standard deviations of the noise beyond which a loss is not looked at
_LARGEST_LOSS = 700.0


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
    """Check an event against the table and sort its parts, as neighbours differ by a ``replaced`` record or not.

    Raises
    ------
    InvalidInput
        When the event is not of the table, or a number is outside its domain.
    """
    parts = Parts()
    for step, count in leaves(event):
        part = kind_of(step).part
        assert part is not None, "what is a step has a part"
        table, key = part(step, replaced)
        counts: dict[Any, int] = getattr(parts, table)
        counts[key] = counts.get(key, 0) + count
    return parts


def loss_event(parts: Parts) -> "DpEvent":
    """Return the Gaussian parts of an event, sampled and not, as dp-accounting composes them."""
    import dp_accounting as dp

    whole = [dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), count) for z, count in sorted(parts.gaussians.items())]
    sampled = [
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), count)
        for (rate, z), count in sorted(parts.sampled.items())
    ]
    return dp.ComposedDpEvent([*whole, *sampled])


def composed_losses(parts: Parts, *, interval: float) -> "PLDAccountant":
    """Return the privacy loss of the Gaussian parts for a record more, less or emptied, on a grid of an interval."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, interval).compose(loss_event(parts))


def spread_of_losses(parts: Parts) -> float:
    """Return about how far the losses of the Gaussian parts spread: over an interval, the points of their grid."""
    squares = sum(count / z**2 for z, count in parts.gaussians.items())
    widest = math.sqrt(squares) * 2 * _TAIL
    for (rate, z), count in parts.sampled.items():
        largest = min(_TAIL / z + 1 / (2 * z**2), _LARGEST_LOSS)
        step = math.log1p(rate * math.expm1(largest)) + (min(largest, -math.log1p(-rate)) if rate < 1 else largest)
        drift = 2 * _TAIL * rate * math.sqrt(count * math.expm1(min(1 / z**2, _LARGEST_LOSS)))
        widest += min(count * step, step + drift)
    return widest
