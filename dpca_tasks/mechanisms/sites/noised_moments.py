"""Baselines over several sites, each of which adds noise independently to the moments that it sends.

Three mechanisms release a subspace. `Conv` sums the second moments of all sites. `DpDis` sums their low-rank
approximations. `Local` uses the second moment of one site. Two mechanisms release the components of a topic or mixture
model. `ConvAgn` sums the moments of all sites, and `LocalAgn` uses the moments of one site. The records of different
sites belong to different people. So each site can use its whole privacy budget, and adds as much noise as a data owner
who releases alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.layouts import pack_symmetric, unpack_symmetric
from dpca_tasks.mechanisms.base import Components, Plan, PrivacyTarget, Problem, Subspace, check_request, check_target
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.released_moment import (
    decompose,
    moment_from,
    moment_query,
    noise_facts,
    plan_moment,
)
from dpca_tasks.mechanisms.sites.cape_agn import ROUNDS, check_model
from dpca_tasks.mechanisms.sites.joint_plan import JointPlan, Membership, Parties, check_sites, moment_of_total, pooled
from dpca_tasks.mechanisms.tensors.tensor_releases import (
    POINT_FACTOR,
    SCORE_FACTOR,
    TensorProblem,
    TensorReleases,
    plan_releases,
    product_along,
)
from dpca_tasks.noise.distributions import Cube, Symmetric
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """Sum second moments with independent noise of each site: conventional distributed PCA.

    The sum over S sites has sqrt(S) times the noise of a release by one data owner.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.

    References
    ----------
    Imtiaz and Sarwate (2018). Their baseline divides epsilon by the number of sites, which is unnecessary.
    """

    n_components: int

    name: ClassVar[str] = "conv"

    def plan(
        self,
        problems: Sequence[Problem],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        membership: Membership | None = None,
    ) -> JointPlan:
        """Plan one release of the second moment at each site; ``session`` and ``membership`` are not used."""
        return _plan(self.name, problems, targets, n_components=self.n_components)

    def noised_part(self, curator: Curator, plan: Plan) -> NDArray[np.float64]:
        """Return the noisy second moment of a site, packed as the upper triangle."""
        return pack_symmetric(_released(curator, plan))

    def is_part(self, part: NDArray[np.float64], plan: Plan) -> bool:
        """Return whether a received array has the shape of a packed second moment, and finite entries."""
        order = plan.problem.n_features
        return part.shape == (order * (order + 1) // 2,) and bool(np.isfinite(part).all())

    def run(self, parties: Parties, plan: JointPlan) -> Subspace:
        """Release the second moment of each site, and decompose their sum; the rest is post-processing."""
        order = plan.total.problem.n_features
        matrix = np.zeros((order, order))
        for part in parties.noised_parts(self.noised_part, plan.sites):
            matrix += unpack_symmetric(part, order)
        bits = min(site.bits for site in plan.sites)
        return decompose(moment_of_total(matrix, plan.total, bits=bits), n_components=self.n_components)


@dataclass(frozen=True, slots=True, kw_only=True)
class DpDis(Conv):
    """Sum the leading parts of the sites' noisy second moments, each of rank at most ``2 k``.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.

    Notes
    -----
    A site sends ``U sqrt(L)``, where L are the leading positive eigenvalues of its noisy moment, at most ``R = 2 k``,
    and U the eigenvectors. These are d R numbers instead of d (d + 1) / 2. Negative eigenvalues are omitted, so the
    eigenvalues of noise do not cancel, and the sum is biased upward. Therefore only directions are returned.

    References
    ----------
    Imtiaz and Sarwate (2018), who compare with this baseline of earlier work; R = 2 k is taken from their code.
    """

    name: ClassVar[str] = "dp_dis"

    def noised_part(self, curator: Curator, plan: Plan) -> NDArray[np.float64]:
        """Return the leading part of a site's noisy second moment.

        Each row of the result is an eigenvector times the square root of a positive eigenvalue.
        """
        values, rows = leading_eigenpairs(_released(curator, plan), min(2 * self.n_components, plan.problem.n_features))
        return np.asarray(rows[values > 0] * np.sqrt(values[values > 0])[:, None])

    def is_part(self, part: NDArray[np.float64], plan: Plan) -> bool:
        """Return whether a received array can be the leading part of a second moment, with finite entries."""
        order = plan.problem.n_features
        most = min(2 * self.n_components, order)
        return part.ndim == 2 and part.shape[0] <= most and part.shape[1] == order and bool(np.isfinite(part).all())

    def run(self, parties: Parties, plan: JointPlan) -> Subspace:
        """Release the second moment of each site, and sum the leading parts; the rest is post-processing."""
        order = plan.total.problem.n_features
        total = np.zeros((order, order))
        for sent in parties.noised_parts(self.noised_part, plan.sites):
            total += sent.T @ sent
        return Subspace(components=leading_eigenpairs(total, self.n_components)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Local(Conv):
    """Use the noisy second moment of the first site alone; no other site is read or charged.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.
    """

    name: ClassVar[str] = "local"

    def plan(
        self,
        problems: Sequence[Problem],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        membership: Membership | None = None,
    ) -> JointPlan:
        """Plan one release of the second moment at the first site; ``session`` and ``membership`` are not used."""
        check_sites(problems)
        return _plan(self.name, problems[:1], targets[:1], n_components=self.n_components)

    def run(self, parties: Parties, plan: JointPlan) -> Subspace:
        """Release the second moment of the first site, and decompose it; the rest is post-processing."""
        (site,) = plan.sites
        (part,) = parties.noised_parts(self.noised_part, plan.sites)
        facts = noise_facts(moment_query(site.problem, bits=site.bits), _noise(site), site.problem)
        moment = moment_from(unpack_symmetric(part, site.problem.n_features), site.problem, noise=facts)
        return decompose(moment, n_components=self.n_components)


def _plan(
    mechanism: str, problems: Sequence[Problem], targets: Sequence[PrivacyTarget], *, n_components: int
) -> JointPlan:
    if mechanism != Local.name:
        check_sites(problems)
    sites = []
    for problem, target in zip(problems, targets, strict=True):
        check_request(problem, target, n_components=n_components)
        noise = Symmetric(noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta))
        sites.append(plan_moment(mechanism, problem, target, noise, n_components=n_components))
    together = Symmetric(noise_multiplier=math.hypot(*(site.noise_multiplier for site in sites)))
    total = plan_moment(mechanism, pooled(problems), targets[0], together, n_components=n_components)
    return JointPlan(sites=tuple(sites), total=total)


def _released(curator: Curator, plan: Plan) -> NDArray[np.float64]:
    return curator.release(moment_query(plan.problem, bits=plan.bits), _noise(plan))


def _noise(plan: Plan) -> Symmetric:
    return Symmetric(noise_multiplier=plan.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvAgn:
    """Sum the second moments and then the cores of all sites, with independent noise of each site.

    In both rounds, the sum over S sites has sqrt(S) times the noise of a release by one data owner.

    Parameters
    ----------
    n_components : int
        The number K of components, below the number of features.
    point_factor, score_factor : float
        As of `dpca_tasks.mechanisms.tensors.tensor_releases.TensorReleases`.

    References
    ----------
    Imtiaz and Sarwate (2018), their baseline of conventional distributed noise.
    """

    n_components: int
    point_factor: float = field(default=POINT_FACTOR, metadata={"ge": 1})
    score_factor: float = field(default=SCORE_FACTOR, metadata={"ge": 1})

    name: ClassVar[str] = "conv_agn"
    sites_used: ClassVar[int | None] = None

    def plan(
        self,
        problems: Sequence[TensorProblem],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        membership: Membership | None = None,
    ) -> JointPlan:
        """Plan the release of a second moment and of a core at each used site; ``session`` is not used."""
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
        """Release the second moment of each site, then each site's core along the eigenvectors of the summed moments.

        The rest is post-processing.
        """
        releases = self._of(plan.total.problem)

        def moment(curator: Curator, site: Plan) -> NDArray[np.float64]:
            noise = Symmetric(noise_multiplier=site.noise_multiplier)
            return curator.release(releases.moment_query(bits=site.bits), noise)

        std = releases.moment_std(noise_multiplier=plan.total.noise_multiplier)
        space = releases.space(np.sum(parties.noised_parts(moment, plan.sites), axis=0), std=std)
        requested: list[RowSum] = []

        def core(curator: Curator, site: Plan) -> NDArray[np.float64]:
            bits = releases.core_bits(noise_multiplier=site.noise_multiplier)
            query = curator.with_stored_inputs(releases.core_query(space, bits=bits))
            requested.append(query)
            return curator.release(query, Cube(noise_multiplier=site.noise_multiplier))

        total = np.sum(parties.noised_parts(core, plan.sites), axis=0)
        return releases.components_from(total, product_along(requested[0], space))

    def _of(self, problem: TensorProblem) -> TensorReleases:
        return TensorReleases(
            problem=problem,
            components=self.n_components,
            point_factor=self.point_factor,
            score_factor=self.score_factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAgn(ConvAgn):
    """Use the noisy second moment and core of the first site alone; no other site is read or charged.

    Parameters
    ----------
    n_components, point_factor, score_factor
        As of `ConvAgn`.
    """

    name: ClassVar[str] = "local_agn"
    sites_used: ClassVar[int | None] = 1
