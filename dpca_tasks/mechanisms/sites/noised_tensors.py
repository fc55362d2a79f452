"""Components from moments that each site noised by itself: from their sums, or from those of one site.

The records of two sites are different people, so each site keeps the whole guarantee with the noise of one owner.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.results import Components
from dpca_tasks.mechanisms.sites.cape_agn import ROUNDS, check_model
from dpca_tasks.mechanisms.sites.joint_plan import JointPlan, Parties, Seats, pooled
from dpca_tasks.mechanisms.tensors.tensor_releases import (
    POINT_FACTOR,
    SCORE_FACTOR,
    TensorProblem,
    TensorReleases,
    asked_along,
    plan_releases,
)
from dpca_tasks.noise.distributions import Cube, Symmetric
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvAgn:
    """Add the sites' noised moments: conventional, with sqrt(S) times the std of pooled noise in both rounds.

    Parameters
    ----------
    n_components : int
        K, below the number of features.
    point_factor, score_factor : float
        As of `dpca_tasks.mechanisms.tensors.tensor_releases.TensorReleases`.

    References
    ----------
    Imtiaz and Sarwate (2018), the baseline of conventional distributed noise.
    """

    n_components: int
    point_factor: float = POINT_FACTOR
    score_factor: float = SCORE_FACTOR

    name: ClassVar[str] = "conv_agn"
    sites_used: ClassVar[int | None] = None

    def plan(
        self,
        problems: Sequence[TensorProblem],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        seats: Seats | None = None,
    ) -> JointPlan:
        """Plan both releases at each site that is used; they need no common session."""
        check_model(problems)
        used = problems[: self.sites_used]
        sites = []
        for problem, target in zip(used, targets, strict=self.sites_used is None):
            releases = self._of(problem)
            releases.check()
            check_target(problem, target)
            each = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, releases=ROUNDS)
            noises = (Symmetric(noise_multiplier=each), Cube(noise_multiplier=each))
            sites.append(plan_releases(self.name, releases, target, noises))
        total = replace(
            sites[0],
            problem=pooled(used),
            noise_multiplier=math.hypot(*(site.noise_multiplier for site in sites)),
            notes=self._of(pooled(used)).warnings(bits=min(site.bits for site in sites)),
        )
        return JointPlan(sites=tuple(sites), total=total)

    def run(self, parties: Parties, plan: JointPlan) -> Components:
        """Release each site's moment, then its core along the eigenvectors of all; the rest is post-processing."""
        releases = self._of(plan.total.problem)

        def moment(curator: Curator, site: Plan) -> NDArray[np.float64]:
            noise = Symmetric(noise_multiplier=site.noise_multiplier)
            return curator.release(releases.moment_query(bits=site.bits), noise)

        std = releases.moment_std(noise_multiplier=plan.total.noise_multiplier)
        space = releases.space(np.sum(parties.noised_parts(moment, plan.sites), axis=0), std=std)
        asked: list[RowSum] = []

        def core(curator: Curator, site: Plan) -> NDArray[np.float64]:
            bits = releases.core_bits(noise_multiplier=site.noise_multiplier)
            query = curator.with_stored_inputs(releases.core_query(space, bits=bits))
            asked.append(query)
            return curator.release(query, Cube(noise_multiplier=site.noise_multiplier))

        total = np.sum(parties.noised_parts(core, plan.sites), axis=0)
        return releases.components_from(total, asked_along(asked[0], space))

    def _of(self, problem: TensorProblem) -> TensorReleases:
        return TensorReleases(
            problem=problem,
            components=self.n_components,
            point_factor=self.point_factor,
            score_factor=self.score_factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAgn(ConvAgn):
    """Use the first site's noised moments alone; no other site is read or charged.

    Parameters
    ----------
    n_components, point_factor, score_factor
        As of `ConvAgn`.
    """

    name: ClassVar[str] = "local_agn"
    sites_used: ClassVar[int | None] = 1
