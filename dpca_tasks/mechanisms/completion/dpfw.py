"""Private Frank-Wolfe, a baseline for `dpals`: each round adds one direction to a low-rank prediction of the ratings.

In each round a noisy second moment of all users' residual ratings is released, with one number for each pair of items.
The leading eigenvector of this moment is the new direction.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from dpca_tasks.accounting import events
from dpca_tasks.accounting.published import Settings, published_noise
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Calibration, ItemFactors, Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.completion.ratings import (
    Centring,
    RatingsProblem,
    centring,
    check_moment,
    check_ratings,
    joint_noise,
    leading_factors,
    moment_bits,
    moment_query,
    release_totals,
    spread_of,
    totals_query,
)
from dpca_tasks.noise.distributions import Gaussian, JointGaussian, check_tail
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.ratings import RatingMoment

LOW_EPSILON = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpfw:
    """Frank-Wolfe with noisy moments: the prediction is a sum of rank-one matrices, one for each round.

    Parameters
    ----------
    rank : int
        The rank of the sought matrix, which scales ``nuclear_norm``. The result has one factor per round instead.
    rounds : int, optional
        The number T of rounds; by default 8 for epsilon up to 5, and 16 above.
    row_norm : float
        The norm L to which a user's residual ratings are clipped, in multiples of ``spread sqrt(K)``, where K is the
        largest number of counted ratings of a user.
    nuclear_norm : float
        The bound on the prediction's nuclear norm, in multiples of ``spread sqrt(n m rank)`` for the declared number
        n of users and m items. This unit is the nuclear norm of a matrix of the given rank with entries of std
        ``spread`` and equal singular values.
    spread : float, optional
        The publicly known std of centred ratings; a quarter of the range of ratings by default.
    calibration : {"tight", "paper"}
        ``tight``: the least noise for the target; ``paper``: the published std
        ``L^2 sqrt(64 T ln(1 / delta)) / epsilon`` in each round, without item totals; the plan states its true
        epsilon.
    offsets : bool
        Whether noisy offsets of items are subtracted from the ratings first.
    totals_share : float
        The share of the budget mu^2 for item counts and offsets.
    centre, user_means, user_prior
        As for `dpca_tasks.mechanisms.completion.item_means.ItemMeans`.

    Notes
    -----
    In the published method each user stores a row of the predicted matrix. The row can also be computed from the public
    directions and eigenvalues of the rounds, and from the user's ratings. It is ``c V^T``, where the columns of V are
    the directions. The coefficients c follow from the recursion in `dpca_tasks.kernels.ratings.descend`, both in
    training and in prediction.

    The noise is isotropic with both calibrations. The published noise off the diagonal is ``sqrt 2`` times as large.

    References
    ----------
    Jain, Thakkar and Thakurta (2018), Differentially private matrix completion revisited, Algorithms 1 and 2.
    """

    rank: int
    rounds: int | None = field(default=None, metadata={"ge": 1})
    row_norm: float = field(default=0.7, metadata={"gt": 0})
    nuclear_norm: float = field(default=1.0, metadata={"gt": 0})
    spread: float | None = field(default=None, metadata={"gt": 0})
    calibration: Calibration = "tight"
    offsets: bool = True
    totals_share: float = field(default=0.1, metadata={"gt": 0, "lt": 1})
    centre: float | None = None
    user_means: bool = True
    user_prior: float = field(default=5.0, metadata={"ge": 0})

    name: ClassVar[str] = "dpfw"
    audited_with: ClassVar[Mapping[str, Any]] = {"rounds": 1, "user_means": False, "offsets": False}

    def plan(self, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Calibrate the noise of item totals and of all rounds, to the target or by the published formula."""
        check_ratings(problem, rank=self.rank)
        check_target(problem, target)
        check_moment(problem)
        self._check(target)
        totals, noise = self._noises(problem, target)
        rounds, draws, steps = self._rounds(target), 0, []
        if totals is not None:
            draws += totals_query(problem, self._centring(problem), totals).layout.size
            steps.append(totals.event)
        query = self._query(problem, bits=1)
        draws += rounds * query.layout.size
        check_tail(Gaussian(noise_multiplier=1.0), draws=draws, delta=target.delta)
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=noise.noise_multiplier,
            bits=moment_bits(query, noise.noise_multiplier),
            event=events.composed(*steps, *([noise.event] * rounds)),
            printed=self.calibration == "paper",
        )

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Release the item totals, if offsets are used, and the moment of every round; the rest is post-processing."""
        problem, centred = plan.problem, self._centring(plan.problem)
        totals, noise = self._noises(problem, plan.target)
        offsets = counts = None
        if totals is not None:
            offsets, counts = release_totals(curator, problem, centred, totals)
        query = self._query(problem, bits=plan.bits)
        directions, gains = np.zeros((0, problem.n_features)), np.zeros(0)
        for _ in range(self._rounds(plan.target)):
            requested = moment_query(
                problem,
                centred,
                bits=plan.bits,
                row_norm=query.row_norm,
                scaling="clip",
                offsets=offsets,
                directions=directions,
                gains=gains,
            )
            moment = curator.release_parts(curator.with_stored_inputs(requested), noise)["moment"]
            direction = leading_factors(moment, 1, passes=0)[:, 0]
            strength = max(float(direction @ moment @ direction), query.row_norm**2)
            directions = np.vstack([directions, direction])
            gains = np.append(gains, self._nuclear_norm(problem) / math.sqrt(strength))
        return ItemFactors(
            factors=directions.T,
            offsets=np.zeros(problem.n_features) if offsets is None else offsets,
            counts=counts,
            user_step={
                **centred.facts,
                "rating_bound": query.rating_bound,
                "row_norm": query.row_norm,
                "gains": gains.tolist(),
            },
        )

    def _check(self, target: PrivacyTarget) -> None:
        if not all(0 < value < math.inf for value in (self.row_norm, self.nuclear_norm)) or self._rounds(target) < 1:
            raise InvalidInput(
                "row_norm and nuclear_norm must be positive and finite, rounds at least 1; correct them."
            )
        if not 0 < self.totals_share < 1:
            raise InvalidInput(f"totals_share={self.totals_share} must be in (0, 1); correct it.")
        if self.calibration == "paper" and self.offsets:
            raise InvalidInput(
                "calibration=paper is published without item offsets; add offsets=false, or use calibration=tight."
            )

    def _rounds(self, target: PrivacyTarget) -> int:
        if self.rounds is not None:
            return self.rounds
        return 8 if target.epsilon <= LOW_EPSILON else 16

    def _requested(self, problem: RatingsProblem, target: PrivacyTarget) -> Settings:
        rounds = self._rounds(target)
        return Settings(epsilon=target.epsilon, delta=target.delta, relation=problem.relation, steps=rounds)

    def _noises(self, problem: RatingsProblem, target: PrivacyTarget) -> tuple[JointGaussian | None, JointGaussian]:
        """Return the noise of the item totals, or None without offsets, and the noise of each round."""
        if self.calibration == "paper":
            (part,) = self._query(problem, bits=1).parts.values()
            printed = published_noise(self.name, self._requested(problem, target)) / part.bound
            return None, JointGaussian(noise_multiplier=math.nextafter(printed, math.inf))
        share = Fraction(self.totals_share) if self.offsets else Fraction(0)
        each = joint_noise(target, (1 - share) / self._rounds(target))
        return joint_noise(target, share) if share else None, each

    def _centring(self, problem: RatingsProblem) -> Centring:
        return centring(problem, centre=self.centre, user_means=self.user_means, prior=self.user_prior)

    def _query(self, problem: RatingsProblem, *, bits: int) -> RatingMoment:
        row_norm = self.row_norm * spread_of(problem, self.spread) * math.sqrt(problem.most)
        return moment_query(problem, self._centring(problem), bits=bits, row_norm=row_norm, scaling="clip")

    def _nuclear_norm(self, problem: RatingsProblem) -> float:
        entries = float(problem.records_at_most) * problem.n_features
        return self.nuclear_norm * spread_of(problem, self.spread) * math.sqrt(entries * self.rank)
