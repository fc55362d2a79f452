"""What a release does, as data: builders for events, and the steps they are made of.

An event is a plain dict that goes through JSON unchanged. What it costs is computed elsewhere, from the event
alone. An event is read and never changed.

>>> event = composed(gaussian(4.0), self_composed(poisson_sampled(gaussian(1.0), 0.01), 1000))
>>> count_steps(event)
1001
>>> step_at(event, 0)
{'name': 'gaussian', 'noise_multiplier': 4.0}
"""

import math
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

from dpca_tasks.errors import InvalidInput, StepMismatch

type Event = Mapping[str, Any]

_ADDITIVE = ("gaussian", "laplace")
_SINGLE = (*_ADDITIVE, "approximate", "poisson_sampled", "non_private")


def gaussian(noise_multiplier: float) -> Event:
    """Return the event of Gaussian noise: std divided by the L2 sensitivity."""
    return _additive("gaussian", noise_multiplier)


def laplace(noise_multiplier: float) -> Event:
    """Return the event of Laplace noise: scale divided by the L1 sensitivity."""
    return _additive("laplace", noise_multiplier)


def approximate(epsilon: float, delta: float) -> Event:
    """Return the event of a mechanism known only to be (epsilon, delta)-DP; delta 0 means pure."""
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InvalidInput(f"epsilon={epsilon} must be finite and not negative; pass the mechanism's guarantee")
    if not 0 <= delta < 1:
        raise InvalidInput(f"delta={delta} must be in [0, 1); pass the mechanism's guarantee")
    return {"name": "approximate", "epsilon": float(epsilon), "delta": float(delta)}


def non_private() -> Event:
    """Return the event of an answer without noise, which has no guarantee: its epsilon is infinite."""
    return {"name": "non_private"}


def poisson_sampled(event: Event, rate: float) -> Event:
    """Return the event of additive noise on a sample that holds each record with probability `rate`.

    Its multiplier is stated for an emptied record, also where records are replaced: a sample of rate 1 is what other
    samples are priced together with there.
    """
    if _name(event) not in _ADDITIVE:
        raise InvalidInput(f"a sampled {event['name']!r} event has no known cost; sample one of {_ADDITIVE}")
    if not 0 < rate <= 1:
        raise InvalidInput(f"rate={rate} must be in (0, 1]; pass the sampling probability of a record")
    return {"name": "poisson_sampled", "rate": float(rate), "event": event}


def without_whole_samples(event: Event) -> Event:
    """Return an event with every sample of rate 1 replaced by what is sampled, as earlier versions had it."""
    match _name(event):
        case "poisson_sampled" if event["rate"] == 1:
            return dict(event["event"])
        case "composed":
            return {**event, "events": [without_whole_samples(part) for part in event["events"]]}
        case "self_composed":
            return {**event, "event": without_whole_samples(event["event"])}
        case _:
            return event


def composed(*events: Event) -> Event:
    """Return the event of several steps, one after the other."""
    if not events:
        raise InvalidInput("composed() of no events must have at least one; leave the step out instead")
    for event in events:
        _name(event)
    return {"name": "composed", "events": list(events)}


def self_composed(event: Event, count: int) -> Event:
    """Return the event of the same step `count` times."""
    _name(event)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidInput(f"count={count!r} must be a positive int; pass the number of steps")
    return {"name": "self_composed", "event": event, "count": count}


def steps(event: Event) -> Iterator[Event]:
    """Iterate over the steps of an event in the order in which they run, without a list of them."""
    match _name(event):
        case "composed":
            for part in event["events"]:
                yield from steps(part)
        case "self_composed" if event["event"]["name"] in _SINGLE:
            yield from repeat(event["event"], event["count"])
        case "self_composed":
            for part in repeat(event["event"], event["count"]):
                yield from steps(part)
        case _:
            yield event


def count_steps(event: Event) -> int:
    """Return how many steps an event has."""
    match _name(event):
        case "composed":
            return sum(count_steps(part) for part in event["events"])
        case "self_composed":
            return int(event["count"]) * count_steps(event["event"])
        case _:
            return 1


def step_at(event: Event, index: int) -> Event:
    """Return step `index` of an event, counted from 0.

    Raises
    ------
    StepMismatch
        If the event has no such step.
    """
    total = count_steps(event)
    if not 0 <= index < total:
        raise StepMismatch(f"step {index} must be one of the {total} steps reserved; plan more steps")
    match event["name"]:
        case "composed":
            for part in event["events"]:
                if index < (count := count_steps(part)):
                    break
                index -= count
            return step_at(part, index)
        case "self_composed":
            return step_at(event["event"], index % count_steps(event["event"]))
        case _:
            return event


def _additive(name: str, noise_multiplier: float) -> Event:
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise InvalidInput(
            f"noise_multiplier={noise_multiplier} must be positive and finite; calibrate it from epsilon"
        )
    return {"name": name, "noise_multiplier": float(noise_multiplier)}


def _name(event: Event) -> str:
    name = event.get("name")
    if name not in (*_SINGLE, "composed", "self_composed"):
        raise InvalidInput(f"the event name {name!r} is not known; build events with dpca_tasks.accounting.events")
    return str(name)
