"""Privacy events, neighboring relations, and the accounting of each step.

*Directed rounding.* These functions convert exact numbers to floats that are never smaller, or never larger.

>>> float_up(Fraction(1, 10)) == 0.1, float_down(Fraction(1, 10)) < 0.1
(True, True)
>>> root_down(Fraction(2)), root_up(Fraction(2))
(1.414213562373095, 1.4142135623730951)

*Neighboring relations.* `Relation` lists the relations of neighboring datasets for which sensitivities and guarantees
are stated.

*Events.* An event is a plain dict that states the mathematics of a release, such as its noise multiplier. Events can be
stored as JSON without a change. The privacy cost is computed from the event alone. The table `KINDS` lists all kinds of
events. To add a kind, write its record type and its builder, and add a row to `KINDS`.

>>> event = composed(gaussian(4.0), self_composed(poisson_sampled(gaussian(1.0), 0.01), 1000))
>>> count_steps(event)
1001
>>> step_at(event, 0)
{'name': 'gaussian', 'noise_multiplier': 4.0}

*Accounting.* `parts_of` counts the steps of an event, sorted by how their privacy cost is computed: Gaussian noise,
Gaussian noise on samples, and events known only by their (epsilon, delta).

>>> from dpca_tasks.accounting import events
>>> parts_of(events.composed(events.gaussian(2.0), events.self_composed(events.gaussian(2.0), 3))).gaussians
{2.0: 4}
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice, repeat
from operator import eq
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from dpca_tasks.errors import InvalidInput, StepMismatch

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld import PLDAccountant


def float_up(value: Fraction) -> float:
    """Return the smallest float that is at least an exact number; infinity if the number exceeds the largest float."""
    if value > Fraction(sys.float_info.max):
        return math.inf
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def float_down(value: Fraction) -> float:
    """Return the largest float that is at most an exact number, or 0 for negative numbers."""
    nearest = float(value)
    return max(0.0, nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf))


def root_up(value: Fraction) -> float:
    """Return the square root of an exact nonnegative number, rounded up to a float."""
    root = math.sqrt(value)
    while Fraction(root) ** 2 < value:
        root = math.nextafter(root, math.inf)
    while root and Fraction(math.nextafter(root, 0.0)) ** 2 >= value:
        root = math.nextafter(root, 0.0)
    return root


def root_down(value: Fraction) -> float:
    """Return the square root of an exact nonnegative number, rounded down to a float."""
    root = root_up(value)
    return root if Fraction(root) ** 2 == value else math.nextafter(root, 0.0)


Relation = Literal["add_remove", "zero_out", "replace_one"]


class Gaussian(TypedDict):
    """Gaussian noise on a sum.

    ``noise_multiplier`` is the std over the L2 sensitivity; let ``mu`` be its reciprocal. The privacy loss of neighbors
    is normal with mean ``mu^2 / 2`` and variance ``mu^2``. So the event is (epsilon, delta)-DP exactly for
    ``delta >= Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)`` (Balle and Wang, 2018). In composition
    the ``mu^2`` add up.
    """

    name: Literal["gaussian"]
    noise_multiplier: float


class Laplace(TypedDict):
    """Laplace noise on a sum.

    ``noise_multiplier`` is the scale over the L1 sensitivity, b. The event is pure epsilon-DP with ``epsilon = 1 / b``.
    Only this pure guarantee is used in accounting, so in composition the ``1 / b`` add up.
    """

    name: Literal["laplace"]
    noise_multiplier: float


class Approximate(TypedDict):
    """A mechanism that is known only to be (epsilon, delta)-DP; delta 0 means pure. In composition both add up."""

    name: Literal["approximate"]
    epsilon: float
    delta: float


class PoissonSampled(TypedDict):
    """Additive noise on the sum of a sample that includes each record independently with probability ``q = rate``.

    For Gaussian noise with multiplier z, the output distributions of the worst neighbors are
    ``(1 - q) N(0, z^2) + q N(1, z^2)`` and ``N(0, z^2)``, in either order. Privacy loss distributions are composed on a
    grid and rounded up. A replaced record is accounted for as a record that is emptied and then filled again.
    """

    name: Literal["poisson_sampled"]
    rate: float
    event: "Event"


class StreamTick(TypedDict):
    """The release of one tick (version) of a stream, whose Gaussian noise was charged when the stream was opened."""

    name: Literal["stream_tick"]
    stream: str
    tick: int
    noise_multiplier: float


class NonPrivate(TypedDict):
    """An answer without noise, which has an infinite epsilon at every delta."""

    name: Literal["non_private"]


class Composed(TypedDict):
    """Several events in sequence on the same records; each event may depend on earlier answers."""

    name: Literal["composed"]
    events: list["Event"]


class SelfComposed(TypedDict):
    """The same event, ``count`` times in sequence on the same records."""

    name: Literal["self_composed"]
    event: "Event"
    count: int


type Event = Mapping[str, Any]
"""One of the records above, as stored: a dict that JSON leaves unchanged. Its name identifies its kind."""

type Part = tuple[Literal["gaussians", "sampled", "approximate"], Any]
"""A pair (table, key): the entry of the table of `dpca_tasks.accounting.events.Parts` in which a step is counted."""


def gaussian(noise_multiplier: float) -> Gaussian:
    """Return the event of Gaussian noise; the noise multiplier is the std divided by the L2 sensitivity."""
    return {"name": "gaussian", "noise_multiplier": _multiplier(noise_multiplier)}


def laplace(noise_multiplier: float) -> Laplace:
    """Return the event of Laplace noise; the noise multiplier is the scale divided by the L1 sensitivity."""
    return {"name": "laplace", "noise_multiplier": _multiplier(noise_multiplier)}


def approximate(epsilon: float, delta: float) -> Approximate:
    """Return the event of a mechanism that is known only to be (epsilon, delta)-DP; delta 0 means pure epsilon-DP."""
    if not (_is_number(epsilon) and epsilon >= 0):
        raise InvalidInput(f"epsilon={epsilon} must be finite and not negative; pass the epsilon of the mechanism")
    if not (_is_number(delta) and 0 <= delta < 1):
        raise InvalidInput(f"delta={delta} must be in [0, 1); pass the delta of the mechanism")
    return {"name": "approximate", "epsilon": float(epsilon), "delta": float(delta)}


def stream_tick(stream: str, tick: int, noise_multiplier: float) -> StreamTick:
    """Return the event of one tick (version) of a stream: a Gaussian release that the stream's charge covers."""
    if not (isinstance(stream, str) and stream):
        raise InvalidInput(f"stream={stream!r} must be the id of a stream; use the ledger to begin a tick")
    if isinstance(tick, bool) or not isinstance(tick, int) or tick < 1:
        raise InvalidInput(f"tick={tick!r} must be a positive int; count ticks from 1")
    return {
        "name": "stream_tick",
        "stream": stream,
        "tick": tick,
        "noise_multiplier": _multiplier(noise_multiplier),
    }


def non_private() -> NonPrivate:
    """Return the event of an answer without noise, which has no privacy guarantee (epsilon is infinite)."""
    return {"name": "non_private"}


def poisson_sampled(event: Event, rate: float) -> PoissonSampled:
    """Return the event of additive noise on a sample that includes each record with probability `rate`.

    The noise multiplier of `event` is always stated for the sensitivity to an emptied record, also if neighbors differ
    by a replaced record. In that case a sample of rate 1 is priced as a sample, and not as plain Gaussian noise.
    """
    if not kind_of(event).is_additive:
        additive = tuple(name for name, kind in KINDS.items() if kind.is_additive)
        raise InvalidInput(
            f"a sampled {event['name']!r} event has no known cost; only the events {additive} can be sampled; use one "
            "of these"
        )
    if not (_is_number(rate) and 0 < rate <= 1):
        raise InvalidInput(f"rate={rate} must be in (0, 1]; pass the sampling probability of a record")
    return {"name": "poisson_sampled", "rate": float(rate), "event": event}


def composed(*events: Event) -> Composed:
    """Return the event of several events, one after the other on the same records."""
    if not events:
        raise InvalidInput("composed() needs at least one event; pass an event, or do not call composed()")
    for event in events:
        kind_of(event)
    return {"name": "composed", "events": list(events)}


def self_composed(event: Event, count: int) -> SelfComposed:
    """Return the event of a repetition: an event, `count` times on the same records."""
    kind_of(event)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidInput(f"count={count!r} must be a positive int; pass the number of steps")
    return {"name": "self_composed", "event": event, "count": count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A row of the table `KINDS`: how the events of one name are built, checked and accounted for.

    Parameters
    ----------
    record : type
        The record type, which defines the fields of such an event and documents its mathematics.
    build : callable
        The builder, which takes the fields as keyword arguments. An event is valid if the builder accepts its fields.
    inside : callable, optional
        Returns the events that such an event contains, in order, each with its count. None if the event is one step.
    part : callable, optional
        Takes a step, and whether neighbors differ by a replaced record. Returns how the step is accounted for, as a
        field of `Parts` and a key.
    is_additive : bool
        True for additive noise, which can also be applied to a sample.
    """

    record: type[Any]
    build: Callable[..., Event]
    inside: Callable[[Event], Sequence[tuple[Event, int]]] | None = None
    part: Callable[[Event, bool], Part] | None = None
    is_additive: bool = False
    fields: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Set ``fields`` to the names of the fields of the record type, except ``name``."""
        object.__setattr__(self, "fields", frozenset(self.record.__annotations__) - {"name"})


def _sampled_part(event: Event, replaced: bool) -> Part:  # noqa: FBT001 - same signature as the other parts
    """Return how a sampled Gaussian is accounted for: at rate 1 as plain noise, unless neighbors replace a record."""
    inner = checked(event["event"])
    if inner["name"] != "gaussian":
        raise _stranger(event)
    if event["rate"] == 1 and not replaced:
        return "gaussians", inner["noise_multiplier"]
    return "sampled", (event["rate"], inner["noise_multiplier"])


def _tick_part(event: Event, _: bool) -> Part:  # noqa: FBT001 - same signature as the other parts
    """Refuse to price one tick (version) of a stream, because the stream was charged for all of its ticks together."""
    raise InvalidInput(
        f"tick {event['tick']} of a stream has no separate price, because one charge covers all ticks; begin the tick "
        "with `dpca stream tick`."
    )


KINDS: Mapping[str, Kind] = {
    "gaussian": Kind(
        record=Gaussian,
        build=gaussian,
        part=lambda event, _: ("gaussians", event["noise_multiplier"]),
        is_additive=True,
    ),
    "laplace": Kind(
        record=Laplace,
        build=laplace,
        part=lambda event, _: ("approximate", (float_up(1 / Fraction(event["noise_multiplier"])), 0.0)),
        is_additive=True,
    ),
    "approximate": Kind(
        record=Approximate,
        build=approximate,
        part=lambda event, _: ("approximate", (event["epsilon"], event["delta"])),
    ),
    "poisson_sampled": Kind(record=PoissonSampled, build=poisson_sampled, part=_sampled_part),
    "stream_tick": Kind(record=StreamTick, build=stream_tick, part=_tick_part),
    "non_private": Kind(record=NonPrivate, build=non_private, part=lambda *_: ("approximate", (math.inf, 0.0))),
    "composed": Kind(
        record=Composed,
        build=lambda *, events: composed(*events),
        inside=lambda event: [(part, 1) for part in event["events"]],
    ),
    "self_composed": Kind(
        record=SelfComposed,
        build=self_composed,
        inside=lambda event: [(event["event"], event["count"])],
    ),
}
"""Closed table of the event kinds; a stored name or field never changes its meaning."""


def kind_of(event: Event) -> Kind:
    """Return the row of `KINDS` for the name of an event."""
    name = event.get("name") if isinstance(event, Mapping) else event
    if not isinstance(name, str) or name not in KINDS:
        raise InvalidInput(f"the event name {name!r} is not known; build events with dpca_tasks.accounting.events")
    return KINDS[name]


def checked(event: Event) -> Event:
    """Check an untrusted event by rebuilding it with the builder of its kind; events inside it are not checked."""
    try:
        kind = kind_of(event)
        if set(event) == {"name", *kind.fields} and isinstance(event.get("events", []), list):
            return kind.build(**{name: event[name] for name in kind.fields})
    except InvalidInput:
        pass
    raise _stranger(event)


def leaves(event: Event) -> Iterator[tuple[Event, int]]:
    """Check an event, and yield its steps, each with the number of its repetitions."""
    event = checked(event)
    inside = kind_of(event).inside
    if inside is None:
        yield event, 1
        return
    for part, count in inside(event):
        for leaf, times in leaves(part):
            yield leaf, count * times


def is_private(event: Event) -> bool:
    """Return whether an event has a privacy guarantee, that is, contains no answer without noise."""
    return all(leaf["name"] != "non_private" for leaf, _ in leaves(event))


def steps(event: Event) -> Iterator[Event]:
    """Yield the steps of an event one by one, in the order of execution."""
    inside = kind_of(event).inside
    if inside is None:
        yield event
        return
    for part, count in inside(event):
        single = kind_of(part).inside is None
        repeated: Iterable[Event] = repeat(part, count)
        yield from repeated if single else (step for again in repeated for step in steps(again))


def count_steps(event: Event) -> int:
    """Return the number of steps of an event, counting repetitions."""
    inside = kind_of(event).inside
    return 1 if inside is None else sum(count * count_steps(part) for part, count in inside(event))


def step_at(event: Event, index: int) -> Event:
    """Return step `index` of an event, counted from 0.

    Raises
    ------
    StepMismatch
        If the event has no such step.
    """
    total = count_steps(event)
    if not 0 <= index < total:
        raise StepMismatch(f"step {index} must be one of the {total} steps reserved; plan a release with more steps")
    inside = kind_of(event).inside
    if inside is None:
        return event
    for part, count in inside(event):
        each = count_steps(part)
        if index < count * each:
            break
        index -= count * each
    return step_at(part, index % each)


def check_reserved(requested: Event, reserved: Event, *, first: int, count: int = 1) -> None:
    """Check that a requested event equals `count` consecutive steps of a reserved event, starting at step `first`.

    Raises
    ------
    StepMismatch
        If the reserved event has fewer steps, or if one of these steps differs from the requested event.
    """
    if count > 1:
        if sum(map(eq, islice(steps(reserved), first, first + count), repeat(requested))) < count:
            raise StepMismatch(
                f"{count} steps from step {first} on were requested, but were not all reserved for this event; plan "
                "the release again."
            )
    elif first >= count_steps(reserved):
        raise StepMismatch(f"step {first} was not reserved; plan and reserve every step before the release.")
    elif step_at(reserved, first) != requested:
        raise StepMismatch(
            f"step {first} requests a different event than the event that was reserved for it; plan the release again."
        )


def is_tick(event: Event) -> bool:
    """Return whether an event is a tick (one version of a stream)."""
    return event.get("name") == "stream_tick"


def shown_event(event: Event) -> Event:
    """Return the event that describes the noise of a release: for a tick of a stream, its Gaussian noise."""
    return gaussian(event["noise_multiplier"]) if is_tick(event) else event


def _multiplier(value: float) -> float:
    if not (_is_number(value) and value > 0):
        raise InvalidInput(f"noise_multiplier={value} must be positive and finite; calibrate it from epsilon")
    return float(value)


def _is_number(value: object) -> bool:
    """Return whether a value is a finite JSON number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _stranger(event: object) -> InvalidInput:
    return InvalidInput(f"event {event!r} is not in the ledger's table ({', '.join(KINDS)}); record one of these.")


_TAIL = 10.0  # how many standard deviations of the noise are considered when the spread of losses is estimated
_LARGEST_LOSS = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The numbers of steps of an event, sorted by how the steps are accounted for.

    ``gaussians`` maps a noise multiplier to the number of such Gaussian steps. ``sampled`` maps a pair (sampling rate,
    noise multiplier) to the number of such sampled Gaussian steps. ``approximate`` maps a pair (epsilon, delta) to the
    number of steps that are known only by this guarantee. Laplace noise counts as (1 / multiplier, 0), and an answer
    without noise as (infinity, 0).
    """

    gaussians: dict[float, int] = field(default_factory=dict)
    sampled: dict[tuple[float, float], int] = field(default_factory=dict)
    approximate: dict[tuple[float, float], int] = field(default_factory=dict)


def parts_of(event: Event, *, replaced: bool = False) -> Parts:
    """Check an event, and count its steps by how they are accounted for.

    Parameters
    ----------
    event : Event
    replaced : bool
        Whether neighbors differ by a replaced record; this affects only samples of rate 1.

    Raises
    ------
    InvalidInput
        If the event has an unknown name, or a number that is not allowed.
    """
    parts = Parts()
    for step, count in leaves(event):
        part = kind_of(step).part
        assert part is not None, "every step has a part"
        table, key = part(step, replaced)
        counts: dict[Any, int] = getattr(parts, table)
        counts[key] = counts.get(key, 0) + count
    return parts


def loss_event(parts: Parts) -> "DpEvent":
    """Return the Gaussian steps of an event, sampled or not, as an event of the library dp-accounting."""
    import dp_accounting as dp

    whole = [dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), count) for z, count in sorted(parts.gaussians.items())]
    sampled = [
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), count)
        for (rate, z), count in sorted(parts.sampled.items())
    ]
    return dp.ComposedDpEvent([*whole, *sampled])


def composed_losses(parts: Parts, *, interval: float) -> "PLDAccountant":
    """Return the composed privacy loss distribution of the Gaussian steps, for a record added, removed or emptied.

    ``interval`` is the spacing of the grid on which dp-accounting composes the losses.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, interval).compose(loss_event(parts))


def spread_of_losses(parts: Parts) -> float:
    """Estimate the width of the range of the Gaussian steps' composed loss, from which the grid size follows."""
    squares = sum(count / z**2 for z, count in parts.gaussians.items())
    widest = math.sqrt(squares) * 2 * _TAIL
    for (rate, z), count in parts.sampled.items():
        largest = min(_TAIL / z + 1 / (2 * z**2), _LARGEST_LOSS)
        step = math.log1p(rate * math.expm1(largest)) + (min(largest, -math.log1p(-rate)) if rate < 1 else largest)
        drift = 2 * _TAIL * rate * math.sqrt(count * math.expm1(min(1 / z**2, _LARGEST_LOSS)))
        widest += min(count * step, step + drift)
    return widest
