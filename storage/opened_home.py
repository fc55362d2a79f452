"""The parts of a home, found by their settings and refused where they do not belong together.

`storage.workspace.Workspace` is what is done with them. A database that was restored from a copy, that belongs to other
keys, or that lacks what the registry shows, is refused before anything is written.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from storage.backends.base import Place
from storage.database.engine import (
    connect_as_is,
    connect_in_memory,
    connect_to_read,
    reading,
    schema_transaction,
    transaction,
    upgrade,
)
from storage.home import database_url, key_folder, readable_home, state_folder, store, writable_home
from storage.ledger import journal
from storage.ledger.ledger import Ledger
from storage.ledger.notes import note_everything
from storage.ledger.secret_keys import KeyFolder
from storage.ledger.witness import Witnesses
from storage.registry.agreement import compare_names, stale_names
from storage.registry.restored import Recharged, accept


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedHome:
    """What belongs together.

    Attributes
    ----------
    ledger : Ledger
    home : Path
    store : Place, of datasets and artifacts
    stale : collection of str, names whose pointer files are to be written anew
    recharged : tuple of Recharged, what was charged again when a restored ledger was accepted just now
    """

    ledger: Ledger
    home: Path
    store: Place
    stale: Collection[str] = ()
    recharged: tuple[Recharged, ...] = ()


def open_home(
    *, accept_restored: str | None, charge_to: str | None, another_ledger: bool, even_locked: bool
) -> OpenedHome:
    """Open the home to write, created or upgraded where that is needed; as `storage.workspace.Workspace.open`."""
    folder, keys, place = writable_home(), key_folder(), store()
    recharged: tuple[Recharged, ...] = ()
    engine = connect_as_is(database_url())
    with schema_transaction(engine) as connection:
        upgrade(connection)
        ledger_id = journal.identify(connection)
    witness = Witnesses(beside=keys, apart=state_folder() / ledger_id)
    if accept_restored is not None:
        with transaction(engine) as connection:
            witness.check(connection, restored=True)
            terms: dict[str, Any] = {"charge_to": charge_to, "another_ledger": another_ledger}
            recharged = accept(connection, place, witness.noted(), reason=accept_restored, **terms)
            current = journal.head(connection)
            witness.note(note_everything(connection))  # what was begun by accepting was noted nowhere
    else:
        with reading(engine) as connection:
            current = witness.check(connection)
            if witness.is_new:
                witness.note(note_everything(connection))
    stale = set() if even_locked else stale_names(engine, place)
    witness.advance(current, engine=engine, back=accept_restored is not None)
    ledger = Ledger(engine, home=folder, keys=KeyFolder(keys), witness=witness, ledger_id=ledger_id)
    return OpenedHome(ledger=ledger, home=folder, store=place, stale=stale, recharged=recharged)


def read_home() -> OpenedHome:
    """Open the home to read, in memory where there is none yet; as `storage.workspace.Workspace.read_only`."""
    folder, place = readable_home(), store()
    keys, engine = key_folder(), connect_to_read(database_url())
    found = None if engine is None else _found(engine, home=folder, keys=keys, place=place)
    if found is None:
        engine = connect_in_memory()
        with schema_transaction(engine) as connection:
            journal.identify(connection)
        found = _found(engine, home=folder, keys=keys, place=place)
    assert found is not None
    return found


def _found(engine: sa.Engine, *, home: Path, keys: Path, place: Place) -> OpenedHome | None:
    """Return the home whose ledger stands in a database, as it is; None where there is none yet."""
    with reading(engine) as connection:
        ledger_id = journal.find_id(connection)
        if ledger_id is None:
            return None
        witness = Witnesses(beside=keys, apart=state_folder() / ledger_id)
        witness.check(connection)
    compare_names(engine, place)
    ledger = Ledger(engine, home=home, keys=KeyFolder(keys), witness=witness, ledger_id=ledger_id)
    return OpenedHome(ledger=ledger, home=home, store=place)
