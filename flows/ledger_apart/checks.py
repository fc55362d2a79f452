"""What a ledger apart checks of a release that another process planned and made, before it charges or commits it."""

import math
from collections.abc import Mapping
from typing import Any

from dpca_tasks.accounting.events import is_private
from dpca_tasks.accounting.parts import parts_of
from dpca_tasks.accounting.prices import own_price
from flows.families.table import FAMILIES
from flows.ledger_apart.bounds import check_bounds
from flows.ledger_apart.messages import Asked, Priced
from storage.artifacts.files import read_artifact
from storage.backends.base import Place
from storage.datasets.catalog import Catalog
from storage.errors import Refused
from storage.ledger.budgets import Budget
from storage.ledger.releases import Release

_ROUNDING = 1e-6  # sampled steps are calibrated and priced on grids of losses


def check_price(budget: Budget, asked: Priced) -> None:
    """Price an event, and compare that with the guarantee that is stated of it.

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


def check_family(request: Mapping[str, Any]) -> None:
    """Check that a stored request is of a kind that is released through a ledger apart: of one dataset, in one release.

    A stream is ended by whoever commits its charge, and what a site's key noised left it before its release ends.

    Raises
    ------
    Refused
        When it is of a stream, its ticks or a site.
    """
    if request.get("family") not in FAMILIES:
        raise Refused("a ledger apart serves releases of one dataset; streams and sites act where the ledger runs.")


def check_release(catalog: Catalog, asked: Asked) -> None:
    """Check that the snapshot is of the population that pays, and that the request states the same guarantee.

    Raises
    ------
    NotFound
        When there is no such snapshot.
    Refused
        When it is of others, or the request is of another kind or states another guarantee.
    """
    check_family(asked.request)
    if catalog.entry(asked.snapshot).population != asked.population:
        raise Refused(
            f"the snapshot of this release is not of population {asked.population!r}; who is in the rows pays: "
            "charge their budget."
        )
    stated = (asked.request.get("epsilon"), asked.request.get("delta"))
    if stated != (asked.epsilon, asked.delta):
        raise Refused("the stored request of this release states another guarantee than its charge; plan it again.")


def check_owners(owners: frozenset[str | None], name: str, *, populations: frozenset[str]) -> None:
    """Check that a name is new, or that all who publish it are among some populations.

    Raises
    ------
    Refused
        When others publish it.
    """
    if not owners <= populations:
        raise Refused(f"others than this client's populations publish {name!r}; choose another name.")


def check_artifact(place: Place, release: Release, digest: str, *, parent: str | None = None) -> None:
    """Check that an artifact is in the registry, whole, and tells of a release what the ledger does.

    Parameters
    ----------
    place : Place
    release : Release
    digest : str
    parent : str, optional
        The artifact that it must be made of.

    Raises
    ------
    Corrupt
        When it is missing or changed.
    Refused
        When it tells of another release, event or guarantee.
    """
    manifest: Mapping[str, Any] = read_artifact(place, digest).manifest
    told = manifest.get("privacy") or {}
    found = (manifest.get("release"), told.get("event"), told.get("epsilon"), told.get("delta"))
    if found != (release.id, release.event, release.epsilon, release.delta):
        raise Refused(
            f"artifact {digest[:12]} tells of another release, event, epsilon or delta than {release.id}; commit the "
            "artifact of this release."
        )
    if parent is not None and manifest.get("parent") != parent:
        raise Refused(f"artifact {digest[:12]} is not made of {parent[:12]}; publish what was made of that.")
