"""DPALS, private alternating least squares: each round computes item factors from noisy statistics of the items.

In each round, a factor is computed for every user from the user's ratings and the released item factors. The users'
factors enter only the sums that are the statistics of the items: for each item a matrix H and a vector w. No user's
factor is published. The noise of all steps is calibrated together to one privacy target, or follows the published
formula.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import Calibration, ItemFactors, Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.completion.ratings import (
    UNIT,
    Centring,
    RatingsProblem,
    average_query,
    centring,
    check_moment,
    check_ratings,
    in_steps,
    joint_noise,
    orthonormal,
    random_start,
    release_average,
    release_start,
    release_totals,
    solve_rounds,
    start_query,
    totals_query,
    user_options,
)
from dpca_tasks.noise.distributions import Gaussian, JointGaussian, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator, TiledAnswer
from dpca_tasks.queries.item_statistics import Clip, ItemStatistics
from dpca_tasks.queries.ratings import Coins

CENTRE_SHARE = Fraction(1, 5)
"""The part of ``totals_share`` that the release of a private centre takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundNoises:
    """The noise of each step of `Dpals`, in the order of execution; None for a step that does not take place."""

    centre: JointGaussian | None
    totals: JointGaussian | None
    start: JointGaussian | None
    rounds: tuple[JointGaussian, ...]

    def __iter__(self) -> Iterator[JointGaussian]:
        """Iterate over the noise of all steps that take place."""
        yield from (noise for noise in (self.centre, self.totals, self.start, *self.rounds) if noise is not None)

    @property
    def event(self) -> events.Event:
        """The composed privacy event of all steps."""
        return events.composed(*(noise.event for noise in self))


def split_noises(
    target: PrivacyTarget,
    *,
    rounds: int,
    growth: float,
    totals_share: float,
    centre: bool,
    totals: bool,
    start_share: float | None,
) -> RoundNoises:
    """Divide a privacy target exactly over all steps of `Dpals`.

    The steps are the release of a centre, item totals, the start and the rounds. The first three get a share only if
    they are requested. The shares of the rounds grow geometrically: the last round gets ``growth`` times the share of
    the first round.
    """
    share = Fraction(totals_share)
    first = CENTRE_SHARE * share if centre else Fraction(0)
    second = share - first if totals else Fraction(0)
    third = Fraction(start_share or 0)
    weights = [Fraction(weight) for weight in np.geomspace(1.0, growth, rounds).tolist()]
    return RoundNoises(
        centre=joint_noise(target, first) if centre else None,
        totals=joint_noise(target, second) if totals else None,
        start=joint_noise(target, third) if third else None,
        rounds=tuple(joint_noise(target, (1 - first - second - third) * weight / sum(weights)) for weight in weights),
    )


def with_published_rounds(
    noises: RoundNoises, problem: RatingsProblem, target: PrivacyTarget, *, scale: float
) -> RoundNoises:
    """Replace the noise of every round by the noise of the published formula, which gives the rounds the whole target.

    Parameters
    ----------
    noises : RoundNoises
        The noise of all steps. The noise of centre, totals and start is not changed.
    problem, target
        The public facts and the privacy target of the request.
    scale : float
        The std of the noise in each sum of a round at noise multiplier 1, divided by the bound for one rating.

    Raises
    ------
    Refused
        When the relation is replace_one, which the published theorem does not cover.
    """
    if problem.relation == "replace_one":
        raise Refused(
            "calibration=paper is published for a removed user, not for replace_one, under which both sums of a round "
            "change by more; use calibration=tight."
        )
    requested = Settings(
        epsilon=target.epsilon,
        delta=target.delta,
        relation=problem.relation,
        n_components=problem.most,
        steps=len(noises.rounds),
    )
    one = JointGaussian(noise_multiplier=math.nextafter(FORMULAS["dpals"].noise(requested) / scale, math.inf))
    return dataclasses.replace(noises, rounds=(one,) * len(noises.rounds))


OUTER_SHARE = 0.41  # share of a round's budget mu^2 for the items' matrices H; the rest is for their vectors w
PAPER_SHARE = 0.5  # `OUTER_SHARE` for calibration=paper, which adds equal noise to the matrices H and the vectors w
FINEST = 10
GRAM_SHARE = 0.1  # share of a round's budget mu^2 for the second moment of all users' factors, if `unobserved` is set
_COINS: Mapping[str, Coins] = {"release": "release", "round": "step"}
_DISTANT = 3.0  # if the expected relative error of item factors is larger, predictions without factors are better


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpals:
    """Private alternating least squares: each round releases noisy statistics of the items, never a user's factor.

    For each item, the statistics are a matrix H and a vector w. H is the sum of ``u u^T`` over the factors u of the
    users who rated the item. w is the sum of the users' ratings times u. At most K = ``ratings_per_user`` ratings of
    each user are counted.

    Parameters
    ----------
    rank : int
        The rank r of the factors, below the number of items.
    rounds : int
        The number T of rounds, fixed before any rating is read.
    clip : {"normalise", "weight", "paper"}
        ``normalise`` always scales a user's factor to ``user_norm``, together with the user's ratings; ``weight``
        scales both only if the factor is longer; ``paper`` scales a longer factor without the ratings, as published.
    user_norm : float
        The norm to which a user's factor is scaled. With ``clip=normalise`` it has no effect.
    rating_clip : float, optional
        The bound on a rating after offsets are subtracted, in multiples of ``user_norm / sqrt(items)`` if item factors
        are orthonormal, else in ratings. For orthonormal factors the default is ``1.7 + 0.4 log2(epsilon)``, but at
        least 1. Otherwise the default is half the range of ratings.
    sampling : {"tail", "uniform", "weights"}
        Which ratings count if a user has more than K: ``tail``, those of the items with the fewest counted ratings;
        ``uniform``, a random choice; ``weights``, all ratings, with weights proportional to ``count^(-1/2)`` for the
        items' noisy counts and with squares that sum to at most K.
    offsets : bool
        Whether noisy offsets of items are subtracted from the ratings before the rounds.
    frequent : float
        The share of the items that get factors, the items with the most ratings first; 1 for all items.
    totals_share : float
        The share of the budget mu^2 for item counts and offsets, if they are needed, and for a private centre.
    growth : float
        The share of mu^2 for the last round, divided by the share for the first round.
    pooled : int
        The number of final rounds whose statistics are averaged.
    orthonormal : bool
        Whether item factors are made orthonormal after each round.
    user_ridge : float
        The ridge in the regressions of users, in multiples of rank / items if item factors are orthonormal.
    item_ridge : float
        The ridge in the regressions of items, in multiples of the approximate spectral norm of the noise on H, which is
        ``sqrt(2 rank)`` times the noise's std. For ratings that factors determine without error, a smaller value of
        about ``epsilon^(-1/2) / 2`` is better.
    centre, user_means, user_prior
        As for `dpca_tasks.mechanisms.completion.item_means.ItemMeans`.
    private_centre : bool
        Whether the centre is released privately, as the mean of users' mean ratings, if no centre is declared. The
        release takes a fifth of ``totals_share``.
    unobserved : float
        For implicit data: the weight of every pair of a user and an item, rated or not, whose rating is assumed to be
        the sum of the user's and the item's offsets. It costs a third statistic in every round.
    start : {"random", "analyze_gauss"}
        The item factors before the first round: ``random`` factors, which cost nothing, or the leading eigenvectors of
        one noisy second moment of the users' rows.
    start_share : float
        The share of mu^2 for the moment of ``start=analyze_gauss``.
    coins : {"release", "round"}
        Whether random choices among ratings are made once per release, or anew in every round, as published.
    calibration : {"tight", "paper"}
        ``tight``: the noise of the rounds is calibrated exactly; ``paper``: the noise follows Theorem 1 of the paper,
        equal for both sums and all rounds, and costs more than the target. The published formula gives the rounds the
        whole target and counts only one of the two sums. The plan states the true cost.

    Notes
    -----
    All steps are Gaussian. H and w of a round are one step with the joint sensitivity that is derived in
    `dpca_tasks.queries.item_statistics`, and the budget is divided exactly. The published formula counts only one of
    the two sums. H is projected to the positive semidefinite matrices before the ridge is added, not afterwards. The
    random choices among ratings are not used for privacy: no amplification is claimed.

    References
    ----------
    Chien, Jain, Krichene, Rendle, Song and Thakurta (2021), Algorithm 1.
    """

    rank: int
    rounds: int = field(default=4, metadata={"ge": 1})
    clip: Clip = "normalise"
    user_norm: float = field(default=1.0, metadata={"gt": 0})
    rating_clip: float | None = field(default=None, metadata={"gt": 0})
    sampling: Literal["tail", "uniform", "weights"] = "tail"
    offsets: bool = True
    frequent: float = field(default=1.0, metadata={"gt": 0, "le": 1})
    totals_share: float = field(default=0.1, metadata={"gt": 0, "lt": 1})
    growth: float = field(default=2.0, metadata={"gt": 0})
    pooled: int = field(default=2, metadata={"ge": 1})
    orthonormal: bool = True
    user_ridge: float = field(default=1.0, metadata={"gt": 0})
    item_ridge: float = field(default=1.0, metadata={"gt": 0})
    centre: float | None = None
    user_means: bool = True
    user_prior: float = field(default=5.0, metadata={"ge": 0})
    private_centre: bool = False
    unobserved: float = field(default=0.0, metadata={"ge": 0})
    start: Literal["random", "analyze_gauss"] = "random"
    start_share: float = field(default=0.2, metadata={"gt": 0, "lt": 1})
    coins: Literal["release", "round"] = "release"
    calibration: Calibration = "tight"

    name: ClassVar[str] = "dpals"
    audited_with: ClassVar[Mapping[str, Any]] = {
        "rounds": 1,
        "pooled": 1,
        "user_means": False,
        "offsets": False,
        "sampling": "uniform",
    }

    def plan(self, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Divide the target exactly over the rounds and, if they take place, over centre, item totals and start."""
        check_ratings(problem, rank=self.rank)
        check_target(problem, target)
        self._check(problem)
        noises = self._noises(problem, target)
        draws = 0
        if noises.centre is not None:
            draws += average_query(problem, noises.centre).layout.size
        if noises.totals is not None:
            draws += totals_query(problem, self._centring(problem), noises.totals).layout.size
        if noises.start is not None:
            draws += start_query(problem, self._centring(problem), noises.start).layout.size
        weights = np.ones(problem.n_features) if self.sampling == "weights" else None
        query = self._query(problem, target, bits=1, factors=self._random_start(problem), weights=weights)
        draws += self.rounds * query.layout.size
        check_tail(Gaussian(noise_multiplier=1.0), draws=draws, delta=target.delta)
        scale = max(noise.noise_multiplier for noise in noises.rounds) * max(
            part.scale for part in query.parts.values()
        )
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=noises.rounds[-1].noise_multiplier,
            bits=min(FINEST, grid_bits(noise_std=scale * 2.0**query.weight_bits, degree=ItemStatistics.degree)),
            event=noises.event,
            notes=self._notes(problem, noises),
            printed=self.calibration == "paper",
        )

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Release centre, item totals and start, if they take place, then every round; the rest is post-processing."""
        problem, target, centred = plan.problem, plan.target, self._centring(plan.problem)
        noises = self._noises(problem, target)
        offsets = counts = priorities = weights = None
        if noises.centre is not None:
            centred = dataclasses.replace(centred, centre=release_average(curator, problem, noises.centre))
        if noises.totals is not None:
            offsets, counts = release_totals(curator, problem, centred, noises.totals)
            priorities = self._priorities(counts)
            weights = counts**-0.5 if self.sampling == "weights" else None
            offsets = offsets if self.offsets else None
        out_of_use = slice(0) if priorities is None else np.isinf(priorities)
        factors, last = self._random_start(problem), list[tuple[float, TiledAnswer]]()
        if noises.start is not None:
            factors = release_start(
                curator,
                problem,
                centred,
                noises.start,
                offsets=offsets,
                rank=self.rank,
                is_orthonormal=self.orthonormal,
            )
            factors[out_of_use] = 0.0
        for noise in noises.rounds:
            requested = self._query(
                problem,
                target,
                bits=plan.bits,
                centred=centred,
                factors=factors,
                offsets=offsets,
                priorities=priorities,
                weights=weights,
            )
            query = curator.with_stored_inputs(requested)
            answer = curator.release_tiles(query, noise)
            last = [*last, (noise.noise_multiplier**-2, answer)][-self.pooled :]
            std = query.parts["outer"].scale * query.parts["outer"].unit
            std /= math.sqrt(sum(weight for weight, _ in last))
            ridge = self.item_ridge * std * math.sqrt(2.0 * self.rank)
            factors = solve_rounds(last, rank=self.rank, ridge=ridge, unobserved=self.unobserved)
            factors[out_of_use] = 0.0
            if self.orthonormal:
                factors = orthonormal(factors)
        return ItemFactors(
            factors=np.asarray(in_steps(factors) * UNIT, np.float64),
            offsets=np.zeros(problem.n_features) if offsets is None else offsets,
            counts=counts,
            user_step={
                **centred.facts,
                "ridge": self._ridge(problem),
                "rating_bound": problem.high - problem.low,
                **({"unobserved": self.unobserved} if self.unobserved else {}),
            },
        )

    def _check(self, problem: RatingsProblem) -> None:
        if self.rounds < 1 or self.pooled < 1:
            raise InvalidInput(f"rounds={self.rounds} and pooled={self.pooled} must be at least 1; correct them.")
        positive = (self.user_norm, self.growth, self.user_ridge, self.item_ridge, self.rating_clip or 1.0)
        if not all(0 < value < math.inf for value in positive):
            raise InvalidInput(
                "user_norm, growth, user_ridge, item_ridge and rating_clip must be positive and finite; correct them."
            )
        if not (0 < self.frequent <= 1 and 0 < self.totals_share < 1):
            raise InvalidInput(
                f"frequent={self.frequent} must be in (0, 1], totals_share={self.totals_share} in (0, 1); correct them."
            )
        if self.start == "analyze_gauss":
            check_moment(problem)
            if not (self.start_share > 0 and self.start_share + self.totals_share < 1):
                raise InvalidInput(
                    f"start_share={self.start_share} must be positive, and its sum with "
                    f"totals_share={self.totals_share} below 1; correct it."
                )
        if self.private_centre and self.centre is not None:
            raise InvalidInput(
                f"centre={self.centre:g} is declared, and private_centre would release a centre; omit one of them."
            )
        if not 0 <= self.unobserved < math.inf:
            raise InvalidInput(f"unobserved={self.unobserved} must be at least 0 and finite; 0.1 to 1 is usual.")
        if self.unobserved and self.calibration == "paper":
            raise InvalidInput(
                "calibration=paper is published for two sums in each round, and unobserved needs a third; use "
                "calibration=tight."
            )

    def _noises(self, problem: RatingsProblem, target: PrivacyTarget) -> RoundNoises:
        """Return the noise of every step, by exact calibration or with the published noise in the rounds."""
        noises = split_noises(
            target,
            rounds=self.rounds,
            growth=self.growth,
            totals_share=self.totals_share,
            centre=self.private_centre,
            totals=self._needs_totals,
            start_share=None if self.start == "random" else self.start_share,
        )
        if self.calibration == "tight":
            return noises
        parts = self._query(problem, target, bits=1, factors=self._random_start(problem)).parts
        return with_published_rounds(noises, problem, target, scale=max(part.scale for part in parts.values()))

    @property
    def _needs_totals(self) -> bool:
        return self.offsets or self.sampling == "tail" or self.frequent < 1

    def _centring(self, problem: RatingsProblem) -> Centring:
        return centring(problem, centre=self.centre, user_means=self.user_means, prior=self.user_prior)

    def _random_start(self, problem: RatingsProblem) -> NDArray[np.float64]:
        return random_start(problem.n_features, self.rank, is_orthonormal=self.orthonormal)

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
        centred: Centring | None = None,
        offsets: NDArray[np.float64] | None = None,
        priorities: NDArray[np.float64] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> ItemStatistics:
        none, steps = np.zeros(problem.n_features), in_steps(factors)
        gram = GRAM_SHARE if self.unobserved else 0.0
        outer = OUTER_SHARE if self.calibration == "tight" else PAPER_SHARE
        return ItemStatistics(
            **user_options(problem, centred or self._centring(problem)),
            bits=bits,
            offsets=none if offsets is None else offsets,
            factors=steps,
            priorities=none if priorities is None else priorities,
            unit=UNIT,
            ridge=self._ridge(problem),
            rating_bound=problem.high - problem.low,
            user_norm=self.user_norm,
            rating_clip=self._rating_clip(problem, target),
            clip=self.clip,
            outer_share=outer * (1.0 - gram),
            weights=weights,
            unobserved=self.unobserved * ((steps * UNIT).T @ (steps * UNIT)) if self.unobserved else None,
            gram_share=gram,
            coins=_COINS[self.coins],
        )

    def _notes(self, problem: RatingsProblem, noises: RoundNoises) -> tuple[str, ...]:
        """Return the warnings of the plan.

        One warning is for ``calibration=paper``, whose formula counts only one of the two sums of a round. The other is
        for so few users that the noise is expected to be larger than the factors.
        """
        notes = []
        if self.calibration == "paper":
            notes.append("calibration=paper: the published formula counts only one of the two sums in each round.")
        inverse_mu = 1.0 / math.sqrt(sum(noise.noise_multiplier**-2 for noise in noises.rounds))
        error = 4.0 * self.rank * problem.n_features * math.sqrt(2.0 * self.rounds) * inverse_mu
        error /= problem.records_at_most * math.sqrt(problem.most)
        if error >= _DISTANT:
            notes.append(
                f"{problem.records_at_most} users are too few for {self.rank} factors of {problem.n_features} items at "
                "this epsilon: the noise outweighs the factors; use item_means, a lower rank or fewer items."
            )
        return tuple(notes)
