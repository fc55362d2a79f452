"""The sites of a joint release: their roster from public facts, and, in this process, each with its curator and masks.

Sites are named by their place, 0000, 0001 and so on, unless their seats name them. A dealer in this process gives out
the seeds of the masks anew in each run: noise, which is what protects, does not depend on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Terms
from dpca_tasks.mechanisms.sites.cape import Cape
from dpca_tasks.mechanisms.sites.joint_plan import NoisedPart, Seats
from dpca_tasks.privacy.curator import Curator, Site
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.masks import deal_masks
from dpca_tasks.sites.roster import Member, Roster
from dpca_tasks.sites.rounds import Opened, open_round


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalParties:
    """All sites in this process; see `dpca_tasks.mechanisms.sites.joint_plan.Parties`.

    Parameters
    ----------
    curators : sequence of Curator
        One for each planned site, in the order of the plan.
    roster : Roster, optional
        Who shares noise, its members in the same order.
    """

    curators: Sequence[Curator] = field(repr=False)
    roster: Roster | None = None

    def open[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Opened[Q]:
        """Open the total of a round, under masks that are dealt just now."""
        assert self.roster is not None
        dealt = deal_masks(self.roster)
        sites = [
            Site(name=member.name, curator=curator, seeds=dealt[member.name])
            for member, curator in zip(self.roster.members, self.curators, strict=True)
        ]
        return open_round(sites, query, roster=roster, index=index)

    def noised_parts(self, part: NoisedPart, plans: Sequence[Plan]) -> list[NDArray[np.float64]]:
        """Return what each site sends of its own noised release."""
        return [part(curator, plan) for curator, plan in zip(self.curators, plans, strict=True)]


def seats_of(problems: Sequence[Terms], seats: Seats | None) -> Seats:
    """Return the seats of sites, named by their place where none are given.

    Raises
    ------
    InvalidInput
        When there is not one seat for each site.
    """
    if seats is None:
        return Seats(names=tuple(f"{at:04d}" for at in range(len(problems))))
    if len(seats.names) != len(problems):
        raise InvalidInput(f"{len(seats.names)} seats are not those of {len(problems)} sites; name each site once.")
    return seats


def shared_roster(
    session: str,
    problems: Sequence[Terms],
    targets: Sequence[PrivacyTarget],
    *,
    seats: Seats,
    cape: Cape,
    steps: int,
) -> Roster:
    """Return the roster of sites that share noise: each has its target over so many charged steps."""
    members = [
        Member(
            name=name,
            records=problem.records_at_most,
            noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, releases=steps),
            weight=weight,
        )
        for name, weight, problem, target in zip(seats.names, seats.all_weights, problems, targets, strict=True)
    ]
    return Roster(
        session=session,
        members=tuple(members),
        colluders=cape.tolerated,
        dropouts=cape.dropouts,
        attempts=seats.attempts,
    )


def charged(noise_multiplier: float, *, steps: int) -> events.Event:
    """Return the event of so many steps of a noise multiplier; that of one step is its own."""
    event = events.gaussian(noise_multiplier)
    return event if steps == 1 else events.self_composed(event, steps)


def weighted_scale(roster: Roster) -> float:
    """Return the std of pooled noise, over the sensitivity, that gives every site its mu."""
    return max(member.weight * member.noise_multiplier for member in roster.members)
