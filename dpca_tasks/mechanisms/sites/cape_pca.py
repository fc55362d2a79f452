"""capePCA: the leading eigenvectors of the sum of the second moments of all sites.

Each site sends its second moment with a share of noise and under a mask. Only the sum becomes known, because the masks
cancel in it. If no colluders and no dropouts are tolerated, the sum over S sites has the noise of a release by one data
owner. This is sqrt(S) times less noise than with `conv`.

*Rounds and warm starts*. As for one data owner, the sum can be released in several rounds
(`dpca_tasks.mechanisms.released_rounds`), or in one round with a map from an earlier release
(`dpca_tasks.mechanisms.warm_start`). The map, the clip norm and the constants of a round are public inputs of its query
`dpca_tasks.queries.mapped_moment`, and the same for all sites. The sites add their shares of noise to the integers of
the mapped and clipped records, so a share has the same parameter for every map. The sensitivity of the query is proved
for any public map. So the guarantee of a site does not depend on whoever chooses the map.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, Subspace, check_request
from dpca_tasks.mechanisms.registered import SEPARATE
from dpca_tasks.mechanisms.released_moment import decompose, moment_query, plan_moment
from dpca_tasks.mechanisms.released_rounds import (
    SHARES,
    as_answer,
    check_count,
    multiplier_together,
    plan_rounds,
    planned_rounds,
    release_rounds,
    unmapped,
)
from dpca_tasks.mechanisms.sites.joint_plan import (
    Cape,
    JointPlan,
    JointRound,
    Membership,
    Parties,
    charged,
    check_public,
    check_sites,
    membership_of,
    moment_of_total,
    noise_of,
    noise_ratio,
    pooled,
    shared_roster,
    weighted_scale,
)
from dpca_tasks.mechanisms.warm_start import Start, plan_warm, started, warm_subspace
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.request import in_data_units
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.mapped_moment import WIDEST, MappedMoment
from dpca_tasks.refinement.rounds import Answer
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
    rounds : {"auto", 1, 2, 3}
        The number of rounds, which together cost as much as one round. With ``auto``, datasets of one home have the
        rounds of `dpca_tasks.mechanisms.subspace.analyze_gauss.AnalyzeGauss`. Sites of a roster have one round, because
        each further round needs every site again.
    warm : bool
        Whether the release has one round, whose map comes from an earlier release.
    start : callable, optional
        For a warm start: a function that returns the `dpca_tasks.mechanisms.warm_start.Start`. Only the process that
        combines the sites needs it.

    Notes
    -----
    The budget of a site pays for everything that C colluding sites and the aggregator learn from all messages together.
    This is the sum with the noise of the other ``S - C - D`` sites. It is accounted exactly as Gaussian noise, although
    the shares are integers. If sites have different epsilons, the common noise satisfies the strictest site.

    References
    ----------
    Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise. Here the accounting
    covers all messages together, and masks are uniform instead of Gaussian. The paper has one round.
    """

    n_components: int
    colluders: int | None = field(default=None, metadata={"ge": 0})
    dropouts: int = field(default=0, metadata={"ge": 0})
    rounds: int | Literal["auto"] = field(default="auto", metadata=SEPARATE)
    warm: bool = field(default=False, metadata=SEPARATE)
    start: Callable[[], Start] | None = field(default=None, metadata=SEPARATE, repr=False, compare=False)

    name: ClassVar[str] = "cape_pca"

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
        cape = Cape(sites=len(problems), colluders=self.colluders, dropouts=self.dropouts)
        count = self._planned_rounds(pooled(problems), targets[0], over_roster=membership is not None)
        membership = membership_of(problems, membership)
        rounds = []
        for index, share in enumerate(SHARES.get(count, (Fraction(1),))):
            roster = shared_roster(
                session, problems, targets, membership=membership, cape=cape, steps=membership.attempts, share=share
            )
            noise = Symmetric(noise_multiplier=cape.noise(scale=weighted_scale(roster)).total_std)
            coarse = self._coarsest(problems[0], noise, first=index == 0, rounds=count)
            bits = share_bits(roster, sensitivity=coarse.sensitivity("l2"), degree=coarse.degree)
            rounds.append(JointRound(roster=roster, noise_multiplier=noise.noise_multiplier, bits=bits))
        total = self._total(pooled(problems), targets[0], rounds)
        sites = []
        for problem, target, name in zip(problems, targets, membership.names, strict=True):
            multipliers = [each.roster.member(name).noise_multiplier for each in rounds]
            charges = [charged(multiplier, steps=membership.attempts) for multiplier in multipliers]
            event = charges[0] if len(charges) == 1 else events.composed(*charges)
            together = multiplier_together(multipliers)
            sites.append(replace(total, problem=problem, target=target, noise_multiplier=together, event=event))
        return JointPlan(
            sites=tuple(sites), total=total, roster=rounds[0].roster, rounds=tuple(rounds) if count > 1 else ()
        )

    def count_rounds(self, plan: JointPlan) -> int:
        """Return the number of rounds; each round computes one total over all sites."""
        return plan.total.rounds

    def inputs(self, plan: JointPlan, *, index: int) -> Mapping[str, NDArray[Any]]:
        """Return the public arrays of a round with the widest map; a second moment without a map has none."""
        query = self._planned_query(plan, index)
        if not isinstance(query, MappedMoment):
            return {}
        widest = np.zeros((query.n_features, min(WIDEST, query.n_features)), np.int64)
        return replace(query, directions=widest, reductions=widest).public_inputs()

    def query(self, plan: JointPlan, *, index: int, public: Mapping[str, NDArray[Any]]) -> RowSum:
        """Return the query of a round; its public arrays are the map, which may have any width, and the clip norm."""
        expected = dict(self.inputs(plan, index=index))
        for name in {"directions", "reductions"} & expected.keys() & public.keys():
            if public[name].ndim == 2 and public[name].shape[1] <= expected[name].shape[1]:
                expected[name] = expected[name][:, : public[name].shape[1]]
        check_public(public, expected, index=index, rounds=self.count_rounds(plan))
        planned: Any = self._planned_query(plan, index)
        query: RowSum = replace(planned, **public)
        return query

    def run(self, parties: Parties, plan: JointPlan) -> Subspace:
        """Sum the masked messages of all sites in each round, so that the masks cancel; the rest is post-processing."""
        if plan.rounds:
            return release_rounds(
                self._asking(parties, plan), plan.total, n_components=self.n_components, served=self.n_components
            )
        if self.warm:
            return self._run_warm(parties, plan)
        roster = plan.roster_of(0)
        opened = parties.open(self.query(plan, index=0, public={}), roster=roster, index=0)
        total = noise_of(plan.total, planned=roster, answered=opened.roster)
        moment = moment_of_total(in_data_units(opened.total, opened.query), total, bits=total.bits)
        return decompose(moment, n_components=self.n_components)

    def _run_warm(self, parties: Parties, plan: JointPlan) -> Subspace:
        assert self.start is not None
        query, noise = self._planned_query(plan, 0), Symmetric(noise_multiplier=plan.total.noise_multiplier)
        assert isinstance(query, MappedMoment)
        query = started(query, self.start(), noise, served=self.n_components)
        answer, query = self._answer(parties, plan, query, noise, index=0, missing=set(), energy=None)
        return warm_subspace(answer, query, plan.total, n_components=self.n_components)

    def _asking(self, parties: Parties, plan: JointPlan) -> Callable[[MappedMoment, Symmetric, float | None], Answer]:
        """Return a function that computes the totals of the rounds in order, without sites that have dropped out."""
        indices, missing = iter(range(len(plan.rounds))), set[str]()

        def ask(query: MappedMoment, noise: Symmetric, energy: float | None) -> Answer:
            index = next(indices)
            query = replace(query, bits=plan.rounds[index].bits)
            return self._answer(parties, plan, query, noise, index=index, missing=missing, energy=energy)[0]

        return ask

    def _answer(
        self,
        parties: Parties,
        plan: JointPlan,
        query: MappedMoment,
        noise: Symmetric,
        *,
        index: int,
        missing: set[str],
        energy: float | None,
    ) -> tuple[Answer, MappedMoment]:
        """Return the answer of a round over all sites, and its query; add sites that drop out to ``missing``."""
        planned = plan.roster_of(index)
        opened = parties.open(query, roster=planned.without(*missing) if missing else planned, index=index)
        missing.update({*planned.names} - {*opened.roster.names})
        ratio = noise_ratio(planned=planned, answered=opened.roster)
        actual = Symmetric(noise_multiplier=noise.noise_multiplier * ratio)
        total = in_data_units(opened.total, opened.query)
        return as_answer(total, opened.query, actual, energy=energy), opened.query

    def _planned_rounds(self, problem: Problem, target: PrivacyTarget, *, over_roster: bool) -> int:
        if self.warm:
            if self.rounds not in ("auto", 1):
                raise Refused(f"like needs one round, but rounds={self.rounds}; leave out one of the two.")
            return 1
        if self.rounds == "auto":
            return 1 if over_roster else planned_rounds(problem, target, n_components=self.n_components)
        check_count(self.rounds)
        return self.rounds

    def _coarsest(self, problem: Problem, noise: Symmetric, *, first: bool, rounds: int) -> RowSum:
        """Return the query of a round without a map, on the coarsest grid."""
        if rounds == 1 and not self.warm:
            return moment_query(problem, bits=1)
        return replace(unmapped(problem, noise, first=first and not self.warm), bits=1)

    def _planned_query(self, plan: JointPlan, index: int) -> RowSum:
        """Return the query of a round without its map."""
        multiplier, bits = plan.total.noise_multiplier, plan.total.bits
        if plan.rounds and 0 <= index < len(plan.rounds):
            multiplier, bits = plan.rounds[index].noise_multiplier, plan.rounds[index].bits
        noise = Symmetric(noise_multiplier=multiplier)
        coarse = self._coarsest(plan.total.problem, noise, first=index == 0, rounds=plan.total.rounds)
        return replace(coarse, bits=bits)

    def _total(self, problem: Problem, target: PrivacyTarget, rounds: Sequence[JointRound]) -> Plan:
        """Return the plan of the total of all sites, in the form of a plan for one data owner."""
        noises = [Symmetric(noise_multiplier=each.noise_multiplier) for each in rounds]
        if len(rounds) > 1:
            total = plan_rounds(self.name, problem, target, noises, n_components=self.n_components)
        elif self.warm:
            total = plan_warm(self.name, problem, target, noises[0], n_components=self.n_components)
        else:
            total = plan_moment(self.name, problem, target, noises[0], n_components=self.n_components)
        return replace(total, bits=min(each.bits for each in rounds))
