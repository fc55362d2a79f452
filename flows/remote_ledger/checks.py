"""Checks of a remote ledger before it charges or commits a release that a client planned.

Pricing an event means computing its epsilon. The time and memory for this grow with the event's parameters, for example
with its number of steps. Therefore the parameters are compared with fixed bounds first. The events of dpca's mechanisms
are far inside these bounds.

A release resumes from its stored request, which also documents the release for readers. Therefore every field that can
be computed from the catalog, the budget or other fields is computed again here, and must be equal.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

from dpca.artifacts.base import canonical_json
from dpca.artifacts.files import read_artifact
from dpca.backends.base import Place
from dpca.errors import Invalid, Refused
from dpca_tasks.accounting.events import is_private, leaves, parts_of, spread_of_losses
from dpca_tasks.accounting.prices import own_price
from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.prior_releases import main_mechanism
from flows.families.base import (
    FAMILIES,
    family_named,
    family_of,
    fingerprint_of,
    read_plan,
    read_planned,
    read_request,
    release_facts,
    request_facts,
)
from flows.families.evaluation import EvaluationFamily
from flows.remote_ledger.messages import Priced, Requested
from flows.requests import Request
from storage.datasets.catalog import Catalog, Entry
from storage.ledger.budgets import Budget
from storage.ledger.releases import Release
from storage.options import options_of

MOST_PLACES = 20_000
"""Largest number of entries in the description of an event; an entry is a step with its number of repetitions."""
MOST_STEPS = 1_000_000
MOST_SAMPLED = 100_000
"""Largest number of steps of an event, and largest number of its steps on random samples of the rows."""
MOST_PARTS = 32
"""Largest number of different steps of an event."""
MULTIPLIERS = (1e-3, 2.0**30)
SAMPLED_MULTIPLIERS = (0.2, 2.0**30)
LEAST_RATE = 1e-12
LEAST_DELTA = 1e-60
LARGEST_EPSILON = 1000.0
"""Largest epsilon of a step that states only its (epsilon, delta), not its noise."""
WIDEST = 256.0
"""Largest width of the range of an event's total privacy loss. For comparison, a budget's epsilon is at most 100."""
_ROUNDING = 1e-6  # accepted relative excess of an epsilon, since calibration and pricing discretize losses differently
_LEAST_SHARE = 0.9  # least accepted ratio of the event's epsilon to the stated one; calibration reaches at least 0.99
_CHOICE = "auto"


def check_price(budget: Budget, requested: Priced) -> float:
    """Compute the epsilon of an event at its delta, and check that it does not exceed the stated epsilon; return it.

    Raises
    ------
    InvalidInput, Invalid
        When the event is not in the ledger's table, or exceeds the bounds for events of clients.
    Refused
        When the event has a larger epsilon than stated, or no guarantee at all.
    """
    replaced = budget.relation == "replace_one"
    check_bounds(requested, replaced=replaced)
    if not is_private(requested.event):
        raise Refused(
            "a release without privacy voids a budget permanently, and a remote ledger does not "
            "accept it; request it from the ledger's operator."
        )
    epsilon, delta = own_price(parts_of(requested.event, replaced=replaced), delta=requested.delta, replaced=replaced)
    if not math.isfinite(epsilon) or epsilon > requested.epsilon * (1 + _ROUNDING) or delta > requested.delta:
        raise Refused(
            f"the event (noise) of this release has epsilon {float(epsilon):.4g} at delta "
            f"{float(delta):.4g}, but the request states epsilon {requested.epsilon:g} at delta {requested.delta:g}; "
            "state the epsilon of the noise: a remote ledger does not accept a smaller one from a published formula."
        )
    return float(epsilon)


def check_spent(plan: Plan, requested: Requested, price: float) -> None:
    """Check that the epsilon of an event is close to the epsilon that the release states.

    If the stated epsilon were much larger, the budget would be charged less than the release states. A plan with the
    noise of a paper's formula is exempt, because it also states the epsilon of its event. `check_release` checks that
    the plan is of this kind.

    Raises
    ------
    Refused
        When the epsilon of the event is much smaller than the stated epsilon.
    """
    if not plan.printed and price < requested.epsilon * _LEAST_SHARE:
        raise Refused(
            f"the event (noise) of this release has epsilon {price:.4g}, but the request states epsilon "
            f"{requested.epsilon:g}; the charge must equal the stated epsilon: plan the release again."
        )


def check_release(catalog: Catalog, budget: Budget, requested: Requested) -> Plan:
    """Check the snapshot and the request of a release to be charged; return its plan.

    Raises
    ------
    NotFound
        When there is no such snapshot.
    Refused
        When the snapshot has another population or privacy unit than the budget, or `check_request` refuses the
        request.
    """
    entry = catalog.entry(requested.snapshot)
    if entry.population != requested.population:
        raise Refused(
            f"the snapshot of this release is not of population {requested.population!r}; charge the "
            "budget of the snapshot's population."
        )
    budget.check_unit(entry.name, entry.privacy_unit)
    return check_request(entry, budget, requested)


def check_artifact(place: Place, release: Release, digest: str, *, budget: Budget, parent: str | None = None) -> None:
    """Check that an artifact is intact, and that its manifest agrees with the release in the ledger.

    Parameters
    ----------
    place : Place
    release : Release
    digest : str
    budget : Budget
        The charged budget.
    parent : str, optional
        Digest of the artifact from which this one must be derived.

    Raises
    ------
    Corrupt
        When the artifact is missing or changed.
    Refused
        When the artifact is of another kind, or states another release, mechanism, noise or guarantee.
    """
    artifact = read_artifact(place, digest)
    planned = read_planned(release, unit=budget.privacy_unit)
    family = family_of(planned.request)
    if not isinstance(artifact, family.artifact):
        raise Refused(
            f"artifact {digest[:12]} is of another kind than release {release.id}; commit the artifact of this release."
        )
    known = json.loads(canonical_json(release_facts(family, planned, release_id=release.id)))
    if differing := _differing(artifact.manifest, known, planned.plan):
        raise Refused(
            f"artifact {digest[:12]} states another {differing} than the charge of release "
            f"{release.id}; commit the artifact of this release, made by the ledger's version of dpca."
        )
    if parent is not None and artifact.manifest.get("parent") != parent:
        raise Refused(f"artifact {digest[:12]} is not derived from {parent[:12]}; publish an artifact derived from it.")


def _differing(manifest: Mapping[str, Any], known: Mapping[str, Any], plan: Plan) -> str | None:
    """Return the name of the first fact in which a manifest differs from the ledger's facts; None if all agree.

    Only parameters that both have are compared, because versions of dpca may have different parameters. The number of
    components is not compared, because the manifest states how many components were kept.
    """
    for name in ("release", "mechanism"):
        if manifest.get(name) != known[name]:
            return name
    for part in ("privacy", "plan"):
        claimed = manifest.get(part) or {}
        for name in sorted({*claimed, *known[part]}):
            if name not in claimed or name not in known[part] or claimed[name] != known[part][name]:
                return f"{name} of {part}"
    claimed = manifest.get("parameters") or {}
    for name in sorted(({*claimed} & {*known["parameters"]}) - {"n_components"}):
        if claimed[name] != known["parameters"][name]:
            return f"{name} of parameters"
    clip_norm = getattr(plan.problem, "clip_norm", None)
    if clip_norm is not None and "clip_norm" in manifest and "clip_quantile" not in known["plan"]:
        return None if manifest["clip_norm"] == clip_norm else "clip_norm"
    return None


def check_family(request: Mapping[str, Any]) -> None:
    """Check that a request is for one release of one dataset; a remote ledger serves no other family of requests.

    Other families are excluded for these reasons. The process that charges a stream must also be able to end it. A
    site sends its noised sum to the aggregator before its release ends. An evaluation reads the artifact that its
    request names.

    Raises
    ------
    Refused
        When the request is for a stream, a tick, a site or an evaluation.
    """
    name = str(request.get("family"))
    if name not in FAMILIES or isinstance(family_named(name), EvaluationFamily):
        raise Refused(
            "a remote ledger accepts only releases of one dataset; run streams, sites and "
            "evaluations on the ledger's machine."
        )


def check_request(entry: Entry, budget: Budget, requested: Requested) -> Plan:
    """Check the stored request of a reservation against the catalog, budget and charge; return its plan.

    The check covers dataset, guarantee, public facts, mechanism and fingerprint.

    Raises
    ------
    Refused
        When a field differs from the ledger's value; the message names the first such field.
    InvalidInput
        When the request is invalid for its family.
    """
    check_family(requested.request)
    stored: Mapping[str, Any] = requested.request
    try:  # the stored request may lack fields or have fields of other types
        request = read_request(stored)
        plan = read_plan(stored, request, event=requested.event)
        family = family_of(request)
        problem = dataclasses.asdict(family.problem(request, entry, relation=budget.relation))
        mechanism = family.build(request)
        fingerprints = {
            fingerprint_of(
                entry.snapshot, request_facts(request, mechanism, given=each), start=family.starts_from(request)
            )
            for each in _given(request)
        }
    except (AttributeError, KeyError, TypeError):
        raise Refused(
            "the ledger cannot read the stored request of this release; use one version of dpca on both sides."
        ) from None
    _same("dataset", request.dataset, entry.name)
    _same("guarantee", (request.epsilon, request.delta), (requested.epsilon, requested.delta))
    _same("mechanism", plan.mechanism, mechanism.name)
    for name in sorted({*stored["plan"]["problem"], *problem}):
        _same(f"{name} of the plan", stored["plan"]["problem"].get(name), problem.get(name))
    if requested.fingerprint not in fingerprints:
        raise _different("fingerprint")
    _same("calibration", plan.printed, getattr(main_mechanism(mechanism), "calibration", "tight") == "paper")
    return plan


def _given(request: Request) -> list[Request]:
    """Return the requests that a user may have made, given the stored request, which names the chosen mechanism.

    They are the stored request itself and, if the mechanism may have been chosen, the same with ``mechanism=auto``.
    """
    (named,) = (option for option in options_of(type(request)) if option.name == "mechanism")
    may_choose = _CHOICE in named.words and not request.settings
    return [request, *([dataclasses.replace(request, mechanism=_CHOICE)] if may_choose else [])]


def _same(what: str, claimed: Any, known: Any) -> None:
    if canonical_json({"": claimed}) != canonical_json({"": known}):
        raise _different(what)


def _different(what: str) -> Refused:
    return Refused(
        f"the stored request of this release states another {what} than its dataset, budget and "
        "charge imply; plan it again, with one version of dpca on both sides."
    )


def check_bounds(requested: Priced, *, replaced: bool) -> None:
    """Check that an event and its guarantee can be priced in bounded time and memory.

    Raises
    ------
    InvalidInput
        When the event is not in the ledger's table.
    Invalid
        When the event exceeds a bound; the message names the first such bound.
    """
    places = list(islice(leaves(requested.event), MOST_PLACES + 1))
    _within("number of step entries in the event", len(places), most=MOST_PLACES)
    _within("number of steps of the event", sum(count for _, count in places), most=MOST_STEPS)
    if requested.delta:
        _within("delta", requested.delta, least=LEAST_DELTA)
    parts = parts_of(requested.event, replaced=replaced)
    different = len(parts.gaussians) + len(parts.sampled) + len(parts.approximate)
    _within("number of different steps", different, most=MOST_PARTS)
    _within("number of steps on samples of the rows", sum(parts.sampled.values()), most=MOST_SAMPLED)
    for multiplier in parts.gaussians:
        _within("noise_multiplier", multiplier, *MULTIPLIERS)
    for rate, multiplier in parts.sampled:
        _within("rate", rate, least=LEAST_RATE)
        _within("noise_multiplier on samples", multiplier, *SAMPLED_MULTIPLIERS)
    for epsilon, delta in parts.approximate:
        if math.isfinite(epsilon):  # an infinite epsilon means no noise
            _within("epsilon of a step", epsilon, most=LARGEST_EPSILON)
        if delta:
            _within("delta of a step", delta, least=LEAST_DELTA)
        if not (epsilon or delta):
            raise Invalid("a step of epsilon 0 and delta 0 releases nothing and is charged nothing; leave it out.")
    if parts.sampled:
        _within("range of privacy losses", spread_of_losses(parts), most=WIDEST)


def _within(what: str, found: float, least: float = 0.0, most: float = math.inf) -> None:
    if not least <= found <= most:
        rule = f"at most {most:g}" if found > most else f"at least {least:g}"
        shown = f"{found:g}" if found < 1e300 else "far more"
        raise Invalid(
            f"{what} is {shown}, but a remote ledger accepts {rule}; request less, or run the "
            "release on the ledger's machine."
        )
