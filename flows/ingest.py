"""Ingestion of files as immutable snapshots, and erasure of one individual from a dataset.

The ingest stage returns the snapshot's random id and nothing else. Sizes and digests are private. They stay in the
catalog, where the curator's commands read them, and in the log on this process's stderr, if a log is enabled. The paths
of the files are private too, so the flow is called with a reference to them (`storage.datasets.kept_sources`).

Erasure runs neither under Prefect nor on a schedule. It also lists what remains to be done. The individual's id is not
kept: no log, journal, file or exit code contains it. The returned facts are for the curator, the person who may see the
data.
"""

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import asdict, replace
from typing import Any

from dpca.errors import BadSource, NotFound
from dpca.home import key_folder
from flows.orchestration.stage_calls import directly
from flows.reports.snapshot_facts import report_fault, snapshot_facts
from flows.reports.terminal import STDERR, configure_logs, log_event
from flows.settings import cluster_settings
from storage.database.engine import reading
from storage.datasets.erase import FoundUnit, erase_unit, find_unit
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import DEFAULTS, IngestOptions
from storage.datasets.kept_sources import FILES, INBOXES, find_source, is_reference, keep_source, reference_to
from storage.datasets.whole_records import Progress
from storage.formats.files import SourceFile
from storage.ledger.budgets import has_large_delta, other_units
from storage.workspace import Workspace

watch_rows: ContextVar[Progress | None] = ContextVar("watch_rows", default=None)
given_files: ContextVar[dict[str, Any] | None] = ContextVar("given_files", default=None)
"""The files of the ingest that runs in this process. They are not read from the home folder, where a later ingest of
the same name may have stored other files.
"""


FILE_FAULT = (
    "the file cannot be read completely, and no snapshot was made; the private report in "
    "the home folder states the reason."
)
"""The only message of an unattended ingest that fails at a file; it contains nothing from the file."""


def ingest_source(source: str | list[str], name: str, options: IngestOptions = DEFAULTS) -> str:
    """Stream a source into a new snapshot, register it, and return its id.

    A reference to a source (see `storage.datasets.kept_sources`) names all files that were stored with it. Only a fault
    of a whole file ends an unattended ingest, and then with one constant message. Details of files and rows go to the
    private reports.
    """
    configure_logs(cluster_settings().log)
    return ingest_opened(source, name, options, workspace=Workspace.open())


def ingest_opened(
    source: str | list[str] | SourceFile, name: str, options: IngestOptions, *, workspace: Workspace
) -> str:
    """Ingest a source as `ingest_source` does; the source may be a file that is already open."""
    try:
        return _ingest(source, name, options, workspace=workspace)
    except BadSource as error:
        if not options.unattended:
            raise
        report_fault(workspace.home, name, str(error))
        raise BadSource(FILE_FAULT) from None


def _ingest(source: str | list[str] | SourceFile, name: str, options: IngestOptions, *, workspace: Workspace) -> str:
    if is_reference(source):
        files = dict(given_files.get() or find_source(workspace.home, str(source)))
        source, options = files.pop("source"), replace(options, **files)
    log_event("ingesting", dataset=name)
    began = time.monotonic()
    report = ingest(
        source,
        name=name,
        home=workspace.home,
        engine=workspace.ledger.engine,
        place=workspace.store,
        keys=key_folder(),
        options=options,
        progress=watch_rows.get(),
    )
    for warning in _warnings(workspace, name, report, is_unattended=options.unattended):
        STDERR.print(f"warning: {warning}", markup=False)
    if options.unattended:
        log_event("ingested", dataset=name, snapshot=report.snapshot)
        return report.snapshot
    seconds = time.monotonic() - began
    log_event(
        "ingested",
        dataset=name,
        snapshot=report.snapshot,
        private=True,
        rows=report.rows,
        source_bytes=report.source_bytes,
        seconds=round(seconds, 3),
        rows_per_second=round(report.rows / seconds),
        bytes_per_second=round(report.source_bytes / seconds),
    )
    return report.snapshot


def ingest_directly(
    source: str | list[str], *, name: str, options: IngestOptions = DEFAULTS, watch: Progress | None = None
) -> dict[str, Any]:
    """Ingest in this process, without Prefect; return the curator's facts of the snapshot."""
    return ingest_by(
        lambda reference, values: directly(ingest_source, reference, name, IngestOptions(**values)),
        source,
        name=name,
        options=options,
        watch=watch,
    )


def ingest_by(
    call: Callable[[str, dict[str, Any]], str],
    source: str | list[str],
    *,
    name: str,
    options: IngestOptions,
    watch: Progress | None,
) -> dict[str, Any]:
    """Ingest through ``call``, which receives a reference to the files, and the other options by name.

    Return the curator's facts of the snapshot. The paths of the files are stored in the home folder, so that scheduled
    runs find them.
    """
    values = asdict(options)
    files = {"source": source, **{what: values.pop(what) for what in FILES[1:]}}
    token, given = watch_rows.set(watch), given_files.set(files)
    try:
        snapshot = call(reference_to(name), values)
    finally:
        watch_rows.reset(token)
        given_files.reset(given)
    workspace = Workspace.read_only()
    keep_source(workspace.home, name, files)
    catalog = workspace.catalog
    return snapshot_facts(catalog, catalog.entry(snapshot))


def _warnings(workspace: Workspace, name: str, report: IngestReport, *, is_unattended: bool) -> Iterator[str]:
    """Yield warnings about a snapshot, one line each. Only a run that the curator watches warns about rows."""
    if report.lookalikes and not is_unattended:
        yield (
            f"{report.lookalikes:,} ids of individuals in {name!r} differ from another id only in a sign + or "
            "leading zeros, as 7 and 07 do, and each counts as a separate individual; if two such ids belong to one "
            "person, make them equal and ingest again."
        )
    population = workspace.catalog.entry(report.snapshot).population
    if report.arrivals_lost:
        yield (
            f"the table of the first arrival of each individual of {population!r} is lost or "
            "damaged, so a stream over this snapshot treats every record as present since the stream's first tick "
            "(version); the next ingest starts a new table, for streams opened later."
        )
    with reading(workspace.ledger.engine) as connection:
        large, others = has_large_delta(connection, population), other_units(connection, population)
    if name in others:
        yield f"{'; '.join(others[name])}."
    if large:
        yield (
            f"the budget of {population!r} has a delta that is not below 1/records for the declared records; if "
            "there are fewer records, declare them, or accept that a mechanism that publishes some records in full "
            "would satisfy this delta."
        )


def run_erase(name: str, unit: str, *, agree: Callable[[FoundUnit], None]) -> dict[str, Any]:
    """Make a snapshot without one individual, and return the curator's facts of the snapshot.

    The facts list everything else that may hold the individual's rows.

    Parameters
    ----------
    name : str
        The dataset.
    unit : str
        The id of the individual.
    agree : callable
        Called with the found unit before anything is written. It raises an error to stop the erasure.

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
    """List what may still hold the individual's rows or was computed from them, and what to do about each."""
    catalog = workspace.catalog
    older = catalog.older(name)
    others = [entry.name for entry in catalog.entries() if entry.population == population and entry.name != name]
    left = [(f"older snapshots: {len(older)}", f"dpca dataset remove {name} --older --force")] if older else []
    if others:
        left.append((f"other datasets of {population}: {', '.join(others)}", "run this erasure for each of them"))
    left += [
        (f"the source: {_source_of(workspace, name)}", "remove their rows, or the next ingest adds them again"),
        ("earlier backups", "delete them or let them expire; after a restore, erase again"),
        ("files exported from older snapshots", "delete all copies of them"),
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
            "stays: streams need it to remember when each id arrived first; it contains no row",
        )
    )
    return [{"what": what, "do": do} for what, do in left]


def _source_of(workspace: Workspace, name: str) -> str:
    """Return the files of the last ingest of a dataset and those of its inbox."""
    found = []
    for kind in ("sources", INBOXES):
        try:
            source = find_source(workspace.home, reference_to(name), kind)["source"]
        except NotFound:
            continue
        found += source if isinstance(source, list) else [source]
    return ", ".join(dict.fromkeys(map(str, found))) or "unknown"


def _has_budget(workspace: Workspace, population: str) -> bool:
    try:
        workspace.ledger.budget(population)
    except NotFound:
        return False
    return True
