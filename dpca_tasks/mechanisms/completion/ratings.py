"""Shared parts of completion mechanisms: facts of ratings, factors of items, and moments of rating rows.

What mechanisms of matrix completion share: the public facts of ratings, and released totals of items.

Factors of items: their public grid, and their solution from noisy statistics.

Users compute on the grid: one unit for training and prediction, whatever the mechanism. The solution for the factors of
all items is post-processing of released numbers.

Shared parts of mechanisms on a moment of rating rows: its query, its noise, and factors of items from it.

Alternating least squares starts with random factors of items, or with the factors of one noisy moment.
"""

import dataclasses
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import LARGE, ItemFactors, Plan, PrivacyTarget, Terms, check_target
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.noise.distributions import Gaussian, JointGaussian, check_tail, grid_bits
from dpca_tasks.privacy.curator import Curator, TiledAnswer
from dpca_tasks.queries.ratings import ItemTotals, RatingMoment, Scaling, UserMeans
from dpca_tasks.threads import one_thread

COUNT_SHARE, NUMBER_SHARE = 0.25, 0.25
FINEST_TOTALS = 16
SPREAD = 0.25
"""The std of ratings without both offsets is taken to be a quarter of their range, that of items' offsets an eighth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingsProblem(Terms):
    """The public facts of a request to complete a matrix of ratings.

    Parameters
    ----------
    n_features : int
        Declared items m.
    low, high : float
        The range of ratings.
    ratings_per_user : int
        How many ratings of one user are counted at most.
    **others
        As for `Terms`.
    """

    n_features: int
    low: float
    high: float
    ratings_per_user: int

    @property
    def most(self) -> int:
        """The number of ratings of one user that can be counted."""
        return min(self.ratings_per_user, self.n_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Centring:
    """How a user's own mean is taken off: ``prior`` ratings at ``centre`` count in it, infinite for no own mean."""

    centre: float
    prior: float

    @property
    def facts(self) -> dict[str, float | None]:
        """Both by name, as a user's own step has them: no prior where there is no own mean."""
        return {"centre": self.centre, "prior": None if math.isinf(self.prior) else self.prior}


def check_ratings(problem: RatingsProblem, *, rank: int) -> None:
    """Refuse public facts that are no ratings, and a rank that items do not have.

    Raises
    ------
    InvalidInput
        When the range is empty, no rating of a user is counted, or the rank is not below the number of items.
    """
    if not (math.isfinite(problem.low) and math.isfinite(problem.high) and problem.low < problem.high):
        raise InvalidInput(
            f"ratings_between={problem.low:g}:{problem.high:g} must be a range of two numbers, the lower one first; "
            "state what ratings may be."
        )
    if problem.ratings_per_user < 1:
        raise InvalidInput(f"ratings_per_user={problem.ratings_per_user} must be at least 1; state a public number.")
    if not 1 <= rank < problem.n_features:
        raise InvalidInput(f"rank={rank} must be at least 1 and below the {problem.n_features} items; ask for less.")


def centring(problem: RatingsProblem, *, centre: float | None, user_means: bool, prior: float) -> Centring:
    """Return how ratings are centred, by default around the middle of their range.

    Raises
    ------
    InvalidInput
        When the centre lies outside the range, or the prior is negative.
    """
    middle = (problem.low + problem.high) / 2.0 if centre is None else centre
    if not (problem.low <= middle <= problem.high and 0 <= prior < math.inf):
        raise InvalidInput(
            f"centre={middle!r} must lie in the range of ratings, user_prior={prior!r} be at least 0; correct them."
        )
    return Centring(centre=middle, prior=prior if user_means else math.inf)


def asked_of_users(problem: RatingsProblem, centred: Centring) -> dict[str, Any]:
    """Return what every query of ratings is told of them, by its parameters' names."""
    return {
        "n_features": problem.n_features,
        "clip_norm": 1.0,
        "relation": problem.relation,
        "low": problem.low,
        "high": problem.high,
        "ratings_per_user": problem.ratings_per_user,
        "centre": centred.centre,
        "prior": centred.prior,
    }


def joint_noise(target: PrivacyTarget, share: Fraction) -> JointGaussian:
    """Return the noise of a step that takes a share of the squared loss of the target."""
    multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, share=share)
    return JointGaussian(noise_multiplier=multiplier)


def totals_query(problem: RatingsProblem, centred: Centring, noise: JointGaussian) -> ItemTotals:
    """Return the query for totals of items, on the finest grid that is safe under a noise."""
    coarse = totals_on_grid(problem, centred, bits=1)
    scale = max(part.scale for part in coarse.parts.values()) * noise.noise_multiplier
    bits = min(FINEST_TOTALS, grid_bits(noise_std=scale, degree=ItemTotals.degree))
    return totals_on_grid(problem, centred, bits=bits)


def totals_on_grid(problem: RatingsProblem, centred: Centring, *, bits: int) -> ItemTotals:
    """Return the query for totals of items on a grid."""
    return ItemTotals(
        **asked_of_users(problem, centred),
        bits=bits,
        offsets=np.zeros(problem.n_features),
        bound=2.0 * SPREAD * (problem.high - problem.low),
        count_share=COUNT_SHARE,
    )


def release_totals(
    curator: Curator, problem: RatingsProblem, centred: Centring, noise: JointGaussian
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Release the totals of items; return their offsets and the numbers of their counted ratings.

    Returns
    -------
    offsets : float64 array of shape (n_items,)
        The noisy sum over the noisy count, shrunk toward the centre by what is public: the std of the noise of sums and
        counts, and the stds of ratings and of offsets, which are taken from the range (`SPREAD`).
    counts : float64 array of shape (n_items,)
        Noisy, and not below the std of their noise.
    """
    query = totals_query(problem, centred, noise)
    parts = curator.release_parts(query, noise)
    of_sums, of_counts = (query.parts[name].scale * noise.noise_multiplier for name in ("sums", "counts"))
    counts = np.maximum(parts["counts"], of_counts)
    return shrunk_offsets(parts["sums"], counts, problem, noise_std=of_sums * query.bound), counts


def shrunk_offsets(
    sums: NDArray[np.float64], counts: NDArray[np.float64], problem: RatingsProblem, *, noise_std: float
) -> NDArray[np.float64]:
    """Return ``sums / counts``, shrunk by what sampling and noise of the sums are expected to add to their spread."""
    rating = SPREAD * (problem.high - problem.low)
    offset = rating / 2.0
    blurred = rating**2 / counts + (noise_std / counts) ** 2
    return np.asarray(sums / counts * (offset**2 / (offset**2 + blurred)))


def average_query(problem: RatingsProblem, noise: JointGaussian) -> UserMeans:
    """Return the query for an average rating, on the finest grid that is safe under a noise."""
    around = Centring(centre=(problem.low + problem.high) / 2.0, prior=math.inf)

    def query(bits: int) -> UserMeans:
        return UserMeans(
            **asked_of_users(problem, around),
            bits=bits,
            offsets=np.zeros(problem.n_features),
            count_share=NUMBER_SHARE,
        )

    scale = max(part.scale for part in query(1).parts.values()) * noise.noise_multiplier
    return query(min(FINEST_TOTALS, grid_bits(noise_std=scale, degree=UserMeans.degree)))


def release_average(curator: Curator, problem: RatingsProblem, noise: JointGaussian) -> float:
    """Release the mean of users' mean ratings: a noisy sum over a noisy number of users, within the range."""
    query = average_query(problem, noise)
    parts = curator.release_parts(query, noise)
    number = max(float(parts["number"][0]), query.parts["number"].scale * noise.noise_multiplier)
    middle = (problem.low + problem.high) / 2.0
    return min(max(middle + float(parts["sum"][0]) / number, problem.low), problem.high)


UNIT = 2.0**-24
"""One step of the grid of item factors, and of directions of ratings."""


def in_steps(factors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return factors in steps of `UNIT`, rounded to the nearest."""
    return np.rint(factors / UNIT).astype(np.int64)


def on_grid(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors rounded to the grid."""
    return np.rint(factors / UNIT) * UNIT


type Statistics = tuple[float, NDArray[np.float64], NDArray[np.float64]]
"""A weight, ``H`` of shape (m, r, r) and ``w`` of shape (m, r)."""


def pool(rounds: Sequence[Statistics]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weighted means of H and of w over some rounds."""
    whole = sum(weight for weight, _, _ in rounds)
    outer = sum((weight / whole) * outer for weight, outer, _ in rounds)
    weighted = sum((weight / whole) * weighted for weight, _, weighted in rounds)
    return np.asarray(outer), np.asarray(weighted)


def solve_rounds(
    rounds: Sequence[tuple[float, TiledAnswer]], *, rank: int, ridge: float, unobserved: float = 0.0
) -> NDArray[np.float64]:
    """Return the factors of all items from the last rounds, tile by tile: only one tile is held at a time.

    Parameters
    ----------
    rounds : sequence of (float, TiledAnswer)
        Weights, and the answers with parts ``outer`` and ``weighted``, in the same tiles; ``gram`` where it is asked.
    rank : int
    ridge : float
        Of the items' regressions.
    unobserved : float
        The weight of ``gram``, the second moment of all users' factors, in every item's matrix.
    """
    solved, shared = [], None
    for at, tile in enumerate(rounds[-1][1].tiles):
        read = [(weight, answer.read(at)) for weight, answer in rounds]
        if unobserved and tile.first == 0:
            whole = sum(weight for weight, _ in read)
            gram = np.asarray(sum((weight / whole) * parts["gram"] for weight, parts in read))
            shared = unobserved * _projected(gram)
        outer, weighted = pool(
            [(weight, parts["outer"], parts["weighted"].reshape(-1, rank)) for weight, parts in read]
        )
        solved.append(solve_items(outer, weighted, ridge=ridge, shared=shared))
    return np.concatenate(solved)


def solve_items(
    outer: NDArray[np.float64],
    weighted: NDArray[np.float64],
    *,
    ridge: float,
    shared: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return ``(PSD(H_j) + K + ridge I)^-1 w_j`` for each item; the projection comes first, then the ridge.

    Where a Cholesky decomposition of ``H_j`` exists, the projection changes nothing, and is left out. K is ``shared``.
    """
    matrices = outer.copy()
    for matrix in matrices:
        if not _is_definite(matrix):
            matrix[:] = _projected(matrix)
    matrices += ridge * np.eye(outer.shape[1])
    if shared is not None:
        matrices += shared
    return np.asarray(np.linalg.solve(matrices, weighted[:, :, None])[:, :, 0])


def orthonormal(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``V (V^T V)^(-1/2)``, which keeps the frame of V; rows of 0 stay 0."""
    values, vectors = np.linalg.eigh(factors.T @ factors)
    roots = np.sqrt(np.maximum(values, 1e-12 * max(values[-1], 1e-300)))
    return np.asarray(factors @ (vectors / roots) @ vectors.T)


def _projected(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _is_definite(matrix: NDArray[np.float64]) -> bool:
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


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
