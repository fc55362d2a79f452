"""A check of ledger and registry that reads what is new, and a part of what earlier checks have read.

The result is noted beside the keys, where the witness is. A writer of the database or the registry who cannot
write the key folder cannot forge a note. A check that finds a fault notes nothing, so the next one finds the fault too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from storage.backends.atomic_files import make_folder, write_atomically, writing
from storage.backends.base import Place
from storage.ledger.journal_check import Compared
from storage.ledger.ledger import Ledger
from storage.ledger.partial_check import LookedOver
from storage.registry.agreement import compare_artifacts

NOTE = "looked-over.json"


class IncrementalCheck:
    """One check of a home.

    Parameters
    ----------
    ledger : Ledger
    place : Place, of the registry
    keys : Path, the key folder
    everything : bool, whether to read again what earlier checks found sound
    """

    def __init__(self, ledger: Ledger, place: Place, *, keys: Path, everything: bool) -> None:
        self._ledger, self._place, self._note = ledger, place, keys / NOTE
        self._before = None if everything else self._read()
        self._found: LookedOver | None = None

    def ledger(self) -> LookedOver:
        """Compare the journal with the rows.

        Raises
        ------
        Corrupt, Refused
            As `storage.ledger.ledger.Ledger.look_over`.
        """
        self._found = self._ledger.look_over(self._before)
        return self._found

    def registry(self) -> int:
        """Compare manifests with the rows, and note what was found; return how many were compared.

        Raises
        ------
        Corrupt
            As `storage.registry.agreement.compare_artifacts`.
        """
        with self._ledger.reading() as connection:
            count = compare_artifacts(connection, self._place, None if self._found is None else self._found.versions)
        if self._found is not None and self._found.known != self._before:
            self._write(self._found.known)
        return count

    def _read(self) -> Compared | None:
        """Read the note; None where there is none that this version of the program wrote of this ledger."""
        try:
            found = json.loads(self._note.read_bytes())
            if found.pop("writer") != self._writer():
                return None
            return _decoded(found)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def _write(self, known: Compared) -> None:
        aliases = [[*key, meant] for key, meant in known.aliases.items()]
        facts = asdict(known) | {"open": sorted(known.open), "aliases": aliases}
        with writing(self._note.parent):
            make_folder(self._note.parent)
            write_atomically(self._note, json.dumps({"writer": self._writer(), **facts}).encode())

    def _writer(self) -> str:
        return f"{self._ledger.id} {version('dpca-pipeline')}"


def _decoded(found: Mapping[str, Any]) -> Compared:
    totals = {population: (count, tuple(charge)) for population, (count, charge) in found["totals"].items()}
    aliases = {(name, alias): meant for name, alias, meant in found["aliases"]}
    return Compared(**{**found, "open": frozenset(found["open"]), "aliases": aliases, "totals": totals})
