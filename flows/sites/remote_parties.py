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
from dpca_tasks.sites.masks import Address, Message
from dpca_tasks.sites.roster import Roster
from dpca_tasks.sites.rounds import Opened, open_round
from dpca_tasks.sites.secure_sum.attempt import Line, open_sum
from dpca_tasks.sites.secure_sum.roster import Begin
from flows.parties.calling import Caller
from flows.parties.frames import Frame, packed, unpacked
from flows.sites.joint_plans import PlannedJoint
from flows.sites.roster_file import SECURE_SUM
from flows.sites.secure_sums import longest_exchange, scene_of
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

    def next_attempt(self, index: int) -> int:
        """Return the first attempt of a round of secure sums that the site has not begun."""
        return self.ask("attempt", {"round": index}).fact("next", int)

    def line(self, query: RowSum, *, roster: Roster, address: Address) -> Line:
        """Return the connection for one attempt of a secure sum; public arrays go with its first frame alone."""
        most = longest_exchange(roster.size) + 8 * query.layout.size
        about = {
            **{"round": address.round, "attempt": address.attempt},
            **{"names": list(roster.names), "roster": roster.digest.hex()},
        }
        public = dict(query.public_inputs())

        def ask(raw: bytes) -> bytes:
            facts, arrays = packed(raw)
            is_first = raw[5] == Begin.kind
            try:
                return unpacked(self.ask("agree", about | facts, arrays=arrays | public, most=most))
            except Refused as refused:
                if is_first:
                    raise
                raise SiteSilent(str(refused)) from None  # it was restarted since: the others may go on
            finally:
                public.clear()

        return ask

    def with_stored_inputs[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Q:
        """Return the query of a round with the public inputs that an earlier run stored, if any."""
        form = query.public_inputs()
        if not form:
            return query
        mechanism, plan = self._planned.mechanism, self._planned.plan
        most = sum(array.nbytes for array in mechanism.inputs(plan, index=index).values())
        stored = self.ask("stored", {"round": index}, most=most).arrays
        if not stored:
            return query
        found: Q = mechanism.query(plan, index=index, public=stored)
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
        """The roster that answered last."""
        self.took_part: set[str] = set()
        """The sites whose sums, or whose own noised releases, what is published is made of."""

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
        sum_over = self._secure_sum if self.planned.roster.masks == SECURE_SUM else None
        opened = open_round(
            sites, query, roster=roster, index=index, resends=RESENDS, ask_all=self._pool.map, sum_over=sum_over
        )
        self.answered = opened.roster
        self.took_part.update(opened.roster.names)
        return opened

    def _secure_sum(self, query: RowSum, *, roster: Roster, address: Address) -> tuple[NDArray[np.int64], Roster]:
        """Open one attempt without a helper, the first that no site has begun, also in an earlier run."""

        def ask(name: str) -> int:
            try:
                return self._parties[name].next_attempt(address.round)
            except SiteSilent:
                return 0

        address = Address(round=address.round, attempt=max(self._pool.map(ask, roster.names)))
        scene = scene_of(self.planned.roster, query, roster=roster, address=address)
        lines = {name: self._parties[name].line(query, roster=roster, address=address) for name in roster.names}
        total = open_sum(scene, lines)
        lost = set(roster.names) - set(total.senders)
        return total.integers, roster.without(*lost) if lost else roster

    def noised_parts(self, part: NoisedPart, plans: Sequence[Plan]) -> list[NDArray[np.float64]]:
        """Return what each site sends of the release that it noised."""
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

        parts = list(self._pool.map(ask, self.planned.names))
        self.took_part.update(self.planned.names)
        return parts

    def tell_all(self, route: str, facts: dict[str, Any], names: Iterable[str]) -> dict[str, Frame | None]:
        """Ask sites about the release at once; None for the silent ones."""

        def ask(name: str) -> Frame | None:
            try:
                return self._parties[name].ask(route, facts)
            except SiteSilent:
                return None

        listed = list(names)
        return dict(zip(listed, self._pool.map(ask, listed), strict=True))
