"""The workspace that a release is made in: of this process, or with a remote ledger, which `dpca doctor` checks."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from dpca_tasks.errors import InvalidInput
from flows.parties.calling import Post
from flows.parties.certificates import days_left, read_certificate
from flows.remote_ledger.client import Connection, LedgerCaller, RemoteCatalog, RemoteLedger
from flows.reports.findings import Finding
from flows.settings import cluster_settings
from storage.backends.base import Place
from storage.datasets.catalog import Entry
from storage.datasets.snapshot_reader import Dataset
from storage.home import readable_home, store, writable_home
from storage.ledger.protocol import ReleaseLedger
from storage.registry.reader import Registry
from storage.workspace import Workspace

TIMEOUT = 120.0
"""Seconds after which the ledger counts as silent."""
CLOCK_SKEW = 5.0
"""Seconds that two clocks may differ."""
RENEW = 30
"""Days before the end of a certificate from which it is noted."""


class ReleaseCatalog(Protocol):
    """What a release needs of the catalog; see `storage.datasets.catalog.Catalog`."""

    def current(self, name: str) -> Entry: ...  # noqa: D102

    def entry(self, snapshot: str) -> Entry: ...  # noqa: D102

    def open(self, entry: Entry) -> Dataset: ...  # noqa: D102


class ReleaseWorkspace(Protocol):
    """What a release needs of a workspace; see `storage.workspace.Workspace`."""

    @property
    def ledger(self) -> ReleaseLedger: ...  # noqa: D102

    @property
    def catalog(self) -> ReleaseCatalog: ...  # noqa: D102

    @property
    def registry(self) -> Registry: ...  # noqa: D102

    @property
    def home(self) -> Path: ...  # noqa: D102

    @property
    def store(self) -> Place: ...  # noqa: D102

    def publish(  # noqa: D102
        self, release_id: str, *, name: str, artifact_digest: str, made: str | None = None
    ) -> int: ...

    def withhold(self, release_id: str, *, artifact_digest: str) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkspace:
    """A workspace whose ledger is apart: datasets, artifacts and staged steps are reached from here, no database is."""

    ledger: RemoteLedger
    catalog: RemoteCatalog
    home: Path
    store: Place

    @property
    def registry(self) -> Registry:
        """The published artifacts."""
        return Registry(self.store)

    def publish(self, release_id: str, *, name: str, artifact_digest: str, made: str | None = None) -> int:
        """Commit a release with its artifact and publish it under the next version of a name; return the version."""
        return self.ledger.publish(release_id, name=name, artifact_digest=artifact_digest, made=made)

    def withhold(self, release_id: str, *, artifact_digest: str) -> None:
        """Commit a release with its artifact, and publish it under no name."""
        self.ledger.withhold(release_id, artifact_digest=artifact_digest)


def open_workspace() -> ReleaseWorkspace:
    """Open the workspace to release in it: with the ledger of ``DPCA_LEDGER_URL``, or all of this process.

    Raises
    ------
    Unavailable
        When the remote ledger does not answer; or as `storage.workspace.Workspace.open`.
    Refused
        When it does not know this process; or as there.
    """
    connection = _connection()
    if connection is None:
        return Workspace.open()
    workspace = _apart(connection, home=writable_home())
    workspace.ledger.sweep()
    return workspace


def read_workspace() -> ReleaseWorkspace:
    """Open the same to read it; see `open_workspace` and `storage.workspace.Workspace.read_only`."""
    connection = _connection()
    return Workspace.read_only() if connection is None else _apart(connection, home=readable_home())


def _apart(connection: Connection, *, home: Path) -> RemoteWorkspace:
    ledger, place = RemoteLedger(connection, home=home), store()
    return RemoteWorkspace(ledger=ledger, catalog=RemoteCatalog(connection, place, ledger.id), home=home, store=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The remote ledger that the settings name, with its certificate and this process's own, in PEM."""

    url: str
    connection: Connection
    pinned: str = field(repr=False)
    certificate: str = field(repr=False)


def remote_ledger() -> Apart | None:
    """Return the remote ledger that the settings name, if they name one.

    Raises
    ------
    InvalidInput
        When a setting is missing, or a file of it cannot be read.
    """
    connection, settings = _connection(), cluster_settings()
    if connection is None or not (settings.ledger_url and settings.ledger_cert and settings.ledger_key):
        return None
    pinned, own = (read_certificate(path) for path in (settings.ledger_cert, settings.ledger_key.with_suffix(".pem")))
    return Apart(url=settings.ledger_url, connection=connection, pinned=pinned, certificate=own)


def _connection() -> Connection | None:
    settings = cluster_settings()
    if settings.ledger_url is None:
        return None
    if settings.ledger_cert is None or settings.ledger_key is None:
        raise InvalidInput(
            "DPCA_LEDGER_URL needs DPCA_LEDGER_CERT, the ledger's certificate, and DPCA_LEDGER_KEY, the key of this "
            "process with its certificate beside it; set both."
        )
    return connect(settings.ledger_url, settings.ledger_cert, settings.ledger_key)


@cache
def connect(url: str, certificate: Path, key: Path) -> Connection:
    """Return the connection of this process to a ledger, whose certificate is pinned."""
    post = Post(name="the ledger", address=url, certificate=read_certificate(certificate))
    return Connection(LedgerCaller(post, certificate=key.with_suffix(".pem"), key=key, timeout=TIMEOUT))


def check_remote_ledger() -> Iterator[Finding]:
    """Ask the ledger of ``DPCA_LEDGER_URL`` who it is, and who asks it.

    Raises
    ------
    Unavailable
        When it does not answer.
    Refused
        When it and this process do not accept each other's certificates.
    """
    apart = remote_ledger()
    if apart is None:
        return
    before = time.time()
    said = apart.connection.ask("identify")
    skew = max(before - said["time"], said["time"] - time.time(), 0.0)
    yield Finding(check="ledger", verdict="ok", found=f"{apart.url} answers, ledger {said['ledger'][:8]}")
    yield _certificates(apart, f"{said['role']} of {', '.join(said['populations']) or 'no population'}")
    ours, theirs = version("dpca-pipeline"), said["version"]
    yield Finding(
        check="ledger's version",
        verdict="ok" if ours == theirs else "fix",
        found=f"dpca {theirs} there, {ours} here",
        advice="" if ours == theirs else "install one version on both sides: artifacts are compared field by field",
    )
    yield Finding(
        check="clock",
        verdict="ok" if skew <= CLOCK_SKEW else "fix",
        found=f"{skew:.0f} s apart from the ledger's",
        advice="" if skew <= CLOCK_SKEW else "start a time service: schedule slots and certificates go by the clock",
    )


def _certificates(apart: Apart, role: str) -> Finding:
    ours, theirs = days_left(apart.certificate), days_left(apart.pinned)
    soon = min(ours, theirs) < RENEW
    return Finding(
        check="certificate",
        verdict="note" if soon else "ok",
        found=f"{role}; ours ends in {ours:.0f} days, the ledger's in {theirs:.0f}",
        advice="make a new one with dpca ledger key, and exchange it before" if soon else "",
    )
