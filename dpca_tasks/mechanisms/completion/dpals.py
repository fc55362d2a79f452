"""Private alternating least squares: noisy statistics of items, from which their factors are solved, round by round.

Users solve for their own factors with what was released before; of these nothing but the statistics is summed, and no
factor of a user is published.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.parts.item_update import Statistics, orthonormal, pool, solve_items
from dpca_tasks.mechanisms.parts.ratings import (
    Centring,
    RatingsProblem,
    asked_of_users,
    centring,
    check_ratings,
    joint_noise,
    release_totals,
    totals_query,
)
from dpca_tasks.mechanisms.results import ItemFactors
from dpca_tasks.noise.distributions import Gaussian, check_tail
from dpca_tasks.noise.grid import grid_bits
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.item_statistics import Clip, ItemStatistics

START_SEED = 20210718  # the start is public; no guarantee depends on it
UNIT = 2.0**-24
"""One step of the grid of item factors, on which users compute."""
OUTER_SHARE = 0.41  # noise on H is 1.2 times that on w, each in its units
FINEST = 10
LARGEST = 1 << 27
"""Coordinates of the statistics of a round: they are held in memory, 8 bytes each."""
_START_STD = 0.1
_DISTANT = 3.0  # the expected relative error of the factors from which they are worse than none


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpals:
    """Alternate between users, who keep their factors, and items, whose statistics are released with noise.

    Parameters
    ----------
    rank : int
        r, below the number of items.
    rounds : int
        T, fixed before any rating is read.
    clip : {"normalise", "weight", "paper"}
        How a user's factor is brought to ``user_norm``: always, with its ratings; or only if it is longer, with its
        ratings or, as published, without.
    user_norm : float
        Gu. With ``normalise`` it has no effect.
    rating_clip : float, optional
        GM, in multiples of ``user_norm / sqrt(items)`` where factors of items are orthonormal, else in ratings. By
        default ``1.7 + 0.4 log2(epsilon)``, not below 1; or half the range of ratings.
    sampling : {"tail", "uniform"}
        Of more than K ratings of a user, count those of the least counted items, or a random choice.
    offsets : bool
        Whether noisy offsets of items are taken off before the rounds.
    frequent : float
        The share beta of items that get factors, those counted most; 1 for all.
    totals_share : float
        The share of the squared loss for counts and offsets, where they are needed.
    growth : float
        How much more of the squared loss the last round gets than the first.
    pooled : int
        The statistics of how many last rounds are averaged.
    orthonormal : bool
        Whether factors of items are made orthonormal after each round.
    user_ridge : float
        The ridge of users' regressions: in multiples of rank / items where factors are orthonormal.
    item_ridge : float
        The ridge of items' regressions, in multiples of the std of the noise on H times ``sqrt(2 rank)``, its spectral
        norm about. Less, about ``epsilon^(-1/2) / 2``, for ratings that factors determine without an error.
    centre, user_means, user_prior
        As for `dpca_tasks.mechanisms.completion.item_means.ItemMeans`.

    Notes
    -----
    All steps are Gaussian: a round's H and w are one step with the joint sensitivity of
    `dpca_tasks.queries.item_statistics`, and the budget is split exactly. The published constant counts one of the two.
    H is projected to the positive semidefinite matrices before the ridge is added, not after. Random choices buy no
    privacy, and none is claimed for them.

    References
    ----------
    Chien, Jain, Krichene, Rendle, Song and Thakurta (2021), Algorithm 1.
    """

    rank: int
    rounds: int = 4
    clip: Clip = "normalise"
    user_norm: float = 1.0
    rating_clip: float | None = None
    sampling: Literal["tail", "uniform"] = "tail"
    offsets: bool = True
    frequent: float = 1.0
    totals_share: float = 0.1
    growth: float = 2.0
    pooled: int = 2
    orthonormal: bool = True
    user_ridge: float = 1.0
    item_ridge: float = 1.0
    centre: float | None = None
    user_means: bool = True
    user_prior: float = 5.0

    name: ClassVar[str] = "dpals"

    def plan(self, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Split the target over totals and rounds, exactly."""
        check_ratings(problem, rank=self.rank)
        check_target(problem, target)
        self._check(problem)
        totals, rounds = self._noises(target)
        draws, steps = 0, []
        if totals is not None:
            draws += totals_query(problem, self._centring(problem), totals).layout.size
            steps.append(totals.event)
        start = self._start(problem)
        query = self._query(problem, target, bits=1, factors=start, offsets=None, priorities=None)
        draws += self.rounds * query.layout.size
        check_tail(Gaussian(noise_multiplier=1.0), draws=draws, delta=target.delta)
        scale = max(noise.noise_multiplier for noise in rounds) * max(part.scale for part in query.parts.values())
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=rounds[-1].noise_multiplier,
            bits=min(FINEST, grid_bits(noise_std=scale, degree=ItemStatistics.degree)),
            event=events.composed(*steps, *(noise.event for noise in rounds)),
            warnings=self._warnings(problem, rounds),
        )

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Release totals, where they are needed, and every round; the rest is post-processing."""
        problem, target, centred = plan.problem, plan.target, self._centring(plan.problem)
        totals, rounds = self._noises(target)
        offsets = counts = priorities = None
        if totals is not None:
            offsets, counts = release_totals(curator, problem, centred, totals)
            priorities = self._priorities(counts)
            offsets = offsets if self.offsets else None
        factors, last = self._start(problem), list[Statistics]()
        for noise in rounds:
            asked = self._query(
                problem, target, bits=plan.bits, factors=factors, offsets=offsets, priorities=priorities
            )
            query = curator.with_stored_inputs(asked)
            parts = curator.release_parts(query, noise)
            outer, weighted = parts["outer"], parts["weighted"].reshape(problem.n_features, self.rank)
            last = [*last, (noise.noise_multiplier**-2, outer, weighted)][-self.pooled :]
            std = query.parts["outer"].scale * query.parts["outer"].unit
            std /= math.sqrt(sum(weight for weight, _, _ in last))
            factors = solve_items(*pool(last), ridge=self.item_ridge * std * math.sqrt(2.0 * self.rank))
            if priorities is not None:
                factors[np.isinf(priorities)] = 0.0
            if self.orthonormal:
                factors = orthonormal(factors)
        return ItemFactors(
            factors=np.asarray(on_grid(factors) * UNIT, np.float64),
            offsets=np.zeros(problem.n_features) if offsets is None else offsets,
            counts=counts,
            user_step={
                **centred.facts,
                "ridge": self._ridge(problem),
                "rating_bound": problem.high - problem.low,
            },
        )

    def _check(self, problem: RatingsProblem) -> None:
        if self.rounds < 1 or self.pooled < 1:
            raise InvalidInput(f"rounds={self.rounds} and pooled={self.pooled} must be at least 1; correct them.")
        positive = (self.user_norm, self.growth, self.user_ridge, self.item_ridge, self.rating_clip or 1.0)
        if not all(0 < value < math.inf for value in positive):
            raise InvalidInput("user_norm, growth, ridges and rating_clip must be positive and finite; correct them.")
        if not (0 < self.frequent <= 1 and 0 < self.totals_share < 1):
            raise InvalidInput(
                f"frequent={self.frequent} must be in (0, 1], totals_share={self.totals_share} in (0, 1); correct them."
            )
        coordinates = problem.n_features * self.rank * (self.rank + 1) // 2
        if coordinates > LARGEST:
            raise InvalidInput(
                f"rank={self.rank} for {problem.n_features} items has {coordinates} coordinates a round, and "
                f"{LARGEST} are held in memory; ask for a lower rank, or declare the items that matter."
            )

    def _noises(self, target: PrivacyTarget) -> tuple[JointGaussian | None, list[JointGaussian]]:
        """Return the noise of the totals, if any, and of each round."""
        needed = self.offsets or self.sampling == "tail" or self.frequent < 1
        share = Fraction(self.totals_share) if needed else Fraction(0)
        weights = [Fraction(weight) for weight in np.geomspace(1.0, self.growth, self.rounds).tolist()]
        rounds = [joint_noise(target, (1 - share) * weight / sum(weights)) for weight in weights]
        return joint_noise(target, share) if needed else None, rounds

    def _centring(self, problem: RatingsProblem) -> Centring:
        return centring(problem, centre=self.centre, user_means=self.user_means, prior=self.user_prior)

    def _start(self, problem: RatingsProblem) -> NDArray[np.float64]:
        normal = np.random.default_rng(START_SEED).standard_normal((problem.n_features, self.rank))
        return orthonormal(normal) if self.orthonormal else _START_STD * normal

    def _priorities(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        priorities = counts.copy() if self.sampling == "tail" else np.zeros_like(counts)
        infrequent = np.argsort(-counts, kind="stable")[math.ceil(self.frequent * counts.size) :]
        priorities[infrequent] = np.inf
        return priorities

    def _ridge(self, problem: RatingsProblem) -> float:
        return self.user_ridge * (self.rank / problem.n_features if self.orthonormal else 1.0)

    def _clip_multiple(self, target: PrivacyTarget) -> float:
        return max(1.0, 1.7 + 0.4 * math.log2(target.epsilon)) if self.rating_clip is None else self.rating_clip

    def _rating_clip(self, problem: RatingsProblem, target: PrivacyTarget) -> float:
        if self.orthonormal:
            return self._clip_multiple(target) * self.user_norm / math.sqrt(problem.n_features)
        return (problem.high - problem.low) / 2.0 if self.rating_clip is None else self.rating_clip

    def _query(
        self,
        problem: RatingsProblem,
        target: PrivacyTarget,
        *,
        bits: int,
        factors: NDArray[np.float64],
        offsets: NDArray[np.float64] | None,
        priorities: NDArray[np.float64] | None,
    ) -> ItemStatistics:
        none = np.zeros(problem.n_features)
        return ItemStatistics(
            **asked_of_users(problem, self._centring(problem)),
            bits=bits,
            offsets=none if offsets is None else offsets,
            factors=on_grid(factors),
            priorities=none if priorities is None else priorities,
            unit=UNIT,
            ridge=self._ridge(problem),
            rating_bound=problem.high - problem.low,
            user_norm=self.user_norm,
            rating_clip=self._rating_clip(problem, target),
            clip=self.clip,
            outer_share=OUTER_SHARE,
        )

    def _warnings(self, problem: RatingsProblem, rounds: list[JointGaussian]) -> tuple[str, ...]:
        """Warn where the noise alone makes factors worse than none, by the declared number of users."""
        inverse_mu = 1.0 / math.sqrt(sum(noise.noise_multiplier**-2 for noise in rounds))
        error = 4.0 * self.rank * problem.n_features * math.sqrt(2.0 * self.rounds) * inverse_mu
        error /= problem.records_at_most * math.sqrt(problem.most)
        if error < _DISTANT:
            return ()
        return (
            f"{problem.records_at_most} users are too few for {self.rank} factors of {problem.n_features} items at "
            "this epsilon: the noise outweighs them; item_means will do better, or a lower rank, or fewer items.",
        )


def on_grid(factors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the factors in steps of `UNIT`."""
    return np.rint(factors / UNIT).astype(np.int64)
