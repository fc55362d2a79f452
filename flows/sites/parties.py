"""The sites of a joint release: datasets of one home folder, or the parties of a roster.

The stages of a release use the protocol `Sites`. Each site is queried and charged separately. With `DatasetSites`, this
process reads the rows of all sites. The budgets of all sites are in one ledger, which publishes the joint result as the
release of the first site. `RosterSites` calls remote sites, each with a separate ledger. With them, this process is the
aggregator: it reads no row, and publishes a joint release that lists the releases of the sites.

A remote site that does not answer within the timeout is called silent. The plan bounds the size of each answer.
"""

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca.errors import BudgetExhausted, Finished, StorageError, Unavailable
from dpca_tasks.errors import InvalidInput, Refused, SiteSilent, StepTaken
from dpca_tasks.mechanisms.base import Components, Plan, Subspace
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties, NoisedPart, noise_of
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.roster import Address, Message, Roster
from dpca_tasks.sites.rounds import Opened, open_round
from dpca_tasks.sites.secure_sum.attempt import Begin, Line, open_sum
from flows.clusters.connecting import connect, reach_cluster
from flows.parties.calling import Caller, Frame, packed, unpacked
from flows.releases.running import summing, warn_of_budget
from flows.releases.stages import digest_of
from flows.reports.activity import begin_step
from flows.reports.terminal import about, log_event, spending
from flows.requests import SitesRequest
from flows.settings import cluster_settings
from flows.sites.charges import SiteCharge, begin_release, give_back
from flows.sites.masks import longest_exchange, scene_of
from flows.sites.plans import FAMILY, PlannedJoint, plan_over_datasets, plan_over_roster, with_parent
from flows.sites.roster import SECURE_SUM, read_roster
from storage.workspace import Workspace

RESENDS = 1
_DEALING = 16  # random bytes in the name of a dealing (set of mask seeds)

type Lineage = Sequence[Mapping[str, Any]]
"""Public facts of each site's release, as in the manifest of an artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotes:
    """Result of comparing a planned release with all budgets: its cost, and the first refusal, if any.

    Parameters
    ----------
    sites : sequence of mapping
        Public facts of each site; ``exists`` is True if its release is charged already.
    cost : str
        The budgets to be charged and what is left of each, as part of a sentence.
    refusal : BudgetExhausted, optional
        The first refusal of a budget.
    """

    sites: Sequence[dict[str, Any]]
    cost: str
    refusal: BudgetExhausted | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The post-processed result of a release, with the facts that the artifact states.

    Parameters
    ----------
    result : Subspace or Components
    total : Plan
        The noise of the result, which exceeds the planned noise if sites were lost.
    release_id : str
        The id under which the result is published.
    releases : mapping
        The release id of each site that took part, by site name.
    """

    result: Subspace | Components
    total: Plan
    release_id: str
    releases: Mapping[str, str]


class Sites(Protocol):
    """Interface to all sites of a release, local or remote; leaving its context closes the connections."""

    @property
    def planned(self) -> PlannedJoint:
        """The planned release."""

    def found(self) -> str:
        """Return the digest of the artifact of an earlier run of the release; empty if there is none."""

    def quotes(self) -> Quotes:
        """Check whether every budget admits the release, without a charge."""

    def prepare(self, quotes: Quotes) -> None:
        """Raise `Unavailable` if the cluster cannot be reached, or if too many sites are silent."""

    def reserve(self, name: str) -> str:
        """Charge a site, or find its charge; return the release id. Raises `SiteSilent` and `BudgetExhausted`."""

    def give_back(self, names: Sequence[str]) -> None:
        """Abandon reservations that this run made, if their releases never began."""

    def answer(self, releases: Mapping[str, str], address: str) -> Answered:
        """Run all rounds of the reserved releases; ``address`` is the Dask cluster that computes local sums."""

    def publish(self, digest: str, sites: Lineage) -> tuple[int, str]:
        """Publish the artifact under the request's name; return the version and the digest of its artifact."""

    def finish(self, digest: str, sites: Lineage) -> list[str]:
        """Commit the release of every site with the artifact; return the silent sites."""

    def published_facts(self, sites: Lineage) -> list[dict[str, Any]]:
        """Return the facts to report about each site after its release was published."""

    def __enter__(self) -> "Sites": ...  # noqa: D105

    def __exit__(self, *_: object) -> bool | None: ...  # noqa: D105


def sites_of(request: SitesRequest, workspace: Workspace, releases: Mapping[str, str] | None = None) -> Sites:
    """Return the sites of a request; with ``releases``, local sites use the snapshots of these reserved releases."""
    if request.roster is None:
        return DatasetSites(request, workspace, releases)
    return RosterSites(request, workspace)


class DatasetSites(AbstractContextManager["DatasetSites"]):
    """Sites that are datasets of one home folder, each with its own population and budget; see `Sites`.

    Parameters
    ----------
    request : SitesRequest
    workspace : Workspace
    releases : mapping, optional
        The reserved releases. Their snapshots are used, even if newer ones were ingested since.
    """

    def __init__(self, request: SitesRequest, workspace: Workspace, releases: Mapping[str, str] | None = None) -> None:
        self._request, self._workspace, self._ledger = request, workspace, workspace.ledger
        self._reserved = {name: self._ledger.release(each) for name, each in (releases or {}).items()}
        self._new: dict[str, str] = {}

    def __exit__(self, *_: object) -> None:
        """Do nothing: local sites have no connections to close."""

    @cached_property
    def planned(self) -> PlannedJoint:
        """The planned release."""
        lead = next(iter(self._reserved.values()), None)
        snapshots = None if lead is None else lead.request["snapshots"]
        return plan_over_datasets(self._workspace, self._request, snapshots)

    @cached_property
    def _charges(self) -> dict[str, SiteCharge]:
        planned = self.planned
        named = self._request.run_key or planned.fingerprint
        stored = {
            **dataclasses.asdict(self._request),
            **{"mechanism": planned.mechanism.name, "family": FAMILY},
            "snapshots": [entry.snapshot for entry in planned.snapshots],
        }
        return {
            name: SiteCharge(
                entry=entry,
                plan=planned.plan_of(name),
                run_key=f"{entry.population}/{FAMILY}/{named}",
                fingerprint=planned.fingerprint,
                request=stored,
            )
            for name, entry in zip(planned.names, planned.snapshots, strict=False)  # sites that take no part come last
        }

    def found(self) -> str:
        """Return the artifact digest of the first site's release; empty if that release is not committed."""
        lead = self._charges[self.planned.names[0]].find(self._ledger)
        if lead is None or lead.fingerprint != self.planned.fingerprint:
            return ""
        return lead.artifact_digest or ""

    def quotes(self) -> Quotes:
        """Compare the release with every budget without charging any."""
        sites: list[dict[str, Any]] = []
        costs, refusals = [], []
        for name, charge in self._charges.items():
            statement, quote = self._ledger.statement(charge.entry.population, newest=0), charge.quote(self._ledger)
            exists = charge.find(self._ledger) is not None
            after = statement.remaining if exists else statement.after(quote)
            costs.append(spending(f"of budget {charge.entry.population!r}", remaining=statement.remaining, after=after))
            if quote.refusal is not None and not exists:
                refusals.append(quote.refusal)
            sites.append(
                {
                    **{"dataset": name, "population": charge.entry.population},
                    "noise_multiplier": charge.plan.noise_multiplier,
                    **{"spent": statement.spent, "remaining": statement.remaining, "remaining_after": after},
                    "exists": exists,
                }
            )
        return Quotes(sites=sites, cost=", and ".join(costs), refusal=next(iter(refusals), None))

    def prepare(self, quotes: Quotes) -> None:
        """Check that a running cluster can be reached, unless all sites are charged already."""
        if not all(site["exists"] for site in quotes.sites):
            reach_cluster(cluster_settings())

    def reserve(self, name: str) -> str:
        """Charge a site's budget, or find its release."""
        charge = self._charges[name]
        grant = charge.reserve(self._ledger)
        if grant.is_new:
            self._new[name] = grant.release_id
        warn_of_budget(self._ledger, grant.release_id, charge.entry.population)
        return grant.release_id

    def give_back(self, names: Sequence[str]) -> None:
        """Abandon the reservations of this run; if that fails, the reservation remains for the next attempt."""
        for name in names:
            if name in self._new:
                with suppress(StorageError):
                    give_back(self._ledger, self._new[name])

    def answer(self, releases: Mapping[str, str], address: str) -> Answered:
        """Compute the release of all sites on the cluster at an address.

        Raises
        ------
        StepMismatch
            When this version plans another event for a site than the reserved one.
        """
        planned, rows = with_parent(self.planned), self._reserved
        for name, row in rows.items():
            planned.check_reserved(name, row.event)
        lead = rows[planned.names[0]]
        with about(release=lead.id, run_key=lead.run_key), connect(address) as client:
            begun = [begin_release(self._workspace, row, planned) for row in rows.values()]
            begin_step("loading rows and code")
            began, result = time.monotonic(), None
            while result is None:
                curators = [Curator(*each, client=client, progress=summing()) for each in begun]
                with suppress(StepTaken):
                    parties = LocalParties(curators=curators, roster=planned.plan.roster)
                    result = planned.mechanism.run(parties, planned.plan)
            log_event("computed", seconds=round(time.monotonic() - began, 3))
        return Answered(result=result, total=planned.plan.total, release_id=lead.id, releases=releases)

    def publish(self, digest: str, sites: Lineage) -> tuple[int, str]:
        """Commit the first site's release and publish the version under it.

        If that release is committed already, the artifact of the earlier commit is published.
        """
        lead, name = sites[0]["release"], self._request.publish
        try:
            return self._workspace.publish(lead, name=name, artifact_digest=digest), digest
        except Finished:
            digest = digest_of(self._ledger, lead)
            return self._workspace.publish(lead, name=name, artifact_digest=digest), digest

    def finish(self, digest: str, sites: Lineage) -> list[str]:
        """Commit the releases of the other sites."""
        for site in sites[1:]:
            self._workspace.withhold(site["release"], artifact_digest=digest)
        return []

    def published_facts(self, sites: Lineage) -> list[dict[str, Any]]:
        """Return the release of each site, with the spent and remaining budget."""
        found = []
        for release in (self._ledger.release(site["release"]) for site in sites):
            statement = self._ledger.statement(release.population, newest=0)
            found.append(
                {
                    **{"population": release.population, "release": release.id},
                    **{"spent": statement.spent, "remaining": statement.remaining},
                }
            )
        return found


class RosterSites(AbstractContextManager["RosterSites"]):
    """Sites that a roster file lists, queried concurrently over separate connections; see `Sites`.

    The class implements `dpca_tasks.mechanisms.sites.joint_plan.Parties`, so a mechanism can run its rounds over it. A
    repeated request has the same release name, so each site finds its release. The site then repeats its stored
    answers, without new noise and without a charge.

    Parameters
    ----------
    request : SitesRequest
    workspace : Workspace
        The aggregator's workspace, which publishes the release.
    """

    def __init__(self, request: SitesRequest, workspace: Workspace) -> None:
        assert request.roster is not None
        self._request, self._workspace, self.roster = request, workspace, read_roster(request.roster)
        self.planned = plan_over_roster(self.roster, request)
        """The planned release."""
        self._pool = ThreadPoolExecutor(max_workers=len(self.planned.names), thread_name_prefix="site")
        self._answered = self.planned.plan.roster  # the roster (list of sites) of the last answered round
        self._took_part: set[str] = set()  # sites whose sums or separate releases are in the result

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        self._pool.shutdown()
        if "parties" in self.__dict__:
            for party in self.parties.values():
                party.caller.close()

    @cached_property
    def parties(self) -> "dict[str, RemoteParty]":
        """The connection to each site.

        Raises
        ------
        InvalidInput
            When this process does not have the aggregator's key.
        """
        key = cluster_settings().sites_key
        if key is None or not key.is_file():
            raise InvalidInput(
                "DPCA_SITES_KEY is not a file, and sites answer only the roster's aggregator; set it to the private "
                "key of the aggregator's certificate."
            )
        certificate = key.with_suffix(".pem")
        if not certificate.is_file() or certificate.read_text("ascii") != self.roster.aggregator.certificate:
            raise InvalidInput(
                f"{certificate} is not the aggregator's certificate in the roster; put that certificate next to the "
                "key."
            )
        shown: dict[str, Any] = {"certificate": certificate, "key": Path(key), "timeout": self.roster.timeout}
        sites = (self.roster.site(name) for name in self.planned.names)
        return {site.name: RemoteParty(self.planned, Caller(site, **shown)) for site in sites}

    def found(self) -> str:
        """Return the digest of the artifact with which the joint release was published; empty before that."""
        return self._workspace.digest_of_joint(self.planned.joint_id) or ""

    def quotes(self) -> Quotes:
        """Request a quote from every site; request nothing if the release was published already."""
        names = self.planned.names
        cost = f"of a budget of each of the sites {', '.join(names)}, whose remaining budget only their operators see"
        sites: list[dict[str, Any]] = []
        for name in () if self.found() else names:
            try:
                exists = self.parties[name].caller.call("/v1/quote", self.planned.facts).fact("exists", bool)
                sites.append({"site": name, "answers": True, "exists": exists})
            except SiteSilent:
                sites.append({"site": name, "answers": False, "exists": False})
            except BudgetExhausted as refused:
                return Quotes(sites=(), cost=cost, refusal=refused)
        return Quotes(sites=sites, cost=cost)

    def prepare(self, quotes: Quotes) -> None:
        """Raise `Unavailable` if a site is silent, and either the roster or the method requires every site."""
        spare = self.roster.attempts > 1 and self.planned.plan.roster is not None
        silent = [site["site"] for site in quotes.sites if not site["answers"]]
        if silent and not spare:
            raise Unavailable(
                f"sites {', '.join(silent)} did not answer; run the same request when they are available."
            )

    def reserve(self, name: str) -> str:
        """Request that a site charge its budget or find its release; return the release's id."""
        release: str = self.parties[name].caller.call("/v1/reserve", self.planned.facts).fact("release", str)
        return release

    def give_back(self, names: Sequence[str]) -> None:
        """Request that sites abandon reservations that never began."""
        self._report_all("give_back", {}, names)

    def answer(self, releases: Mapping[str, str], address: str) -> Answered:
        """Request the answers of the sites to all rounds."""
        planned = with_parent(self.planned)
        result = planned.mechanism.run(self, planned.plan)
        log_event("computed", joint=planned.joint_id, sites=len(self._took_part))
        total = planned.plan.total
        if self._answered is not None and planned.plan.roster is not None:
            total = noise_of(total, planned=planned.plan.roster, answered=self._answered)
        return Answered(
            result=result,
            total=total,
            release_id=planned.joint_id,
            releases={
                name: releases.get(name) or self.reserve(name)  # repeats a request whose answer was lost
                for name in planned.names
                if name in self._took_part
            },
        )

    def publish(self, digest: str, sites: Lineage) -> tuple[int, str]:
        """Publish the joint release in the aggregator's registry; only the ledgers of the sites are charged."""
        name, joint_id = self._request.publish, self.planned.joint_id
        return self._workspace.publish_joint(joint_id, name=name, artifact_digest=digest, sites=sites), digest

    def finish(self, digest: str, sites: Lineage) -> list[str]:
        """Request that every site commit its release; return the silent sites.

        A site that did not contribute to the artifact gives back its reservation.
        """
        part = [site["site"] for site in sites]
        silent = self._report_all("finish", {"artifact": digest}, part)
        for name in (each for each in self.planned.names if each not in part):
            with suppress(Refused):  # a site that was silent may have reserved nothing, and then refuses
                silent += self._report_all("finish", {"artifact": digest}, [name])
        return silent

    def published_facts(self, sites: Lineage) -> list[dict[str, Any]]:
        """Return the release of each site, without the remaining budget, which only the site's operator may see."""
        return [dict(site) for site in sites]

    def open[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Opened[Q]:
        """Unmask the total of a round over all sites of a roster, or over the remaining sites if some are silent."""
        dealing = os.urandom(_DEALING).hex()
        for party in self.parties.values():
            party.dealing = dealing
        sites = [self.parties[name] for name in roster.names]
        sum_over = self._secure_sum if self.roster.masks == SECURE_SUM else None
        opened = open_round(
            sites, query, roster=roster, index=index, resends=RESENDS, call_all=self._pool.map, sum_over=sum_over
        )
        self._answered = opened.roster
        self._took_part.update(opened.roster.names)
        return opened

    def _secure_sum(self, query: RowSum, *, roster: Roster, address: Address) -> tuple[NDArray[np.int64], Roster]:
        """Unmask the sum of one attempt by a secure sum, which needs no helper.

        The attempt has the smallest number that no site has begun, in this run or an earlier run.
        """

        def call(party: RemoteParty) -> int:
            try:
                return party.next_attempt(address.round)
            except SiteSilent:
                return 0

        sites = [self.parties[name] for name in roster.names]
        address = Address(round=address.round, attempt=max(self._pool.map(call, sites)))
        scene = scene_of(self.roster, query, roster=roster, address=address)
        lines = {party.name: party.line(query, roster=roster, address=address) for party in sites}
        total = open_sum(scene, lines)
        lost = set(roster.names) - set(total.senders)
        return total.integers, roster.without(*lost) if lost else roster

    def noised_parts(self, part: NoisedPart, plans: Sequence[Plan]) -> list[NDArray[np.float64]]:
        """Return the arrays that the sites send from their separately noised releases."""
        order = self.planned.plan.total.problem.n_features
        most = 8 * order * order

        def call(party: RemoteParty) -> NDArray[np.float64]:
            try:
                array = party.call("part", {}, most=most).arrays.get("part")
            except SiteSilent as silent:
                raise Unavailable(
                    f"{silent} The release needs this site: run the same request when the site is available."
                ) from None
            mechanism, plan = self.planned.mechanism, self.planned.plan_of(party.name)
            if array is None or array.dtype != np.float64 or not mechanism.is_part(array, plan):
                raise Refused(f"site {party.name!r} sent a part whose format differs from the plan.")
            return array

        parts = list(self._pool.map(call, self.parties.values()))
        self._took_part.update(self.planned.names)
        return parts

    def _report_all(self, route: str, facts: dict[str, Any], names: Sequence[str]) -> list[str]:
        """Send the sites a request about the release concurrently; return the silent sites."""

        def is_silent(party: RemoteParty) -> bool:
            try:
                party.call(route, facts)
            except SiteSilent:
                return True
            return False

        silent = self._pool.map(is_silent, [self.parties[name] for name in names])
        return [name for name, is_one in zip(names, silent, strict=True) if is_one]


class RemoteParty:
    """A remote site; implements `dpca_tasks.sites.rounds.Party`.

    Parameters
    ----------
    planned : PlannedJoint
    caller : Caller
    """

    def __init__(self, planned: PlannedJoint, caller: Caller) -> None:
        self.name, self.caller, self._planned = caller.name, caller, planned
        self._folder = f"/v1/releases/{planned.place}"
        self.dealing = ""  # name of the dealing (set of mask seeds): the same for all sites, set before each attempt

    def call(self, route: str, facts: dict[str, Any], **others: Any) -> Frame:
        """Send a request about the release, and return the answer."""
        return self.caller.call(f"{self._folder}/{route}", facts, **others)

    def message(self, query: RowSum, *, roster: Roster, address: Address) -> Message:
        """Return the site's sum for a query, hidden by masks."""
        facts = {
            **{"round": address.round, "attempt": address.attempt, "dealing": f"{self.dealing}-{address.attempt}"},
            **{"names": list(roster.names), "roster": roster.digest.hex()},
        }
        public, size = query.public_inputs(), query.layout.size
        answer = self.call("message", facts, arrays=public, most=8 * size)
        words = answer.arrays.get("words")
        about = {"round": address.round, "attempt": address.attempt, "roster": roster.digest.hex()}
        if answer.facts != about or words is None or words.shape != (size,) or words.dtype != np.uint64:
            raise Refused(f"site {self.name!r} answered another round, or its format differs from the plan.")
        return Message(site=self.name, address=address, roster_digest=roster.digest, words=words)

    def next_attempt(self, index: int) -> int:
        """Return the first attempt of a round of secure sums that the site has not begun."""
        return self.call("attempt", {"round": index}).fact("next", int)

    def line(self, query: RowSum, *, roster: Roster, address: Address) -> Line:
        """Return a function that sends messages of one secure sum; the first message carries the public arrays."""
        most = longest_exchange(roster.size) + 8 * query.layout.size
        about = {
            **{"round": address.round, "attempt": address.attempt},
            **{"names": list(roster.names), "roster": roster.digest.hex()},
        }
        public = dict(query.public_inputs())

        def call(raw: bytes) -> bytes:
            facts, arrays = packed(raw)
            is_first = raw[5] == Begin.kind
            try:
                return unpacked(self.call("agree", about | facts, arrays=arrays | public, most=most))
            except Refused as refused:
                if is_first:
                    raise
                raise SiteSilent(str(refused)) from None  # a restarted site counts as silent
            finally:
                public.clear()

        return call

    def with_stored_inputs[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Q:
        """Return the query of a round with the public inputs that an earlier run stored, if there are any."""
        form = query.public_inputs()
        if not form:
            return query
        mechanism, plan = self._planned.mechanism, self._planned.plan
        most = sum(array.nbytes for array in mechanism.inputs(plan, index=index).values())
        stored = self.call("stored", {"round": index}, most=most).arrays
        if not stored:
            return query
        found: Q = mechanism.query(plan, index=index, public=stored)
        return found
