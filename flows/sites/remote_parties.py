"""All sites of a release as the aggregator reaches them: asked at once, each over a connection of its own.

A site that does not answer within the roster's timeout is silent. What a site may answer is bounded by the plan.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused, SiteSilent
from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.sites.joint_plan import NoisedPart
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.opening import Address, Message
from dpca_tasks.sites.roster import Roster
from dpca_tasks.sites.rounds import Opened, open_round
from flows.sites.calling import Caller
from flows.sites.frames import Frame
from flows.sites.joint_plans import PlannedJoint
from storage.errors import Unavailable

RESENDS = 1
_DEALING = 16  # bytes of the name of an attempt's seeds


class RemoteParty:
    """One site behind a connection; see `dpca_tasks.sites.rounds.Party`.

    Parameters
    ----------
    planned : PlannedJoint
    caller : Caller
    """

    def __init__(self, planned: PlannedJoint, caller: Caller) -> None:
        self.name, self._caller, self._planned = caller.name, caller, planned
        self._folder = f"/v1/releases/{planned.place}"
        self.dealing = ""  # set for each attempt, the same at all sites

    def ask(self, route: str, facts: dict[str, Any], **others: Any) -> Frame:
        """Ask about the release."""
        return self._caller.ask(f"{self._folder}/{route}", facts, **others)

    def message(self, query: RowSum, *, roster: Roster, address: Address) -> Message:
        """Return the site's masked share of a query's sum."""
        facts = {
            **{"round": address.round, "attempt": address.attempt, "dealing": f"{self.dealing}-{address.attempt}"},
            **{"names": list(roster.names), "roster": roster.digest.hex()},
        }
        public, size = query.public_inputs(), query.layout.size
        answer = self.ask("message", facts, arrays=public, most=8 * size)
        words = answer.arrays.get("words")
        about = {"round": address.round, "attempt": address.attempt, "roster": roster.digest.hex()}
        if answer.facts != about or words is None or words.shape != (size,) or words.dtype != np.uint64:
            raise Refused(f"site {self.name!r} answered another round, or in another form than planned.")
        return Message(site=self.name, address=address, roster_digest=roster.digest, words=words)

    def with_stored_inputs[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Q:
        """Return the query of a round with the public inputs that an earlier run stored, if any."""
        form = query.public_inputs()
        if not form:
            return query
        stored = self.ask("stored", {"round": index}, most=sum(array.nbytes for array in form.values())).arrays
        if not stored:
            return query
        found: Q = self._planned.mechanism.query(self._planned.plan, index=index, public=stored)
        return found


class RemoteParties:
    """All sites; see `dpca_tasks.mechanisms.sites.joint_plan.Parties`.

    Parameters
    ----------
    planned : PlannedJoint
    certificate, key : Path
        The aggregator's.
    """

    def __init__(self, planned: PlannedJoint, *, certificate: Path, key: Path) -> None:
        self.planned, roster = planned, planned.roster
        self.callers = {
            name: Caller(roster.site(name), certificate=certificate, key=key, timeout=roster.timeout)
            for name in planned.names
        }
        self._parties = {name: RemoteParty(planned, caller) for name, caller in self.callers.items()}
        self._pool = ThreadPoolExecutor(max_workers=len(self._parties), thread_name_prefix="site")
        self.answered = planned.plan.roster
        """The roster that answered last: who takes part in what is published."""

    def __enter__(self) -> Self:
        """Use it as a context, so that connections are closed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        self._pool.shutdown()
        for caller in self.callers.values():
            caller.close()

    def open[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Opened[Q]:
        """Open the total of a round over a roster, or over a smaller one."""
        dealing = os.urandom(_DEALING).hex()
        for party in self._parties.values():
            party.dealing = dealing
        sites = [self._parties[name] for name in roster.names]
        opened = open_round(sites, query, roster=roster, index=index, resends=RESENDS, ask_all=self._pool.map)
        self.answered = opened.roster
        return opened

    def noised_parts(self, part: NoisedPart, plans: Sequence[Plan]) -> list[NDArray[np.float64]]:
        """Return what each site sends of its own noised release."""
        order = self.planned.plan.total.problem.n_features
        most = 8 * order * order

        def ask(name: str) -> NDArray[np.float64]:
            try:
                array = self._parties[name].ask("part", {}, most=most).arrays.get("part")
            except SiteSilent as silent:
                raise Unavailable(f"{silent} Its part is awaited: run the same request when it is back.") from None
            mechanism, plan = self.planned.mechanism, self.planned.plan_of(name)
            if array is None or array.dtype != np.float64 or not mechanism.is_part(array, plan):
                raise Refused(f"site {name!r} sent a part in another form than planned.")
            return array

        return list(self._pool.map(ask, self.planned.names))

    def tell_all(self, route: str, facts: dict[str, Any], names: Iterable[str]) -> dict[str, Frame | None]:
        """Ask sites about the release at once; None for the silent ones."""

        def ask(name: str) -> Frame | None:
            try:
                return self._parties[name].ask(route, facts)
            except SiteSilent:
                return None

        listed = list(names)
        return dict(zip(listed, self._pool.map(ask, listed), strict=True))
