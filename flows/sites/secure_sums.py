"""The secure sums of one site: a machine for the latest attempt of each release, and how its frames travel.

A site takes roster, plan and query from itself, its signing key from its certificate's, and remembers on disk what it
began and whose sums it helped to open.
"""

import hashlib
from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.masks import Address, Masks
from dpca_tasks.sites.roster import Roster
from dpca_tasks.sites.secure_sum.attempt import SiteMachine
from dpca_tasks.sites.secure_sum.participants import Context, Participants, next_attempt
from dpca_tasks.sites.secure_sum.roster import Begin
from dpca_tasks.sites.secure_sum.session import SiteSession
from dpca_tasks.sites.secure_sum.wire import Scene
from flows.parties.certificates import signing_identity, signing_key_of
from flows.sites.memory import FileMemory
from flows.sites.roster_file import RosterFile
from flows.sites.site_config import PartyConfig
from flows.sites.site_releases import SiteRelease, SiteReleases
from storage.home import state_folder

_PER_SITE = 512  # bytes a site in the longest frame without integers, and more


class SecureSums:
    """All secure sums of a site.

    Parameters
    ----------
    config : PartyConfig
    releases : SiteReleases
    """

    def __init__(self, config: PartyConfig, releases: SiteReleases) -> None:
        self._config, self._releases = config, releases
        self._identity = signing_identity(config.key)
        folder = hashlib.sha256(self._identity.public).hexdigest()[:32]
        self._memory = FileMemory(state_folder() / f"secure-sums-{folder}")
        self._machines: dict[str, tuple[Address, SiteMachine]] = {}
        self._turn = Lock()

    def next_attempt(self, release: SiteRelease, *, index: int) -> int:
        """Return the first attempt of a round that was not begun here."""
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
        """Return the answer to a frame of an attempt, which a proposal begins.

        Raises
        ------
        Refused
            When no such attempt is under way here.
        MessageRefused
            When the phase that it is in refuses the frame.
        """
        place = release.planned.place
        if raw[5:6] == bytes([Begin.kind]):
            machine = SiteMachine(self._seat(release, dict(public), roster=roster, address=address))
            answer = machine.receive(raw)
            with self._turn:
                self._machines[place] = (address, machine)
            return answer
        with self._turn:
            known, machine_of = self._machines.get(place, (None, None))
        if machine_of is None or known != address:
            raise Refused("no such attempt is under way here: this site was restarted, or went on; begin another.")
        return machine_of.receive(raw)

    def _seat(
        self, release: SiteRelease, public: dict[str, NDArray[Any]], *, roster: Roster, address: Address
    ) -> SiteSession:
        query = release.query(public, index=address.round)

        def contribute(masks: Masks) -> NDArray[np.uint64]:
            return self._releases.message(release, query, roster=roster, address=address, seeds=masks).words

        return SiteSession(
            scene=scene_of(self._config.roster, query, roster=roster, address=address),
            site=self._config.name,
            identity=self._identity,
            memory=self._memory,
            contribute=contribute,
        )


def scene_of(file: RosterFile, query: RowSum, *, roster: Roster, address: Address) -> Scene:
    """Return the sum that a party takes part in, from its own roster file and its own query."""
    keys = {name: signing_key_of(file.site(name).certificate) for name in roster.names}
    participants = Participants(roster=roster, keys=keys)
    context = Context(
        session=roster.session,
        address=address,
        participants=participants.digest,
        asked=query.digest(),
        words=query.layout.size,
    )
    return Scene(participants=participants, context=context)


def longest_exchange(sites: int) -> int:
    """Return a bound on the bytes of a frame beside the integers of a masked sum."""
    return 1024 + _PER_SITE * sites
