"""The helper: deals the seeds of masks to the sites of a roster, and sees no message.

For each dealing (one attempt of one round by one set of sites) each pair of sites gets one seed, from the operating
system. A site gets its seeds once, over a connection on which it shows the certificate of that name. A seed is erased
when both sites of its pair have it, and all of a dealing after twice the roster's timeout. All sites of a dealing must
be asked the same, directions included, from which each computes its noise: ``asked`` is that query's digest. The
aggregator, which sees the messages, may ask nothing here.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from threading import Lock
from typing import Any

from dpca_tasks.errors import Refused
from flows.parties.certificates import listening_context
from flows.parties.frames import Frame, encode
from flows.parties.listening import Route, address_of, bind, serve
from flows.reports.logs import configure_logs, log_event
from flows.settings import cluster_settings
from flows.sites.roster_file import RosterFile
from flows.sites.site_config import PartyConfig

SEEDS = "/v1/seeds"
_FACTS = {"dealing": str, "release": str, "names": list, "round": int, "attempt": int, "roster": str, "asked": str}
LONGEST_NAME = 128
_MOST = 10_000  # dealings that are remembered at once
_REMEMBERED = 16  # timeouts for which a dealing is remembered, and refused, after it was erased


@dataclass(slots=True, kw_only=True, eq=False)
class _Dealing:
    scene: dict[str, Any]
    at: float
    waiting: set[str]
    seeds: dict[frozenset[str], bytes] = field(repr=False)


class Dealer:
    """The seeds that are dealt and not yet erased, in memory alone.

    Parameters
    ----------
    roster : RosterFile
    clock : callable
        Seconds, that only go up.
    """

    def __init__(self, roster: RosterFile, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sites, self._timeout, self._clock = {site.name for site in roster.sites}, roster.timeout, clock
        self._dealings: dict[str, _Dealing] = {}
        self._turn = Lock()

    @property
    def held(self) -> int:
        """The number of seeds that are not erased."""
        return sum(len(dealing.seeds) for dealing in self._dealings.values())

    def seeds(self, caller: str, facts: Mapping[str, Any]) -> dict[str, bytes]:
        """Return a site's seeds of a dealing, once.

        Raises
        ------
        Refused
            When it had them, came too late, or asks about another attempt than the others.
        """
        scene = dict(facts)
        if {name: type(value) for name, value in scene.items()} != _FACTS or not all(
            isinstance(value, str) and len(value) <= LONGEST_NAME for value in (scene["dealing"], *scene["names"])
        ):
            raise Refused("a dealing has other facts than planned; nothing was dealt.")
        key, names = str(scene.pop("dealing")), list(scene["names"])
        if not set(names) <= self._sites or len(set(names)) < max(2, len(names)) or caller not in names:
            raise Refused("a dealing is for sites of the roster, each once, the caller among them; nothing was dealt.")
        with self._turn:
            self._erase_old()
            if key not in self._dealings:
                if len(self._dealings) >= _MOST:
                    raise Refused("too many dealings are under way; ask again later.")
                pairs = {frozenset(pair): os.urandom(32) for pair in combinations(names, 2)}
                self._dealings[key] = _Dealing(scene=scene, at=self._clock(), waiting=set(names), seeds=pairs)
            dealing = self._dealings[key]
            if dealing.scene != scene or caller not in dealing.waiting:
                raise Refused("this dealing is of another attempt, or was dealt to this site; ask under another.")
            dealing.waiting.discard(caller)
            dealt = {other: dealing.seeds[frozenset((caller, other))] for other in names if other != caller}
            for other in set(names) - dealing.waiting - {caller}:
                del dealing.seeds[frozenset((caller, other))]
            return dealt

    def _erase_old(self) -> None:
        now = self._clock()
        for key, dealing in list(self._dealings.items()):
            if now - dealing.at > 2 * self._timeout:
                dealing.seeds.clear()
                dealing.waiting.clear()
            if now - dealing.at > _REMEMBERED * self._timeout:
                del self._dealings[key]


def serve_helper(config: PartyConfig, *, ready: Callable[[str], None]) -> None:
    """Serve as the helper until the process is told to end; ``ready`` is called with ``host:port``."""
    configure_logs(cluster_settings().log)
    roster, at = config.roster, bind(config.listen)
    dealer = Dealer(roster)

    def answer(caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        dealt = dealer.seeds(caller, frame.facts)
        log_event("dealt", site=caller)
        return encode({"seeds": {other: seed.hex() for other, seed in dealt.items()}})

    names = {site.fingerprint: site.name for site in roster.sites}
    context = listening_context(
        certificate=config.certificate, key=config.key, peers=[site.certificate for site in roster.sites]
    )
    route = Route(path=SEEDS, callers=frozenset(names.values()), answer=answer)
    ready(address_of(at))
    serve([route], names=names, context=context, at=at)
