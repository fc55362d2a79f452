"""Masks of the sites of a roster: from seeds that a helper process distributes, or from secure sums.

The helper distributes random seeds, from which sites compute masks; it never receives a masked sum. One distribution is
called a dealing, and serves one attempt of one round by one set of sites. In each dealing, each pair of sites gets one
seed, drawn from the operating system. A site gets its seeds once, over a connection that is authenticated by the site's
certificate in the roster. A seed is erased when both sites of its pair have received it. All seeds of a dealing are
erased after twice the roster's timeout. All sites of a dealing must have the same query, including its public arrays,
because each site computes its noise from the query. The fact ``requested`` is the digest of that query. The aggregator,
which receives the masked sums, has no access to the helper.

In a secure sum, a site takes roster, plan and query from its own files, and its signing key from its certificate.
Before a site sends anything, it records on disk which attempts it began and which sums it helped to unmask. These
records are kept outside the home folder, so restoring the home from a backup does not revert them.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dpca.backends.atomic_files import create_file, make_folder, sync_file, sync_folder, writing
from dpca.home import state_folder
from dpca_tasks.errors import Refused
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.roster import Address, Masks, Message, Roster
from dpca_tasks.sites.secure_sum.attempt import Begin, SiteMachine
from dpca_tasks.sites.secure_sum.session import SiteSession
from dpca_tasks.sites.secure_sum.wire import Context, Participants, Scene, next_attempt
from flows.parties.calling import Frame, encode
from flows.parties.certificates import listening_context, signing_identity, signing_key_of
from flows.parties.listening import Route, address_of, application, bind, serve
from flows.reports.terminal import configure_logs, log_event
from flows.settings import cluster_settings
from flows.sites.charges import SiteRelease
from flows.sites.roster import PartyConfig, RosterFile

SEEDS = "/v1/seeds"
_FACTS = {"dealing": str, "release": str, "names": list, "round": int, "attempt": int, "roster": str, "requested": str}
LONGEST_NAME = 128
_MOST = 10_000  # largest number of dealings in memory
_PER_SITE = 512  # upper bound on the bytes that each site adds to the longest frame, not counting masked integers
_REMEMBERED = 16  # number of timeouts after which a dealing is forgotten; until then, its name cannot be used again


type Contribute = Callable[[SiteRelease, RowSum, Roster, Address, Masks], Message]
"""A function that returns this site's sum for a query of a release, hidden by masks."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Dealing:
    scene: dict[str, Any]
    at: float
    waiting: set[str]
    seeds: dict[frozenset[str], bytes] = field(repr=False)


class Dealer:
    """Store of the helper's seeds, kept in memory only, until both sites of a pair have their seed.

    Parameters
    ----------
    roster : RosterFile
    clock : callable
        Monotonic clock in seconds.
    """

    def __init__(self, roster: RosterFile, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sites, self._timeout, self._clock = {site.name for site in roster.sites}, roster.timeout, clock
        self._dealings: dict[str, _Dealing] = {}
        self._turn = Lock()

    @property
    def held(self) -> int:
        """Number of seeds that are not erased."""
        return sum(len(dealing.seeds) for dealing in self._dealings.values())

    def seeds(self, caller: str, facts: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the seeds of a dealing for one site; a second request of the same site is refused.

        Raises
        ------
        Refused
            When the site already received its seeds, the seeds were erased, or the facts differ from the facts that
            another site sent for the same dealing.
        """
        scene = dict(facts)
        if {name: type(value) for name, value in scene.items()} != _FACTS or not all(
            isinstance(value, str) and len(value) <= LONGEST_NAME for value in (scene["dealing"], *scene["names"])
        ):
            raise Refused(
                "a request for seeds has unexpected facts; no seeds were sent: use the same version at every party."
            )
        key, names = str(scene.pop("dealing")), list(scene["names"])
        if not set(names) <= self._sites or len(set(names)) < max(2, len(names)) or caller not in names:
            raise Refused(
                "a dealing (set of mask seeds) must list sites of the roster, each once, including the caller; no "
                "seeds were sent."
            )
        with self._turn:
            self._erase_old()
            if key not in self._dealings:
                if len(self._dealings) >= _MOST:
                    raise Refused("too many dealings (sets of mask seeds) are in progress; repeat the request later.")
                pairs = {frozenset(pair): os.urandom(32) for pair in combinations(names, 2)}
                self._dealings[key] = _Dealing(scene=scene, at=self._clock(), waiting=set(names), seeds=pairs)
            dealing = self._dealings[key]
            if dealing.scene != scene or caller not in dealing.waiting:
                raise Refused(
                    "this dealing (set of mask seeds) belongs to another attempt, or this site already received its "
                    "seeds; request another dealing."
                )
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
    """Serve as the helper until the process is terminated; ``ready`` is called with ``host:port``."""
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
    serve(application([route], names=names), names=names, context=context, at=at)


class SecureSums:
    """All secure sums in which a site takes part.

    Parameters
    ----------
    config : PartyConfig
    message : Contribute
        Computes the site's masked share of a query's sum.
    """

    def __init__(self, config: PartyConfig, message: Contribute) -> None:
        self._config, self._message = config, message
        self._identity = signing_identity(config.key)
        folder = hashlib.sha256(self._identity.public).hexdigest()[:32]
        self._memory = FileMemory(state_folder() / f"secure-sums-{folder}")
        self._machines: dict[str, tuple[Address, SiteMachine]] = {}
        self._turn = Lock()

    def next_attempt(self, release: SiteRelease, *, index: int) -> int:
        """Return the number of the first attempt of a round that this site has not begun."""
        return next_attempt(self._memory, session=release.planned.plan.roster_of(index).session, round_index=index)

    def answer(
        self,
        release: SiteRelease,
        raw: bytes,
        public: Mapping[str, NDArray[Any]],
        *,
        roster: Roster,
        address: Address,
    ) -> bytes:
        """Return the answer to a message of a secure sum; the aggregator's first message begins an attempt.

        Raises
        ------
        Refused
            When no such attempt is under way at this site.
        MessageRefused
            When the message does not belong to the current phase of the attempt.
        """
        place = release.planned.place
        if raw[5:6] == bytes([Begin.kind]):
            machine = SiteMachine(self._member(release, dict(public), roster=roster, address=address))
            answer = machine.receive(raw)
            with self._turn:
                self._machines[place] = (address, machine)
            return answer
        with self._turn:
            known, machine_of = self._machines.get(place, (None, None))
        if machine_of is None or known != address:
            raise Refused(
                "this attempt is not in progress: the site was restarted or began a later attempt; begin another one."
            )
        return machine_of.receive(raw)

    def _member(
        self, release: SiteRelease, public: dict[str, NDArray[Any]], *, roster: Roster, address: Address
    ) -> SiteSession:
        query = release.query(public, index=address.round)

        def contribute(masks: Masks) -> NDArray[np.uint64]:
            return self._message(release, query, roster, address, masks).words

        return SiteSession(
            scene=scene_of(self._config.roster, query, roster=roster, address=address),
            site=self._config.name,
            identity=self._identity,
            memory=self._memory,
            contribute=contribute,
        )


def scene_of(file: RosterFile, query: RowSum, *, roster: Roster, address: Address) -> Scene:
    """Return the participants and context of a secure sum, from a party's own roster file and query."""
    keys = {name: signing_key_of(file.site(name).certificate) for name in roster.names}
    participants = Participants(roster=roster, keys=keys)
    context = Context(
        session=roster.session,
        address=address,
        participants=participants.digest,
        requested=query.digest(),
        words=query.layout.size,
    )
    return Scene(participants=participants, context=context)


def longest_exchange(sites: int) -> int:
    """Return an upper bound on the bytes of a secure sum's message, not counting masked integers."""
    return 1024 + _PER_SITE * sites


@dataclass(frozen=True, slots=True)
class FileMemory:
    """A store of values that are written only once, one file each; see `dpca_tasks.sites.secure_sum.wire.Memory`."""

    folder: Path

    def recall(self, key: bytes) -> bytes | None:
        """Return the value stored under a key, or None."""
        with suppress(FileNotFoundError):
            return (self.folder / key.hex()).read_bytes()
        return None

    def remember(self, key: bytes, value: bytes) -> bytes:
        """Store a value under a key atomically, unless the key has one; return the stored value."""
        path = self.folder / key.hex()
        with writing(self.folder):
            make_folder(self.folder)
            draft = self.folder / f".{uuid4().hex}"
            create_file(draft)
            try:
                draft.write_bytes(value)
                sync_file(draft)
                with suppress(FileExistsError):
                    os.link(draft, path)
            finally:
                draft.unlink()
            sync_folder(self.folder)
            return path.read_bytes()
