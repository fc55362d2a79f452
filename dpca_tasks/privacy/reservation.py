"""What the curator needs of a charged release: its event, its key, and durable answers; and the same in memory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.relation import Relation

Arrays = dict[str, NDArray[Any]]


class Reservation(Protocol):
    """A charged release: its event, whose neighbours and which rows it is of, its key, and its steps' answers."""

    @property
    def release_id(self) -> str: ...  # noqa: D102
    @property
    def event(self) -> events.Event: ...  # noqa: D102
    @property
    def relation(self) -> Relation: ...  # noqa: D102
    @property
    def key(self) -> bytes: ...  # noqa: D102

    @property
    def content(self) -> str | None:
        """The content digest of the snapshot that was charged, a secret; None where rows are in no catalog."""

    def kept(self, step: int, /) -> Arrays | None:
        """Return the arrays that were kept for a step, or None."""

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]], /) -> Arrays:
        """Keep a step's arrays unless it has some already; return the ones that stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryReservation:
    """A reservation without a ledger: for arrays in memory, tests and experiments.

    Any rows will do unless ``content`` says of which. The key comes from the operating system. Tests inject one;
    nothing else should.
    """

    event: events.Event
    relation: Relation = "add_remove"
    content: str | None = field(default=None, repr=False)
    release_id: str = "in-memory"
    key: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    steps: dict[int, Arrays] = field(default_factory=dict, repr=False)

    def kept(self, step: int, /) -> Arrays | None:
        """Return the arrays that were kept for a step, or None."""
        return self.steps.get(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]], /) -> Arrays:
        """Keep a step's arrays unless it has some already; return the ones that stand."""
        return self.steps.setdefault(step, dict(arrays))
