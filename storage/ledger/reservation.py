"""A charged release, as the curator needs it: its event, its key, and durable answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from dpca_tasks.accounting.events import Event
from dpca_tasks.accounting.relation import Relation
from storage.ledger.secret_keys import KeyFolder
from storage.ledger.step_answers import Arrays, StepStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A release that has begun: what a curator needs to answer its steps.

    ``relation`` is that of the budget that was charged; ``content`` the digest of the snapshot, as it was registered,
    or None where the catalog knows no such snapshot. It is a secret of the curator.
    """

    release_id: str
    event: Event
    relation: Relation
    content: str | None = field(repr=False)
    _keys: KeyFolder = field(repr=False)
    _steps: StepStore = field(repr=False)

    @property
    def key(self) -> bytes:
        """The secret key, read when noise is drawn; a resumed release whose steps are kept needs none."""
        with self._steps.explained():
            return self._keys.read(self.release_id)

    def kept(self, step: int) -> Arrays | None:
        """Return the arrays of a step that was answered before."""
        return self._steps.kept(step)

    def keep(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Keep a step's arrays unless it has some; return the ones that stand."""
        return self._steps.keep(step, arrays)
