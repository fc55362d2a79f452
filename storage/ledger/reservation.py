"""The reservation of a charged release: its event, its key, and its durable answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event
from dpca_tasks.accounting.relation import Relation
from storage.ledger.step_answers import Arrays, StepStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A release that has begun, with everything that a curator needs to answer its steps.

    ``relation`` is that of the charged budget. ``content`` is the digest of the registered snapshot, or None where the
    catalog has no such snapshot; only the curator may use it.
    """

    release_id: str
    event: Event
    relation: Relation
    content: str | None = field(repr=False)
    _steps: StepStore = field(repr=False)

    @property
    def key(self) -> bytes:
        """The secret key, read when noise is drawn or a step is stored; a release with all steps stored needs none."""
        return self._steps.key

    def kept(self, step: int) -> Arrays | None:
        """Return the stored arrays of a step, or None."""
        return self._steps.kept(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Store the arrays of a step and return the stored ones; the first writer wins."""
        return self._steps.keep(step, arrays)
