"""Masks of a roster's sites, from seeds that a helper deals or from secure sums.

The helper deals seeds and sees no message. A dealing is one attempt of one round by one set of sites. In each dealing,
each pair of sites gets one seed, drawn from the operating system. A site gets its seeds once, over a connection on
which it shows the certificate registered for its name. A seed is erased when both sites of its pair have it. All seeds
of a dealing are erased after twice the roster's timeout. All sites of a dealing must receive the same query, including
the directions, because each site computes its noise from the query. The fact ``requested`` is the digest of that query.
The aggregator, which sees the messages, has no access to this service.

In a secure sum a site takes roster, plan and query from its own files, and its signing key from its certificate. Before
anything is sent, it records on disk which attempts it began and which sums it helped to unmask. This memory is separate
from the home, which can be restored from a copy. A restored site therefore continues with everything recorded since the
copy, as with the witness of its ledger.
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
_MOST = 10_000  # dealings remembered at the same time
_PER_SITE = 512  # upper bound on the bytes a site adds to the longest frame, without integers
_REMEMBERED = 16  # timeouts for which a dealing is remembered, and refused after its seeds were erased


type Contribute = Callable[[SiteRelease, RowSum, Roster, Address, Masks], Message]
"""A callable that computes the masked share of a site for a query of a release."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Dealing:
    scene: dict[str, Any]
    at: float
    waiting: set[str]
    seeds: dict[frozenset[str], bytes] = field(repr=False)


class Dealer:
    """Memory-only store of the seeds that are dealt and not yet erased.

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
        """Return a site's seeds of a dealing; each site gets them once.

        Raises
        ------
        Refused
            When the site already had them, came too late, or names another attempt than the other sites.
        """
        scene = dict(facts)
        if {name: type(value) for name, value in scene.items()} != _FACTS or not all(
            isinstance(value, str) and len(value) <= LONGEST_NAME for value in (scene["dealing"], *scene["names"])
        ):
            raise Refused("the facts of a dealing differ from the plan; no seeds were dealt.")
        key, names = str(scene.pop("dealing")), list(scene["names"])
        if not set(names) <= self._sites or len(set(names)) < max(2, len(names)) or caller not in names:
            raise Refused(
                "a dealing must list sites of the roster, each once, including the caller; no seeds were dealt."
            )
        with self._turn:
            self._erase_old()
            if key not in self._dealings:
                if len(self._dealings) >= _MOST:
                    raise Refused("too many dealings are under way; repeat the request later.")
                pairs = {frozenset(pair): os.urandom(32) for pair in combinations(names, 2)}
                self._dealings[key] = _Dealing(scene=scene, at=self._clock(), waiting=set(names), seeds=pairs)
            dealing = self._dealings[key]
            if dealing.scene != scene or caller not in dealing.waiting:
                raise Refused(
                    "this dealing belongs to another attempt, or was already dealt to this site; request another "
                    "dealing."
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
        """Return the first attempt of a round that was not begun at this site."""
        return next_attempt(self._memory, session=release.roster.session, round_index=index)

    def answer(
        self,
        release: SiteRelease,
        raw: bytes,
        public: Mapping[str, NDArray[Any]],
        *,
        roster: Roster,
        address: Address,
    ) -> bytes:
        """Return the answer to a frame of an attempt; a proposal begins the attempt.

        Raises
        ------
        Refused
            When no such attempt is under way at this site.
        MessageRefused
            When the present phase of the attempt refuses the frame.
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
                "this site has no such attempt: it was restarted, or began a later one; begin another attempt."
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
    """Return the sum in which a party takes part, from the party's own roster file and query."""
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
    """Return a bound on the bytes of a frame without the integers of a masked sum."""
    return 1024 + _PER_SITE * sites


@dataclass(frozen=True, slots=True)
class FileMemory:
    """A write-once memory in a folder; see `dpca_tasks.sites.secure_sum.wire.Memory`."""

    folder: Path

    def recall(self, key: bytes) -> bytes | None:
        """Return the value that was stored first under a key, or None."""
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
