"""Shared parts of mechanisms on a moment of rating rows: its query, its noise, and factors of items from it.

Alternating least squares starts with random factors of items, or with the factors of one noisy moment.
"""

import dataclasses
import math
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import LARGE, ItemFactors, Plan, PrivacyTarget, check_target
from dpca_tasks.mechanisms.completion.item_factors import UNIT, in_steps, on_grid, orthonormal
from dpca_tasks.mechanisms.completion.ratings import (
    SPREAD,
    Centring,
    RatingsProblem,
    asked_of_users,
    check_ratings,
    joint_noise,
    release_totals,
    totals_query,
)
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.noise.distributions import Gaussian, check_tail
from dpca_tasks.noise.joint import JointGaussian, grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.rating_moment import RatingMoment, Scaling
from dpca_tasks.threads import one_thread

FINEST = 12
LARGEST = 1 << 27
"""Coordinates of a moment: they are held in memory, 8 bytes each."""


def spread_of(problem: RatingsProblem, declared: float | None) -> float:
    """Return the public std of centred ratings: as declared, or a quarter of the range.

    Raises
    ------
    InvalidInput
        When it is not positive.
    """
    spread = SPREAD * (problem.high - problem.low) if declared is None else declared
    if not 0 < spread < math.inf:
        raise InvalidInput(f"spread={spread!r} must be positive and finite; state the std of centred ratings.")
    return spread


def check_moment(problem: RatingsProblem) -> None:
    """Refuse more items than a moment is held in memory of."""
    coordinates = problem.n_features * (problem.n_features + 1) // 2
    if coordinates > LARGEST:
        raise InvalidInput(
            f"the moment of {problem.n_features} items has {coordinates} coordinates, and {LARGEST} are held in "
            "memory; declare the items that matter, or use dpals."
        )


def moment_query(
    problem: RatingsProblem,
    centred: Centring,
    *,
    bits: int,
    row_norm: float,
    scaling: Scaling,
    offsets: NDArray[np.float64] | None = None,
    directions: NDArray[np.float64] | None = None,
    gains: NDArray[np.float64] | None = None,
) -> RatingMoment:
    """Return the query of what is left after directions on the grid, one a row, each with its gain."""
    columns = np.zeros((problem.n_features, 0)) if directions is None else directions.T
    return RatingMoment(
        **asked_of_users(problem, centred),
        bits=bits,
        offsets=np.zeros(problem.n_features) if offsets is None else offsets,
        directions=in_steps(columns),
        gains=np.zeros(0) if gains is None else gains,
        unit=UNIT,
        rating_bound=problem.high - problem.low,
        row_norm=row_norm,
        scaling=scaling,
    )


def moment_bits(query: RatingMoment, noise_multiplier: float) -> int:
    """Return the finest safe grid of rows, of which outer products are still fast."""
    (part,) = query.parts.values()
    return min(FINEST, grid_bits(noise_std=part.scale * noise_multiplier, degree=query.degree))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMoment:
    """A release of one moment of rating rows, after totals of items if ``totals_share`` is not None.

    Parameters
    ----------
    rank : int
    centred : Centring
    scaling : {"clip", "normalise", "by_count"}
    row_norm : float
        In ratings.
    totals_share : float, optional
        The share of the squared loss for totals.
    diagonal_passes : int
        As for `leading_factors`.
    ridge : float
        Of users' regressions.
    """

    rank: int
    centred: Centring
    scaling: Scaling
    row_norm: float
    totals_share: float | None
    diagonal_passes: int
    ridge: float

    def plan(self, name: str, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Split the target over totals, if they are asked for, and the moment, exactly."""
        check_ratings(problem, rank=self.rank)
        check_target(problem, target)
        check_moment(problem)
        if not all(0 < value < math.inf for value in (self.row_norm, self.ridge)) or self.diagonal_passes < 0:
            raise InvalidInput(
                "row_norm and user_ridge must be positive and finite, diagonal_passes at least 0; correct them."
            )
        totals, noise = self._noises(target)
        draws, steps = 0, []
        if totals is not None:
            draws += totals_query(problem, self.centred, totals).layout.size
            steps.append(totals.event)
        query = self._query(problem, bits=1)
        check_tail(Gaussian(noise_multiplier=1.0), draws=draws + query.layout.size, delta=target.delta)
        return Plan(
            mechanism=name,
            problem=problem,
            target=target,
            noise_multiplier=noise.noise_multiplier,
            bits=moment_bits(query, noise.noise_multiplier),
            event=events.composed(*steps, noise.event),
        )

    def run(self, curator: Curator, plan: Plan) -> ItemFactors:
        """Release totals, where they are asked for, and the moment; the rest is post-processing."""
        problem, (totals, noise) = plan.problem, self._noises(plan.target)
        offsets = counts = None
        if totals is not None:
            offsets, counts = release_totals(curator, problem, self.centred, totals)
        query = curator.with_stored_inputs(self._query(problem, bits=plan.bits, offsets=offsets))
        moment = curator.release_parts(query, noise)["moment"]
        return ItemFactors(
            factors=leading_factors(moment, self.rank, passes=self.diagonal_passes),
            offsets=query.offsets,
            counts=counts,
            user_step={**self.centred.facts, "ridge": self.ridge, "rating_bound": query.rating_bound},
        )

    def _noises(self, target: PrivacyTarget) -> tuple[JointGaussian | None, JointGaussian]:
        share = self.totals_share
        if share is None:
            return None, joint_noise(target, Fraction(1))
        if not 0 < share < 1:
            raise InvalidInput(f"totals_share={share} must be in (0, 1); correct it.")
        return joint_noise(target, Fraction(share)), joint_noise(target, 1 - Fraction(share))

    def _query(self, problem: RatingsProblem, *, bits: int, offsets: NDArray[np.float64] | None = None) -> RatingMoment:
        return moment_query(
            problem, self.centred, bits=bits, row_norm=self.row_norm, scaling=self.scaling, offsets=offsets
        )


def leading_factors(moment: NDArray[np.float64], rank: int, *, passes: int) -> NDArray[np.float64]:
    """Return the leading eigenvectors as columns, of the moment with its diagonal replaced in some passes.

    A rating meets itself on the diagonal but another one elsewhere, so the diagonal is larger than the low rank that is
    sought by the number of ratings over that of pairs. Each pass replaces it with that of the leading part found so
    far.

    References
    ----------
    Zhang, Cai and Wu (2022), Heteroskedastic PCA.
    """
    matrix = moment.copy()
    if passes:
        np.fill_diagonal(matrix, 0.0)
    values, rows = _leading(matrix, rank)
    for _ in range(passes):
        np.fill_diagonal(matrix, np.maximum(values, 0.0) @ rows**2)
        values, rows = _leading(matrix, rank)
    return on_grid(rows.T)


def _leading(matrix: NDArray[np.float64], rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return eigenpairs as `leading_eigenpairs` does; of a large matrix by Lanczos, from a public start."""
    order = len(matrix)
    if order >= LARGE and rank <= order // 20:
        with one_thread(), suppress(ArpackNoConvergence):
            values, vectors = eigsh(matrix, rank, which="LA", v0=np.ones(order), tol=1e-9)
            return values[::-1], signed(vectors.T[::-1])
    return leading_eigenpairs(matrix, rank)


START_SEED = 20210718  # the start is public; no guarantee depends on it
START_STD = 0.1
"""The std of factors that are not orthonormal."""
_DIAGONAL_PASSES = 3


def random_start(n_items: int, rank: int, *, is_orthonormal: bool) -> NDArray[np.float64]:
    """Return random factors, which cost nothing."""
    normal = np.random.default_rng(START_SEED).standard_normal((n_items, rank))
    return orthonormal(normal) if is_orthonormal else START_STD * normal


def start_query(
    problem: RatingsProblem,
    centred: Centring,
    noise: JointGaussian,
    *,
    offsets: NDArray[np.float64] | None = None,
) -> RatingMoment:
    """Return the query for the moment of users' rows, all of one norm, on the finest grid that is safe under a noise.

    Its sensitivity is the square of that norm, however many ratings are counted. The published remark states that of
    one rating.
    """
    row_norm = spread_of(problem, None) * math.sqrt(problem.most)
    coarse = moment_query(problem, centred, bits=1, row_norm=row_norm, scaling="normalise", offsets=offsets)
    return dataclasses.replace(coarse, bits=moment_bits(coarse, noise.noise_multiplier))


def release_start(
    curator: Curator,
    problem: RatingsProblem,
    centred: Centring,
    noise: JointGaussian,
    *,
    offsets: NDArray[np.float64] | None,
    rank: int,
    is_orthonormal: bool,
) -> NDArray[np.float64]:
    """Release the moment; return its leading eigenvectors, or a multiple of the size of a random start."""
    query = curator.with_stored_inputs(start_query(problem, centred, noise, offsets=offsets))
    factors = leading_factors(curator.release_parts(query, noise)["moment"], rank, passes=_DIAGONAL_PASSES)
    return factors if is_orthonormal else factors * (START_STD * math.sqrt(problem.n_features))
