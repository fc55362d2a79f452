"""A planned release, charged to a ledger, computed and written: the same from a flow and in a notebook.

Neither orchestrator nor cluster is needed: what a caller has of them, such as a Dask client, goes to the curator.
"""

import time
from contextlib import suppress
from typing import Any

from dpca_tasks.errors import StepTaken
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import Reservation
from dpca_tasks.records.blocks import BlockSource
from flows.families.base import PlannedRelease
from flows.families.stored import read_planned, stored_request
from flows.families.table import family_of
from flows.releases.notices import warn_of_budget
from flows.remote_ledger.workspaces import ReleaseWorkspace
from flows.reports.activity import begin_step
from flows.reports.logs import about, log_event
from storage.artifacts.files import write_artifact
from storage.errors import BudgetExhausted
from storage.ledger.protocol import ReleaseLedger
from storage.ledger.releases import Grant, Release


def charge_release(ledger: ReleaseLedger, planned: PlannedRelease[Any]) -> Grant:
    """Charge a planned release to its population's budget, or find the one of its run key.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit it. Nothing is charged.
    """
    with about(run_key=planned.run_key, population=planned.population, mechanism=planned.plan.mechanism):
        try:
            grant = ledger.reserve(
                planned.population,
                run_key=planned.run_key,
                fingerprint=planned.fingerprint,
                event=planned.plan.event,
                epsilon=planned.plan.target.epsilon,
                delta=planned.plan.target.delta,
                void=planned.request.i_know_this_is_not_private,
                snapshot_id=planned.snapshot_id,
                request=stored_request(planned),
            )
        except BudgetExhausted:
            log_event("refused", remaining=ledger.statement(planned.population, newest=0).remaining)
            raise
        log_event("reserved", release=grant.release_id, state=grant.state)
        warn_of_budget(ledger, grant.release_id, planned.population)
    return grant


def finish_release(workspace: ReleaseWorkspace, release: Release, **others: Any) -> str:
    """Begin a charged release, or resume it, and write its artifact; return the artifact's digest.

    Parameters
    ----------
    workspace : ReleaseWorkspace
    release : Release
    **others
        What the curator computes with: a Dask client, a progress callback. Without them it computes in this thread.

    Raises
    ------
    Finished
        When another process finished it in the meantime.
    """
    ledger, catalog = workspace.ledger, workspace.catalog
    snapshot = catalog.entry(release.snapshot_id)
    planned = read_planned(release, unit=ledger.budget(release.population).privacy_unit)
    rows, family = catalog.open(snapshot), family_of(planned.request)
    reservation = ledger.begin(release.id)
    log_event("began", mechanism=planned.plan.mechanism)
    begin_step("loading rows and code")
    began = time.monotonic()
    result = run_mechanism(planned, family.source(planned, rows), reservation, **others)
    begin_step("writing the artifact")
    log_event("computed", seconds=round(time.monotonic() - began, 3))
    artifact = family.state(planned, result, release_id=release.id, feature_names=rows.feature_names())
    artifact = artifact.with_encoder(rows.encoder())
    for warning in artifact.manifest.get("warnings", ()):
        log_event("warned", warning=warning)
    return write_artifact(artifact, home=workspace.home, place=workspace.store)


def run_mechanism(planned: PlannedRelease[Any], source: BlockSource, reservation: Reservation, **others: Any) -> Any:
    """Run the mechanism, again after each step that another process answered first, from what it asked and got."""
    while True:
        with suppress(StepTaken):
            return planned.mechanism.run(_curator(planned, source, reservation, **others), planned.plan)


def _curator(planned: PlannedRelease[Any], source: BlockSource, reservation: Reservation, **others: Any) -> Curator:
    """Return a curator, which answers without noise only in a release that was planned to be not private."""
    if planned.plan.target.i_know_this_is_not_private:
        return DisclosingCurator(source, reservation, i_know_this_is_not_private=True, **others)
    return Curator(source, reservation, **others)
