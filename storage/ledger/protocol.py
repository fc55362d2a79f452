"""What a release needs of a ledger, whichever process holds the database."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dpca_tasks.accounting.events import Event
from storage.ledger.balance import Quote, Statement
from storage.ledger.budgets import Budget
from storage.ledger.releases import Grant, Release
from storage.ledger.reservation import Reservation


class ReleaseLedger(Protocol):
    """The operations of a ledger that a release and its report are made of; see `storage.ledger.ledger.Ledger`."""

    id: str
    home: Path

    def budget(self, population: str) -> Budget: ...  # noqa: D102

    def statement(  # noqa: D102
        self, population: str, *, newest: int | None = None, burn_down: bool = False
    ) -> Statement: ...

    def history(self, population: str, *, newest: int | None = None) -> list[dict[str, Any]]: ...  # noqa: D102

    def quote(  # noqa: D102
        self, population: str, event: Event, *, epsilon: float, delta: float, void: bool = False
    ) -> Quote: ...

    def alerts(self, release_id: str) -> tuple[int, ...]: ...  # noqa: D102

    def find(self, run_key: str, *, population: str | None = None) -> Release | None: ...  # noqa: D102

    def release(self, release_id: str) -> Release: ...  # noqa: D102

    def reserve(  # noqa: D102
        self,
        population: str,
        *,
        run_key: str,
        fingerprint: str,
        event: Event,
        epsilon: float,
        delta: float,
        snapshot_id: str,
        request: Mapping[str, Any],
        void: bool = False,
    ) -> Grant: ...

    def begin(self, release_id: str) -> Reservation: ...  # noqa: D102
