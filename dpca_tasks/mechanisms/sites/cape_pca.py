"""capePCA: the leading eigenvectors of the sum of the second moments of all sites.

Each site sends its second moment with a share of noise and under a mask. Only the sum becomes known, because the masks
cancel in it. If no colluders and no dropouts are tolerated, the sum over S sites has the noise of a release by one data
owner. This is sqrt(S) times less noise than with `conv`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.released_moment import decompose, moment_query, plan_moment
from dpca_tasks.mechanisms.sites.joint_plan import (
    Cape,
    JointPlan,
    Membership,
    Parties,
    charged,
    check_public,
    check_sites,
    membership_of,
    moment_of_total,
    noise_of,
    pooled,
    shared_roster,
    weighted_scale,
)
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.request import in_data_units
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.rounds import share_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class CapePca:
    """Sum the sites' noised and masked second moments, and return the leading eigenpairs of the sum.

    Parameters
    ----------
    n_components : int
        The number k of components, below the number of features.
    colluders : int, optional
        The number C of sites that may collude with the aggregator; by default below a third of the other sites.
    dropouts : int
        The number D of further sites whose noise may be missing.

    Notes
    -----
    The budget of a site pays for everything that C colluding sites and the aggregator learn from all messages together.
    This is the sum with the noise of the other ``S - C - D`` sites. It is accounted exactly as Gaussian noise, although
    the shares are integers. If sites have different epsilons, the common noise satisfies the strictest site.

    References
    ----------
    Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise. Here the accounting
    covers all messages together, and masks are uniform instead of Gaussian.
    """

    n_components: int
    colluders: int | None = field(default=None, metadata={"ge": 0})
    dropouts: int = field(default=0, metadata={"ge": 0})

    name: ClassVar[str] = "cape_pca"
    rounds: ClassVar[int] = field(default=1, metadata={"ge": 1})

    def plan(
        self,
        problems: Sequence[Problem],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        membership: Membership | None = None,
    ) -> JointPlan:
        """Plan each site's share of the noise."""
        check_sites(problems)
        for problem, target in zip(problems, targets, strict=True):
            check_request(problem, target, n_components=self.n_components)
        cape = Cape(sites=len(problems), colluders=self.colluders, dropouts=self.dropouts)
        membership = membership_of(problems, membership)
        roster = shared_roster(session, problems, targets, membership=membership, cape=cape, steps=membership.attempts)
        coarse = moment_query(problems[0], bits=1)
        bits = share_bits(roster, sensitivity=coarse.sensitivity("l2"), degree=coarse.degree)
        noise = Symmetric(noise_multiplier=cape.noise(scale=weighted_scale(roster)).total_std)
        total = plan_moment(self.name, pooled(problems), targets[0], noise, n_components=self.n_components)
        total = replace(total, bits=bits)
        sites = [
            replace(
                total,
                problem=problem,
                target=target,
                noise_multiplier=member.noise_multiplier,
                event=charged(member.noise_multiplier, steps=membership.attempts),
            )
            for problem, target, member in zip(problems, targets, roster.members, strict=True)
        ]
        return JointPlan(sites=tuple(sites), total=total, roster=roster)

    def inputs(self, plan: JointPlan, *, index: int) -> Mapping[str, NDArray[Any]]:
        """Return an empty mapping: the query of the single round has no public arrays."""
        return {}

    def query(self, plan: JointPlan, *, index: int, public: Mapping[str, NDArray[Any]]) -> RowSum:
        """Return the query of the single round, the second moment, which has no public arrays."""
        check_public(public, self.inputs(plan, index=index), index=index, rounds=self.rounds)
        return moment_query(plan.total.problem, bits=plan.total.bits)

    def run(self, parties: Parties, plan: JointPlan) -> Subspace:
        """Sum the masked messages of all sites, so that the masks cancel; the rest is post-processing."""
        assert plan.roster is not None
        opened = parties.open(self.query(plan, index=0, public={}), roster=plan.roster, index=0)
        total = noise_of(plan.total, planned=plan.roster, answered=opened.roster)
        moment = moment_of_total(in_data_units(opened.total, opened.query), total, bits=total.bits)
        return decompose(moment, n_components=self.n_components)
