"""Workspace with a ledger in another process, and the checks of that ledger for `dpca doctor`.

A `RemoteLedger` has the operations of a ledger in this process. A call whose response is lost is repeated, and its
operation is still done only once. A refusal is raised with the ledger's error type and message.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpca import errors
from dpca.backends.base import Place
from dpca.errors import BudgetExhausted, Corrupt, Invalid, NotFound, Refused, StorageError, Unavailable
from dpca.home import STAGING, readable_home, store, writable_home
from dpca.registry.reader import Registry
from dpca_tasks.accounting.events import Event
from dpca_tasks.errors import InvalidInput, SiteSilent
from flows.parties.calling import REFUSALS, Caller, Post
from flows.parties.certificates import days_left, read_certificate
from flows.remote_ledger.messages import (
    JSON,
    MOST_ANSWERED,
    PROTOCOL,
    Answer,
    Begun,
    Identity,
    Quoted,
    Refusal,
    written,
)
from flows.reports.terminal import Finding
from flows.settings import cluster_settings
from storage.datasets.catalog import Entry, open_snapshot
from storage.datasets.snapshot_reader import Dataset
from storage.ledger.balance import Quote, Statement
from storage.ledger.budgets import Budget
from storage.ledger.journal import ENDED
from storage.ledger.releases import Grant, Release, release_id_of
from storage.ledger.step_answers import Reservation, StepStore

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between the attempts of one call."""
TIMEOUT = 120.0
"""Seconds without a response after which a call counts as failed."""
CLOCK_SKEW = 5.0
"""Largest accepted difference of the two clocks, in seconds."""
RENEW = 30
"""Number of days before the expiry of a certificate at which `check_remote_ledger` begins to warn."""

_KINDS: Mapping[str, type[Exception]] = {
    InvalidInput.__name__: InvalidInput,
    **{
        kind.__name__: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, StorageError)
    },
}


def open_remote() -> "RemoteWorkspace":
    """Open the workspace with the ledger of ``DPCA_LEDGER_URL`` for releases."""
    workspace = _remote(home=writable_home())
    workspace.ledger.sweep()
    return workspace


def read_remote() -> "RemoteWorkspace":
    """Open the workspace with the ledger of ``DPCA_LEDGER_URL`` for reading."""
    return _remote(home=readable_home())


def check_remote_ledger() -> Iterator[Finding]:
    """Check the connection, certificates, version and clock of the ledger of ``DPCA_LEDGER_URL``, if it is set.

    Raises
    ------
    Unavailable
        When the ledger does not answer.
    Refused
        When the ledger and this process do not accept each other's certificates.
    """
    address = _address()
    if address is None:
        return
    url, pinned, key = address
    before = time.time()
    identity = connect(*address).call("identify", Answer[Identity])
    skew = max(before - identity.time, identity.time - time.time(), 0.0)
    yield Finding(check="ledger", verdict="ok", found=f"{url} answers, ledger {identity.ledger[:8]}")
    role = f"{identity.role} of {', '.join(identity.populations) or 'no population'}"
    ours, theirs = (days_left(read_certificate(path)) for path in (key.with_suffix(".pem"), pinned))
    soon = min(ours, theirs) < RENEW
    yield Finding(
        check="certificate",
        verdict="note" if soon else "ok",
        found=f"{role}; this certificate expires in {ours:.0f} days, the ledger's in {theirs:.0f}",
        advice="create a new one with dpca ledger key, and exchange it before then" if soon else "",
    )
    here = version("dpca-pipeline")
    yield Finding(
        check="ledger's version",
        verdict="ok" if here == identity.version else "fix",
        found=f"dpca {identity.version} at the ledger, {here} here",
        advice=""
        if here == identity.version
        else "install one version on both sides: artifacts are compared field by field",
    )
    yield Finding(
        check="clock",
        verdict="ok" if skew <= CLOCK_SKEW else "fix",
        found=f"differs by {skew:.0f} s from the ledger's clock",
        advice=""
        if skew <= CLOCK_SKEW
        else "start a time service: schedule slots and certificates depend on the clock",
    )


@dataclass(frozen=True, slots=True)
class Connection:
    """Connection to a remote ledger that repeats a call while the ledger does not answer."""

    caller: Caller = field(repr=False)

    def call[Value](self, route: str, kind: type[Answer[Value]], /, **requested: object) -> Value:
        """Send a request to the ledger, and return its response.

        Raises
        ------
        Unavailable
            When the ledger does not answer any of the attempts.
        Invalid
            When the response is not valid.
        StorageError
            The error that the ledger raised.
        """
        for pause in (*PAUSES, None):
            with suppress(SiteSilent):
                status, answer = self.caller.send(f"/v1/{route}", written(requested), media=JSON, most=MOST_ANSWERED)
                break
            if pause is not None:
                time.sleep(pause)
        else:
            raise Unavailable("the ledger does not answer; existing charges stay: run the same request again.")
        try:
            if status == 200:
                return kind.model_validate_json(answer).value
            refusal = refusal_of(status, answer)
        except ValidationError:
            raise Invalid("the ledger answered in an unknown form; use one version of dpca on both sides.") from None
        raise refusal


def refusal_of(status: int, answer: bytes) -> Exception:
    """Return the error that a response describes, with the type and message that the ledger raised.

    Raises
    ------
    ValidationError
        When the response is not a valid error message.
    """
    if status not in REFUSALS:
        return Refused(
            "the ledger failed at this request; its log names the kind of failure; existing "
            "charges stay: run the same request again."
        )
    refusal = Refusal.model_validate_json(answer)
    return _KINDS.get(refusal.kind, Refused)(refusal.line)


class RemoteLedger:
    """A remote ledger; see `storage.ledger.balance.ReleaseLedger`.

    Parameters
    ----------
    connection : Connection
    home : Path
        The home folder. Its subfolder ``staging`` holds noised steps, which never leave this machine.

    Raises
    ------
    Refused
        When the ledger uses another version of the messages.
    """

    def __init__(self, connection: Connection, *, home: Path) -> None:
        identity = connection.call("identify", Answer[Identity])
        if identity.protocol != PROTOCOL:
            raise Refused("the remote ledger runs another version of dpca; use one version on both sides.")
        self.id = identity.ledger
        self.home = home
        self.connection = connection

    def budget(self, population: str) -> Budget:
        """Return the terms of a population's budget."""
        return self.connection.call("budget", Answer[Budget], population=population)

    def statement(self, population: str, *, newest: int | None = None, burn_down: bool = False) -> Statement:
        """Return the statement of a budget, with all releases or the newest ones.

        With ``burn_down``, it also has the budget that was left after each release.
        """
        requested = {"population": population, "newest": newest, "burn_down": burn_down}
        return self.connection.call("statement", Answer[Statement], **requested)

    def history(self, population: str, *, newest: int | None = None) -> list[dict[str, Any]]:
        """Return the spent and remaining budget after each charged release, oldest first, or after the newest ones."""
        return self.connection.call("history", Answer[list[dict[str, Any]]], population=population, newest=newest)

    def quote(self, population: str, event: Event, *, epsilon: float, delta: float, void: bool = False) -> Quote:
        """Return what the charge of an event would cost, without making the charge."""
        _refuse_void(void)
        requested = {"population": population, "event": dict(event), "epsilon": float(epsilon), "delta": float(delta)}
        quoted = self.connection.call("quote", Answer[Quoted], **requested)
        refusal = None if quoted.refusal is None else BudgetExhausted(quoted.refusal)
        return Quote(spent=quoted.spent, total=quoted.total, refusal=refusal)

    def alerts(self, release_id: str) -> tuple[int, ...]:
        """Return the warning levels, in percent of the budget left, that this release's charge reached first."""
        return self.connection.call("alerts", Answer[tuple[int, ...]], release=release_id)

    def find(self, run_key: str, *, population: str | None = None) -> Release | None:
        """Return the release of a run key, in one population or in all populations of this client."""
        return self.connection.call("find", Answer[Release | None], run_key=run_key, population=population)

    def release(self, release_id: str) -> Release:
        """Return a release."""
        return self.connection.call("release", Answer[Release], release=release_id)

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
        """Charge a release, or find the release already charged under this run key; the ledger prices the event."""
        _refuse_void(void)
        return self.connection.call(
            "reserve",
            Answer[Grant],
            population=population,
            run_key=run_key,
            fingerprint=fingerprint,
            event=dict(event),
            epsilon=float(epsilon),
            delta=float(delta),
            snapshot=snapshot_id,
            request=dict(request),
        )

    def begin(self, release_id: str) -> Reservation:
        """Begin a release, after which its charge is final, or resume a release that began."""
        begun = self.connection.call("begin", Answer[Begun], release=release_id)
        rows, keys = RemoteSteps(self.connection, release_id), RemoteKeys(self.connection)
        steps = StepStore(rows, self.home / STAGING / release_id, release_id, keys)
        return Reservation(
            release_id=release_id, event=begun.event, relation=begun.relation, content=begun.content, _steps=steps
        )

    def sweep(self) -> None:
        """Remove the stored noised answers of ended releases, which a crash left on this machine."""
        for path in (self.home / STAGING).glob("[0-9a-f]" * 32):
            with suppress(NotFound, Corrupt):
                if self.release(path.name).state in ENDED:
                    self.forget(path.name)

    def forget(self, release_id: str) -> None:
        """Remove the stored noised answers of an ended release from this machine."""
        shutil.rmtree(self.home / STAGING / release_id, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RemoteKeys:
    """Keys of the releases in progress, each requested from the ledger when it is used.

    See `storage.ledger.releases.Keys`.
    """

    connection: Connection

    def read(self, release_id: str) -> bytes:
        """Return the key of a release that began.

        Raises
        ------
        Corrupt
            When the release id is not derived from the returned key.
        """
        key = bytes.fromhex(self.connection.call("key", Answer[str], release=release_id))
        if release_id_of(key) != release_id:
            raise Corrupt(f"the ledger returned a key that does not belong to release {release_id}; close the release.")
        return key


@dataclass(frozen=True, slots=True)
class RemoteSteps:
    """Step rows of one release; see `storage.ledger.step_answers.StepRows`."""

    connection: Connection
    release_id: str

    def check(self) -> None:
        """Raise an error if the release has ended."""
        self.find(0)

    def find(self, step: int) -> str | None:
        """Return the digest of a step's answer in a release that has not ended."""
        return self.connection.call("step", Answer[str | None], release=self.release_id, step=step)

    def settle(self, step: int, digest: str) -> str:
        """Store the digest of a step's answer unless one is stored; return the stored one."""
        return self.connection.call("keep", Answer[str], release=self.release_id, step=step, digest=digest)


@dataclass(frozen=True, slots=True)
class RemoteCatalog:
    """Snapshots in the catalog of a remote ledger, and their files; see `storage.datasets.catalog.Catalog`."""

    connection: Connection
    place: Place
    ledger_id: str

    def current(self, name: str) -> Entry:
        """Return the current snapshot of a name."""
        return self.connection.call("current", Answer[Entry], dataset=name)

    def entry(self, snapshot: str) -> Entry:
        """Return a snapshot by its id, current or not."""
        return self.connection.call("snapshot", Answer[Entry], snapshot=snapshot)

    def open(self, entry: Entry) -> Dataset:
        """Open a snapshot."""
        return open_snapshot(self.place, entry, ledger=self.ledger_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkspace:
    """Workspace with a remote ledger, which accesses datasets, artifacts and stored answers, but no database."""

    ledger: RemoteLedger
    home: Path
    store: Place

    @property
    def catalog(self) -> RemoteCatalog:
        """Catalog of the datasets."""
        return RemoteCatalog(self.ledger.connection, self.store, self.ledger.id)

    @property
    def registry(self) -> Registry:
        """Registry of the published artifacts."""
        return Registry(self.store)

    def publish(self, release_id: str, *, name: str, artifact_digest: str, made: str | None = None) -> int:
        """Commit a release with its artifact and publish it under the next version of a name; return the version."""
        requested = {"release": release_id, "name": name, "artifact": artifact_digest, "made": made}
        number = self.ledger.connection.call("publish", Answer[int], **requested)
        self.ledger.forget(release_id)
        return number

    def withhold(self, release_id: str, *, artifact_digest: str) -> None:
        """Commit a release with its artifact, without publishing it."""
        self.ledger.connection.call("withhold", Answer[None], release=release_id, artifact=artifact_digest)
        self.ledger.forget(release_id)


def _remote(*, home: Path) -> RemoteWorkspace:
    address = _address()
    assert address is not None, "a remote ledger is set"
    return RemoteWorkspace(ledger=RemoteLedger(connect(*address), home=home), home=home, store=store())


def _address() -> tuple[str, Path, Path] | None:
    """Return the URL of the remote ledger, its certificate file and the key file of this process, from the settings.

    Raises
    ------
    InvalidInput
        When a setting is missing.
    """
    settings = cluster_settings()
    if settings.ledger_url is None:
        return None
    if settings.ledger_cert is None or settings.ledger_key is None:
        raise InvalidInput(
            "DPCA_LEDGER_URL needs DPCA_LEDGER_CERT, the ledger's certificate, and "
            "DPCA_LEDGER_KEY, the key of this process, with its certificate in the same folder; set both."
        )
    return settings.ledger_url, settings.ledger_cert, settings.ledger_key


@cache
def connect(url: str, certificate: Path, key: Path) -> Connection:
    """Return the connection of this process to a ledger with a pinned certificate."""
    post = Post(name="the ledger", address=url, certificate=read_certificate(certificate))
    return Connection(Caller(post, certificate=key.with_suffix(".pem"), key=key, timeout=TIMEOUT))


def _refuse_void(void: bool) -> None:  # noqa: FBT001 - it is the only argument
    if void:
        raise Refused(
            "a release without privacy voids a budget permanently, and a remote ledger does not "
            "accept it; request it from the ledger's operator."
        )
