"""The closed loop: what arrives in an inbox is ingested, released, judged, and promoted or held; notices say so.

A file triggers its own release, so no two clocks have to agree. Each arrival is one snapshot and one release, charged
once, however often a run dies and is tried again. What decides after the release is published already.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.errors import DpcaError, InvalidInput
from flows.clusters.connecting import reach_cluster
from flows.families.release_gate import judge
from flows.ingest import ingest_source
from flows.orchestration import form_fields
from flows.orchestration.option_parameters import with_options
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import state_refusal, state_release
from flows.orchestration.prefect_stages import Runner, StageEnded, directly, ending, finish, in_flow, recorded_failures
from flows.releases.notices import deliver_notices, give_notice
from flows.releases.paced import check_pace, reserve_paced
from flows.releases.stages import make_reserved
from flows.requests.base import NO_LOOP_ASKS
from flows.requests.subspace import SubspaceRequest
from flows.settings import Settings, cluster_settings
from storage.artifacts.subspace import PrivateSubspace
from storage.datasets.catalog import check_name as check_dataset
from storage.datasets.inbox import Inbox
from storage.datasets.ingest_options import DEFAULTS, IngestOptions
from storage.errors import BadSource, Conflict, Invalid, NotFound, StorageError
from storage.registry.pointers import Resolved
from storage.registry.reader import Registry
from storage.registry.references import check_alias, check_name
from storage.workspace import Workspace

LOG = logging.getLogger("dpca.flows")
CHAMPION, SETTLED, DRIFT = "champion", 10.0, 0.5


def look_into(inbox: str, dataset: str, settled: float) -> list[str]:
    """Return the tokens of the files that wait in an inbox, oldest first; send what earlier notices left."""
    folder = Workspace.open().home
    deliver_notices(folder)
    return Inbox(folder, dataset).waiting(inbox, settled=settled)


def take_arrival(token: str, dataset: str, options: IngestOptions) -> str | None:
    """Ingest an arrival as a snapshot and return its id; None where the file is set aside, for a reason in the log."""
    workspace = Workspace.open()
    inbox = Inbox(workspace.home, dataset)
    arrival = inbox.arrival(token)
    if arrival.snapshot is not None:
        return arrival.snapshot
    try:
        if not inbox.stands(arrival):
            raise BadSource("the file was changed or removed before it was taken; what is there now arrives anew.")
        return inbox.note_snapshot(token, ingest_source(arrival.address, dataset, options))
    except (BadSource, Invalid, Conflict) as error:
        LOG.error("set aside: %s: %s", arrival.address, " ".join(str(error).split()))
        inbox.end(token, "set_aside")
        facts = {"dataset": dataset, "next": "the output of the command, or of the worker, states the reason"}
        give_notice(workspace.home, "arrival.set_aside", key=f"arrival {token}", about=dataset, facts=facts)
        return None


def reserve_arrival(request: SubspaceRequest, token: str, snapshot: str, releases: int | None) -> tuple[str, str]:
    """Charge the release of an arrival's snapshot, or find it; return its id and state."""
    workspace, series = Workspace.open(), f"refresh/{request.publish}/"
    if workspace.ledger.find(series + token) is None:
        reach_cluster(cluster_settings())
    entry = workspace.catalog.entry(snapshot)
    return reserve_paced(workspace, request, entry, run_key=series + token, series=series, releases=releases)


def decide_release(artifact: str, alias: str, drift_at_most: float, token: str, dataset: str) -> dict[str, Any]:
    """Move an alias to a published release, or hold it; tell which, and end its arrival."""
    workspace = Workspace.open()
    registry, name = workspace.registry, artifact.partition("@")[0]
    found = registry.verify(artifact)
    before = _meant(registry, f"{name}@{alias}")
    champion = None if before is None else registry.load(str(before), PrivateSubspace)
    judged = judge(registry.load(artifact, PrivateSubspace), champion, drift_at_most=drift_at_most)
    overtaken = before is not None and before.version > found.version
    promoted = judged.passes and not overtaken
    facts = {"artifact": artifact, "alias": alias, "champion_before": None if before is None else str(before)}
    facts |= judged.facts() | ({"reason": f"{before} is newer"} if overtaken else {})
    if promoted:
        why = {fact: value for fact, value in judged.facts().items() if value is not None}
        workspace.promote(name, version=found.version, alias=alias, why=why)
    what = "promoted" if promoted else "held"
    shown = registry.show(artifact)
    told = {**facts, "digest": found.digest, "epsilon": shown["epsilon"], "delta": shown["delta"]}
    give_notice(
        workspace.home, f"release.{what}", key=f"{workspace.ledger.id} {artifact} {alias}", about=name, facts=told
    )
    Inbox(workspace.home, dataset).end(token, "released")
    return {"decision": what, **facts}


def refuse_arrival(token: str, dataset: str, publish: str) -> None:
    """End an arrival that the budget does not admit a release of, and tell."""
    workspace = Workspace.open()
    population = workspace.catalog.current(dataset).population
    facts = {"population": population, "remaining": workspace.ledger.statement(population).remaining}
    give_notice(workspace.home, "release.refused", key=f"refused {token}", about=publish, facts=facts)
    Inbox(workspace.home, dataset).end(token, "refused")


def settle_withheld(token: str, dataset: str, publish: str) -> bool:
    """End an arrival whose release was made and kept back by its own request, and tell; return whether it was."""
    workspace = Workspace.open()
    row = workspace.ledger.find(f"refresh/{publish}/{token}")
    if row is None or row.state not in ("committed", "abandoned", "closed"):
        return False
    facts = {"release": row.id, "state": row.state, "reason": "its request or an operator keeps it back"}
    give_notice(workspace.home, "release.held", key=f"withheld {token}", about=publish, facts=facts)
    Inbox(workspace.home, dataset).end(token, "released")
    return True


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
    attach: Callable[..., object] = lambda *_: None,
) -> dict[str, Any]:
    """Take all that waits in an inbox, one after another; return what became of it.

    A file that cannot be ingested is set aside, and a release that is refused ends the run in its state: both after
    the others had their turn. What is unavailable ends it at once, and the next run goes on from there.
    """
    _check_loop(request, alias=alias, drift_at_most=drift_at_most, settled=settled)
    check_pace(request.epsilon, releases)
    decisions: list[dict[str, Any]] = []
    aside, refused = 0, []
    for token in run(look_into, inbox, request.dataset, settled):
        snapshot = run(take_arrival, token, request.dataset, options)
        if snapshot is None:
            aside += 1
            continue
        try:
            release_id, state = run(reserve_arrival, request, token, snapshot, releases)
            report = make_reserved(run, request, settings, release_id, state)
        except (StageEnded, DpcaError, StorageError) as error:
            name = error.name if isinstance(error, StageEnded) else ending(error)
            if name == "BudgetExhausted":
                run(refuse_arrival, token, request.dataset, request.publish)
                attach(state_refusal, request.dataset, request.epsilon, request.delta)
            elif name != "Refused":
                raise
            elif run(settle_withheld, token, request.dataset, request.publish):
                continue
            refused.append(error)
            continue
        attach(state_release, report["artifact"])
        decisions.append(run(decide_release, report["artifact"], alias, drift_at_most, token, request.dataset))
    if refused:
        raise refused[0]
    return {"published": request.publish, "decisions": decisions, "set_aside": aside}


def run_refresh(
    inbox: str,
    request: SubspaceRequest,
    options: IngestOptions = DEFAULTS,
    *,
    workers: int | None = None,
    direct: bool = False,
    **loop: Any,
) -> dict[str, Any]:
    """Take what waits in an inbox from this process, as a Prefect flow or directly; ``loop`` are the loop's options."""
    loop = {"releases": None, "alias": CHAMPION, "drift_at_most": DRIFT, "settled": SETTLED} | loop
    if direct:
        return make_refresh(directly, inbox, request, options, cluster_settings(workers), **loop)
    given = {item.name: getattr(record, item.name) for record in (request, options) for item in fields(record)}
    given = {name: value for name, value in given.items() if name not in NO_LOOP_ASKS}
    with prefect_server(), recorded_failures():
        state: Any = refresh_subspace(inbox, **given, **loop, workers=workers, return_state=True)
        report: dict[str, Any] = finish(state)
        return report


@flow(name="refresh-subspace", persist_result=False, log_prints=False, validate_parameters=True)
@with_options(IngestOptions, annotation=form_fields.form_field, without=NO_LOOP_ASKS)
@with_options(SubspaceRequest, annotation=form_fields.form_field, without=NO_LOOP_ASKS)
def refresh_subspace(
    inbox: form_fields.InboxAddress,
    *,
    releases: form_fields.Releases = None,
    alias: form_fields.Alias = CHAMPION,
    drift_at_most: form_fields.DriftAtMost = DRIFT,
    settled: form_fields.Settled = SETTLED,
    workers: form_fields.Workers = None,
    **given: Any,
) -> dict[str, Any] | State[Any]:
    """Ingest what arrived, release it, and move an alias to each release that passes the gate.

    `flows.requests.subspace.SubspaceRequest` and `storage.datasets.ingest_options.IngestOptions` declare the parameters
    beside those of the loop; each arrival has a run key of its own.
    """
    options, request = parted(given)

    def body(run: Runner) -> dict[str, Any]:
        return make_refresh(
            run,
            inbox,
            request,
            options,
            cluster_settings(workers),
            releases=releases,
            alias=alias,
            drift_at_most=drift_at_most,
            settled=settled,
            attach=run,
        )

    return in_flow(body)


def parted(given: dict[str, Any]) -> tuple[IngestOptions, SubspaceRequest]:
    """Return the options of the ingest and the request that parameters of a loop make."""
    names = {item.name for item in fields(IngestOptions)}
    options = {name: value for name, value in given.items() if name in names}
    return IngestOptions(**options), SubspaceRequest(
        **{name: value for name, value in given.items() if name not in names}
    )


def _check_loop(request: SubspaceRequest, *, alias: str, drift_at_most: float, settled: float) -> None:
    """Refuse what would fail after a charge, write outside the home folder, or let everything or nothing pass."""
    check_name(request.publish)
    check_dataset(request.dataset)
    check_alias(alias)
    if not 0.0 <= drift_at_most <= 1.0:
        raise InvalidInput(f"drift_at_most={drift_at_most} must lie between 0 and 1; 0.5 is usual.")
    if not 0.0 <= settled < math.inf:
        raise InvalidInput(f"settled={settled} must be a number of seconds, 0 or more; 10 is usual.")


def _meant(registry: Registry, reference: str) -> Resolved | None:
    try:
        return registry.resolve(reference)
    except NotFound:
        return None
