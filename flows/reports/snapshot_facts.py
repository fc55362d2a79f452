"""Private facts of datasets (sizes of snapshots, unreadable files), only for the curator, who may see the data."""

import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpca.backends.atomic_files import make_folder, writing
from storage.datasets.catalog import Catalog, Entry
from storage.datasets.content_digest import Manifest
from storage.datasets.staging import quarantine_notes

REPORTS = "reports"
"""The folder of private reports in the home folder of dpca.

Each dataset has one report of mode 0600, with a line for each file that was not read.
"""


def snapshot_facts(catalog: Catalog, entry: Entry) -> dict[str, Any]:
    """Return the facts of a snapshot for the curator only, because its sizes and digest are private."""
    manifest = catalog.manifest(entry)
    return {
        "dataset": entry.name,
        "population": entry.population,
        "public": manifest.public,
        "snapshot": entry.snapshot,
        "content_digest": entry.content_digest,
        "records": manifest.n_records,
        "rows": manifest.n_rows,
        "features": entry.n_features,
        "privacy_unit": manifest.privacy_unit,
        "max_rows_per_unit": manifest.max_rows_per_unit,
        "quarantined": manifest.quarantined,
        "quarantined_by": _quarantined_by(catalog, entry),
        "nnz": manifest.nnz,
        "density": manifest.density,
        "blocks": manifest.n_blocks,
        "dtype": manifest.dtype,
        **_public_bound(catalog, entry, manifest),
        "records_at_most": entry.records_at_most,
        "path": catalog.address(entry),
        "created_at": entry.created_at,
    }


def _public_bound(catalog: Catalog, entry: Entry, manifest: Manifest) -> dict[str, Any]:
    """Return the bound on the norm of a record that the schema implies; None if it implies no bound."""
    if manifest.encoder is None:
        return {}
    from dpca.schemas.encoder import Encoder  # imported here because it loads Arrow, and few datasets have a schema

    facts = catalog.open(entry).encoder()
    assert facts is not None
    most = entry.rows_per_unit
    bound = None if most is None else Encoder.of(facts).norm_at_most * math.sqrt(most)
    return {"norm_at_most": None if bound is None else math.ceil(bound * 1e6) / 1e6}


def _quarantined_by(catalog: Catalog, entry: Entry) -> list[dict[str, Any]]:
    """Count the quarantined rows in the private report by reason and column, the most frequent first."""
    notes = quarantine_notes(catalog.home / entry.path)
    if not notes.exists():
        return []
    from storage.formats.batch import read_tally  # imported here because it loads Numba, and few datasets have bad rows

    counted = read_tally(notes).most_common()
    return [{"rows": rows, "reason": reason, "column": column or None} for (reason, column), rows in counted]


def report_fault(home: Path, name: str, reason: str) -> None:
    """Record in a dataset's private report that a file could not be read, with the reason."""
    folder = home / REPORTS
    with writing(folder):
        make_folder(folder)
        descriptor = os.open(folder / f"{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as report:
            line = _in_one_line(f"{datetime.now(UTC):%FT%TZ} {reason}")
            report.write(f"{line}\n".encode(errors="replace"))


def reported_fault(home: Path, name: str, address: str) -> str | None:
    """Return the latest reason why a file could not be read, from a dataset's private report; for the curator only."""
    try:
        lines = (home / REPORTS / f"{name}.txt").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    reasons = (line.partition(" ")[2] for line in lines)
    begin = f"{_in_one_line(address)}: "
    return next((reason.removeprefix(begin) for reason in reversed([*reasons]) if reason.startswith(begin)), None)


def _in_one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
