"""The request that the gate admits, and the interfaces of its two parts: a query and its noise."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event
from dpca_tasks.accounting.relation import Relation


class Asked(Protocol):
    """The interface of a query that the gate uses."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def relation(self) -> Relation: ...  # noqa: D102
    def event_of(self, noise: Event, /) -> Event: ...  # noqa: D102
    def former(self) -> Iterator[Any]: ...  # noqa: D102
    def public_inputs(self) -> dict[str, NDArray[Any]]: ...  # noqa: D102
    def digest(self) -> bytes: ...  # noqa: D102


class Drawn(Protocol):
    """The interface of a noise distribution or mechanism that the gate uses."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102
    @property
    def norm(self) -> str: ...  # noqa: D102
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
