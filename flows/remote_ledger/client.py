"""A ledger that another process holds, with the operations of one that is held here.

A call whose answer is lost is made again: what it asks for is done once. What the ledger refuses is raised as it was
there, with its line.
"""

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpca_tasks.accounting.events import Event
from dpca_tasks.errors import InvalidInput, SiteSilent
from flows.parties.calling import Caller
from flows.parties.frames import Frame, packed
from flows.remote_ledger import messages
from storage import errors
from storage.backends.base import Place
from storage.datasets.catalog import Entry, open_snapshot
from storage.datasets.snapshot_reader import Dataset
from storage.errors import Corrupt, Refused, StorageError, Unavailable
from storage.home import STAGING
from storage.ledger.balance import Quote, Statement
from storage.ledger.budgets import Budget
from storage.ledger.releases import Grant, Release
from storage.ledger.replay import ENDED
from storage.ledger.reservation import Reservation
from storage.ledger.secret_keys import release_id_of
from storage.ledger.step_answers import StepStore

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between the attempts of one call."""

_KINDS: Mapping[str, type[Exception]] = {
    InvalidInput.__name__: InvalidInput,
    **{
        kind.__name__: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, StorageError)
    },
}


class LedgerCaller(Caller):
    """What calls a remote ledger."""

    def refuse(self, status: int, said: Frame | None) -> None:
        """Raise a refusal as the ledger did, with the same line."""
        if said is None:
            raise Refused(
                "the ledger failed at this request, and its log tells of what kind; what was charged stays charged: "
                "run the same request again."
            )
        raise _KINDS.get(said.fact("kind", str), Refused)(said.fact("line", str))


@dataclass(frozen=True, slots=True)
class Connection:
    """Calls of a remote ledger, which are made again while it does not answer."""

    caller: Caller = field(repr=False)

    def ask(self, route: str, /, **asked: Any) -> Any:
        """Ask a ledger, and return what it answers.

        Raises
        ------
        Unavailable
            When it does not answer for some time.
        StorageError
            As the ledger raised it.
        """
        about, arrays = packed(messages.written(asked))
        for pause in (*PAUSES, None):
            with suppress(SiteSilent):
                return messages.answered(self.caller.ask(f"/v1/{route}", about, arrays, most=messages.MOST_ANSWERED))
            if pause is not None:
                time.sleep(pause)
        raise Unavailable("the ledger does not answer; what was charged stays charged: run the same request again.")


@dataclass(frozen=True, slots=True)
class RemoteKeys:
    """The keys of releases under way, each requested when it is needed; see `storage.ledger.secret_keys.Keys`."""

    connection: Connection

    def read(self, release_id: str) -> bytes:
        """Return the key of a release that began.

        Raises
        ------
        Corrupt
            When it is not the key that the release is named after.
        """
        key = bytes.fromhex(self.connection.ask("key", release=release_id))
        if release_id_of(key) != release_id:
            raise Corrupt(f"the ledger has another key for release {release_id} than its own; close the release.")
        return key


@dataclass(frozen=True, slots=True)
class RemoteSteps:
    """The rows of one release's steps; see `storage.ledger.step_answers.StepRows`."""

    connection: Connection
    release_id: str

    def check(self) -> None:
        """Check that the release did not end."""
        self.find(0)

    def find(self, step: int) -> str | None:
        """Return the digest of a step's answer in a release that did not end."""
        found: str | None = self.connection.ask("step", release=self.release_id, step=step)
        return found

    def settle(self, step: int, digest: str) -> str:
        """Store the digest of a step's answer unless one is stored; return the stored one."""
        winner: str = self.connection.ask("keep", release=self.release_id, step=step, digest=digest)
        return winner


class RemoteLedger:
    """A remote ledger; see `storage.ledger.protocol.ReleaseLedger`.

    Parameters
    ----------
    connection : Connection
    home : Path
        In whose ``staging`` noised steps are kept, which never leave this machine.

    Raises
    ------
    Refused
        When it speaks another version of the messages.
    """

    def __init__(self, connection: Connection, *, home: Path) -> None:
        said = connection.ask("identify")
        if said["protocol"] != messages.PROTOCOL:
            raise Refused("the remote ledger runs another version of dpca; use one version here and there.")
        self.id: str = said["ledger"]
        self.home = home
        self._connection = connection

    def budget(self, population: str) -> Budget:
        """Return a population's terms."""
        return Budget(**self._connection.ask("budget", population=population))

    def statement(self, population: str, *, newest: int | None = None, burn_down: bool = False) -> Statement:
        """Return what was allowed, spent and left, with all releases or as many of the newest, and what each left."""
        asked = {"population": population, "newest": newest, "burn_down": burn_down}
        return messages.statement_of(self._connection.ask("statement", **asked))

    def history(self, population: str, *, newest: int | None = None) -> list[dict[str, Any]]:
        """Return what was spent and left after each release that is charged, oldest first, or after the newest."""
        rows: list[dict[str, Any]] = self._connection.ask("history", population=population, newest=newest)
        return rows

    def quote(self, population: str, event: Event, *, epsilon: float, delta: float, void: bool = False) -> Quote:
        """Tell what `reserve` would say to an event now."""
        _refuse_void(void)
        stated = {"epsilon": float(epsilon), "delta": float(delta)}
        return messages.quote_of(self._connection.ask("quote", population=population, event=dict(event), **stated))

    def alerts(self, release_id: str) -> tuple[int, ...]:
        """Return the percents left that this release's charge was the first to reach."""
        return tuple(self._connection.ask("alerts", release=release_id))

    def find(self, run_key: str, *, population: str | None = None) -> Release | None:
        """Return the release of a run key: of a population, or of any that this client may ask about."""
        found = self._connection.ask("find", run_key=run_key, population=population)
        return None if found is None else messages.release_of(found)

    def release(self, release_id: str) -> Release:
        """Return a release."""
        return messages.release_of(self._connection.ask("release", release=release_id))

    def reserve(
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
    ) -> Grant:
        """Charge a release, or find the one of this run key; the ledger prices the event itself."""
        _refuse_void(void)
        asked = {"population": population, "run_key": run_key, "fingerprint": fingerprint, "snapshot": snapshot_id}
        stated = {"epsilon": float(epsilon), "delta": float(delta)}
        return Grant(**self._connection.ask("reserve", **asked, **stated, event=dict(event), request=dict(request)))

    def begin(self, release_id: str) -> Reservation:
        """Pass the point of no return, or resume a release that passed it."""
        begun = self._connection.ask("begin", release=release_id)
        rows, keys = RemoteSteps(self._connection, release_id), RemoteKeys(self._connection)
        steps = StepStore(rows, self._staged(release_id), release_id, keys)
        return Reservation(release_id=release_id, **begun, _steps=steps)

    def publish(self, release_id: str, *, name: str, artifact_digest: str, made: str | None) -> int:
        """Commit a release with its artifact and publish it; return the version."""
        asked = {"release": release_id, "name": name, "artifact": artifact_digest, "made": made}
        version: int = self._connection.ask("publish", **asked)
        self._forget(release_id)
        return version

    def withhold(self, release_id: str, *, artifact_digest: str) -> None:
        """Commit a release with its artifact, and publish it under no name."""
        self._connection.ask("withhold", release=release_id, artifact=artifact_digest)
        self._forget(release_id)

    def sweep(self) -> None:
        """Remove the steps of releases that ended, which a crash left here."""
        left = [path.name for path in (self.home / STAGING).glob("[0-9a-f]" * 32)][:1000]
        if left:
            for name, state in self._connection.ask("states", releases=left).items():
                if state in ENDED:
                    self._forget(name)

    def _staged(self, release_id: str) -> Path:
        return self.home / STAGING / release_id

    def _forget(self, release_id: str) -> None:
        shutil.rmtree(self._staged(release_id), ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RemoteCatalog:
    """The snapshots that a remote ledger knows, and their files; see `storage.datasets.catalog.Catalog`."""

    connection: Connection
    place: Place
    ledger_id: str

    def current(self, name: str) -> Entry:
        """Return the current snapshot of a name."""
        return messages.entry_of(self.connection.ask("current", dataset=name))

    def entry(self, snapshot: str) -> Entry:
        """Return a snapshot by its id, current or not."""
        return messages.entry_of(self.connection.ask("snapshot", snapshot=snapshot))

    def open(self, entry: Entry) -> Dataset:
        """Open a snapshot."""
        return open_snapshot(self.place, entry, ledger=self.ledger_id)


def _refuse_void(void: bool) -> None:  # noqa: FBT001 - the value of the one argument
    if void:
        raise Refused(
            "a release without privacy voids a budget for good, and is made where the ledger runs; ask its operator."
        )
