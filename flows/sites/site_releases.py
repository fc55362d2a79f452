"""The releases of one site: it plans, charges and answers each by itself, under its operator's limits.

From the aggregator come the request, a digest of the joint plan to compare with its own, and the public arrays of a
round; which statistic is summed, how it is noised and what is charged, the site knows itself. A release that began is
found in the ledger, so a site that was restarted answers on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, Refused, StepMismatch
from dpca_tasks.mechanisms.sites.joint_plan import SeparateSums
from dpca_tasks.privacy.curator import Curator, Site
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.masks import Address, Masks, Message
from dpca_tasks.sites.roster import Roster
from flows.families.base import rows_by_policy
from flows.releases.site_plans import check_model
from flows.releases.site_stages import standing_key
from flows.reports.logs import log_event
from flows.sites.joint_plans import ASKED, PlannedJoint, plan_joint, request_of
from flows.sites.site_config import PartyConfig
from storage.datasets.catalog import Entry
from storage.ledger.ledger import Release
from storage.workspace import Workspace

FAMILY = "joint"
"""The family under which a site's ledger stores such a request."""


@dataclass(slots=True, kw_only=True, eq=False)
class SiteRelease:
    """A release under way at this site: its plan, its charge, and its curator from the first answer on."""

    planned: PlannedJoint
    release_id: str
    curator: Curator | None = None
    turn: Lock = field(default_factory=Lock)

    def query(self, public: Mapping[str, NDArray[Any]], *, index: int) -> RowSum:
        """Return what a round sums, as this site knows it, with the public arrays that are asked about."""
        query: RowSum = self.planned.mechanism.query(self.planned.plan, index=index, public=public)
        return query

    @property
    def roster(self) -> Roster:
        """Who shares noise."""
        if self.planned.plan.roster is None:
            raise Refused(f"{self.planned.mechanism.name} has no rounds; ask for the site's own part.")
        return self.planned.plan.roster


class SiteReleases:
    """All releases of a site.

    Parameters
    ----------
    config : PartyConfig
    client : distributed.Client, optional
        The site's own cluster; None sums in this process.
    """

    def __init__(self, config: PartyConfig, *, client: Client | None = None) -> None:
        assert config.limits is not None
        self._config, self._limits, self._client = config, config.limits, client
        self._open: dict[str, SiteRelease] = {}
        self._turn = Lock()

    def plan(self, facts: dict[str, Any]) -> PlannedJoint:
        """Plan a request, and compare it with what the aggregator planned.

        Raises
        ------
        Refused
            When roster or plan differ, or the operator's limits do not admit it.
        """
        facts = dict(facts)
        roster, digest = facts.pop("roster", None), facts.pop("plan", None)
        if roster != self._config.roster.digest:
            raise Refused("the roster of this request is not the one here; give every party the same roster file.")
        request = request_of(facts)
        self._limits.check(request)
        planned = plan_joint(self._config.roster, request)
        planned.plan_of(self._config.name)
        if digest != planned.digest:
            raise Refused(
                "the joint plan of this request is not the one computed here from the same roster and request; use one "
                "version at every party."
            )
        return planned

    def quote(self, planned: PlannedJoint) -> bool:
        """Ask the budget for a release; return whether it is charged already.

        Raises
        ------
        BudgetExhausted
            When the budget does not admit it.
        """
        workspace = Workspace.read_only()
        entry = self._entry(workspace, planned)
        if (found := workspace.ledger.find(self._key(workspace, planned, entry))) is not None:
            return found.state != "reserved"
        plan = planned.plan_of(self._config.name)
        target = plan.target
        quote = workspace.ledger.quote(entry.population, plan.event, epsilon=target.epsilon, delta=target.delta)
        if quote.refusal is not None:
            raise quote.refusal
        return False

    def reserve(self, planned: PlannedJoint) -> dict[str, Any]:
        """Charge a release, or find it; return what is public of it."""
        workspace = Workspace.open()
        entry = self._entry(workspace, planned)
        plan = planned.plan_of(self._config.name)
        grant = workspace.ledger.reserve(
            entry.population,
            run_key=self._key(workspace, planned, entry),
            fingerprint=planned.digest,
            event=plan.event,
            epsilon=plan.target.epsilon,
            delta=plan.target.delta,
            snapshot_id=entry.snapshot,
            request={**planned.facts, "mechanism": planned.mechanism.name, "family": FAMILY, "site": self._config.name},
        )
        log_event("reserved", release=grant.release_id, state=grant.state)
        with self._turn:
            known = self._open.get(planned.place)
            if known is None or known.release_id != grant.release_id:
                self._open[planned.place] = SiteRelease(planned=planned, release_id=grant.release_id)
        return {"release": grant.release_id}

    def find(self, place: str) -> SiteRelease:
        """Return a release that was reserved, also by an earlier process.

        Raises
        ------
        Refused
            When there is none.
        """
        with self._turn:
            if place not in self._open:
                self._open[place] = self._stored(place)
            return self._open[place]

    def message(
        self,
        release: SiteRelease,
        query: RowSum,
        *,
        roster: Roster,
        address: Address,
        seeds: Masks,
    ) -> Message:
        """Return the site's masked share of a round's query."""
        with release.turn:
            site = Site(name=self._config.name, curator=self._curator(release), seeds=seeds)
            return site.message(query, roster=roster, address=address)

    def stored_inputs(self, release: SiteRelease, *, index: int) -> dict[str, NDArray[Any]]:
        """Return the public arrays of a round that this site answered before; none where it did not."""
        mechanism, plan = release.planned.mechanism, release.planned.plan
        form = dict(mechanism.inputs(plan, index=index))
        if not form or Workspace.read_only().ledger.release(release.release_id).state == "reserved":
            return {}
        query = release.query(form, index=index)
        with release.turn:
            stored = self._curator(release).with_stored_inputs(query, step=index * release.roster.attempts)
        return {} if stored is query else stored.public_inputs()

    def noised_part(self, release: SiteRelease) -> NDArray[np.float64]:
        """Return what the method sends of the site's own noised release."""
        mechanism: SeparateSums = release.planned.mechanism
        if release.planned.plan.roster is not None:
            raise Refused(f"sites send nothing of their own in {mechanism.name}; ask for a round.")
        with release.turn:
            curator, release.curator = self._curator(release), None  # each part is of one step: the next starts anew
            return mechanism.noised_part(curator, release.planned.plan_of(self._config.name))

    def give_back(self, release: SiteRelease) -> None:
        """Abandon a reservation that never began."""
        ledger = Workspace.open().ledger
        if ledger.release(release.release_id).state == "reserved":
            ledger.abandon(release.release_id)
            log_event("given_back", release=release.release_id)
        self._forget(release)

    def finish(self, release: SiteRelease, *, digest: str) -> str:
        """Commit a release with the joint artifact; one that never began is given back. Return its state."""
        ledger = Workspace.open().ledger
        with release.turn:
            if ledger.release(release.release_id).state == "reserved":
                ledger.abandon(release.release_id)
            else:
                ledger.commit(release.release_id, artifact_digest=digest, record=lambda connection: None)
            self._forget(release)
        state = ledger.release(release.release_id).state
        log_event("finished", release=release.release_id, state=state)
        return state

    def _forget(self, release: SiteRelease) -> None:
        with self._turn:
            self._open.pop(release.planned.place, None)

    def _key(self, workspace: Workspace, planned: PlannedJoint, entry: Entry) -> str:
        return standing_key(workspace.ledger, f"{entry.population}/{FAMILY}/{planned.place}")

    def _stored(self, place: str) -> SiteRelease:
        workspace = Workspace.read_only()
        entry = workspace.catalog.current(self._config.dataset)
        row = workspace.ledger.find(standing_key(workspace.ledger, f"{entry.population}/{FAMILY}/{place}"))
        if row is None:
            raise Refused("no such release is reserved here; reserve it first.")
        return SiteRelease(planned=self._replanned(row), release_id=row.id)

    def _replanned(self, row: Release) -> PlannedJoint:
        told = {name: row.request[name] for name in (*ASKED, "roster", "plan") if name in row.request}
        planned = self.plan(told)
        if row.event != planned.plan_of(self._config.name).event:
            raise StepMismatch("the plan is not the one reserved; finish it with the version that reserved it.")
        return planned

    def _curator(self, release: SiteRelease) -> Curator:
        """Return the curator of a release, which begins with it."""
        if release.curator is None:
            workspace = Workspace.open()
            row = workspace.ledger.release(release.release_id)
            entry = workspace.catalog.entry(row.snapshot_id)
            reservation = workspace.ledger.begin(row.id)
            log_event("began", release=row.id, mechanism=release.planned.mechanism.name)
            planned = release.planned
            rows = rows_by_policy(
                workspace.catalog.open(entry), policy=planned.request.row_policy, clip_norm=planned.clip_norm
            )
            release.curator = Curator(rows, reservation, client=self._client)
        return release.curator

    def _entry(self, workspace: Workspace, planned: PlannedJoint) -> Entry:
        """Return the dataset's newest snapshot, if the roster's facts hold for it, and a model's its records."""
        entry, roster = workspace.catalog.current(self._config.dataset), self._config.roster
        bound, found = roster.site(self._config.name).records, entry.records_at_most
        budget = workspace.ledger.budget(entry.population)
        budget.check_unit(entry.name, entry.privacy_unit)
        for name, here, there in (
            ("columns", entry.n_features, roster.features),
            ("relation", budget.relation, roster.relation),
            ("unit of privacy", budget.privacy_unit, roster.unit),
        ):
            if here != there:
                raise InvalidInput(f"the dataset has {name} {here} and the roster states {there}; correct one of them.")
        if found is not None and found > bound:
            raise InvalidInput(
                f"the dataset has up to {found} records and the roster states {bound} for this site; raise that bound."
            )
        if planned.request.model is not None:
            check_model(planned.request, {self._config.dataset: entry.privacy_unit})
        return entry
