"""Shared parts of the mechanisms that complete a matrix of ratings.

*Ratings*: the public facts of a request, and the release of item totals (the rating sum and the count of each item).

*Item factors*: the solution for item factors from noisy statistics, which is post-processing. Item factors are rounded
to a public grid, with the same step for every mechanism, in training and in prediction.

*Second moments of rating rows*: the query, its noise, and item factors from the released moment.

*Starts*: the item factors before the first round of alternating least squares, either random or from one noisy moment.
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
"""The assumed std of ratings without user and item offsets, divided by the range of ratings.

The std of the item offsets is assumed to be half as large.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingsProblem(Terms):
    """Public facts of a request to complete a matrix of ratings.

    Parameters
    ----------
    n_features : int
        The declared number m of items.
    low, high : float
        The range of ratings.
    ratings_per_user : int
        The largest number of ratings that are counted for one user.
    **others
        As for `Terms`.
    """

    n_features: int
    low: float
    high: float
    ratings_per_user: int

    @property
    def most(self) -> int:
        """The largest number K of counted ratings of one user: ``ratings_per_user``, at most the number of items."""
        return min(self.ratings_per_user, self.n_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Centring:
    """Parameters for subtracting each user's mean rating from the user's ratings.

    The mean is over the user's ratings and ``prior`` fictitious ratings equal to ``centre``. With an infinite
    ``prior``, the centre is subtracted instead of a mean.
    """

    centre: float
    prior: float

    @property
    def facts(self) -> dict[str, float | None]:
        """The centre and the prior by name, in the form in which a release stores them: an infinite prior is None."""
        return {"centre": self.centre, "prior": None if math.isinf(self.prior) else self.prior}


def check_ratings(problem: RatingsProblem, *, rank: int) -> None:
    """Refuse invalid public facts of ratings, and an invalid rank.

    Raises
    ------
    InvalidInput
        When the range of ratings is empty, ``ratings_per_user`` is below 1, or the rank is not from 1 to the number of
        items minus 1.
    """
    if not (math.isfinite(problem.low) and math.isfinite(problem.high) and problem.low < problem.high):
        raise InvalidInput(
            f"ratings_between={problem.low:g}:{problem.high:g} must be a range of two numbers, the lower one first; "
            "state the range of ratings."
        )
    if problem.ratings_per_user < 1:
        raise InvalidInput(f"ratings_per_user={problem.ratings_per_user} must be at least 1; state a public number.")
    if not 1 <= rank < problem.n_features:
        raise InvalidInput(
            f"rank={rank} must be at least 1 and below the {problem.n_features} items; use a lower rank."
        )


def centring(problem: RatingsProblem, *, centre: float | None, user_means: bool, prior: float) -> Centring:
    """Return the parameters for centring ratings; the default centre is the middle of the range of ratings.

    Raises
    ------
    InvalidInput
        When the centre is outside the range, or the prior is negative or infinite.
    """
    middle = (problem.low + problem.high) / 2.0 if centre is None else centre
    if not (problem.low <= middle <= problem.high and 0 <= prior < math.inf):
        raise InvalidInput(
            f"centre={middle!r} must be in the range of ratings, and user_prior={prior!r} must be at least 0; correct "
            "them."
        )
    return Centring(centre=middle, prior=prior if user_means else math.inf)


def user_options(problem: RatingsProblem, centred: Centring) -> dict[str, Any]:
    """Return the constructor arguments that all queries on ratings have in common, by name."""
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
    """Return the Gaussian noise of a step that gets the share ``share`` of the target's mu^2."""
    multiplier = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, share=share)
    return JointGaussian(noise_multiplier=multiplier)


def totals_query(problem: RatingsProblem, centred: Centring, noise: JointGaussian) -> ItemTotals:
    """Return the query for rating sums and counts of all items, on the finest grid that the noise permits."""
    coarse = totals_on_grid(problem, centred, bits=1)
    scale = max(part.scale for part in coarse.parts.values()) * noise.noise_multiplier
    bits = min(FINEST_TOTALS, grid_bits(noise_std=scale, degree=ItemTotals.degree))
    return totals_on_grid(problem, centred, bits=bits)


def totals_on_grid(problem: RatingsProblem, centred: Centring, *, bits: int) -> ItemTotals:
    """Return the query for rating sums and counts of all items, on a grid of ``bits`` bits."""
    return ItemTotals(
        **user_options(problem, centred),
        bits=bits,
        offsets=np.zeros(problem.n_features),
        bound=2.0 * SPREAD * (problem.high - problem.low),
        count_share=COUNT_SHARE,
    )


def release_totals(
    curator: Curator, problem: RatingsProblem, centred: Centring, noise: JointGaussian
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Release noisy rating sums and counts of all items; return the items' offsets and counts.

    Returns
    -------
    offsets : float64 array of shape (n_items,)
        The noisy sum of an item's centred ratings divided by the noisy count, shrunk toward 0. The shrinkage uses
        public numbers only: the std of the noise in the sums, the noisy counts, and the assumed stds of ratings and of
        offsets (`SPREAD`).
    counts : float64 array of shape (n_items,)
        The noisy numbers of counted ratings, raised to at least the std of their noise.
    """
    query = totals_query(problem, centred, noise)
    parts = curator.release_parts(query, noise)
    of_sums, of_counts = (query.parts[name].scale * noise.noise_multiplier for name in ("sums", "counts"))
    counts = np.maximum(parts["counts"], of_counts)
    return shrunk_offsets(parts["sums"], counts, problem, noise_std=of_sums * query.bound), counts


def shrunk_offsets(
    sums: NDArray[np.float64], counts: NDArray[np.float64], problem: RatingsProblem, *, noise_std: float
) -> NDArray[np.float64]:
    """Return item offsets: ``sums / counts``, shrunk toward 0 to minimise the expected squared error.

    The expected error comes from the random choice of ratings and from the noise in the sums. Its variance is compared
    with the assumed variance of exact offsets.
    """
    rating = SPREAD * (problem.high - problem.low)
    offset = rating / 2.0
    blurred = rating**2 / counts + (noise_std / counts) ** 2
    return np.asarray(sums / counts * (offset**2 / (offset**2 + blurred)))


def average_query(problem: RatingsProblem, noise: JointGaussian) -> UserMeans:
    """Return the query for the mean of users' mean ratings, on the finest grid that the noise permits."""
    around = Centring(centre=(problem.low + problem.high) / 2.0, prior=math.inf)

    def query(bits: int) -> UserMeans:
        return UserMeans(
            **user_options(problem, around),
            bits=bits,
            offsets=np.zeros(problem.n_features),
            count_share=NUMBER_SHARE,
        )

    scale = max(part.scale for part in query(1).parts.values()) * noise.noise_multiplier
    return query(min(FINEST_TOTALS, grid_bits(noise_std=scale, degree=UserMeans.degree)))


def release_average(curator: Curator, problem: RatingsProblem, noise: JointGaussian) -> float:
    """Release the mean of users' mean ratings: a noisy sum divided by a noisy number of users, clipped to the range."""
    query = average_query(problem, noise)
    parts = curator.release_parts(query, noise)
    number = max(float(parts["number"][0]), query.parts["number"].scale * noise.noise_multiplier)
    middle = (problem.low + problem.high) / 2.0
    return min(max(middle + float(parts["sum"][0]) / number, problem.low), problem.high)


UNIT = 2.0**-24
"""The step of the public grid to which item factors, and directions of rating rows, are rounded."""


def in_steps(factors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return item factors as integers, in steps of the public grid `UNIT`, rounded to the nearest step."""
    return np.rint(factors / UNIT).astype(np.int64)


def on_grid(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return item factors rounded to the public grid of step `UNIT`."""
    return np.rint(factors / UNIT) * UNIT


type Statistics = tuple[float, NDArray[np.float64], NDArray[np.float64]]
"""The statistics of one round: a weight, the matrices H of shape (m, r, r), and the vectors w of shape (m, r)."""


def pool(rounds: Sequence[Statistics]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weighted means of the matrices H and of the vectors w over several rounds of `Dpals`."""
    whole = sum(weight for weight, _, _ in rounds)
    outer = sum((weight / whole) * outer for weight, outer, _ in rounds)
    weighted = sum((weight / whole) * weighted for weight, _, weighted in rounds)
    return np.asarray(outer), np.asarray(weighted)


def solve_rounds(
    rounds: Sequence[tuple[float, TiledAnswer]], *, rank: int, ridge: float, unobserved: float = 0.0
) -> NDArray[np.float64]:
    """Return the factors of all items from the averaged statistics of the last rounds of `Dpals`.

    The statistics are in tiles, each for a range of items. One tile is in memory at a time.

    Parameters
    ----------
    rounds : sequence of (float, TiledAnswer)
        For each round, its weight and its noisy statistics. All rounds have the same tiles. The parts of a tile are
        ``outer`` (matrices H), ``weighted`` (vectors w) and, if requested, ``gram``, the second moment of all users'
        factors.
    rank : int
        The rank r of the factors.
    ridge : float
        The ridge in the regressions of items.
    unobserved : float
        The weight with which ``gram`` is added to the matrix H of every item.
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
    """Return the factor ``(PSD(H_j) + G + ridge I)^-1 w_j`` of each item j.

    ``H_j`` and ``w_j`` are the noisy statistics ``outer`` and ``weighted`` of the item, and G is ``shared``. PSD is the
    projection to the positive semidefinite matrices. It is skipped if ``H_j`` has a Cholesky decomposition, because it
    would not change this matrix.
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
    """Return ``V (V^T V)^(-1/2)``, the matrix with orthonormal columns nearest to V; rows of zeros remain zero."""
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
"""The largest number of coordinates of a second moment, which is kept in memory with 8 bytes per coordinate."""


def spread_of(problem: RatingsProblem, declared: float | None) -> float:
    """Return the public std of centred ratings: as declared, or by default a quarter of the range of ratings.

    Raises
    ------
    InvalidInput
        When the declared std is not positive and finite.
    """
    spread = SPREAD * (problem.high - problem.low) if declared is None else declared
    if not 0 < spread < math.inf:
        raise InvalidInput(f"spread={spread!r} must be positive and finite; state the std of centred ratings.")
    return spread


def check_moment(problem: RatingsProblem) -> None:
    """Refuse a problem with so many items that their second moment does not fit in memory."""
    coordinates = problem.n_features * (problem.n_features + 1) // 2
    if coordinates > LARGEST:
        raise InvalidInput(
            f"the second moment of {problem.n_features} items has {coordinates} coordinates, and at most {LARGEST} are "
            "held in memory; declare fewer items, or use dpals."
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
    """Return the query for the second moment of the users' rating rows.

    With ``directions``, the rows are residuals of a Frank-Wolfe descent along these directions. They are given as rows
    on the public grid, with one gain for each direction.
    """
    columns = np.zeros((problem.n_features, 0)) if directions is None else directions.T
    return RatingMoment(
        **user_options(problem, centred),
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
    """Return the bits of the finest grid that the noise permits for rating rows, at most `FINEST`.

    Up to `FINEST` bits, outer products of rows are fast.
    """
    (part,) = query.parts.values()
    return min(FINEST, grid_bits(noise_std=part.scale * noise_multiplier, degree=query.degree))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMoment:
    """A release of one noisy second moment of rating rows, which gives item factors; shared by two mechanisms.

    If ``totals_share`` is not None, noisy item totals are released first.

    Parameters
    ----------
    rank : int
        The rank of the item factors.
    centred : Centring
        The parameters for centring ratings.
    scaling : {"clip", "normalise", "by_count"}
        How rows are scaled: down to ``row_norm`` if they are longer, always to the same norm, or by the number of
        ratings.
    row_norm : float
        The bound on the norm of a row, in units of ratings.
    totals_share : float, optional
        The share of mu^2 for item totals.
    diagonal_passes : int
        As for `leading_factors`.
    ridge : float
        The ridge in the regressions of users.
    """

    rank: int
    centred: Centring
    scaling: Scaling
    row_norm: float
    totals_share: float | None
    diagonal_passes: int
    ridge: float

    def plan(self, name: str, problem: RatingsProblem, target: PrivacyTarget) -> Plan:
        """Divide the target exactly between the item totals, if they are requested, and the second moment."""
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
        """Release the item totals, if they are requested, and the second moment; the rest is post-processing."""
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
    """Return item factors: the leading eigenvectors of a second moment of rating rows, as columns on the public grid.

    The diagonal of the moment is corrected in ``passes`` passes. An entry on the diagonal is a sum over single ratings
    of one item. An entry off the diagonal is a sum over the fewer users who rated both items. So the diagonal is too
    large for a low-rank model. Each pass replaces the diagonal with the diagonal of the low-rank approximation found so
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
    """Return the result of `leading_eigenpairs`; for a large matrix, compute it by Lanczos from a fixed vector."""
    order = len(matrix)
    if order >= LARGE and rank <= order // 20:
        with one_thread(), suppress(ArpackNoConvergence):
            values, vectors = eigsh(matrix, rank, which="LA", v0=np.ones(order), tol=1e-9)
            return values[::-1], signed(vectors.T[::-1])
    return leading_eigenpairs(matrix, rank)


START_SEED = 20210718  # seed of the public random item factors; no guarantee depends on it
START_STD = 0.1
"""The std of random item factors before the first round, if factors are not made orthonormal."""
_DIAGONAL_PASSES = 3


def random_start(n_items: int, rank: int, *, is_orthonormal: bool) -> NDArray[np.float64]:
    """Return random item factors from a public seed, which cost no privacy, to start alternating least squares."""
    normal = np.random.default_rng(START_SEED).standard_normal((n_items, rank))
    return orthonormal(normal) if is_orthonormal else START_STD * normal


def start_query(
    problem: RatingsProblem,
    centred: Centring,
    noise: JointGaussian,
    *,
    offsets: NDArray[np.float64] | None = None,
) -> RatingMoment:
    """Return the query for the second moment of the users' rows, for ``start=analyze_gauss`` of `Dpals`.

    All rows are scaled to the same norm, and the grid is the finest that the noise permits. The sensitivity to one
    user is the square of this norm, for any number of counted ratings. The published remark about this start only
    states the sensitivity to one rating.
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
    """Release the noisy second moment of the users' rows, and return item factors to start alternating least squares.

    The factors are the leading eigenvectors, scaled to the size of random factors unless ``is_orthonormal``.
    """
    query = curator.with_stored_inputs(start_query(problem, centred, noise, offsets=offsets))
    factors = leading_factors(curator.release_parts(query, noise)["moment"], rank, passes=_DIAGONAL_PASSES)
    return factors if is_orthonormal else factors * (START_STD * math.sqrt(problem.n_features))
