"""The stages of a joint release over several datasets: reserve at every site, compute, publish, report.

A joint release is one release in each site's budget, and one artifact. The budgets of all sites are asked before any is
charged. Should one refuse in the moment between, what was just reserved at the others is given back. The same request
again finds the release of each site by its run key, and goes on where it stopped.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from dpca_tasks.errors import StepMismatch, StepTaken
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.records.blocks import BlockSource
from flows.clusters.connecting import connect, reach_cluster
from flows.families.base import rows_by_policy
from flows.releases.notices import warn_of_budget
from flows.releases.partitions import summing
from flows.releases.publish import digest_of
from flows.releases.site_plans import PlannedSites, plan_sites
from flows.releases.site_statements import joint_facts, state_joint
from flows.reports.activity import begin_step
from flows.reports.logs import about, log_event
from flows.requests.sites import SitesRequest
from flows.settings import cluster_settings
from storage.artifacts.files import write_artifact
from storage.datasets.catalog import Entry
from storage.errors import Finished, StorageError
from storage.ledger.ledger import Ledger, Release
from storage.workspace import Workspace

_ABANDONED = "abandoned"


def reserve_sites(request: SitesRequest) -> list[str]:
    """Charge every site's budget, or find its release; return the releases' ids, in the order of the sites.

    Raises
    ------
    BudgetExhausted
        When one of the budgets does not admit its part. None is charged.
    """
    workspace = Workspace.open()
    ledger, planned = workspace.ledger, plan_sites(workspace, request)
    keys = [standing_key(ledger, key) for key in planned.run_keys]
    if any(ledger.find(key) is None for key in keys):
        check_budgets(ledger, planned)
        reach_cluster(cluster_settings())
    ids: list[str] = []
    with ExitStack() as given_back:
        for key, entry, plan in zip(keys, planned.charged, planned.plan.sites, strict=True):
            grant = ledger.reserve(
                entry.population,
                run_key=key,
                fingerprint=planned.fingerprint,
                event=plan.event,
                epsilon=plan.target.epsilon,
                delta=plan.target.delta,
                snapshot_id=entry.snapshot,
                request=planned.stored(),
            )
            if grant.is_new:
                given_back.callback(_give_back, ledger, grant.release_id)
            ids.append(grant.release_id)
            log_event("reserved", release=grant.release_id, population=entry.population, state=grant.state)
            warn_of_budget(ledger, grant.release_id, entry.population)
        given_back.pop_all()
    return ids


def check_budgets(ledger: Ledger, planned: PlannedSites) -> None:
    """Ask the budget of every site that is not charged yet.

    Raises
    ------
    BudgetExhausted
        When one does not admit its part.
    """
    for key, entry, plan in zip(planned.run_keys, planned.charged, planned.plan.sites, strict=True):
        if ledger.find(standing_key(ledger, key)) is None:
            quote = ledger.quote(entry.population, plan.event, epsilon=plan.target.epsilon, delta=plan.target.delta)
            if quote.refusal is not None:
                raise quote.refusal


def standing_key(ledger: Ledger, key: str) -> str:
    """Return the run key of a site's release, counted on past releases that were given back."""
    number, named = 1, key
    while (found := ledger.find(named)) is not None and found.state == _ABANDONED:
        number += 1
        named = f"{key}/{number}"
    return named


def compute_sites(releases: list[str], address: str) -> str:
    """Release what every site reserved, on the cluster at ``address``, and write the artifact; return its digest.

    Raises
    ------
    StepMismatch
        When this version plans another event for a site than the one reserved.
    """
    workspace = Workspace.open()
    try:
        return _compute(workspace, releases, address)
    except Finished:
        log_event("finished_by_another", release=releases[0])
        return digest_of(workspace.ledger, releases[0])


def publish_sites(releases: list[str], digest: str, name: str) -> str:
    """Commit the release of every site with one artifact, published as a version of a name; return ``name@version``.

    The version belongs to the first site's release; should that be committed already, its artifact is the one.
    """
    workspace, (lead, *others) = Workspace.open(), releases
    try:
        number = workspace.publish(lead, name=name, artifact_digest=digest)
    except Finished:
        digest = digest_of(workspace.ledger, lead)
        number = workspace.publish(lead, name=name, artifact_digest=digest)
    for other in others:
        workspace.ledger.commit(other, artifact_digest=digest, record=lambda connection: None)
    return f"{name}@{number}"


def report_sites(artifact: str, releases: list[str], reused: bool) -> dict[str, Any]:  # noqa: FBT001 - a stage
    """State a published joint release and the budget of every site, from public facts alone."""
    workspace = Workspace.read_only()
    sites = []
    for release in (workspace.ledger.release(each) for each in releases):
        statement = workspace.ledger.statement(release.population, newest=0)
        sites.append(
            {
                "population": release.population,
                "release": release.id,
                "spent": statement.spent,
                "remaining": statement.remaining,
            }
        )
    return joint_facts(artifact, workspace.registry.show(artifact), reused=reused, sites=sites)


def released_by_sites(releases: list[str]) -> str:
    """Return the digest of the artifact that the first site's release is committed with; empty where it is not yet."""
    return Workspace.read_only().ledger.release(releases[0]).artifact_digest or ""


def _give_back(ledger: Ledger, release_id: str) -> None:
    """Abandon a reservation that never began; where its budget cannot take it back, it stays for the next try."""
    with suppress(StorageError):
        ledger.abandon(release_id)
        log_event("given_back", release=release_id)


def _compute(workspace: Workspace, releases: Sequence[str], address: str) -> str:
    ledger, catalog = workspace.ledger, workspace.catalog
    rows = [ledger.release(release) for release in releases]
    planned = _reserved(workspace, rows)
    with about(release=rows[0].id, run_key=rows[0].run_key), connect(address) as client:
        reservations = [ledger.begin(row.id) for row in rows]
        log_event("began", mechanism=planned.mechanism.name)
        begin_step("loading rows and code")
        began, result = time.monotonic(), None
        while result is None:
            curators = [
                Curator(_source(planned, catalog.open(entry)), reservation, client=client, progress=summing())
                for entry, reservation in zip(planned.charged, reservations, strict=True)
            ]
            with suppress(StepTaken):
                parties = LocalParties(curators=curators, roster=planned.plan.roster)
                result = planned.mechanism.run(parties, planned.plan)
        log_event("computed", seconds=round(time.monotonic() - began, 3))
        artifact = state_joint(
            result,
            request=planned.request,
            mechanism=planned.mechanism,
            plan=planned.plan,
            total=planned.plan.total,
            release_id=rows[0].id,
            unit=planned.unit,
            lineage={"sites": [_lineage(row, entry) for row, entry in zip(rows, planned.charged, strict=True)]},
            feature_names=catalog.open(planned.charged[0]).feature_names(),
        ).with_encoder(catalog.open(planned.charged[0]).encoder())
    return write_artifact(artifact, home=workspace.home, place=workspace.store)


def _reserved(workspace: Workspace, rows: Sequence[Release]) -> PlannedSites:
    """Return the joint release that was reserved."""
    stored = {name: fact for name, fact in rows[0].request.items() if name not in ("mechanism", "family", "snapshots")}
    planned = plan_sites(workspace, SitesRequest(**stored), rows[0].request["snapshots"])
    if [row.event for row in rows] != [plan.event for plan in planned.plan.sites]:
        raise StepMismatch("the plan is not the one reserved; finish this release with the version that reserved it.")
    return planned


def _source(planned: PlannedSites, rows: BlockSource) -> BlockSource:
    return rows_by_policy(rows, policy=planned.request.row_policy, clip_norm=planned.clip_norm)


def _lineage(row: Release, entry: Entry) -> dict[str, Any]:
    return {"release": row.id, "event": row.event, "records_at_most": entry.records_at_most}
