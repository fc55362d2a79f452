"""The sites of a joint release in this process: their roster from public facts, and each with its curator and masks.

Sites are named by their place, 0000, 0001 and so on. A dealer in this process gives out the seeds of the masks anew in
each run: noise, which is what protects, does not depend on them.
"""

from collections.abc import Sequence

from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.local_site import Site
from dpca_tasks.sites.masks import deal_masks
from dpca_tasks.sites.roster import Member, Roster


def roster_of(
    session: str, problems: Sequence[Problem], multipliers: Sequence[float], *, colluders: int, dropouts: int
) -> Roster:
    """Return the roster of sites with given public facts and noise multipliers of one charged step."""
    members = [
        Member(name=f"{at:04d}", records=problem.records_at_most, noise_multiplier=multiplier)
        for at, (problem, multiplier) in enumerate(zip(problems, multipliers, strict=True))
    ]
    return Roster(session=session, members=tuple(members), colluders=colluders, dropouts=dropouts)


def parties_of(curators: Sequence[Curator], roster: Roster) -> list[Site]:
    """Return the sites of a roster in this process, under masks that were dealt just now."""
    dealt = deal_masks(roster)
    return [
        Site(name=name, curator=curator, seeds=dealt[name])
        for name, curator in zip(roster.names, curators, strict=True)
    ]
