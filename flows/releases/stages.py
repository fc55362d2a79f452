"""Stages of a release of any family.

The stages are: plan, reserve, compute, publish, report. Every stage takes and returns names and public numbers.

The same request is the same release. A repeated request finds its release by the run key. It resumes an unfinished
release where it stopped, returns a finished one, and costs nothing.

A plan is made from public facts before anything is charged, and reads no row. It is stored with the reservation. A
release therefore resumes from the plan that was charged, whatever a later version of the program would plan.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from dpca.artifacts.base import canonical_json
from dpca.artifacts.files import known_artifact, read_artifact, remembered_artifacts, write_artifact
from dpca.errors import Conflict, Finished, Refused, StorageError
from dpca.home import WORKERS, home
from dpca.privacy_unit import PrivacyUnit
from dpca.registry.pointers import check_name
from dpca.registry.reader import Registry, describe
from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import DpcaError, InvalidInput
from flows.clusters.connecting import (
    NO_CLUSTER,
    check_address,
    connect,
    open_cluster,
    reach_cluster,
    suffices_alone,
)
from flows.families.base import PlannedRelease, family_of, fingerprint_of, read_request, request_facts, target_of
from flows.families.columns import Columns
from flows.orchestration.stage_calls import Runner, directly, shown_progress
from flows.releases.running import charge_release, finish_release, summing
from flows.remote_ledger.workspaces import ReleaseWorkspace, open_workspace, read_workspace
from flows.reports.activity import begin_step
from flows.reports.terminal import about, configure_logs, log_event
from flows.requests import Request
from flows.settings import Settings, cluster_settings
from storage.database.engine import one_connection
from storage.datasets.catalog import Entry
from storage.ledger.balance import ReleaseLedger
from storage.ledger.journal import GIVEN_UP
from storage.ledger.releases import Release
from storage.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """In-process context of the stages, hidden from Prefect.

    ``planned`` is the release that the caller was shown and agreed to; it is not planned again. ``insists`` is true
    when the caller accepts a result that is not private, an option that no form offers.
    """

    insists: bool = False
    planned: PlannedRelease[Any] | None = None


_NOBODY = Caller()
_caller: ContextVar[Caller] = ContextVar("caller", default=_NOBODY)


def reserve_release(request: Request, slot: str | None = None) -> tuple[str, str]:
    """Charge the budget for a request, or find its existing release; return the release's id and state.

    Before a new charge, the function connects to a cluster that is configured as already running. Nothing is charged
    when that cluster is missing.
    """
    workspace, agreed = open_workspace(), _caller.get().planned
    ledger, planned = workspace.ledger, plan_request(workspace, request, slot) if agreed is None else agreed
    if ledger.find(planned.run_key, population=planned.population) is None:
        _forecast(planned)
        reach_cluster(cluster_settings())
    grant = charge_release(ledger, planned)
    return grant.release_id, grant.state


def compute_release(release_id: str, address: str) -> str:
    """Compute a reserved release on the cluster at ``address`` and write its artifact; return the artifact's digest.

    When another process finishes the release first, its artifact is used and nothing more is computed.

    Raises
    ------
    StepMismatch
        When the request plans a different event from the reserved one.
    """
    workspace = open_workspace()
    return made_or_found(workspace.ledger, release_id, lambda: _compute(workspace, release_id, address))


def make_release(run: Runner, request: Request, settings: Settings, *, slot: str | None = None) -> dict[str, Any]:
    """Run all stages; return the public facts of the published release."""
    configure_logs(settings.log)
    check_address(settings)
    begin_step("reserving the budget")
    with one_connection(), remembered_artifacts():
        release_id, state = run(reserve_release, request, slot)
        return make_reserved(run, request, settings, release_id, state)


def make_reserved(run: Runner, request: Request, settings: Settings, release_id: str, state: str) -> dict[str, Any]:
    """Run the stages after the reservation; return the public facts of the published release."""
    chosen = settings
    if state == "committed":
        digest = run(released_digest, release_id)
    else:
        chosen = _sufficient(settings, release_id)
        with open_cluster(chosen, scratch=home() / WORKERS) as address:
            digest = run(compute_release, release_id, address)
    begin_step("publishing")
    artifact = run(publish_release, release_id, digest, request)
    report = run(report_release, artifact, reused=state == "committed")
    if chosen is not settings:
        report = {**report, "cluster": ALONE}
    log_event("published", **{name: report[name] for name in ("release", "artifact", "reused", "spent", "remaining")})
    return report


ALONE = "none; by the declared facts, one process suffices (--workers starts a cluster)"
"""The report's fact ``cluster`` if no cluster was started because declared facts make one unnecessary."""


def _sufficient(settings: Settings, release_id: str) -> Settings:
    """Return settings without a cluster if none was requested and declared facts imply that one process suffices."""
    if settings.names_cluster:
        return settings
    workspace = read_workspace()
    catalog = workspace.catalog
    try:
        entry = catalog.entry(workspace.ledger.release(release_id).snapshot_id)
        is_small = suffices_alone(entry, density=catalog.open(entry).manifest.density)
    except StorageError:  # a missing or damaged snapshot is reported later, by the computation
        return settings
    return settings.model_copy(update={"cluster": NO_CLUSTER}) if is_small else settings


def release_directly(request: Request, *, workers: int | None = None, caller: Caller | None = None) -> dict[str, Any]:
    """Run the stages in this process, without Prefect."""
    with waiting(caller, request):
        return make_release(directly, request, cluster_settings(workers))


@contextmanager
def waiting(caller: Caller | None, request: Request) -> Iterator[None]:
    """Set the in-process context of the stages for the duration of a ``with`` block.

    The context is the caller's, with the request's acknowledgement that the result need not be private.
    """
    token = _caller.set(replace(caller or _NOBODY, insists=request.i_know_this_is_not_private))
    try:
        yield
    finally:
        _caller.reset(token)


def insisted[R: Request](request: R) -> R:
    """Return a request from Prefect with the caller's acknowledgement added, which is never passed to Prefect."""
    return replace(request, i_know_this_is_not_private=_caller.get().insists)


def _forecast(planned: PlannedRelease[Any]) -> None:
    """Log that a release is expected to be pure noise, or refuse the release if its request requires this refusal."""
    family = family_of(planned.request)
    family.refuse_noise(planned)
    noise = family.expected_noise(planned)
    if noise is not None:
        log_event("expects_noise", run_key=planned.run_key, forecast=noise)


def _compute(workspace: ReleaseWorkspace, release_id: str, address: str) -> str:
    row = workspace.ledger.release(release_id)
    card = shown_progress(f"release {release_id}")
    with about(release=release_id, run_key=row.run_key), card as show, connect(address) as client:
        return finish_release(workspace, row, client=client, progress=summing(show))


LONGEST_RUN_KEY = 200
CHAMPION = "champion"
"""The usual alias of the version of a name that consumers should use."""


def plan_request(workspace: ReleaseWorkspace, request: Request, slot: str | None = None) -> PlannedRelease[Any]:
    """Check a request against the catalog and the budget's terms, and plan its noise. No row is read.

    ``slot`` is the planned start of a scheduled run. A slot has one release of a request. When the slot runs again,
    the release keeps the snapshot that it began with, whatever was ingested since.
    """
    check_name(request.publish)
    if request.run_key is not None:
        check_run_key(request.run_key)
    ledger, catalog = workspace.ledger, workspace.catalog
    current = catalog.current(request.dataset)
    rule = family_of(request).one_row_rule(request)
    if rule is not None and current.rows_per_unit != 1:
        raise InvalidInput(f"a record of dataset {request.dataset!r} may have several rows, and {rule}")
    planned = plan_started(workspace, current, request, slot, start=None if slot is None else CHAMPION)
    has_own_key = slot is not None and not request.run_key
    begun = ledger.find(planned.run_key, population=planned.population) if has_own_key else None
    if begun is not None and (begun.snapshot_id, begun.fingerprint) != (planned.snapshot_id, planned.fingerprint):
        same = family_of(request).restarted(request, reserved_request(begun))
        return plan_on(ledger, catalog.entry(begun.snapshot_id), same, slot)
    family_of(request).check_columns(planned.request, lambda: Columns.of(catalog.open(current)))
    family_of(request).check_ingest(planned.request, lambda: catalog.open(current).manifest)
    return planned


def plan_started(
    workspace: ReleaseWorkspace, snapshot: Entry, request: Request, slot: str | None = None, *, start: str | None
) -> PlannedRelease[Any]:
    """Plan a request on a snapshot.

    A request that names no earlier release starts from the version at the alias ``start`` of its published name. If
    there is no such version, or it does not allow this, the release starts from nothing.
    """
    chosen = request
    if start is not None:
        reference = f"{request.publish}@{start}"
        chosen = family_of(request).started(request, reference, lambda: Columns.of(workspace.catalog.open(snapshot)))
    if chosen is not request:
        with suppress(DpcaError):
            return plan_on(workspace.ledger, snapshot, chosen, slot)
    return plan_on(workspace.ledger, snapshot, request, slot)


def plan_on(ledger: ReleaseLedger, snapshot: Entry, request: Request, slot: str | None = None) -> PlannedRelease[Any]:
    """Plan a request on a snapshot under the neighboring relation of its budget; ``slot`` as in `plan_request`.

    Raises
    ------
    Refused
        When the privacy unit of the snapshot differs from the privacy unit of its budget.
    """
    budget = ledger.budget(snapshot.population)
    budget.check_unit(snapshot.name, snapshot.privacy_unit)
    return plan_in(budget.relation, snapshot, request, slot, unit=budget.privacy_unit)


def plan_in(
    relation: Relation, snapshot: Entry, request: Request, slot: str | None = None, *, unit: PrivacyUnit
) -> PlannedRelease[Any]:
    """Plan a request on a snapshot for a given neighboring relation and privacy unit; ``slot`` as in `plan_request`."""
    family, target, given = family_of(request), target_of(request), family_of(request).pinned(request)
    request = family.resolved(given, snapshot, relation=relation, target=target)
    mechanism = family.build(request)
    plan = mechanism.plan(family.problem(request, snapshot, relation=relation), target)
    family.check(request, plan)
    plan = replace(plan, start=family.start(request, n_features=snapshot.n_features))
    requested = request_facts(request, mechanism, given=given)
    fingerprint = fingerprint_of(snapshot.snapshot, requested, start=family.starts_from(request))
    of_slot = f"{hashlib.sha256(canonical_json([snapshot.name]) + requested).hexdigest()}/{slot}"
    return PlannedRelease(
        request=request,
        population=snapshot.population,
        unit=unit,
        snapshot_id=snapshot.snapshot,
        mechanism=mechanism,
        plan=plan,
        run_key=request.run_key or f"{snapshot.population}/{of_slot if slot else fingerprint}",
        fingerprint=fingerprint,
    )


def reserved_request(release: Release) -> Request:
    """Return the request that a release was reserved with."""
    return read_request(release.request)


def check_run_key(run_key: str) -> None:
    """Refuse a run key that is not a short line of printable text."""
    if not run_key.strip() or not run_key.isprintable() or len(run_key) > LONGEST_RUN_KEY:
        raise InvalidInput(
            f"run key {run_key!r} must be printable text of 1 to {LONGEST_RUN_KEY} characters; "
            "choose another key, or none."
        )


_MEASURES = (
    *("failed", "verdict", "in_rounds", "refined_by", "above_noise"),
    *("share", "share_low", "share_low_of_all", "cv", "cv_low", "noise_std"),
    *("requested", "above", "found"),
    *("rmse", "rmse_std", "recall", "recall_std", "ndcg", "ndcg_std", "users", "users_std"),
    *("rejected_share", "rejected_share_std"),
    *("share_std", "share_beyond_first", "share_beyond_first_std"),
    *("reconstruction_error", "reconstruction_error_std", "total_variance", "total_variance_std"),
)
"""Quality measures in a report, by their names in the ``outcome`` of the manifest."""
_AROUND = {"none": "zero; --center private subtracts a mean", "private": "a mean, which is also released"}
"""Descriptions of the center of the components, by the ``center`` in the ``plan`` of the manifest."""


def released_digest(release_id: str) -> str:
    """Return the artifact digest of a committed release."""
    return digest_of(read_workspace().ledger, release_id)


def digest_of(ledger: ReleaseLedger, release_id: str) -> str:
    """Return the artifact digest of a committed release in an open ledger."""
    digest = ledger.release(release_id).artifact_digest
    if digest is None:
        raise Refused(f"release {release_id} has no artifact, because it was never committed; run its request again")
    return digest


def made_or_found(ledger: ReleaseLedger, release_id: str, make: Callable[[], str]) -> str:
    """Return the artifact digest from ``make``, or from another process if it finished the release first."""
    try:
        return make()
    except Finished:
        log_event("finished_by_another", release=release_id)
        return digest_of(ledger, release_id)


def publish_release(release_id: str, digest: str, request: Request) -> str:
    """Commit a release together with its version under the request's name; return ``name@version``.

    When another process committed the release first, its artifact is published, even if the last bits of this
    process's artifact differ.

    Raises
    ------
    Refused
        When the request excludes such a release from publication. The release is committed all the same and stays
        charged.
    """
    return publish_in(open_workspace(), release_id, digest, request)


def publish_in(workspace: ReleaseWorkspace, release_id: str, digest: str, request: Request) -> str:
    """Publish a release in an open workspace, as `publish_release` does."""
    name = request.publish
    try:
        made = _wanted(workspace, release_id, digest, request)
        number = workspace.publish(release_id, name=name, artifact_digest=digest, made=made)
    except Finished:
        digest = digest_of(workspace.ledger, release_id)
        made = _wanted(workspace, release_id, digest, request)
        number = workspace.publish(release_id, name=name, artifact_digest=digest, made=made)
    except Conflict as error:
        if made == digest:
            raise
        raise Refused(
            f"this release is published as {name} with another refinement, and a version never "
            "changes; publish this refinement under another name, free of charge, with --publish, or publish= in "
            "Python."
        ) from error
    return f"{name}@{number}"


def _wanted(workspace: ReleaseWorkspace, release_id: str, digest: str, request: Request) -> str:
    """Return the digest of the artifact to publish: the release's own, or one derived from it as requested.

    Raises
    ------
    Refused
        When the request excludes such an artifact from publication. The release is committed first, without a version.
    """
    family = family_of(request)
    if not family.reads_artifact(request):
        return digest
    artifact = known_artifact(workspace.store, digest)
    made = family.restate(request, artifact, parent=digest)
    if reason := family.withheld(request, artifact if made is None else made):
        workspace.withhold(release_id, artifact_digest=digest)
        raise Refused(reason)
    return digest if made is None else write_artifact(made, home=workspace.home, place=workspace.store)


def kept_back(workspace: Workspace, release: Release) -> str | None:
    """Return the reason that a release will never be published; None if publication is still possible.

    Either an operator gave the release up, or it was committed and its own request excludes it from publication.
    """
    if release.state in GIVEN_UP:
        return f"it was {release.state} by an operator"
    if release.state != "committed":
        return None
    request, digest = reserved_request(release), digest_of(workspace.ledger, release.id)
    family = family_of(request)
    if not family.reads_artifact(request):
        return None
    artifact = read_artifact(workspace.store, digest)
    made = family.restate(request, artifact, parent=digest)
    return family.withheld(request, artifact if made is None else made)


def promote_version(artifact: str, alias: str) -> dict[str, Any]:
    """Point an alias of a name to one of its versions, given by any reference."""
    found = Registry.open().verify(artifact)
    Workspace.open().promote(found.name, version=found.version, alias=alias)
    return {"artifact": str(found), "alias": alias, "digest": found.digest}


def report_release(artifact: str, *, reused: bool) -> dict[str, Any]:
    """Return the public facts of a published release and of its population's budget."""
    return release_facts(read_workspace(), artifact, reused=reused)


def release_facts(workspace: ReleaseWorkspace, artifact: str, *, reused: bool) -> dict[str, Any]:
    """Return the public facts of a published release and its budget in an open workspace."""
    resolved = workspace.registry.resolve(artifact)
    shown = describe(resolved, known_artifact(workspace.store, resolved.digest))
    release = workspace.ledger.release(shown["release"])
    statement = workspace.ledger.statement(release.population, newest=0)
    outcome, plan = shown["manifest"].get("outcome") or {}, shown["manifest"].get("plan") or {}
    return {
        "artifact": artifact,
        "digest": shown["digest"],
        "release": release.id,
        "reused": reused,
        "private": shown["private"],
        "mechanism": shown["mechanism"],
        "relation": shown["relation"],
        "epsilon": shown["epsilon"],
        "delta": shown["delta"],
        "statement": shown["statement"],
        "noise_multiplier": shown["noise_multiplier"],
        **({"around": _AROUND[plan["center"]]} if "center" in plan else {}),
        **{name: outcome[name] for name in _MEASURES if name in outcome},
        "warnings": shown["manifest"].get("warnings", []),
        "population": release.population,
        "spent": statement.spent,
        "remaining": statement.remaining,
    }
