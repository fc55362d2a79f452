"""The interface of a charged release (event, key, stored answers), and an implementation in memory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.relation import Relation

Arrays = dict[str, NDArray[Any]]


class Reservation(Protocol):
    """A charged release: its event, neighbouring relation, snapshot and key, and the answers of its steps."""

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
        """The content digest of the charged snapshot, a secret; None where the rows are in no catalog."""

    def kept(self, step: int, /) -> Arrays | None:
        """Return the stored arrays of a step, or None."""

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]], /) -> Arrays:
        """Store the arrays of a step and return the stored ones; the first writer wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryReservation:
    """A reservation without a ledger, for arrays in memory, tests and experiments.

    Without ``content`` it accepts any rows. The key comes from the operating system; only tests may pass one.
    """

    event: events.Event
    relation: Relation = "add_remove"
    content: str | None = field(default=None, repr=False)
    release_id: str = "in-memory"
    key: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    steps: dict[int, Arrays] = field(default_factory=dict, repr=False)

    def kept(self, step: int, /) -> Arrays | None:
        """Return the stored arrays of a step, or None."""
        return self.steps.get(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]], /) -> Arrays:
        """Store the arrays of a step and return the stored ones; the first writer wins."""
        return self.steps.setdefault(step, dict(arrays))
