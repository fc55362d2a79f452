"""The plan of a release over sites: one for each site that is charged, and the roster where their noise is shared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.parts.released_moment import Moment, stated_noise
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.sites.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """What each site is to do: public, computed before any row is read.

    Parameters
    ----------
    sites : tuple of Plan
        One for each site that takes part, in order; its event is what the site's ledger is charged.
    total : Plan
        The noise of what is made of all sites, as of one owner's release: its warnings are those of the release.
    roster : Roster, optional
        Who shares noise and masks, where they do.
    """

    sites: tuple[Plan, ...]
    total: Plan
    roster: Roster | None = None


class SitesMechanism(Protocol):
    """The interface of mechanisms over sites."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def plan(self, problems: Sequence[Problem], targets: Sequence[PrivacyTarget], *, session: str) -> JointPlan:
        """Turn the public facts of all sites into noise and events; ``session`` names this joint release alone."""

    def run(self, curators: Sequence[Curator], plan: JointPlan) -> Subspace:
        """Release what is planned, from a curator for each planned site; then post-process the answers."""


def check_sites(problems: Sequence[Problem]) -> None:
    """Refuse fewer than two sites, unlike numbers of columns, unlike relations, and rows around a mean.

    Raises
    ------
    InvalidInput
        With the numbers, all of which are public.
    """
    if len(problems) < 2:
        raise InvalidInput(
            f"{len(problems)} site is too few for a sum over sites; name two at least, or fit one with dpca subspace."
        )
    for found, each in (
        ("columns", [str(problem.n_features) for problem in problems]),
        ("as neighbouring relation", [problem.relation for problem in problems]),
    ):
        if len(set(each)) > 1:
            raise InvalidInput(
                f"the sites have {', '.join(each)} {found}, and a sum over sites needs the same at each; "
                "leave out the sites that differ."
            )
    if any(problem.center != "none" for problem in problems):
        raise InvalidInput("center=private is for one owner's rows; sites release moments around the origin.")


def moment_of_total(matrix: NDArray[np.float64], total: Plan, *, bits: int) -> Moment:
    """Return a total in data units as a released moment, which can be refined: its noise is isometric.

    ``bits`` is the grid of the coarsest site.
    """
    assert total.moment_std is not None
    unit = total.problem.clip_norm**2
    noise = stated_noise(total.problem, law="isometric", std=total.moment_std * unit, step=unit / 4.0**bits)
    return Moment(matrix=matrix, released=matrix, noise=noise)


def pooled(problems: Sequence[Problem]) -> Problem:
    """Return the public facts of all sites' rows together."""
    first = problems[0]
    return Problem(
        n_features=first.n_features,
        clip_norm=first.clip_norm,
        relation=first.relation,
        records_at_most=sum(problem.records_at_most for problem in problems),
        records_declared=all(problem.records_declared for problem in problems),
    )
