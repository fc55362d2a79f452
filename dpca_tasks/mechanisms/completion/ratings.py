"""What mechanisms of matrix completion share: the public facts of ratings, and released totals of items."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Terms
from dpca_tasks.noise.joint import JointGaussian, grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.rating_means import ItemTotals, UserMeans

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
