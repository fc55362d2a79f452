"""A request of any family, checked and planned from public facts before anything is charged, once.

A plan reads no row. It is stored with the reservation, so that a release goes on from the plan that was charged,
whatever a later version of the program would plan.
"""

import hashlib
from typing import Any

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput
from flows.families.base import PlannedRelease
from flows.families.stored import asked_of, fingerprint_of, read_request, target_of
from flows.families.table import family_of
from flows.remote_ledger.workspaces import ReleaseWorkspace
from flows.requests.base import Request
from storage.artifacts.manifest import canonical_json
from storage.datasets.catalog import Entry
from storage.ledger.protocol import ReleaseLedger
from storage.ledger.releases import Release
from storage.privacy_unit import PrivacyUnit
from storage.registry.references import check_name

LONGEST_RUN_KEY = 200


def plan_request(workspace: ReleaseWorkspace, request: Request, slot: str | None = None) -> PlannedRelease[Any]:
    """Check a request against the catalog and the budget's terms, and plan its noise. No row is read.

    ``slot`` is the planned start of a scheduled run. A slot has one release of a request: asked for again, it keeps
    the snapshot that it began with, whatever was ingested since.
    """
    check_name(request.publish)
    if request.run_key is not None:
        check_run_key(request.run_key)
    ledger, catalog = workspace.ledger, workspace.catalog
    current = catalog.current(request.dataset)
    rule = family_of(request).one_row_rule(request)
    if rule is not None and current.rows_per_unit != 1:
        raise InvalidInput(f"a record of dataset {request.dataset!r} may have several rows, and {rule}")
    planned = plan_on(ledger, current, request, slot)
    has_own_key = slot is not None and not request.run_key
    begun = ledger.find(planned.run_key, population=planned.population) if has_own_key else None
    if begun is not None and begun.snapshot_id != planned.snapshot_id:
        return plan_on(ledger, catalog.entry(begun.snapshot_id), request, slot)
    family_of(request).check_ingest(request, lambda: catalog.open(current).manifest)
    return planned


def plan_on(ledger: ReleaseLedger, snapshot: Entry, request: Request, slot: str | None = None) -> PlannedRelease[Any]:
    """Plan a request on a snapshot in the relation of its budget; ``slot`` as in `plan_request`.

    Raises
    ------
    Refused
        When the snapshot has another unit of privacy than its budget.
    """
    budget = ledger.budget(snapshot.population)
    budget.check_unit(snapshot.name, snapshot.privacy_unit)
    return plan_in(budget.relation, snapshot, request, slot, unit=budget.privacy_unit)


def plan_in(
    relation: Relation, snapshot: Entry, request: Request, slot: str | None = None, *, unit: PrivacyUnit
) -> PlannedRelease[Any]:
    """Plan a request on a snapshot in a relation of neighbours that differ by a unit; ``slot`` as in `plan_request`."""
    family, target, given = family_of(request), target_of(request), request
    request = family.resolved(given, snapshot, relation=relation, target=target)
    mechanism = family.build(request)
    plan = mechanism.plan(family.problem(request, snapshot, relation=relation), target)
    family.check(request, plan)
    asked = asked_of(request, mechanism, given=given)
    fingerprint = fingerprint_of(snapshot.snapshot, asked)
    of_slot = f"{hashlib.sha256(canonical_json([snapshot.name]) + asked).hexdigest()}/{slot}"
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
    """Refuse a run key that is no short line of text."""
    if not run_key.strip() or not run_key.isprintable() or len(run_key) > LONGEST_RUN_KEY:
        raise InvalidInput(
            f"run key {run_key!r} must be printable text of 1 to {LONGEST_RUN_KEY} characters; choose another, or none."
        )
