"""DPS-PCA over sites: noisy truncated orthogonal iteration whose products are sums over all sites.

In each round a site sends its part of a product, d k numbers, with a share of noise and under a mask. A second moment
would have d (d + 1) / 2 numbers. Only the sum over all sites becomes known, because the masks cancel in it. The sum has
the noise of a release by one data owner, plus additional noise for tolerated colluders. The directions of a round are
computed from earlier sums alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.noise_level import product_edge
from dpca_tasks.mechanisms.noisy_products import (
    FINEST,
    Iterate,
    check_rounds,
    iterate_truncated,
    on_grid,
    plan_products,
    product_noise,
    product_query,
    start_directions,
)
from dpca_tasks.mechanisms.sites.joint_plan import (
    Cape,
    JointPlan,
    Membership,
    Parties,
    check_public,
    check_sites,
    membership_of,
    pooled,
    shared_roster,
    weighted_scale,
)
from dpca_tasks.noise.distributions import Gaussian
from dpca_tasks.privacy.request import in_data_units
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.rounded_product import MomentProduct
from dpca_tasks.sites.roster import Roster
from dpca_tasks.sites.rounds import share_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class DpsPcaOfSites:
    """Iterate ``Q <- orth(truncate(orth(K + noise)))`` over all sites' records.

    K is the sum of the clipped messages ``x clip(Q^T x)^T`` of all records x of all sites.

    Parameters
    ----------
    n_components : int
        The number k of components.
    rows_kept, iterations, burn_in, message_clip
        As of `dpca_tasks.mechanisms.subspace.dps_pca.DpsPca`.
    colluders, dropouts
        As of `dpca_tasks.mechanisms.sites.cape_pca.CapePca`.

    References
    ----------
    Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA in distributed systems. In the paper
    all data providers add the same random noise, so the server can compute differences of their data without noise.
    Here each site draws independent noise, and its messages are masked.
    """

    n_components: int
    rows_kept: int = field(default=50, metadata={"ge": 1})
    iterations: int = field(default=8, metadata={"ge": 1})
    burn_in: int = field(default=3, metadata={"ge": 0})
    message_clip: float = field(default=0.25, metadata={"gt": 0, "le": 1})
    colluders: int | None = field(default=None, metadata={"ge": 0})
    dropouts: int = field(default=0, metadata={"ge": 0})

    name: ClassVar[str] = "dps_pca"

    def plan(
        self,
        problems: Sequence[Problem],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        membership: Membership | None = None,
    ) -> JointPlan:
        """Plan each site's share of the noise, in every round."""
        check_sites(problems)
        for problem, target in zip(problems, targets, strict=True):
            check_request(problem, target, n_components=self.n_components)
        check_rounds(
            n_components=self.n_components,
            rows_kept=self.rows_kept,
            iterations=self.iterations,
            burn_in=self.burn_in,
            message_clip=self.message_clip,
        )
        cape = Cape(sites=len(problems), colluders=self.colluders, dropouts=self.dropouts)
        membership = membership_of(problems, membership)
        steps = self.iterations * membership.attempts
        roster = shared_roster(session, problems, targets, membership=membership, cape=cape, steps=steps)
        together = pooled(problems)
        noise = Gaussian(noise_multiplier=cape.noise(scale=weighted_scale(roster)).total_std)
        std = product_noise(together, noise, width=self.n_components, rate=1.0, message_clip=self.message_clip)
        total = plan_products(
            self.name,
            together,
            targets[0],
            width=self.n_components,
            noises=[(noise, 1.0)],
            releases=self.iterations,
            event=events.self_composed(noise.event, self.iterations),
            n_components=self.n_components,
            level=product_edge(together.n_features, self.n_components, std=std) / self.message_clip,
            edge=None,
            message_clip=self.message_clip,
        )
        total = replace(total, bits=self._bits(roster, together))
        sites = [
            replace(
                total,
                problem=problem,
                target=target,
                noise_multiplier=member.noise_multiplier,
                event=events.self_composed(events.gaussian(member.noise_multiplier), steps),
            )
            for problem, target, member in zip(problems, targets, roster.members, strict=True)
        ]
        return JointPlan(sites=tuple(sites), total=total, roster=roster)

    def count_rounds(self, plan: JointPlan) -> int:
        """Return the number of rounds; each round computes one total over all sites."""
        return self.iterations

    def inputs(self, plan: JointPlan, *, index: int) -> Mapping[str, NDArray[Any]]:
        """Return the start directions as a public array; the directions of every round have the same shape."""
        return self._product(plan, start_directions(plan.total.problem.n_features, self.n_components)).public_inputs()

    def query(self, plan: JointPlan, *, index: int, public: Mapping[str, NDArray[Any]]) -> RowSum:
        """Return the query for the clipped product with the directions of a round, which are its public array."""
        start = self._product(plan, start_directions(plan.total.problem.n_features, self.n_components))
        check_public(public, self.inputs(plan, index=index), index=index, rounds=self.count_rounds(plan))
        return replace(start, directions=public["directions"])

    def run(self, parties: Parties, plan: JointPlan) -> Subspace:
        """Compute the total product of all sites in each planned round; the rest is post-processing."""
        assert plan.roster is not None
        problem, rounds, rosters = plan.total.problem, iter(range(self.iterations)), [plan.roster]

        def answer(directions: NDArray[np.float64]) -> Iterate:
            opened = parties.open(self._product(plan, directions), roster=rosters[-1], index=next(rounds))
            rosters.append(opened.roster)
            product = in_data_units(opened.total, opened.query).reshape(problem.n_features, -1)
            return Iterate(directions=on_grid(opened.query), product=product)

        components = iterate_truncated(
            answer,
            n_features=problem.n_features,
            n_components=self.n_components,
            iterations=self.iterations,
            burn_in=self.burn_in,
            rows_kept=min(self.rows_kept, problem.n_features),
        )
        return Subspace(components=components)

    def _product(self, plan: JointPlan, directions: NDArray[np.float64]) -> MomentProduct:
        return product_query(
            plan.total.problem, bits=plan.total.bits, directions=directions, message_clip=self.message_clip
        )

    def _bits(self, roster: Roster, problem: Problem) -> int:
        """Return the bits of the finest grid on which all sites can draw their shares of the noise.

        The sensitivity of a clipped product depends on the grid, so the grid is found by iteration.
        """
        start = start_directions(problem.n_features, self.n_components)
        bits = FINEST
        while True:
            query = product_query(problem, bits=bits, directions=start, message_clip=self.message_clip)
            fits = share_bits(roster, sensitivity=query.sensitivity("l2"), degree=query.degree)
            if fits >= bits:
                return bits
            bits = fits
