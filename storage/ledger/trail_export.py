"""Export of a population's audit trail: its journal entries, and signed checkpoints of the whole journal.

Each export signs a checkpoint, which is stored next to the artifacts. If the journal is later rewritten, it no longer
agrees with earlier checkpoints, even if the witness files were rewritten too. Anyone who has an earlier export can
detect the change by comparing the two exports. The signing key is in the key folder. If there is none, a new key is
generated, and its public half must be given to consumers.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpca.backends.atomic_files import make_folder, write_atomically, writing
from dpca.backends.base import Place, write_and_check
from dpca.errors import Corrupt, Refused, Unavailable
from storage.database import tables
from storage.ledger import journal
from storage.ledger.budgets import read_budget
from storage.trail.checkpoints import FIELDS, LEDGER, Checkpoint, JournalRoots, Subjects, sign_checkpoint
from storage.trail.verification import FORMAT, VERSION

FOLDER = "trail"
KEY_FILE = "trail-signing.key"


def export_trail(connection: sa.Connection, population: str, *, place: Place, keys: Path) -> dict[str, Any]:
    """Sign and store a checkpoint of the journal, and return the audit trail of a population as JSON values.

    Parameters
    ----------
    connection : sqlalchemy.Connection
        A connection in a writing transaction of the ledger, which excludes other writers.
    population : str
    place : Place
        The artifact store, in which checkpoints are stored.
    keys : Path
        The key folder.

    Raises
    ------
    NotFound
        If the population has no budget.
    Corrupt
        If the journal's hash chain or a stored checkpoint is damaged.
    Refused
        If the journal does not agree with an earlier signed checkpoint, and no operator has accepted a restored ledger.
    """
    journal.lock(connection)
    read_budget(connection, population)
    journal.verify(connection)
    ledger = journal.head(connection).ledger
    rows = [
        _entry(dict(row)) for row in connection.execute(sa.select(tables.event).order_by(tables.event.c.seq)).mappings()
    ]
    hashes = [row["hash"] for row in rows]
    own = _by_subject(rows)
    private = signing_key(keys)
    public = public_key(private)
    stored = [checkpoint for checkpoint in _stored(place, ledger) if checkpoint.key == public]
    numbers = {name: [row["seq"] for row in entries] for name, entries in own.items()}
    roots = JournalRoots.of(hashes, numbers, lengths={checkpoint.entries for checkpoint in stored})
    is_accepted = any(row["name"] == "ledger_accepted" for row in own[LEDGER])
    earlier = [checkpoint for checkpoint in stored if _agrees(checkpoint, roots, is_accepted=is_accepted)]
    made = sign_checkpoint(
        private,
        ledger=ledger,
        at=journal.now(),
        hashes=hashes,
        populations={name: [row["hash"] for row in entries] for name, entries in own.items()},
    )
    path = f"{FOLDER}/{ledger}/{made.entries:012d}.json"
    if not any(checkpoint.entries == made.entries for checkpoint in earlier):
        write_and_check(place, path, json.dumps(made.to_json(), indent=1).encode())
        earlier.append(made)
    mine = [*own.get(LEDGER, ()), *own.get(population, ())]
    return {
        "format": FORMAT,
        "version": VERSION,
        "population": population,
        "checkpoints": [checkpoint.to_json() for checkpoint in earlier],
        "entries": [{name: row[name] for name in FIELDS} for row in sorted(mine, key=lambda row: row["seq"])],
        "hashes": hashes,
    }


def signing_key(keys: Path) -> Ed25519PrivateKey:
    """Read the key that signs checkpoints and backups of this ledger; create the key if there is none."""
    path = keys / KEY_FILE
    with writing(keys):
        make_folder(keys)
        if not path.exists():
            write_atomically(path, Ed25519PrivateKey.generate().private_bytes_raw())
    try:
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror}); correct the permissions and try again.") from None
    except ValueError:
        raise Corrupt(
            f"{path} is not a signing key; restore it, or remove it and publish the new key, which is then created."
        ) from None


def public_key(private: Ed25519PrivateKey) -> str:
    """Return the public half of a signing key, in hex."""
    return private.public_key().public_bytes_raw().hex()


def _entry(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (*FIELDS, "hash")}


def _by_subject(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    subjects = Subjects()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if (subject := subjects.of(row)) is not None:
            found.setdefault(subject, []).append(row)
    return found


def _stored(place: Place, ledger: str) -> list[Checkpoint]:
    """Return the stored checkpoints, ordered by the number of covered entries, after checking their signatures."""
    folder = f"{FOLDER}/{ledger}"
    found = []
    for name in place.names(folder):
        if re.fullmatch(r"\d{12}\.json", name):
            try:
                checkpoint = Checkpoint.from_json(json.loads(place.read(f"{folder}/{name}").payload))
            except (RecursionError, ValueError):
                raise Corrupt(f"{place.at(folder)}/{name} is not a checkpoint; restore it from an export.") from None
            checkpoint.check_signature()
            found.append(checkpoint)
    return found


def _agrees(checkpoint: Checkpoint, roots: JournalRoots, *, is_accepted: bool) -> bool:
    """Return whether a checkpoint agrees with this journal.

    It may disagree after a restored ledger was accepted, if it covers entries that the restored copy lacks.

    Raises
    ------
    Refused
        When the checkpoint disagrees, and no operator has accepted a restored ledger.
    """
    try:
        checkpoint.check_journal(roots)
    except Corrupt:
        if is_accepted:
            return False
        raise Refused(
            f"the journal does not match its signed checkpoint of {checkpoint.entries} entries: the database was "
            "restored or rewritten; restore the newest copy, or accept this database with `dpca budget "
            "accept-restored`."
        ) from None
    return True
