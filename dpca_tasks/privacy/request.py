"""The request that the gate admits, its digest, and the interfaces of its two parts: a query and its noise."""

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event
from dpca_tasks.errors import InvalidInput
from dpca_tasks.privacy.sensitivities import Named, Stated


class Asked(Stated, Protocol):
    """The interface of a query that the gate uses."""

    def event_of(self, noise: Event, /) -> Event: ...  # noqa: D102
    def former(self) -> Iterator[Any]: ...  # noqa: D102
    def public_inputs(self) -> dict[str, NDArray[Any]]: ...  # noqa: D102
    def digest(self) -> bytes: ...  # noqa: D102


class Drawn(Named, Protocol):
    """The interface of a noise distribution or mechanism that the gate uses."""

    @property
    def event(self) -> Event: ...  # noqa: D102
    def former(self) -> Iterator[Any]: ...  # noqa: D102


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


def find_stored_form[Q: Asked, L: Drawn](
    make: Callable[[Q, L], Request[Q, L]], query: Q, distribution: L, digest: bytes
) -> Request[Q, L]:
    """Return a request in the form, present or former, that has a stored digest; else in the present form."""
    for form, drawn in itertools.product((query, *query.former()), (distribution, *distribution.former())):
        with contextlib.suppress(InvalidInput):  # a grid that holds no such noise
            request = make(form, drawn)
            if request.digest == digest:
                return request
    return make(query, distribution)


def hash_request(
    content: str, step: int, query: Asked, distribution: Drawn, numbers: tuple[float, ...], *, bound_to: bytes = b""
) -> bytes:
    """Hash all that determines an answer but the key: rows, step, query, noise with its version, numbers, and the rest.

    Only an answer that is bound to something else has that part.
    """
    version = f" {distribution.version}" if distribution.version > 1 else ""
    hasher = hashlib.sha256()
    for part in (
        bytes.fromhex(content),
        step.to_bytes(8, "little"),
        query.digest(),
        (distribution.name + version).encode(),
        *(float(number).hex().encode() for number in numbers),
        *((b"bound to", bound_to) if bound_to else ()),
    ):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()
