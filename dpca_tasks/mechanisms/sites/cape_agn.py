"""capeAGN: components of a model from two totals that sites open: a second moment, then a core along its eigenvectors.

Both rounds are sums under masks that cancel, with the noise of one owner's release, but for colluders. What the second
asks, directions and perhaps a variance, follows from the first total alone, and is sent to every site.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.parts.tensor_moments import Eigenspace
from dpca_tasks.mechanisms.parts.tensor_problem import TensorProblem
from dpca_tasks.mechanisms.parts.tensor_releases import (
    CORE_SENSITIVITY,
    POINT_FACTOR,
    SCORE_FACTOR,
    TensorReleases,
    asked_along,
)
from dpca_tasks.mechanisms.results import Components
from dpca_tasks.mechanisms.sites.cape import Cape
from dpca_tasks.mechanisms.sites.joint_plan import (
    JointPlan,
    Parties,
    Seats,
    check_public,
    check_sites,
    noise_of,
    pooled,
)
from dpca_tasks.mechanisms.sites.parties import charged, seats_of, shared_roster, weighted_scale
from dpca_tasks.privacy.units import in_data_units
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS
from dpca_tasks.sites.roster import Roster
from dpca_tasks.sites.shares import share_bits

ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CapeAgn:
    """Open the sites' second moment, then their core along its leading eigenvectors, and decompose it.

    Parameters
    ----------
    n_components : int
        K, below the number of features.
    point_factor, score_factor : float
        As of `dpca_tasks.mechanisms.parts.tensor_releases.TensorReleases`.
    colluders, dropouts
        As of `dpca_tasks.mechanisms.sites.cape_pca.CapePca`.

    Notes
    -----
    Each round has half of what a site's budget allows for, as squares of mu: ``mu^2 / 2``. A second round that some
    site of the first is missing from goes on with its directions; no message of the first is used again.

    References
    ----------
    Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise, Algorithm 3, with
    the joint view accounted for, seeds in place of masks of D x D x D, and a second query asked in K dimensions.
    """

    n_components: int
    point_factor: float = POINT_FACTOR
    score_factor: float = SCORE_FACTOR
    colluders: int | None = None
    dropouts: int = 0

    name: ClassVar[str] = "cape_agn"

    def plan(
        self,
        problems: Sequence[TensorProblem],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        seats: Seats | None = None,
    ) -> JointPlan:
        """Plan a share of the noise of both rounds at each site."""
        check_model(problems)
        together = pooled(problems)
        releases = self._of(together)
        releases.check()
        for problem, target in zip(problems, targets, strict=True):
            check_target(problem, target)
        cape = Cape(sites=len(problems), colluders=self.colluders, dropouts=self.dropouts)
        seats = seats_of(problems, seats)
        steps = ROUNDS * seats.attempts
        roster = shared_roster(session, problems, targets, seats=seats, cape=cape, steps=steps)
        coarse = releases.moment_query(bits=1)
        bits = share_bits(roster, sensitivity=coarse.sensitivity("l2"), degree=coarse.degree)
        sites = [
            Plan(
                mechanism=self.name,
                problem=problem,
                target=target,
                noise_multiplier=member.noise_multiplier,
                bits=bits,
                event=charged(member.noise_multiplier, steps=steps),
            )
            for problem, target, member in zip(problems, targets, roster.members, strict=True)
        ]
        total = replace(
            sites[0],
            problem=together,
            noise_multiplier=cape.noise(scale=weighted_scale(roster)).total_std,
            warnings=releases.warnings(bits=bits),
        )
        return JointPlan(sites=tuple(sites), total=total, roster=roster)

    def query(self, plan: JointPlan, *, index: int, public: Mapping[str, NDArray[Any]]) -> RowSum:
        """Return the second moment, or the core along directions, with the variance and the bound of a mixture."""
        releases = self._of(plan.total.problem)
        check_public(public, self._inputs(plan, index=index, public=public), index=index, rounds=ROUNDS)
        if index == 0:
            return releases.moment_query(bits=plan.total.bits)
        space = Eigenspace(
            values=np.zeros(public["directions"].shape[1]),
            directions=public["directions"] / 2.0**DIRECTION_BITS,
            asked=self.n_components,
            floor=0.0,
            noise_variance=float(public["noise_variance"].sum()) if "noise_variance" in public else None,
        )
        given: dict[str, Any] = dict(public)
        return replace(releases.core_query(space, bits=self._core_bits(plan)), **given)

    def run(self, parties: Parties, plan: JointPlan) -> Components:
        """Open both totals; the rest is post-processing."""
        assert plan.roster is not None
        first = parties.open(self.query(plan, index=0, public={}), roster=plan.roster, index=0)
        noise = noise_of(plan.total, planned=plan.roster, answered=first.roster)
        releases = self._of(replace(plan.total.problem, records_at_most=counted(first.roster)))
        std = releases.moment_std(noise_multiplier=noise.noise_multiplier)
        space = releases.space(in_data_units(first.total, first.query), std=std)
        second = parties.open(releases.core_query(space, bits=self._core_bits(plan)), roster=first.roster, index=1)
        core = in_data_units(second.total, second.query) * (counted(first.roster) / counted(second.roster))
        return releases.components_from(core, asked_along(second.query, space))

    def _of(self, problem: TensorProblem) -> TensorReleases:
        return TensorReleases(
            problem=problem,
            components=self.n_components,
            point_factor=self.point_factor,
            score_factor=self.score_factor,
        )

    def _core_bits(self, plan: JointPlan) -> int:
        assert plan.roster is not None
        return share_bits(plan.roster, sensitivity=CORE_SENSITIVITY, degree=1, layout="cube")

    def _inputs(self, plan: JointPlan, *, index: int, public: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return arrays of the planned forms; along fewer directions than were asked for, if the noise left fewer."""
        if index == 0:
            return {}
        problem, given = plan.total.problem, public.get("directions", np.zeros((0, 0)))
        kept = min(max(given.shape[-1] if given.ndim else 0, 1), self.n_components)
        number = {} if problem.model == "topics" else {"noise_variance": np.zeros(1), "score_norm": np.zeros(1)}
        return {"directions": np.zeros((problem.n_features, kept), np.int64), **number}


def check_model(problems: Sequence[TensorProblem]) -> None:
    """Refuse fewer than two sites, and sites with unlike columns, relations, models or bounds.

    Raises
    ------
    InvalidInput
        With the numbers, all of which are public.
    """
    check_sites(problems)
    for found in ("model", "words_at_most", "clip_norm", "noise_variance"):
        values = [str(getattr(problem, found)) for problem in problems]
        if len(set(values)) > 1:
            raise InvalidInput(
                f"the sites have {', '.join(values)} as {found}, and a sum over sites needs the same at each; "
                "state one for all."
            )


def counted(roster: Roster) -> int:
    """Return how many records a total counts, each as often as its site's weight says."""
    return sum(member.weight * member.records for member in roster.members)
