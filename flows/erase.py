"""Erase one individual from a dataset, and list what is left to do: nothing here is for Prefect or a schedule.

The id is used here and forgotten: it is in no log, journal, file or exit code. What is returned is for the curator.
"""

from collections.abc import Callable
from typing import Any

from storage.datasets.erase import FoundUnit, erase_unit, find_unit
from storage.datasets.kept_sources import INBOXES, find_source, reference_to
from storage.errors import NotFound
from storage.home import key_folder
from storage.workspace import Workspace


def run_erase(name: str, unit: str, *, agree: Callable[[FoundUnit], None]) -> dict[str, Any]:
    """Make a snapshot without an individual; return the curator's facts of it, with what else holds their rows.

    Parameters
    ----------
    name : str
        The dataset.
    unit : str
        The id of the individual.
    agree : callable
        Called with what was found before anything is written; it raises to stop.

    Raises
    ------
    NotFound, Invalid, Refused
        If the id is not in the dataset, or cannot be found in it.
    """
    workspace = Workspace.open()
    found = find_unit(name, unit, catalog=workspace.catalog, keys=key_folder())
    agree(found)
    entry = erase_unit(found, catalog=workspace.catalog)
    return {
        "dataset": name,
        "population": entry.population,
        "snapshot": entry.snapshot,
        "replaces": found.entry.snapshot,
        "erased_records": found.records,
        "erased_rows": found.rows,
        "created_at": entry.created_at,
        "remains": _remains(workspace, name, entry.population),
    }


def _remains(workspace: Workspace, name: str, population: str) -> list[dict[str, str]]:
    """Return what may still hold rows of the individual, or was computed from them, and what to do about it."""
    catalog = workspace.catalog
    older = catalog.older(name)
    others = [entry.name for entry in catalog.entries() if entry.population == population and entry.name != name]
    left = [(f"older snapshots: {len(older)}", f"dpca dataset remove {name} --older --force")] if older else []
    if others:
        left.append((f"other datasets of {population}: {', '.join(others)}", "run the command for each of them"))
    left += [
        (f"the source: {_source_of(workspace, name)}", "remove their rows, or the next ingest brings them back"),
        ("backups made before", "delete them or let them expire; after a restore, erase again"),
        ("files exported from older snapshots", "delete them where they were copied to"),
    ]
    releases = (
        sum(row.state == "committed" for row in workspace.ledger.statement(population).releases)
        if _has_budget(workspace, population)
        else 0
    )
    if releases:
        left.append(
            (
                f"releases of {population}: {releases}",
                "cannot be undone, and need not be: their guarantee covers this individual; spent budget stays spent",
            )
        )
    left.append(
        (
            f"a keyed hash of the id, in arrivals/{population}",
            "stays, as streams count when each came first; it is no row",
        )
    )
    return [{"what": what, "do": do} for what, do in left]


def _source_of(workspace: Workspace, name: str) -> str:
    """Return the files of the last ingest of a dataset, or of its inbox."""
    found = []
    for kind in ("sources", INBOXES):
        try:
            source = find_source(workspace.home, reference_to(name), kind)["source"]
        except NotFound:
            continue
        found += source if isinstance(source, list) else [source]
    return ", ".join(dict.fromkeys(map(str, found))) or "not known here"


def _has_budget(workspace: Workspace, population: str) -> bool:
    try:
        workspace.ledger.budget(population)
    except NotFound:
        return False
    return True
