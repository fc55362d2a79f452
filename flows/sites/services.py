"""HTTPS service of one site, through which the aggregator of a roster requests joint releases.

The site plans, charges and answers each release independently, under the limits of its operator. The aggregator sends
the request, a digest of the joint plan for comparison, and the public arrays of a round. The site itself determines
which statistic is summed, how it is noised and what is charged. The ledger stores releases in progress, so a restarted
site continues them.

==========  ==============================  =================================================================
Route       Request                         Response
==========  ==============================  =================================================================
quote       a request, digests              whether it is charged already; or why the budget refuses it
reserve     a request, digests              the id of the site's release
stored      a round                         the public arrays with which the site answered the round before
message     a round, attempt, sites,        the site's noised integers under the mask of this dealing, modulo
            dealing, public arrays          ``2^64``
attempt     a round                         in a secure sum: the first attempt not yet begun at this site
agree       a round, attempt, sites, frame, in a secure sum: the answer of the current phase
            public arrays with the first
part        nothing                         the array that the method sends from the site's separate noised release
give_back   nothing                         nothing: a reservation that never began is given back
finish      the joint artifact's digest     the state: committed, or given back
status      nothing                         the site's name, the roster's digest
==========  ==============================  =================================================================

A dealing is one set of seeds from the helper, used for one attempt. A site answers each dealing once. If an answer is
lost, the aggregator repeats the request with another dealing. The site then returns the same noised integers under
other masks.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import Lock
from typing import Any

import numpy as np
from distributed import Client

from dpca.errors import Unavailable
from dpca.home import WORKERS, home
from dpca_tasks.errors import InvalidInput, Refused, SiteSilent
from dpca_tasks.mechanisms.sites.joint_plan import SeparateSums, SharedSum
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.privacy.curator import Curator, Site
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.roster import Address, Masks, MaskSeeds, Message, Roster
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.parties.calling import CARRIED, Caller, Frame, encode, packed, unpacked
from flows.parties.certificates import listening_context
from flows.parties.listening import Route, address_of, application, bind, serve
from flows.reports.terminal import configure_logs, log_event
from flows.settings import cluster_settings
from flows.sites.charges import SiteCharge, SiteRelease, begin_release, give_back, standing
from flows.sites.masks import LONGEST_NAME, SEEDS, SecureSums, longest_exchange
from flows.sites.plans import FAMILY, REQUESTED, PlannedJoint, check_model, plan_over_roster, request_of
from flows.sites.roster import HELPER, SECURE_SUM, PartyConfig
from storage.datasets.catalog import Entry
from storage.workspace import Workspace

RELEASES = "/v1/releases/{place}"
_ROUTES = ("stored", "part", "give_back", "finish")
_OF_MASKS = {HELPER: ("message",), SECURE_SUM: ("attempt", "agree")}


class SiteService:
    """Request handlers of one site.

    Parameters
    ----------
    config : PartyConfig
    client : distributed.Client, optional
        The site's own cluster; None computes sums in this process.
    helper : Caller, optional
        The connection to the helper that deals seeds, if the roster has one.
    """

    def __init__(self, config: PartyConfig, *, client: Client | None = None, helper: Caller | None = None) -> None:
        assert config.limits is not None
        self._config, self._limits, self._client, self._helper = config, config.limits, client, helper
        self._open: dict[str, SiteRelease] = {}
        self._turn = Lock()
        self._dealings: set[str] = set()
        self._sums = SecureSums(config, self._share) if config.roster.masks == SECURE_SUM else None

    def routes(self) -> list[Route]:
        """Return the routes of the service."""
        aggregator = frozenset({self._config.roster.aggregator.name})
        whole = [
            Route(path=f"/v1/{name}", callers=aggregator, answer=getattr(self, f"_{name}"))
            for name in ("quote", "reserve", "status")
        ]
        longest = {"message": self._longest, "agree": self._longest_agreement}
        of_release = [
            Route(
                path=f"{RELEASES}/{name}",
                callers=aggregator,
                answer=self._about(getattr(self, f"_{name}")),
                most=longest.get(name, lambda words: 0),
            )
            for name in (*_ROUTES, *_OF_MASKS[self._config.roster.masks])
        ]
        return [*whole, *of_release]

    def _about(self, answer: Callable[[SiteRelease, Frame], bytes]) -> Callable[[str, Mapping[str, str], Frame], bytes]:
        return lambda caller, words, frame: answer(self._find(words["place"]), frame)

    def _longest(self, words: Mapping[str, str]) -> int:
        """Return the largest number of bytes of public arrays in any planned round."""
        planned = self._find(words["place"]).planned
        if planned.plan.roster is None:
            return 0
        mechanism: SharedSum = planned.mechanism
        count = mechanism.count_rounds(planned.plan)
        rounds = (mechanism.inputs(planned.plan, index=at) for at in range(count))
        return max(sum(array.nbytes for array in arrays.values()) for arrays in rounds)

    def _longest_agreement(self, words: Mapping[str, str]) -> int:
        """Return the largest number of bytes of public arrays, plus the bytes of the longest secure-sum message."""
        return longest_exchange(len(self._config.roster.sites)) + self._longest(words)

    # --- routes of the ledger ---

    def _status(self, caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        return encode({"site": self._config.name, "roster": self._config.roster.digest})

    def _quote(self, caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        planned, workspace = self._plan(frame.facts), Workspace.read_only()
        return encode({"exists": self._charge(workspace, planned).check(workspace.ledger)})

    def _reserve(self, caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        planned, workspace = self._plan(frame.facts), Workspace.open()
        release = self._charge(workspace, planned).reserve(workspace.ledger).release_id
        with self._turn:
            known = self._open.get(planned.place)
            if known is None or known.release_id != release:
                self._open[planned.place] = SiteRelease(planned=planned, release_id=release)
        return encode({"release": release})

    def _give_back(self, release: SiteRelease, frame: Frame) -> bytes:
        give_back(Workspace.open().ledger, release.release_id)
        self._forget(release)
        return encode({})

    def _finish(self, release: SiteRelease, frame: Frame) -> bytes:
        """Commit a release with the joint artifact; give back a release that never began."""
        digest, workspace = frame.fact("artifact", str), Workspace.open()
        with release.turn:
            if not give_back(workspace.ledger, release.release_id):
                workspace.withhold(release.release_id, artifact_digest=digest)
            self._forget(release)
        state = workspace.ledger.release(release.release_id).state
        log_event("finished", release=release.release_id, state=state)
        return encode({"state": state})

    # --- routes of rounds ---

    def _stored(self, release: SiteRelease, frame: Frame) -> bytes:
        """Return the public arrays with which this site answered a round before; no arrays if it has not answered."""
        index, mechanism = frame.fact("round", int), release.planned.mechanism
        form, found = dict(mechanism.inputs(release.planned.plan, index=index)), {}
        if form and Workspace.read_only().ledger.release(release.release_id).state != "reserved":
            query = release.query(form, index=index)
            with release.turn:
                attempts = release.planned.plan.roster_of(index).attempts
                stored = self._curator(release).with_stored_inputs(query, step=index * attempts)
            found = {} if stored is query else stored.public_inputs()
        return encode({"round": index}, found)

    def _message(self, release: SiteRelease, frame: Frame) -> bytes:
        roster, address = self._requested(release, frame)
        dealing = frame.fact("dealing", str)
        if dealing in self._dealings or len(dealing) > LONGEST_NAME:
            raise Refused(
                "this site already used this dealing (set of mask seeds), and uses each dealing once; use another "
                "dealing."
            )
        self._dealings.add(dealing)
        query = release.query(frame.arrays, index=address.round)
        seeds = self._seeds(release, query, roster, address, dealing)
        message = self._share(release, query, roster, address, seeds)
        about = {"round": address.round, "attempt": address.attempt, "roster": message.roster_digest.hex()}
        return encode(about, {"words": message.words})

    def _attempt(self, release: SiteRelease, frame: Frame) -> bytes:
        assert self._sums is not None
        return encode({"next": self._sums.next_attempt(release, index=frame.fact("round", int))})

    def _agree(self, release: SiteRelease, frame: Frame) -> bytes:
        assert self._sums is not None
        roster, address = self._requested(release, frame)
        public = {name: array for name, array in frame.arrays.items() if name != CARRIED}
        facts, arrays = packed(self._sums.answer(release, unpacked(frame), public, roster=roster, address=address))
        return encode(facts, arrays)

    def _part(self, release: SiteRelease, frame: Frame) -> bytes:
        """Return the array that this site sends in a method without rounds: a part of the site's own noised moments."""
        planned = release.planned
        mechanism: SeparateSums = planned.mechanism
        if planned.plan.roster is not None:
            raise Refused(f"with {planned.mechanism.name}, sites send no separate release; request a round.")
        with release.turn:
            # the curator is used once, because a separate release has only one step
            curator, release.curator = self._curator(release), None
            part = mechanism.noised_part(curator, planned.plan_of(self._config.name))
        return encode({}, {"part": np.asarray(part)})

    # --- shared by the routes ---

    def _requested(self, release: SiteRelease, frame: Frame) -> tuple[Roster, Address]:
        """Return the list of sites in this attempt (a roster), and the round and number of the attempt.

        The site computes this list itself, and refuses the request if the digest in the request differs.
        """
        address = Address(round=frame.fact("round", int), attempt=frame.fact("attempt", int))
        names, planned = frame.fact("names", list), release.planned.plan.roster_of(address.round)
        known = [name for name in planned.names if name in names]
        if names != known or self._config.name not in names:
            raise Refused(
                "a site of this round is not in the roster, or this site is missing; repeat the planned request."
            )
        missing = [name for name in planned.names if name not in names]
        roster = planned.without(*missing) if missing else planned
        if roster.digest.hex() != frame.fact("roster", str):
            raise Refused(
                "the list of sites in this round differs from the list that this site computed; use the same version "
                "at every party."
            )
        return roster, address

    def _seeds(self, release: SiteRelease, query: RowSum, roster: Roster, address: Address, dealing: str) -> MaskSeeds:
        assert self._helper is not None
        scene = {
            **{"dealing": dealing, "release": release.planned.place, "names": list(roster.names)},
            **{"round": address.round, "attempt": address.attempt, "roster": roster.digest.hex()},
            "requested": query.digest().hex(),
        }
        try:
            dealt = self._helper.call(SEEDS, scene).fact("seeds", dict)
        except SiteSilent:
            raise Unavailable(
                "the helper did not send seeds in time; repeat the request when the helper is available."
            ) from None
        if sorted([*dealt, self._config.name]) != list(roster.names):
            raise Refused("the helper sent seeds for other sites than the sites of this round; use another dealing.")
        shared = {other: SecretKey(bytes.fromhex(str(seed))) for other, seed in dealt.items()}
        return MaskSeeds(site=self._config.name, shared=shared)

    def _share(self, release: SiteRelease, query: RowSum, roster: Roster, address: Address, masks: Masks) -> Message:
        """Return the site's sum for a query, hidden by masks."""
        with release.turn:
            site = Site(name=self._config.name, curator=self._curator(release), seeds=masks)
            return site.message(query, roster=roster, address=address)

    def _curator(self, release: SiteRelease) -> Curator:
        """Return the curator of a release; the first call begins the release."""
        if release.curator is None:
            workspace = Workspace.open()
            row = workspace.ledger.release(release.release_id)
            release.curator = Curator(*begin_release(workspace, row, release.planned), client=self._client)
        return release.curator

    def _plan(self, facts: Mapping[str, Any]) -> PlannedJoint:
        """Plan a request, and compare the plan with the aggregator's plan.

        Raises
        ------
        Refused
            When roster or plan differ, or the operator's limits refuse the request.
        """
        facts = dict(facts)
        roster, digest = facts.pop("roster", None), facts.pop("plan", None)
        if roster != self._config.roster.digest:
            raise Refused(
                "the roster of this request differs from this site's roster; give every party the same roster file."
            )
        request = request_of(facts)
        self._limits.check(request)
        planned = plan_over_roster(self._config.roster, request)
        planned.plan_of(self._config.name)
        if digest != planned.digest:
            raise Refused(
                "the joint plan of this request differs from this site's plan for the same roster and request; use "
                "the same version at every party."
            )
        return planned

    def _charge(self, workspace: Workspace, planned: PlannedJoint) -> SiteCharge:
        """Return the charge for the dataset's newest snapshot, after checking it against the roster and the model."""
        name, roster = self._config.name, self._config.roster
        entry, bound = workspace.catalog.current(self._config.dataset), roster.site(name).records
        budget, found = workspace.ledger.budget(entry.population), entry.records_at_most
        budget.check_unit(entry.name, entry.privacy_unit)
        for what, here, there in (
            ("columns", entry.n_features, roster.features),
            ("relation", budget.relation, roster.relation),
            ("unit of privacy", budget.privacy_unit, roster.unit),
        ):
            if here != there:
                raise InvalidInput(
                    f"the dataset has {what} {here}, but the roster states {there}; correct one of them."
                )
        if found is not None and found > bound:
            raise InvalidInput(
                f"the dataset has up to {found} records, but the roster states {bound} for this site; raise that bound."
            )
        if planned.request.model is not None:
            check_model(planned.request, {self._config.dataset: entry.privacy_unit})
        return SiteCharge(
            entry=entry,
            plan=planned.plan_of(name),
            run_key=_run_key(entry, planned.place),
            fingerprint=planned.digest,
            request={**planned.facts, "mechanism": planned.mechanism.name, "family": FAMILY, "site": name},
        )

    def _find(self, place: str) -> SiteRelease:
        """Return a reserved release, including one that an earlier process reserved.

        Raises
        ------
        Refused
            When there is no such release.
        """
        with self._turn:
            if place not in self._open:
                self._open[place] = self._reserved(place)
            return self._open[place]

    def _reserved(self, place: str) -> SiteRelease:
        workspace = Workspace.read_only()
        entry = workspace.catalog.current(self._config.dataset)
        _, row = standing(workspace.ledger, _run_key(entry, place))
        if row is None:
            raise Refused("this site has no reservation for this release; reserve it first.")
        reported = {name: row.request[name] for name in (*REQUESTED, "roster", "plan") if name in row.request}
        planned = self._plan(reported)
        planned.check_reserved(self._config.name, row.event)
        return SiteRelease(planned=planned, release_id=row.id)

    def _forget(self, release: SiteRelease) -> None:
        with self._turn:
            self._open.pop(release.planned.place, None)


def serve_site(config: PartyConfig, *, ready: Callable[[str], None]) -> None:
    """Serve as a site until the process is terminated.

    Parameters
    ----------
    config : PartyConfig
    ready : callable
        Called with ``host:port`` once the service listens.
    """
    settings = cluster_settings()
    configure_logs(settings.log)
    check_address(settings)
    roster, at = config.roster, bind(config.listen)
    names = {roster.aggregator.fingerprint: roster.aggregator.name}
    context = listening_context(certificate=config.certificate, key=config.key, peers=[roster.aggregator.certificate])
    with ExitStack() as stack:
        client = stack.enter_context(connect(stack.enter_context(open_cluster(settings, scratch=home() / WORKERS))))
        helper = None
        if roster.helper is not None:
            shown = {"certificate": config.certificate, "key": config.key}
            helper = Caller(roster.helper, **shown, timeout=roster.timeout)
        service = SiteService(config, client=client, helper=helper)
        ready(address_of(at))
        log_event("listening", site=config.name)
        serve(application(service.routes(), names=names), names=names, context=context, at=at)


def status_of(config: PartyConfig) -> dict[str, Any]:
    """Return the status of a site for its operator; nothing is charged, and no row is read.

    Raises
    ------
    InvalidInput
        For a helper, which has no persistent state.
    """
    if config.limits is None:
        raise InvalidInput("a helper has no status: its seeds are only in memory; request the status of a site.")
    workspace = Workspace.read_only()
    entry = workspace.catalog.current(config.dataset)
    statement = workspace.ledger.statement(entry.population)
    joint = [row for row in statement.releases if row.request.get("family") == FAMILY]
    return {
        "site": config.name,
        "address": config.post.address,
        "fingerprint": config.post.fingerprint,
        "roster": config.roster.digest,
        "sites": [site.name for site in config.roster.sites],
        "dataset": config.dataset,
        "population": entry.population,
        "epsilon_at_most": config.limits.epsilon,
        "delta_at_most": config.limits.delta,
        "methods": list(config.limits.methods),
        "spent": statement.spent,
        "remaining": statement.remaining,
        "releases": [
            {"release": row.id, "method": row.request["method"], "epsilon": row.epsilon, "state": row.state}
            for row in joint
        ],
    }


def _run_key(entry: Entry, place: str) -> str:
    return f"{entry.population}/{FAMILY}/{place}"
