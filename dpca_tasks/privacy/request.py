"""The request that the gate admits, its digest, and the interfaces of its two parts: a query and its noise."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event
from dpca_tasks.privacy.sensitivities import Named, Stated


class Asked(Stated, Protocol):
    """The interface of a query that the gate uses."""

    def event_of(self, noise: Event, /) -> Event: ...  # noqa: D102
    def public_inputs(self) -> dict[str, NDArray[Any]]: ...  # noqa: D102
    def digest(self) -> bytes: ...  # noqa: D102


class Drawn(Named, Protocol):
    """The interface of a noise distribution or mechanism that the gate uses."""

    @property
    def event(self) -> Event: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Request[Q: Asked, L: Drawn]:
    """An admitted request: a query, its noise distribution, and the numbers that determine the noise, scale first."""

    step: int
    steps: int
    query: Q
    distribution: L
    numbers: tuple[float, ...]
    digest: bytes


def make_request[Q: Asked, L: Drawn](
    query: Q,
    distribution: L,
    *,
    numbers: Callable[[Q, L], tuple[float, ...]],
    content: str,
    step: int,
    steps: int,
    bound_to: bytes = b"",
) -> Request[Q, L]:
    """Return the request for a query and a distribution at a step, of the rows with a content digest."""
    found = numbers(query, distribution)
    digest = hash_request(content, step, query, distribution, found, bound_to=bound_to)
    return Request(step=step, steps=steps, query=query, distribution=distribution, numbers=found, digest=digest)


def hash_request(
    content: str, step: int, query: Asked, distribution: Drawn, numbers: tuple[float, ...], *, bound_to: bytes = b""
) -> bytes:
    """Hash all that determines an answer but the key: rows, step, query, noise, numbers, and the rest.

    Only an answer that is bound to something else has that part.
    """
    hasher = hashlib.sha256()
    for part in (
        bytes.fromhex(content),
        step.to_bytes(8, "little"),
        query.digest(),
        distribution.name.encode(),
        *(float(number).hex().encode() for number in numbers),
        *((b"bound to", bound_to) if bound_to else ()),
    ):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()
