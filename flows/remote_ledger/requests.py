"""The stored request of a release, compared field by field with what a remote ledger knows itself.

A release goes on from its stored request, and people read there what was released. So everything of it that follows
from the catalog, the budget or the rest of it is worked out here again, and must be the same.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.prior_releases import main_mechanism
from flows.families.evaluation import EvaluationFamily
from flows.families.stored import asked_of, fingerprint_of, read_plan, read_request
from flows.families.table import FAMILIES, family_of
from flows.remote_ledger.messages import Asked
from flows.requests.base import Request
from storage.artifacts.manifest import canonical_json
from storage.datasets.catalog import Entry
from storage.errors import Refused
from storage.ledger.budgets import Budget

_CHOICE = "auto"


def check_family(request: Mapping[str, Any]) -> None:
    """Check that a remote ledger serves requests of this kind: of one dataset, in one release.

    A stream is ended by whoever commits its charge, what a site's key noised left it before its release ends, and an
    evaluation opens what a request names.

    Raises
    ------
    Refused
        When it is of a stream, its ticks, a site or an evaluation.
    """
    family = FAMILIES.get(str(request.get("family")))
    if family is None or isinstance(family, EvaluationFamily):
        raise Refused(
            "a remote ledger serves releases of one dataset; streams, sites and evaluations act where the ledger runs."
        )


def check_request(entry: Entry, budget: Budget, asked: Asked) -> None:
    """Check the stored request of a reservation: its dataset, guarantee, public facts, mechanism and fingerprint.

    Raises
    ------
    Refused
        With the first field that says something else than is known here.
    InvalidInput
        As the family refuses a request.
    """
    check_family(asked.request)
    request, plan = _read(asked)
    family, stored = family_of(request), asked.request["plan"]["problem"]
    try:
        problem = dataclasses.asdict(family.problem(request, entry, relation=budget.relation))
        mechanism = family.build(request)
        worked_out = [asked_of(request, mechanism, given=given) for given in _given(request)]
    except (AttributeError, KeyError, TypeError):
        raise _unreadable() from None
    _same("dataset", request.dataset, entry.name)
    _same("guarantee", (request.epsilon, request.delta), (asked.epsilon, asked.delta))
    _same("mechanism", plan.mechanism, mechanism.name)
    for name in sorted({*stored, *problem}):
        _same(f"{name} of the plan", stored.get(name), problem.get(name))
    if asked.fingerprint not in {fingerprint_of(entry.snapshot, made) for made in worked_out}:
        raise _different("fingerprint")
    _same("calibration", plan.printed, getattr(main_mechanism(mechanism), "calibration", "tight") == "paper")


def _read(asked: Asked) -> tuple[Request, Plan]:
    """Read a stored request, whose form nobody checked yet."""
    try:
        request = read_request(asked.request)
        plan = read_plan(asked.request, request, event=asked.event)
    except (AttributeError, KeyError, TypeError):
        plan = None
    if plan is None:
        raise _unreadable()
    return request, plan


def _given(request: Request) -> list[Request]:
    """Return the requests that can have come to one: itself, and the one that left the mechanism to public facts."""
    chosen = [] if request.settings else [dataclasses.replace(request, mechanism=_CHOICE)]
    return [request, *chosen]


def _same(what: str, said: Any, known: Any) -> None:
    if canonical_json({"": said}) != canonical_json({"": known}):
        raise _different(what)


def _unreadable() -> Refused:
    return Refused("the stored request of this release cannot be read here; run one version of dpca on both sides.")


def _different(what: str) -> Refused:
    return Refused(
        f"the stored request of this release states another {what} than follows from its dataset, budget and charge; "
        "plan it again, with one version of dpca on both sides."
    )
