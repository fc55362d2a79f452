"""The service of one site: what the aggregator may ask of it, and nothing else.

==========  ==============================  =================================================================
Route       In                              Out
==========  ==============================  =================================================================
quote       a request, digests              whether it is charged already; or why it cannot be
reserve     a request, digests              the site's release
stored      a round                         the public arrays that the site answered it with
message     a round, attempt, sites,        the site's noised integers under the mask of this dealing, modulo
            dealing, public arrays          ``2^64``
attempt     a round                         in a secure sum: the first attempt that was not begun here
agree       a round, attempt, sites, frame, in a secure sum: the answer of its present phase
            public arrays with the first
part        nothing                         the site's own noised release, or what its method sends of it
give_back   nothing                         the state: a reservation that never began is given back
finish      the joint artifact's digest     the state: committed, or given back
status      nothing                         the site's name, the roster's digest
==========  ==============================  =================================================================

A dealing names one attempt and its seeds. It is answered once: lost answers are asked for again under another dealing,
which brings the same noised integers under other masks.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from dpca_tasks.errors import Refused, SiteSilent
from dpca_tasks.mechanisms.sites.joint_plan import SharedSum
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.masks import Address, MaskSeeds
from dpca_tasks.sites.roster import Roster
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.parties.calling import Caller
from flows.parties.certificates import listening_context
from flows.parties.frames import CARRIED, Frame, encode, packed, unpacked
from flows.parties.listening import Route, address_of, bind, serve
from flows.reports.logs import configure_logs, log_event
from flows.settings import cluster_settings
from flows.sites.helper_service import LONGEST_NAME, SEEDS
from flows.sites.roster_file import HELPER, SECURE_SUM
from flows.sites.secure_sums import SecureSums, longest_exchange
from flows.sites.site_config import PartyConfig
from flows.sites.site_releases import SiteRelease, SiteReleases
from storage.errors import Unavailable
from storage.home import WORKERS, home

RELEASES = "/v1/releases/{place}"
_ROUTES = ("stored", "part", "give_back", "finish")
_OF_MASKS = {HELPER: ("message",), SECURE_SUM: ("attempt", "agree")}


class SiteService:
    """The answers of one site.

    Parameters
    ----------
    releases : SiteReleases
    config : PartyConfig
    helper : Caller, optional
        Who deals seeds, where the roster has one.
    """

    def __init__(self, releases: SiteReleases, config: PartyConfig, *, helper: Caller | None) -> None:
        self._releases, self._config, self._helper = releases, config, helper
        self._dealings: set[str] = set()
        self._sums = SecureSums(config, releases) if config.roster.masks == SECURE_SUM else None

    def routes(self) -> list[Route]:
        """Return the routes."""
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
        return lambda caller, words, frame: answer(self._releases.find(words["place"]), frame)

    def _longest(self, words: Mapping[str, str]) -> int:
        """Return the bytes of the largest public arrays of a planned round."""
        planned = self._releases.find(words["place"]).planned
        if planned.plan.roster is None:
            return 0
        mechanism: SharedSum = planned.mechanism
        rounds = (mechanism.inputs(planned.plan, index=at) for at in range(mechanism.rounds))
        return max(sum(array.nbytes for array in arrays.values()) for arrays in rounds)

    def _longest_agreement(self, words: Mapping[str, str]) -> int:
        """Return the bytes of those and of the longest frame of a secure sum that a site reads."""
        return longest_exchange(len(self._config.roster.sites)) + self._longest(words)

    def _status(self, caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        return encode({"site": self._config.name, "roster": self._config.roster.digest})

    def _quote(self, caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        planned = self._releases.plan(dict(frame.facts))
        return encode({"exists": self._releases.quote(planned)})

    def _reserve(self, caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        return encode(self._releases.reserve(self._releases.plan(dict(frame.facts))))

    def _stored(self, release: SiteRelease, frame: Frame) -> bytes:
        index = frame.fact("round", int)
        return encode({"round": index}, self._releases.stored_inputs(release, index=index))

    def _message(self, release: SiteRelease, frame: Frame) -> bytes:
        address = Address(round=frame.fact("round", int), attempt=frame.fact("attempt", int))
        dealing, names = frame.fact("dealing", str), frame.fact("names", list)
        roster = self._asked(release.roster, names, digest=frame.fact("roster", str))
        if dealing in self._dealings or len(dealing) > LONGEST_NAME:
            raise Refused("this dealing was answered before, and each is answered once; ask under another.")
        self._dealings.add(dealing)
        query = release.query(frame.arrays, index=address.round)
        seeds = self._seeds(release, query, roster, address, dealing)
        message = self._releases.message(release, query, roster=roster, address=address, seeds=seeds)
        about = {"round": address.round, "attempt": address.attempt, "roster": message.roster_digest.hex()}
        return encode(about, {"words": message.words})

    def _attempt(self, release: SiteRelease, frame: Frame) -> bytes:
        assert self._sums is not None
        return encode({"next": self._sums.next_attempt(release, index=frame.fact("round", int))})

    def _agree(self, release: SiteRelease, frame: Frame) -> bytes:
        assert self._sums is not None
        address = Address(round=frame.fact("round", int), attempt=frame.fact("attempt", int))
        roster = self._asked(release.roster, frame.fact("names", list), digest=frame.fact("roster", str))
        public = {name: array for name, array in frame.arrays.items() if name != CARRIED}
        facts, arrays = packed(self._sums.answer(release, unpacked(frame), public, roster=roster, address=address))
        return encode(facts, arrays)

    def _asked(self, planned: Roster, names: list[Any], *, digest: str) -> Roster:
        """Return the roster of some of the planned sites, as this site itself finds it."""
        known = [name for name in planned.names if name in names]
        if names != known or self._config.name not in names:
            raise Refused("the sites of this round are not of the roster, or not this one; ask as planned.")
        missing = [name for name in planned.names if name not in names]
        roster = planned.without(*missing) if missing else planned
        if roster.digest.hex() != digest:
            raise Refused("the roster of this round is not the one computed here; use one version at every party.")
        return roster

    def _seeds(self, release: SiteRelease, query: RowSum, roster: Roster, address: Address, dealing: str) -> MaskSeeds:
        assert self._helper is not None
        scene = {
            **{"dealing": dealing, "release": release.planned.place, "names": list(roster.names)},
            **{"round": address.round, "attempt": address.attempt, "roster": roster.digest.hex()},
            "asked": query.digest().hex(),
        }
        try:
            dealt = self._helper.ask(SEEDS, scene).fact("seeds", dict)
        except SiteSilent:
            raise Unavailable("the helper did not deal in time; ask again when it is back.") from None
        if sorted([*dealt, self._config.name]) != list(roster.names):
            raise Refused("the helper dealt for other sites than those of this round; ask under another dealing.")
        shared = {other: SecretKey(bytes.fromhex(str(seed))) for other, seed in dealt.items()}
        return MaskSeeds(site=self._config.name, shared=shared)

    def _part(self, release: SiteRelease, frame: Frame) -> bytes:
        return encode({}, {"part": np.asarray(self._releases.noised_part(release))})

    def _give_back(self, release: SiteRelease, frame: Frame) -> bytes:
        self._releases.give_back(release)
        return encode({})

    def _finish(self, release: SiteRelease, frame: Frame) -> bytes:
        return encode({"state": self._releases.finish(release, digest=frame.fact("artifact", str))})


def serve_site(config: PartyConfig, *, ready: Callable[[str], None]) -> None:
    """Serve as a site until the process is told to end.

    Parameters
    ----------
    config : PartyConfig
    ready : callable
        Called with ``host:port`` once it listens.
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
        service = SiteService(SiteReleases(config, client=client), config, helper=helper)
        ready(address_of(at))
        log_event("listening", site=config.name)
        serve(service.routes(), names=names, context=context, at=at)
