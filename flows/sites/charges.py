"""Budget charge of one site for a joint release, and the steps that follow the charge.

A charge is found by its run key. So a repeated request is charged only once, even if another process repeats it. The
same code charges a dataset of one home folder and a remote site of a roster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum
from dpca_tasks.records.blocks import BlockSource
from flows.families.base import rows_by_policy
from flows.reports.terminal import log_event
from flows.sites.plans import PlannedJoint
from storage.datasets.catalog import Entry
from storage.ledger.balance import Quote
from storage.ledger.ledger import Grant, Ledger, Release, Reservation
from storage.workspace import Workspace

_ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCharge:
    """The charge that a joint release makes at one site.

    Parameters
    ----------
    entry : Entry
        The snapshot that is read.
    plan : Plan
    run_key : str
        The name of the release in the site's ledger.
    fingerprint : str
        A digest of everything that was requested under the run key.
    request : mapping
        The facts of the request that the ledger stores.
    """

    entry: Entry
    plan: Plan
    run_key: str
    fingerprint: str
    request: Mapping[str, Any]

    def find(self, ledger: Ledger) -> Release | None:
        """Return the release, if it is charged already."""
        return standing(ledger, self.run_key)[1]

    def quote(self, ledger: Ledger) -> Quote:
        """Return what the charge would cost the budget, without making the charge."""
        target = self.plan.target
        return ledger.quote(self.entry.population, self.plan.event, epsilon=target.epsilon, delta=target.delta)

    def check(self, ledger: Ledger) -> bool:
        """Check that the budget admits the charge; return True, without a check, if it was charged already.

        Raises
        ------
        BudgetExhausted
            When the budget does not admit the charge.
        """
        if self.find(ledger) is not None:
            return True
        if (refusal := self.quote(ledger).refusal) is not None:
            raise refusal
        return False

    def reserve(self, ledger: Ledger) -> Grant:
        """Charge the release to the budget, or return the existing charge."""
        grant = ledger.reserve(
            self.entry.population,
            run_key=standing(ledger, self.run_key)[0],
            fingerprint=self.fingerprint,
            event=self.plan.event,
            epsilon=self.plan.target.epsilon,
            delta=self.plan.target.delta,
            snapshot_id=self.entry.snapshot,
            request=self.request,
        )
        log_event("reserved", release=grant.release_id, population=self.entry.population, state=grant.state)
        return grant


@dataclass(slots=True, kw_only=True, eq=False)
class SiteRelease:
    """A charged release of this site, with its plan. ``curator``, which adds the noise, is set at the first answer."""

    planned: PlannedJoint
    release_id: str
    curator: Curator | None = None
    turn: Lock = field(default_factory=Lock)

    def query(self, public: Mapping[str, NDArray[Any]], *, index: int) -> RowSum:
        """Return the query of a round, made from this site's plan and the public arrays of the request."""
        query: RowSum = self.planned.mechanism.query(self.planned.plan, index=index, public=public)
        return query


def standing(ledger: Ledger, run_key: str) -> tuple[str, Release | None]:
    """Return the run key to use for a charge, and the release already charged under this key, if any.

    An abandoned release blocks its run key. Then a key that ends in a number is used instead.
    """
    number, counted = 1, run_key
    while (found := ledger.find(counted)) is not None and found.state == _ABANDONED:
        number += 1
        counted = f"{run_key}/{number}"
    return counted, found


def begin_release(workspace: Workspace, row: Release, planned: PlannedJoint) -> tuple[BlockSource, Reservation]:
    """Begin or resume a release; return the rows and the reservation, from which `Curator` computes the noised sums."""
    reservation = workspace.ledger.begin(row.id)
    log_event("began", release=row.id, mechanism=planned.mechanism.name)
    rows = workspace.catalog.open(workspace.catalog.entry(row.snapshot_id))
    return rows_by_policy(rows, policy=planned.request.row_policy, clip_norm=planned.clip_norm), reservation


def give_back(ledger: Ledger, release_id: str) -> bool:
    """Abandon a release that never began; return False if the release began or ended."""
    if ledger.release(release_id).state != "reserved":
        return False
    ledger.abandon(release_id)
    log_event("given_back", release=release_id)
    return True
