"""Automatic processing of an inbox (a place for new files), from arrived files to promoted releases.

Each arrival (a complete new file) is ingested, released, judged, and promoted or held; notices report the outcome. A
file triggers its own release, so no two schedules have to agree. Each arrival is one snapshot and one release. The
release is charged once, even if a run fails and is retried. The decision after a release uses only facts that are
already published.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any

from dpca.errors import BadSource, BudgetExhausted, Conflict, Invalid, StorageError, Unavailable
from dpca.registry.pointers import check_alias, check_name
from dpca_tasks.errors import DpcaError, InvalidInput
from flows.clusters.connecting import reach_cluster
from flows.ingest import given_files, ingest_opened
from flows.orchestration.stage_calls import Runner, StageEnded, directly, ending
from flows.releases.arrival_ends import (
    LOG,
    decide_release,
    leave_all,
    refuse_arrival,
    set_aside,
    settle_withheld,
    shown_name,
)
from flows.releases.running import deliver_notices
from flows.releases.stages import CHAMPION, make_reserved, reserved_request
from flows.releases.verdicts import check_pace, next_cost, reserve_paced
from flows.reports.activity import begin_step
from flows.reports.terminal import RefreshOutcome, configure_logs, log_event, rounded_down
from flows.requests import Request, SubspaceRequest
from flows.settings import Settings, cluster_settings
from storage.datasets.catalog import check_name as check_dataset
from storage.datasets.inbox import Arrival, Inbox, Waiting
from storage.datasets.ingest import checked_options
from storage.datasets.ingest_options import DEFAULTS, IngestOptions
from storage.datasets.kept_sources import INBOXES, find_source, is_reference
from storage.workspace import Workspace

SETTLED, DRIFT = 10.0, 0.5
LOOP: Mapping[str, Any] = {"releases": None, "alias": CHAMPION, "drift_at_most": DRIFT, "settled": SETTLED}
"""The default options of a refresh, apart from those of the ingest and the release."""
AT_ONCE = 1000
"""The largest number of arrivals that one stage takes."""
SERIES = "refresh/"
nobody: Callable[[dict[str, Any]], None] = lambda _: None  # noqa: E731 - a default that does nothing
_notify: ContextVar[Callable[[dict[str, Any]], None]] = ContextVar("notify", default=nobody)


def check_content(inbox: str, dataset: str, options: IngestOptions, settled: float) -> Waiting:
    """Return the waiting arrivals of an inbox, after sending the notices that earlier runs could not send.

    Raises
    ------
    Invalid, Conflict
        If no file at all could be ingested with these options.
    """
    workspace = Workspace.open()
    checked_options(replace(options, unattended=True))
    workspace.catalog.admit(name=dataset, population=options.population or dataset)
    deliver_notices(workspace.home)
    return Inbox(workspace.home, dataset).waiting(inbox, settled=settled)


def take_next(tokens: list[str], dataset: str, options: IngestOptions) -> tuple[dict[str, str], str | None]:
    """Ingest arrivals in order until one becomes a snapshot.

    Return the faults of the arrivals before that one, by token, and the snapshot's id, or None if all have faults. The
    faults are:

    - ``source``: the file as a whole breaks a rule;
    - ``options``: the options break a rule;
    - ``gone``: the file was removed or changed;
    - ``unreadable``: this user may not read the file;
    - ``ended``: another process ended the arrival meanwhile.

    No single record is a fault, because the ingest is unattended (`flows.ingest`). An error at the first arrival ends
    the stage. An arrival with an error after other faults is left for the next call.
    """
    configure_logs(cluster_settings().log)
    workspace, faults = Workspace.open(), dict[str, str]()
    inbox = Inbox(workspace.home, dataset)
    for token in tokens:
        try:
            snapshot, fault = _take(workspace, inbox, token, dataset, options)
        except Exception:
            if faults:
                break
            raise
        if fault is None:
            return faults, snapshot
        faults[token] = fault
    return faults, None


def _take(
    workspace: Workspace, inbox: Inbox, token: str, dataset: str, options: IngestOptions
) -> tuple[str | None, str | None]:
    """Ingest an arrival, unless it already has a snapshot; return (snapshot id, None) or (None, fault)."""
    with inbox.taking(token) as arrival, ExitStack() as held:
        if arrival.end is not None:
            return None, "ended"
        if arrival.snapshot is not None:
            return arrival.snapshot, None
        try:
            file = held.enter_context(inbox.holding(arrival))
        except FileNotFoundError:
            return _gone(inbox, arrival)
        except PermissionError:  # the arrival keeps waiting; corrected permissions do not make it a new arrival
            LOG.error("skipped: %s: this user may not read it; correct its permissions", shown_name(arrival.address))
            return None, "unreadable"
        except OSError as error:
            raise Unavailable(
                f"a file cannot be opened ({error.strerror or 'input error'}); run the refresh again."
            ) from None
        try:
            snapshot = ingest_opened(file, dataset, replace(options, unattended=True), workspace=workspace)
        except (BadSource, Invalid, Conflict) as error:
            if not inbox.stands(arrival, file):
                return _gone(inbox, arrival)
            inbox.note_reason(token, str(error))
            return None, "options" if isinstance(error, Invalid) else "source"
        if not inbox.stands(arrival, file):
            return _gone(inbox, arrival)
        return inbox.note_snapshot(token, snapshot), None


def reserve_arrival(
    request: SubspaceRequest, token: str, snapshot: str, releases: int | None, alias: str
) -> tuple[str, str]:
    """Charge the release of an arrival's snapshot, or find its earlier charge; return the release's id and state.

    A request that names no earlier release starts from the version that the alias points to, if there is one.

    An earlier charge keeps the terms of its request. The run key depends only on the arrival, so a request with other
    terms cannot charge the arrival again.
    """
    workspace, run_key = Workspace.open(), run_key_of(token)
    if workspace.ledger.find(run_key) is None:
        reach_cluster(cluster_settings())
    entry = workspace.catalog.entry(snapshot)
    row = reserve_paced(workspace, request, entry, run_key=run_key, series=SERIES, releases=releases, start=alias)
    if row.request.get("publish") != request.publish:
        LOG.warning(
            "release %s was charged as %s before, and is completed with that charge", row.id, row.request.get("publish")
        )
    return row.id, row.state


def begun_request(release_id: str) -> Request:
    """Return the request with which a release was charged."""
    return reserved_request(Workspace.read_only().ledger.release(release_id))


def run_key_of(token: str) -> str:
    """Return the run key of an arrival's release, which identifies its charge."""
    return f"{SERIES}{token}"


def make_refresh(
    run: Runner,
    inbox: str,
    request: SubspaceRequest,
    options: IngestOptions,
    settings: Settings,
    *,
    releases: int | None,
    alias: str,
    drift_at_most: float,
    settled: float,
    on_refusal: Callable[[], object] = lambda: None,
    on_release: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Process all waiting arrivals of an inbox, one after another, and return the outcome.

    A file that cannot be ingested is set aside if another file was ingested, or if it is the only one and breaks a rule
    itself. Otherwise the options are at fault, and all files keep waiting. After a refusal or failure, the run
    processes the other arrivals, and then ends as refused or failed. An unavailable service ends the run at once. The
    next run continues from there. ``on_refusal`` is called after a refusal by the budget, ``on_release`` with each
    published version.
    """
    _check_loop(request, alias=alias, drift_at_most=drift_at_most, settled=settled)
    check_pace(request.epsilon, releases)
    done = RefreshOutcome(published=request.publish)
    waiting = run(check_content, inbox, request.dataset, options, settled)
    done.left = waiting.left + len(waiting.tokens)
    faults, failures, ingested, left = dict[str, str](), list[Exception](), 0, list(waiting.tokens)

    def take_on() -> tuple[str, str] | None:
        """Ingest arrivals until one becomes a snapshot; return the arrival's token and the snapshot's id, if any."""
        nonlocal ingested, left
        begin_step("ingesting")
        found, snapshot = run(take_next, left[:AT_ONCE], request.dataset, options)
        faults.update((token, fault) for token, fault in found.items() if fault in ("source", "options"))
        if gone := [token for token, fault in found.items() if fault == "gone"]:
            run(set_aside, gone, request.dataset)
            done.end("set_aside", len(gone))
        done.left -= [*found.values()].count("ended")
        left = left[len(found) :]
        if snapshot is None:
            return None
        ingested += 1
        token, left = left[0], left[1:]
        return token, snapshot

    def release(token: str, snapshot: str) -> None:
        begin_step("reserving the budget")
        try:
            release_id, state = run(reserve_arrival, request, token, snapshot, releases, alias)
            report = make_reserved(run, run(begun_request, release_id), settings, release_id, state)
        except (StageEnded, DpcaError, StorageError) as error:
            name = _ending(error)
            if name == "BudgetExhausted":
                run(refuse_arrival, token, request.dataset, request.publish)
                on_refusal()
                done.end("refused")
            elif name == "Refused" and run(settle_withheld, run_key_of(token), token, request.dataset):
                done.end("kept_back")
                return
            raise
        done.decisions.append(run(decide_release, report["artifact"], alias, drift_at_most, token, request.dataset))
        done.left -= 1
        on_release(report["artifact"])

    try:
        while left:
            before = len(left)
            try:
                if (taken := take_on()) is not None:
                    release(*taken)
            except Exception as error:
                if _ending(error) == "Unavailable":
                    raise
                failures.append(error)
                left = left[1:] if len(left) == before else left
        if faults and (ingested or [*faults.values()] == ["source"]):
            run(set_aside, [*faults], request.dataset)
            done.end("set_aside", len(faults))
        elif faults:
            run(leave_all, [*faults], request.dataset)
    finally:
        log_event("refreshed", **{name: fact for name, fact in done.report().items() if name != "decisions"})
        _notify.get()(done.report())
    if failures:
        raise failures[0]
    return done.report()


def refresh_directly(
    inbox: str,
    request: SubspaceRequest,
    options: IngestOptions = DEFAULTS,
    *,
    workers: int | None = None,
    notify: Callable[[dict[str, Any]], None] = nobody,
    **loop: Any,
) -> dict[str, Any]:
    """Process an inbox in this process, without Prefect.

    ``loop`` holds the options ``releases``, ``alias``, ``drift_at_most`` and ``settled`` of `make_refresh`.
    ``notify`` is called with the report at the end, even if the run then fails.
    """
    with reporting_to(notify):
        return make_refresh(directly, inbox, request, options, cluster_settings(workers), **{**LOOP, **loop})


@contextmanager
def reporting_to(notify: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Inside the context, pass the report of each refresh to ``notify`` when the refresh ends, even in failure."""
    token = _notify.set(notify)
    try:
        yield
    finally:
        _notify.reset(token)


def found_inbox(inbox: str, options: IngestOptions) -> tuple[str, IngestOptions]:
    """Return the address of an inbox, and the ingest options with their files.

    If ``inbox`` is a reference, the address and the files stored under it are returned.
    """
    if not is_reference(inbox):
        return inbox, options
    files = dict(given_files.get() or find_source(Workspace.read_only().home, inbox, INBOXES))
    return str(files.pop("source")), replace(options, **files)


def question_of(request: SubspaceRequest, options: IngestOptions, *, releases: int | None) -> str:
    """Return the confirmation prompt of a refresh, with the cost of the first file or the remaining budget.

    No dataset is read, and nothing is charged.
    """
    check_pace(request.epsilon, releases)
    workspace = Workspace.read_only()
    current = next((entry for entry in workspace.catalog.entries() if entry.name == request.dataset), None)
    if current is not None:
        with suppress(BudgetExhausted):  # if no charge is admitted, show the remaining budget
            cost = next_cost(workspace, request, current, series=SERIES, releases=releases)
            return f"Spend, for each arrived file, {cost} the first?"
    population = current.population if current is not None else options.population or request.dataset
    left = rounded_down(workspace.ledger.statement(population).remaining)
    return f"Spend budget {population!r}, with epsilon {left} left, on each arrived file?"


def parted(given: dict[str, Any]) -> tuple[IngestOptions, SubspaceRequest]:
    """Split the parameters of a refresh flow into the options of the ingest and the release request."""
    names = {item.name for item in fields(IngestOptions)}
    options = {name: value for name, value in given.items() if name in names}
    return IngestOptions(**options), SubspaceRequest(
        **{name: value for name, value in given.items() if name not in names}
    )


def _check_loop(request: SubspaceRequest, *, alias: str, drift_at_most: float, settled: float) -> None:
    """Check the options of a refresh before anything is charged.

    An invalid name could lead to a path outside the home folder, or fail only after a charge. With an invalid
    ``drift_at_most``, the promotion gate would have no effect.
    """
    check_name(request.publish)
    check_dataset(request.dataset)
    check_alias(alias)
    if not 0.0 <= drift_at_most <= 1.0:
        raise InvalidInput(f"drift_at_most={drift_at_most} must lie between 0 and 1; 0.5 is usual.")
    if not 0.0 <= settled < math.inf:
        raise InvalidInput(f"settled={settled} must be a number of seconds, 0 or more; 10 is usual.")


def _ending(error: Exception) -> str:
    return error.name if isinstance(error, StageEnded) else ending(error)


def _gone(inbox: Inbox, arrival: Arrival) -> tuple[None, str]:
    inbox.note_reason(
        arrival.token,
        "the file was changed or removed before it was read completely; its current content is a new arrival.",
    )
    return None, "gone"
