"""A request as its reservation stores it, with the plan that was charged, and back.

A release goes on from what was stored, whatever a later version of the program would plan.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from dpca_tasks.accounting.events import Event
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import NO_GUARANTEE, Mechanism, Plan, PrivacyTarget
from flows.families.base import PlannedRelease
from flows.families.table import FAMILIES, family_of
from flows.requests.base import Request
from storage.artifacts.manifest import canonical_json
from storage.ledger.releases import Release
from storage.privacy_unit import PrivacyUnit

_FAMILY, _PLAN = "family", "plan"
_STORED_APART = ("event", "target")  # the event has a column; the target follows from the request


def stored_request(planned: PlannedRelease[Any]) -> dict[str, Any]:
    """Return what a reservation stores of a planned release: the request, its family, and the plan."""
    plan = {name: fact for name, fact in dataclasses.asdict(planned.plan).items() if name not in _STORED_APART}
    return {**dataclasses.asdict(planned.request), _FAMILY: planned.request.family, _PLAN: plan}


def read_request(stored: Mapping[str, Any]) -> Request:
    """Return the request that was stored."""
    facts = {name: fact for name, fact in stored.items() if name != _PLAN}
    family = FAMILIES[facts.pop(_FAMILY)]
    request: Request = family.request(**facts)
    return request


def read_plan(stored: Mapping[str, Any], request: Request, *, event: Event) -> Plan:
    """Return the plan that was stored with a request."""
    facts = stored[_PLAN]
    terms = family_of(request).terms
    known = {**facts, "problem": terms(**facts["problem"]), "notes": tuple(facts["notes"])}
    return Plan(**known, event=event, target=target_of(request))


def read_planned(release: Release, *, unit: PrivacyUnit) -> PlannedRelease[Any]:
    """Return the planned release that was reserved.

    ``unit`` is that of the budget that was charged, whose terms never change.
    """
    request = read_request(release.request)
    return PlannedRelease(
        request=request,
        population=release.population,
        unit=unit,
        snapshot_id=release.snapshot_id,
        mechanism=family_of(request).build(request),
        plan=read_plan(release.request, request, event=release.event),
        run_key=release.run_key,
        fingerprint=release.fingerprint,
    )


def asked_of(request: Request, mechanism: Mechanism[Any], *, given: Request) -> bytes:
    """Return what of a request makes it another one, but for its rows.

    A choice that is left to public facts in the request that was ``given`` is part of it, and what it came to is not.
    """
    family, target = family_of(request), target_of(given)
    parameters = family.parameters(mechanism) if request == given else {}
    guarantee = [None, None] if target.i_know_this_is_not_private else [target.epsilon, target.delta]
    return canonical_json([given.mechanism, parameters, *guarantee, *family.asked(given)])


def fingerprint_of(snapshot: str, asked: bytes) -> str:
    """Return the digest of a request on a snapshot."""
    return hashlib.sha256(canonical_json([snapshot]) + asked).hexdigest()


def target_of(request: Request) -> PrivacyTarget:
    """Return the guarantee asked for; of references none, whatever numbers stand beside it.

    Raises
    ------
    InvalidInput
        When a private mechanism has none, or is said not to be private.
    """
    references = family_of(request).references
    if request.mechanism in references:
        return dataclasses.replace(NO_GUARANTEE, i_know_this_is_not_private=request.i_know_this_is_not_private)
    if request.i_know_this_is_not_private:
        raise InvalidInput(
            f"mechanism {request.mechanism!r} is private, and --i-know-this-is-not-private is for "
            f"{', '.join(references) or 'references'}; leave it out."
        )
    if request.epsilon is None or request.delta is None:
        raise InvalidInput(f"mechanism {request.mechanism!r} needs an epsilon and a delta; state both.")
    return PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
