"""What a remote ledger checks of a release that another process planned and made, before it charges or commits it."""

import json
import math
from collections.abc import Mapping
from typing import Any

from dpca_tasks.accounting.events import is_private
from dpca_tasks.accounting.parts import parts_of
from dpca_tasks.accounting.prices import own_price
from dpca_tasks.mechanisms.base import Plan
from flows.families.base import release_facts
from flows.families.stored import read_planned
from flows.families.table import family_of
from flows.remote_ledger.bounds import check_bounds
from flows.remote_ledger.messages import Asked, Priced
from flows.remote_ledger.requests import check_family, check_request
from storage.artifacts.files import read_artifact
from storage.artifacts.manifest import canonical_json
from storage.backends.base import Place
from storage.datasets.catalog import Catalog
from storage.errors import Refused
from storage.ledger.budgets import Budget
from storage.ledger.releases import Release

_ROUNDING = 1e-6  # sampled steps are calibrated and priced on grids of losses
_LEAST_SHARE = 0.9  # of the stated epsilon that a price comes to; a calibration stops at 1 %


def check_price(budget: Budget, asked: Priced) -> float:
    """Price an event, and compare that with the guarantee that is stated of it; return its epsilon.

    Raises
    ------
    InvalidInput, Invalid
        When the event is none of the ledger's table, or outside the bounds of what is priced for others.
    Refused
        When its noise guarantees less than is stated, or nothing.
    """
    replaced = budget.relation == "replace_one"
    check_bounds(asked, replaced=replaced)
    if not is_private(asked.event):
        raise Refused(
            "a release without privacy voids a budget for good, and is made where the ledger runs; ask its operator."
        )
    epsilon, delta = own_price(parts_of(asked.event, replaced=replaced), delta=asked.delta, replaced=replaced)
    if not math.isfinite(epsilon) or epsilon > asked.epsilon * (1 + _ROUNDING) or delta > asked.delta:
        raise Refused(
            f"the event of this release has epsilon {float(epsilon):.4g} at delta {float(delta):.4g}, and epsilon "
            f"{asked.epsilon:g} at delta {asked.delta:g} is stated of it; state what its noise guarantees: a ledger "
            "apart takes no printed formula that gives less."
        )
    return float(epsilon)


def check_spent(asked: Asked, price: float) -> None:
    """Check that a release is charged for about the epsilon that it states: who states more would publish for less.

    A plan of printed noise states the epsilon of its event too, and `check_release` checks that it is one.

    Raises
    ------
    Refused
        When its event costs less.
    """
    if not asked.request["plan"].get("printed") and price < asked.epsilon * _LEAST_SHARE:
        raise Refused(
            f"the event of this release has epsilon {price:.4g}, and epsilon {asked.epsilon:g} is stated of it; what "
            "is charged is what is stated: plan it again."
        )


def check_release(catalog: Catalog, budget: Budget, asked: Asked) -> None:
    """Check that the snapshot is of the population that pays, and that the request states what is charged for it.

    Raises
    ------
    NotFound
        When there is no such snapshot.
    Refused
        When it is of others, or of another unit of privacy, or as `flows.remote_ledger.requests.check_request`.
    """
    check_family(asked.request)
    entry = catalog.entry(asked.snapshot)
    if entry.population != asked.population:
        raise Refused(
            f"the snapshot of this release is not of population {asked.population!r}; who is in the rows pays: "
            "charge their budget."
        )
    budget.check_unit(entry.name, entry.privacy_unit)
    check_request(entry, budget, asked)


def check_artifact(place: Place, release: Release, digest: str, *, budget: Budget, parent: str | None = None) -> None:
    """Check that an artifact is in the registry, whole, and states of a release what the ledger knows of it.

    Parameters
    ----------
    place : Place
    release : Release
    digest : str
    budget : Budget
        That was charged.
    parent : str, optional
        The artifact that it must be made of.

    Raises
    ------
    Corrupt
        When it is missing or changed.
    Refused
        When it is of another kind, or states another release, mechanism, noise or guarantee.
    """
    artifact = read_artifact(place, digest)
    planned = read_planned(release, unit=budget.privacy_unit)
    family = family_of(planned.request)
    if not isinstance(artifact, family.artifact):
        raise Refused(f"artifact {digest[:12]} is of another kind than release {release.id}; commit its own.")
    known = json.loads(canonical_json(release_facts(family, planned, release_id=release.id)))
    if differing := _differing(artifact.manifest, known, planned.plan):
        raise Refused(
            f"artifact {digest[:12]} states another {differing} than release {release.id} was charged for; commit the "
            "artifact of this release, made by the version of dpca that runs here."
        )
    if parent is not None and artifact.manifest.get("parent") != parent:
        raise Refused(f"artifact {digest[:12]} is not made of {parent[:12]}; publish what was made of that.")


def _differing(manifest: Mapping[str, Any], known: Mapping[str, Any], plan: Plan) -> str | None:
    """Return the first fact that a manifest states otherwise than it is known, if any.

    Of parameters, the number of components is what was kept, and versions may know more or fewer.
    """
    for name in ("release", "mechanism"):
        if manifest.get(name) != known[name]:
            return name
    for part in ("privacy", "plan"):
        said = manifest.get(part) or {}
        for name in sorted({*said, *known[part]}):
            if name not in said or name not in known[part] or said[name] != known[part][name]:
                return f"{name} of {part}"
    said = manifest.get("parameters") or {}
    for name in sorted(({*said} & {*known["parameters"]}) - {"n_components"}):
        if said[name] != known["parameters"][name]:
            return f"{name} of parameters"
    clip_norm = getattr(plan.problem, "clip_norm", None)
    if clip_norm is not None and "clip_norm" in manifest and "clip_quantile" not in known["plan"]:
        return None if manifest["clip_norm"] == clip_norm else "clip_norm"
    return None
