"""capeAGN: components of a topic or mixture model from two sums over sites, a second moment and a core.

The core is the third moment along the leading eigenvectors of the second moment. In both rounds each site sends its sum
with a share of noise and under a mask. The masks cancel in the total, which alone becomes known. The total has the
noise of a release by one data owner, plus additional noise for tolerated colluders. The public inputs of the second
round are the eigenvectors and, for a mixture, a variance. They are computed from the first total and sent to every
site. A site only accepts orthonormal directions, the declared variance, if any, and the bound on scores that follows
from the variance. So no other statistic can be requested, and the noise protects a site's records for every accepted
request.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Components, Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.sites.joint_plan import (
    Cape,
    JointPlan,
    Membership,
    Parties,
    charged,
    check_public,
    check_sites,
    membership_of,
    noise_of,
    pooled,
    shared_roster,
    weighted_scale,
)
from dpca_tasks.mechanisms.tensors.tensor_releases import (
    CORE_SENSITIVITY,
    POINT_FACTOR,
    SCORE_FACTOR,
    Eigenspace,
    TensorProblem,
    TensorReleases,
    product_along,
)
from dpca_tasks.privacy.request import in_data_units
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS
from dpca_tasks.queries.words import PointTriples
from dpca_tasks.sites.roster import Roster
from dpca_tasks.sites.rounds import share_bits
from dpca_tasks.threads import one_thread

ROUNDS = 2
_NEAR = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CapeAgn:
    """Open the total second moment of all sites, then the total core along its leading eigenvectors.

    To open a total is to sum the sites' masked messages, so that the masks cancel. The components are computed from the
    core.

    Parameters
    ----------
    n_components : int
        The number K of components, below the number of features.
    point_factor, score_factor : float
        As of `dpca_tasks.mechanisms.tensors.tensor_releases.TensorReleases`.
    colluders, dropouts
        As of `dpca_tasks.mechanisms.sites.cape_pca.CapePca`.

    Notes
    -----
    Each round gets half of the squared mu that a site's budget permits, ``mu^2 / 2``. If a site of the first round is
    missing in the second round, the second round continues without this site, along the same directions. No message of
    the first round is used again.

    References
    ----------
    Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise, Algorithm 3. Here
    the accounting covers all messages together, sites exchange seeds in place of masks of D x D x D numbers, and the
    second round has K dimensions in place of D.
    """

    n_components: int
    point_factor: float = field(default=POINT_FACTOR, metadata={"ge": 1})
    score_factor: float = field(default=SCORE_FACTOR, metadata={"ge": 1})
    colluders: int | None = field(default=None, metadata={"ge": 0})
    dropouts: int = field(default=0, metadata={"ge": 0})

    name: ClassVar[str] = "cape_agn"

    def plan(
        self,
        problems: Sequence[TensorProblem],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        membership: Membership | None = None,
    ) -> JointPlan:
        """Plan each site's share of the noise, in both rounds."""
        check_model(problems)
        together = pooled(problems)
        releases = self._of(together)
        releases.check()
        for problem, target in zip(problems, targets, strict=True):
            check_target(problem, target)
        cape = Cape(sites=len(problems), colluders=self.colluders, dropouts=self.dropouts)
        membership = membership_of(problems, membership)
        steps = ROUNDS * membership.attempts
        roster = shared_roster(session, problems, targets, membership=membership, cape=cape, steps=steps)
        coarse = releases.moment_query(bits=1)
        bits = share_bits(roster, sensitivity=coarse.sensitivity("l2"), degree=coarse.degree)
        core_bits(roster)  # raises an error if no grid fits the core, before anything is charged
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
            notes=releases.warnings(bits=bits),
        )
        return JointPlan(sites=tuple(sites), total=total, roster=roster)

    def count_rounds(self, plan: JointPlan) -> int:
        """Return the number of rounds; each round computes one total over all sites."""
        return ROUNDS

    def inputs(self, plan: JointPlan, *, index: int) -> Mapping[str, NDArray[Any]]:
        """Return the public arrays that the query of a round may have, in their largest shapes.

        Round 0, the second moment, has no arrays. Round 1, the core, has directions, and for a mixture also a variance
        and a bound on scores.
        """
        if index == 0:
            return {}
        problem = plan.total.problem
        directions = np.eye(problem.n_features, self.n_components, dtype=np.int64) << DIRECTION_BITS
        space = self._space(directions, None if problem.model == "topics" else problem.noise_variance or 0.0)
        return self._of(problem).core_query(space, bits=core_bits(plan.roster)).public_inputs()

    def query(self, plan: JointPlan, *, index: int, public: Mapping[str, NDArray[Any]]) -> RowSum:
        """Return the query of a round: the second moment in round 0, the core along public directions in round 1.

        For a mixture, the public arrays of round 1 also contain a variance and a bound on scores.
        """
        releases, expected = self._of(plan.total.problem), dict(self.inputs(plan, index=index))
        given: dict[str, Any] = dict(public)
        if index and getattr(given.get("directions"), "ndim", 0) == 2:  # fewer than K directions may exceed the noise
            expected["directions"] = expected["directions"][:, : max(given["directions"].shape[1], 1)]
        check_public(public, expected, index=index, rounds=self.count_rounds(plan))
        if index == 0:
            return releases.moment_query(bits=plan.total.bits)
        check_orthonormal(given["directions"])
        variance = check_variance(releases.problem, given["noise_variance"]) if "noise_variance" in given else None
        made = releases.core_query(self._space(given["directions"], variance), bits=core_bits(plan.roster))
        if isinstance(made, PointTriples) and not math.isclose(made.radius, given["score_norm"].item(), rel_tol=_NEAR):
            raise InvalidInput(
                f"score_norm={given['score_norm'].item():.6g} must be {made.radius:.6g}, which follows from the "
                "mixture's variance; send the planned request."
            )
        return replace(made, **given)

    def run(self, parties: Parties, plan: JointPlan) -> Components:
        """Compute the total second moment and the total core of all sites; the rest is post-processing."""
        assert plan.roster is not None
        first = parties.open(self.query(plan, index=0, public={}), roster=plan.roster, index=0)
        noise = noise_of(plan.total, planned=plan.roster, answered=first.roster)
        releases = self._of(replace(plan.total.problem, records_at_most=counted(first.roster)))
        std = releases.moment_std(noise_multiplier=noise.noise_multiplier)
        matrix = in_data_units(first.total, first.query)
        space = releases.space(matrix, std=std)
        second = parties.open(releases.core_query(space, bits=core_bits(plan.roster)), roster=first.roster, index=1)
        core = in_data_units(second.total, second.query) * (counted(first.roster) / counted(second.roster))
        requested = product_along(second.query, space)
        if not is_same(requested, space):
            requested, core = turned(requested, core, matrix, n_records=counted(first.roster))
        return releases.components_from(core, requested)

    def _of(self, problem: TensorProblem) -> TensorReleases:
        return TensorReleases(
            problem=problem,
            components=self.n_components,
            point_factor=self.point_factor,
            score_factor=self.score_factor,
        )

    def _space(self, directions: NDArray[np.int64], noise_variance: float | None) -> Eigenspace:
        """Return an eigenspace with given directions for the query of a core; its eigenvalues are zeros, and unused."""
        return Eigenspace(
            values=np.zeros(directions.shape[1]),
            directions=directions / 2.0**DIRECTION_BITS,
            requested=self.n_components,
            floor=0.0,
            noise_variance=noise_variance,
        )


def core_bits(roster: Roster | None) -> int:
    """Return the bits of the core's grid, which is valid for any number of directions."""
    assert roster is not None
    return share_bits(roster, sensitivity=CORE_SENSITIVITY, degree=1, layout="cube")


def check_orthonormal(directions: NDArray[np.int64]) -> None:
    """Refuse directions that are not orthonormal columns, up to the rounding of their entries.

    Raises
    ------
    InvalidInput
        When the columns deviate from orthonormal columns by more than rounding.
    """
    columns = directions / 2.0**DIRECTION_BITS
    with one_thread():
        deviation = np.abs(columns.T @ columns - np.eye(columns.shape[1])).max()
    if not deviation <= 2.0 ** (1 - DIRECTION_BITS) * math.sqrt(len(columns)):
        raise InvalidInput(
            f"the directions of the second round differ from orthonormal columns by {deviation:.3g}, more than "
            "rounding explains; send the planned request."
        )


def check_variance(problem: TensorProblem, given: NDArray[np.float64]) -> float:
    """Return the received variance of a mixture's noise as a float, after a check.

    Raises
    ------
    InvalidInput
        When the variance differs from the declared variance. Without a declaration, when it is negative or larger than
        clipped points can have.
    """
    value, declared = given.item(), problem.noise_variance
    most = problem.unit / problem.n_features
    if value != declared if declared is not None else not 0 <= value <= most * (1 + _NEAR):
        rule = f"at most {most:.6g}, the limit for points of norm clip_norm" if declared is None else f"{declared:.6g}"
        raise InvalidInput(f"noise_variance={value:.6g} must be {rule}; send the planned request.")
    return float(value)


def is_same(one: Eigenspace, other: Eigenspace) -> bool:
    """Return whether two eigenspaces have the same eigenvectors, up to rounding errors."""
    ours, theirs = one.directions, other.directions
    return ours.shape == theirs.shape and bool(np.abs(ours - theirs).max() <= _NEAR)


def turned(
    space: Eigenspace, core: NDArray[np.float64], matrix: NDArray[np.float64], *, n_records: float
) -> tuple[Eigenspace, NDArray[np.float64]]:
    """Rotate a core so that it is along eigenvectors of the second moment ``matrix``; return both.

    The eigenvectors are computed within the span of the core's directions. This is needed if a site of the first round
    is lost when a release is resumed, after the query of the core was sent. Then the directions of the core are not
    eigenvectors of the second moment that is now available.
    """
    directions = space.directions
    within = directions.T @ matrix @ directions - n_records * (space.noise_variance or 0.0) * np.eye(len(core))
    values, turn = np.linalg.eigh(within)
    values, turn = values[::-1], turn[:, ::-1]
    core = np.einsum("abc,ai,bj,ck->ijk", core, turn, turn, turn, optimize=True)
    return replace(space, values=values, directions=directions @ turn), core


def check_model(problems: Sequence[TensorProblem]) -> None:
    """Refuse fewer than two sites, and sites with different columns, relations, models or bounds.

    Raises
    ------
    InvalidInput
        When the sites differ; the message states their values, all of which are public.
    """
    check_sites(problems)
    for found in ("model", "words_at_most", "clip_norm", "noise_variance"):
        values = [str(getattr(problem, found)) for problem in problems]
        if len(set(values)) > 1:
            raise InvalidInput(
                f"the sites have {', '.join(values)} as {found}, and a sum over sites needs one value; state the same "
                "value for all sites."
            )


def counted(roster: Roster) -> int:
    """Return the declared number of records in a total over sites, each counted with the weight of its site."""
    return sum(member.weight * member.records for member in roster.members)
