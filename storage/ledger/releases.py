"""Releases of a ledger, with their database rows, run keys, secret keys and stored answers.

Functions that take a connection run in the caller's transaction.

*Run keys* are names of requests: the same run key gets the same release. All run keys of a ledger form one namespace.
However, clients of a remote ledger must not learn or occupy the run keys of other populations' releases. Therefore, a
run key that such a client chose is stored with a prefix, a hash of the charged population. A default run key consists
of the population and a digest of the request. It is stored unchanged, so the same request gets the same release,
whether it is made remotely or not.

*Secret keys* of releases are stored in one file each, outside the database and its backups. The key determines the
noise, so an old key and the artifact together reveal the exact sums. Therefore, a key exists only from the reservation
until the release is committed, closed or abandoned.

`remove_orphans` removes files and folders that killed processes left without a database row.
"""

import hashlib
import hmac
import json
import os
import re
import shutil
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from dpca.backends.atomic_files import make_folder, reached, sync_folder, write_atomically, writing
from dpca.errors import Conflict, Corrupt, Finished, NotFound, Refused, Unavailable
from dpca_tasks.accounting import prices
from dpca_tasks.accounting.events import Event, is_private
from dpca_tasks.accounting.prices import Charge
from storage.database import tables
from storage.database.engine import transaction
from storage.ledger import journal
from storage.ledger.budgets import (
    Budget,
    charged_to,
    check_units,
    is_charged,
    lock_budget,
    note_total,
    read_budget,
    read_total,
    with_release,
    without_charge,
)
from storage.ledger.journal import ENDED, GIVEN_UP, OF_RELEASES, check_rows

ORPHAN_AFTER = 3600.0
"""Seconds after which a file without a database row counts as left behind; a live writer adds the row much earlier."""

# pattern of the names of staging folders: the id of a release, or random hex digits
_STAGED = re.compile(r"[0-9a-f]{32}")
_HALF_WRITTEN = re.compile(r"\.[0-9a-f]{32}\.tmp")


def remove_orphans(folder: Path, *, among: Container[str] = ()) -> None:
    """Remove temporary files, and the files and folders named in ``among``, if older than `ORPHAN_AFTER`."""
    for name in names_in(folder):
        orphan = name in among and _STAGED.fullmatch(name)
        if orphan or (name[0] == "." and _HALF_WRITTEN.fullmatch(name)):
            path = folder / name
            with suppress(FileNotFoundError):  # another process may remove the same file at the same time
                if time.time() - path.stat().st_mtime > ORPHAN_AFTER:
                    if path.is_dir():
                        # deletion may fail if the writer is alive, as after a jump of the clock; it is tried again
                        # later
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink()


def names_in(folder: Path) -> list[str]:
    """List the names in a folder; return an empty list if the folder does not exist."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - one path object per name takes ten times as long
    except (FileNotFoundError, NotADirectoryError):
        return []


_DIGEST = re.compile("[0-9a-f]{64}(/.*)?")


def separate_key(population: str, run_key: str) -> str:
    """Return the form in which the ledger stores a run key (name of a request) chosen by a client of a remote ledger.

    It is the default run key unchanged, or any other run key with a prefix for the population.
    """
    own = f"{population}/"
    if run_key.startswith(own) and _DIGEST.fullmatch(run_key.removeprefix(own)):
        return run_key
    return f"separate {hashlib.sha256(population.encode()).hexdigest()[:16]}/{run_key}"


KEY_BYTES = 32


def new_key() -> bytes:
    """Draw a secret key from the operating system's random generator. Only tests may replace this function."""
    return os.urandom(KEY_BYTES)


def release_id_of(key: bytes) -> str:
    """Return the id of the release with this secret key: the first 128 bits of an HMAC-SHA256, which hide the key."""
    return hmac.new(key, b"dpca release id", hashlib.sha256).digest()[:16].hex()


class Keys(Protocol):
    """Interface for reading the secret keys of releases that have not ended."""

    def read(self, release_id: str) -> bytes:
        """Return the secret key of a release that has not ended."""


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """A folder of mode 0700 with one key file of mode 0600 for each release that has not ended."""

    folder: Path

    def create(self, release_id: str, key: bytes) -> None:
        """Write a key file durably; the caller does this before the release's database row is written."""
        with writing(self.folder):
            make_folder(self.folder)
            write_atomically(self.folder / release_id, key)

    def read(self, release_id: str) -> bytes:
        """Return the secret key of a release that has not ended.

        Raises
        ------
        Corrupt
            When the key in the file is not the key of this release.
        """
        try:
            key = (self.folder / release_id).read_bytes()
        except OSError:
            raise Unavailable(
                f"the key of release {release_id} is not in {self.folder}; set DPCA_KEY_FOLDER to the key folder that "
                "was set when it was reserved, or close the release."
            ) from None
        if len(key) != KEY_BYTES or release_id_of(key) != release_id:
            raise Corrupt(f"{self.folder / release_id} is not the key of this release; close the release.")
        return key

    def erase(self, release_id: str) -> None:
        """Remove a key, if it exists."""
        path = self.folder / release_id
        with writing(self.folder):
            if path.exists():
                path.unlink(missing_ok=True)
                sync_folder(self.folder)

    def release_ids(self) -> list[str]:
        """Return the ids of the releases that have a key in this folder."""
        return [name for name in names_in(self.folder) if re.fullmatch("[0-9a-f]{32}", name)]


_BY_ID = sa.select(tables.release).where(tables.release.c.id == sa.bindparam("id"))
_LOCKED = _BY_ID.with_for_update()
_BY_RUN_KEY = sa.select(tables.release).where(
    tables.release.c.run_key.in_((sa.bindparam("given"), sa.bindparam("separate")))
)
_CONTENT = sa.select(tables.snapshot.c.content_digest).where(tables.snapshot.c.id == sa.bindparam("id"))
_ENTER = tables.release.insert()
_MOVE = tables.release.update().where(
    tables.release.c.id == sa.bindparam("moved"), tables.release.c.state == sa.bindparam("before")
)
_FEW = 100  # with more digests than this, a query reads all rows instead of listing the digests
_EVENT = tables.event.c
_NEWEST_FIRST = (
    tables.release.c.seq.desc().nulls_last(),
    tables.release.c.created_at.desc(),
    tables.release.c.id.desc(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release, as stored in the release table."""

    id: str
    population: str
    snapshot_id: str
    run_key: str
    fingerprint: str
    request: Mapping[str, Any]
    event: Event
    epsilon: float
    delta: float
    charge: bytes = field(repr=False)
    accounting: str
    state: str
    artifact_digest: str | None
    created_at: str
    updated_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The result of reserving a release; ``is_new`` is False if the release existed before."""

    release_id: str
    state: str
    is_new: bool


def standing_grant(row: Release, population: str, fingerprint: str) -> Grant:
    """Return the result of reserving a release that exists, after checking that the request is the same.

    Raises
    ------
    Conflict
        When the existing release has another population, or another digest (fingerprint) of the request.
    """
    if (row.population, row.fingerprint) != (population, fingerprint):
        raise Conflict(f"run key {row.run_key!r} belongs to another request (release {row.id}); use another --run-key.")
    return Grant(release_id=row.id, state=row.state, is_new=False)


def check_abandon(connection: sa.Connection, release: Release) -> None:
    """Check that a reserved release may be abandoned.

    A standalone charge is subtracted from the budget directly, before the composition of releases begins. When the
    composition begins, its bound is fixed as the budget minus the standalone charges. After that, these charges can no
    longer be removed.

    Raises
    ------
    Refused
        When the release has a standalone charge, and the composition has begun.
    """
    budget = read_budget(connection, release.population)
    lock_budget(connection, budget)
    if any(charge_of(budget, release)[:2]) and any(charged_to(connection, budget)[2:]):
        raise Refused(
            f"release {release.id} cannot be abandoned: later releases were admitted under a bound that excludes "
            "its charge, and this bound is fixed; run its request, or leave it reserved."
        )


def find_release(connection: sa.Connection, release_id: str, *, lock: bool = False) -> Release | None:
    """Return the release with this id, or None; raises the errors of `check_states`.

    With ``lock``, other transactions cannot change the release's state until the transaction ends.
    """
    rows = connection.execute(_LOCKED if lock else _BY_ID, {"id": release_id}).all()
    check_states(connection, rows)
    return _release(rows[0]) if rows else None


def read_release(connection: sa.Connection, release_id: str, *, lock: bool = False) -> Release:
    """Return the release with this id; raise `NotFound` if there is none, and the errors of `check_states`."""
    found = find_release(connection, release_id, lock=lock)
    if found is None:
        raise NotFound(f"release {release_id!r} is not in this ledger; see `dpca budget show`.")
    return found


def check_states(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> None:
    """Check that rows of the release table agree with the journal, before they are used.

    Raises
    ------
    Corrupt
        When a row was edited or inserted by hand, bypassing the triggers. For example, an abandoned release whose state
        was set back to reserved would be released without a charge.
    """
    if rows:
        of_these = _EVENT.release_id.in_([row.id for row in rows]) & _EVENT.name.in_(OF_RELEASES)
        check_rows(connection, "release", rows, of_these, _EVENT.name == "ledger_accepted")


def find_by_run_key(connection: sa.Connection, run_key: str, *, population: str | None) -> Release | None:
    """Return the release with a run key (the name of its request), or None if there is none.

    With ``population``, only releases of this population count. They include a release that was reserved under this run
    key through a remote ledger.
    """
    found = under_run_key(connection, run_key, population=population)
    return next((row for row in found if population in (None, row.population)), None)


def under_run_key(connection: sa.Connection, run_key: str, *, population: str | None) -> list[Release]:
    """Return the releases that a run key (name of a request) may mean, at most two.

    The first is stored under exactly this key, for any population. The second was reserved by ``population`` through a
    remote ledger; it is stored under the key with a prefix (`separate_key`).
    """
    separate = run_key if population is None else separate_key(population, run_key)
    rows = connection.execute(_BY_RUN_KEY, {"given": run_key, "separate": separate}).all()
    check_states(connection, rows)
    return sorted(map(_release, rows), key=lambda row: row.run_key != run_key)


def charged_terms(connection: sa.Connection, release: Release) -> dict[str, Any]:
    """Return the neighboring relation of a release's budget, and the private content digest of its snapshot.

    The digest is also returned for a snapshot that was removed. It is None if the snapshot was never registered.
    """
    relation = read_budget(connection, release.population).relation
    content = connection.execute(_CONTENT, {"id": release.snapshot_id}).scalar_one_or_none()
    return {"relation": relation, "content": content}


def check_unfinished(release: Release) -> None:
    """Check that a release has not ended, so that it may still be computed.

    Raises
    ------
    Finished
        When the release is committed; its key and steps were removed at the commit.
    Refused
        When the release was given up.
    """
    if release.state == "committed":
        raise Finished(f"release {release.id} was finished by another process; run the same request to get its result.")
    if release.state in GIVEN_UP:
        raise Refused(f"release {release.id} is {release.state}; repeat the request with another --run-key.")


def enter_release(
    connection: sa.Connection, row: Mapping[str, Any], *, charge: Charge, state: str = "reserved"
) -> None:
    """Insert the row of a release, charge its budget, and append the journal entry.

    ``row`` contains the columns of the release, with ``request`` and ``event`` as mappings.
    """
    before = read_total(connection, read_budget(connection, row["population"]))
    then = {"created_at": journal.now(), "updated_at": journal.now(), "seq": journal.head(connection).seq + 1}
    written: dict[str, Any] = {name: json.dumps(dict(row[name]), sort_keys=True) for name in ("request", "event")}
    written |= {"charge": prices.encode(charge), "state": state}
    connection.execute(_ENTER, {**then, **row, **written})
    total = note_total(connection, with_release(before, charge))
    shown = {name: value for name, value in row.items() if name not in ("id", "population", "accounting", "created_at")}
    subject = {"population": row["population"], "release_id": row["id"]}
    journal.append(connection, "release_reserved", **subject, detail={**shown, **total, "charge": charge})
    if not is_private(row["event"]):
        journal.append(connection, "budget_voided", **subject)


def move_release(
    connection: sa.Connection, row: Release, state: str, event: str, *, artifact_digest: str | None = None
) -> None:
    """Change the state of a release and append the journal entry; the caller has read the release with a lock."""
    detail: dict[str, Any] = {"artifact": artifact_digest} if artifact_digest else {}
    before = read_total(connection, read_budget(connection, row.population)) if state == "abandoned" else None
    then = {"state": state, "updated_at": journal.now(), "artifact_digest": artifact_digest}
    connection.execute(_MOVE, {"moved": row.id, "before": row.state, **then})
    if before is not None:
        detail |= note_total(connection, without_charge(before, prices.decode(row.charge)))
    journal.append(connection, event, population=row.population, release_id=row.id, detail=detail)


def releases_of(connection: sa.Connection, population: str, *, newest: int | None = None) -> tuple[Release, ...]:
    """Return all or only the ``newest`` releases of a population, in the order of their journal entries."""
    if newest == 0:
        return ()
    table = tables.release
    query = sa.select(table).where(table.c.population == population).order_by(*_NEWEST_FIRST).limit(newest)
    return tuple(_release(row) for row in reversed(connection.execute(query).all()))


def actors_of(connection: sa.Connection, population: str) -> dict[str, str]:
    """Return the operating-system user who reserved each release of a population, by release id."""
    release, entry = tables.release, tables.event
    query = sa.select(release.c.id, entry.c.actor).join(entry, entry.c.seq == release.c.seq)
    return dict(connection.execute(query.where(release.c.population == population)).tuples().all())


def versions_of(connection: sa.Connection, releases: Sequence[Release]) -> dict[str, tuple[str, ...]]:
    """Return for each artifact of the releases, by digest, its sorted published versions such as ``news@3``."""
    table, digests = tables.published, {row.artifact_digest for row in releases} - {None}
    query = sa.select(table)
    if len(digests) <= _FEW:
        query = query.where(table.c.digest.in_(sorted(filter(None, digests))))
    found: dict[str, list[tuple[str, int]]] = {}
    for row in connection.execute(query) if digests else ():
        if row.digest in digests:
            found.setdefault(row.digest, []).append((row.name, row.version))
    return {
        digest: tuple(f"{name}@{version}" for name, version in sorted(versions)) for digest, versions in found.items()
    }


def charge_of(budget: Budget, release: Release) -> Charge:
    """Return the stored charge of a release, which was computed when it was admitted and never changes."""
    check_units(budget, {(release.accounting, len(release.charge))})
    return prices.decode(release.charge)


def charges_of(connection: sa.Connection, budget: Budget, *, newest: int | None = None) -> list[tuple[str, str, bytes]]:
    """Return (time, id, stored charge) of a population's charged releases, in the order of their journal entries.

    Abandoned releases are left out, and so are the ticks of streams, which have charge zero. ``newest`` is the number
    of newest releases to return; None returns all.
    """
    table, tick = tables.release, tables.tick
    columns = (table.c.created_at, table.c.id, table.c.charge, table.c.accounting)
    paid = ~sa.exists().where(tick.c.release_id == table.c.id)
    query = sa.select(*columns).where(is_charged(budget), paid).order_by(*_NEWEST_FIRST).limit(newest)
    rows = connection.execute(query).all()
    check_units(budget, {(accounting, len(charge)) for _, _, charge, accounting in rows})
    return [(time, release, bytes(charge)) for time, release, charge, _ in reversed(rows)]


def _release(row: sa.Row[Any]) -> Release:
    values = dict(row._mapping)
    values |= {name: json.loads(values[name]) for name in ("request", "event")}
    del values["seq"]
    return Release(**values)


_ROWS = sa.select(tables.release).where(tables.release.c.id.in_(sa.bindparam("ids", expanding=True)))


@dataclass(frozen=True, slots=True)
class ReleaseFiles:
    """The files of releases outside the database: key files, and folders with the stored answers of steps."""

    keys: KeyFolder = field(repr=False)
    staging: Path

    def steps_of(self, release_id: str) -> Path:
        """Return the path of the folder with the stored answers of a release's steps."""
        return self.staging / release_id

    def forget(self, release_id: str) -> None:
        """Remove the key of a release that has ended, and then the stored answers of its steps."""
        self.keys.erase(release_id)
        reached("commit.key_erased")
        shutil.rmtree(self.steps_of(release_id), ignore_errors=True)
        reached("commit.staging_removed")

    @contextmanager
    def drawing(self, engine: sa.Engine) -> Iterator[None]:
        """Return a context for a transaction that draws the key of a release; if it fails, remove the key with `sweep`.

        Opening a home also runs `sweep`, but a long-running process may not open the home again.
        """
        before = set(self.keys.release_ids())
        try:
            yield
        except Exception:
            if not before.issuperset(self.keys.release_ids()):
                with suppress(Unavailable):
                    self.sweep(engine)
            raise

    def sweep(self, engine: sa.Engine) -> None:
        """Remove the keys and stored answers that a crash or a full disk left behind.

        They belong to releases that have ended, or that have no database row.

        Keys and folders are listed while the journal is locked, so that no transaction can draw a key. Only listed
        files are removed. So a later release keeps its key, even if this process is suspended in between. A key without
        a row is removed at once, whatever its age. A folder of steps without a row may still be in use, and is removed
        only when it is old. If a row was edited by hand to look ended, the key stays.
        """
        drawn, left, known, ended = set[str](), set[str](), set[str](), list[str]()
        if self._listed():
            with transaction(engine) as connection:
                journal.lock(connection)
                drawn, left = set(self.keys.release_ids()), self._listed()
                for row in connection.execute(_ROWS, {"ids": list(left)}).all():
                    known.add(row.id)
                    if row.state in ENDED:
                        with suppress(Corrupt):
                            check_states(connection, [row])
                            ended.append(row.id)
        for name in ended:
            self.forget(name)
        for name in drawn - known:
            self.keys.erase(name)
        remove_orphans(self.keys.folder)
        remove_orphans(self.staging, among=left - known)

    def _listed(self) -> set[str]:
        return {*names_in(self.staging), *self.keys.release_ids()}
