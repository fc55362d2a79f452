"""The journal: every change of the record, append-only and hash-chained, with a witness outside the database.

Each row's hash covers the row and the hash before it. The witness is a copy of the last hash beside the keys; a
database that was restored from a backup does not contain it, and is refused: it has un-spent.
"""

import fcntl
import getpass
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from storage import database
from storage.durable import make_folder, write_atomically, writing
from storage.errors import Corrupt, Invalid, Refused, Unavailable

NAMES = (
    "ledger_created",
    "ledger_accepted",
    "budget_opened",
    "budget_voided",
    "snapshot_registered",
    "snapshot_removed",
    "release_reserved",
    "release_begun",
    "release_resumed",
    "step_kept",
    "step_conflict",
    "release_committed",
    "release_abandoned",
    "release_closed",
    "version_published",
    "alias_moved",
)

_START = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last event of a journal."""

    ledger: str
    seq: int
    hash: str


def now() -> str:
    """Return the time in UTC, as it is stored."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def append(
    connection: sa.Connection,
    name: str,
    *,
    population: str | None = None,
    release_id: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append one event inside the caller's transaction.

    Raises
    ------
    Invalid
        When the name is not in the table of names.
    """
    if name not in NAMES:
        raise Invalid(f"journal event {name!r} is not one of {', '.join(NAMES)}; add it to the table.")
    connection.execute(sa.select(database.ledger.c.id).with_for_update())  # one writer of the chain at a time
    last = connection.execute(
        sa.select(database.event.c.seq, database.event.c.hash).order_by(database.event.c.seq.desc()).limit(1)
    ).first()
    row = {
        "seq": last.seq + 1 if last else 1,
        "population": population,
        "release_id": release_id,
        "name": name,
        "detail": json.dumps(dict(detail or {}), sort_keys=True),
        "at": now(),
        "actor": _actor(),
        "prev_hash": last.hash if last else _START,
    }
    connection.execute(database.event.insert().values(**row, hash=_hash(row)))


def identify(connection: sa.Connection) -> str:
    """Return the ledger's random id; a new ledger draws one, and the journal begins with it."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE ledger IN SHARE ROW EXCLUSIVE MODE")
    found = connection.execute(sa.select(database.ledger.c.id)).scalar_one_or_none()
    if found is None:
        found = secrets.token_hex(16)
        connection.execute(database.ledger.insert().values(id=found, created_at=now()))
        append(connection, "ledger_created", detail={"ledger": found})
    return str(found)


def accept(connection: sa.Connection, *, reason: str) -> None:
    """Go on with a restored ledger: what is only reserved in it may have begun since, so it counts as begun."""
    table = database.release
    reserved = sa.select(table.c.id).where(table.c.state == "reserved").order_by(table.c.id).with_for_update()
    begun = list(connection.execute(reserved).scalars())
    moved = table.update().where(table.c.id.in_(begun))
    connection.execute(moved.values(state="noising", updated_at=now()))
    append(connection, "ledger_accepted", detail={"reason": reason, "begun": begun})


def head(connection: sa.Connection) -> Head:
    """Return the last event."""
    last = connection.execute(
        sa.select(database.event.c.seq, database.event.c.hash).order_by(database.event.c.seq.desc()).limit(1)
    ).first()
    ledger_id = connection.execute(sa.select(database.ledger.c.id)).scalar_one()
    return Head(ledger=ledger_id, seq=last.seq if last else 0, hash=last.hash if last else _START)


def verify(connection: sa.Connection) -> int:
    """Check every hash of the chain; return the number of events.

    Raises
    ------
    Corrupt
        At the first event that was changed, removed or put in.
    """
    previous, count = _START, 0
    for stored in connection.execute(sa.select(database.event).order_by(database.event.c.seq)).mappings():
        row = {key: value for key, value in stored.items() if key != "hash"}
        count += 1
        if (row["seq"], row["prev_hash"], _hash(row)) != (count, previous, stored["hash"]):
            raise Corrupt(f"event {count} of the journal was changed; restore the database and accept it by name.")
        previous = stored["hash"]
    return count


@dataclass(frozen=True, slots=True)
class Witness:
    """The copy of the journal's head beside the keys. It moves forward only."""

    folder: Path

    def read(self) -> Head | None:
        """Return the copy, or None where no ledger has written one."""
        path = self.folder / "witness.json"
        try:
            return Head(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise Corrupt(f"{path} is damaged; restore it from a copy.") from None
        except OSError as error:
            raise Unavailable(f"{path} cannot be read ({error.strerror}); mend it or set DPCA_KEY_FOLDER.") from None

    def advance(self, reached: Head, *, back: bool = False) -> None:
        """Note an event that is committed; ``back`` lets an operator's act move it anywhere."""
        with writing(self.folder):
            make_folder(self.folder, mode=0o700)
            with (self.folder / ".witness.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                seen = self.read()
                if back or seen is None or seen.seq < reached.seq:
                    payload = {"ledger": reached.ledger, "seq": reached.seq, "hash": reached.hash}
                    write_atomically(self.folder / "witness.json", json.dumps(payload).encode(), mode=0o600)

    def check(self, connection: sa.Connection, *, restored: bool = False) -> None:
        """Compare a database with the copy; ``restored`` admits an older state, but no other ledger.

        Raises
        ------
        Refused
            When the database is another ledger, or an older state of this one.
        """
        current = head(connection)  # first: whoever writes event 2 has put down event 1 here before
        seen = self.read()
        if seen is None:
            if current.seq > 1 and not restored:
                raise Refused(
                    f"{self.folder} has no witness of this ledger; set DPCA_KEY_FOLDER to the folder it was used with, "
                    "or accept it with `dpca budget accept-restored`."
                )
            return
        if seen.ledger != current.ledger:
            raise Refused(
                f"the database is ledger {current.ledger[:8]}, but {self.folder} belongs to ledger {seen.ledger[:8]}; "
                "use the database and key folder of one ledger together."
            )
        if restored:
            return
        stored = connection.execute(
            sa.select(database.event.c.hash).where(database.event.c.seq == seen.seq)
        ).scalar_one_or_none()
        if stored != seen.hash:
            raise Refused(
                f"the ledger lacks event {seen.seq} that was committed: it was restored from a copy, and has un-spent; "
                "restore the newest copy, or accept this one with `dpca budget accept-restored`."
            )


def _hash(row: Mapping[str, Any]) -> str:
    fields = ("seq", "population", "release_id", "name", "detail", "at", "actor", "prev_hash")
    return hashlib.sha256(json.dumps([row[name] for name in fields]).encode()).hexdigest()


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
