"""The dates of the last backup and the last rehearsal, in this machine's state folder, for `dpca doctor`."""

import json
from pathlib import Path
from typing import Any

from storage.backends.atomic_files import make_folder, write_atomically, writing
from storage.home import state_folder
from storage.ledger.journal import now


def note_date(ledger: str, *, what: str, entries: int) -> None:
    """Note that a backup of so many entries was ``made`` or ``rehearsed`` now."""
    path = _path(ledger)
    with writing(path.parent):
        make_folder(path.parent)
        dates = {**read_dates(ledger), what: {"at": now(), "entries": entries}}
        write_atomically(path, json.dumps(dates).encode())


def read_dates(ledger: str) -> dict[str, Any]:
    """Return when the last backup was ``made``, and one ``rehearsed``, with its entries; as far as it is known."""
    try:
        found = json.loads(_path(ledger).read_bytes())
    except (OSError, RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _path(ledger: str) -> Path:
    return state_folder() / ledger / "backups.json"
