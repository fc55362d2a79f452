"""Where alternating least squares starts: with random factors of items, or with those of one noisy moment."""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.parts.item_update import orthonormal
from dpca_tasks.mechanisms.parts.rating_moment import leading_factors, moment_bits, moment_query, spread_of
from dpca_tasks.mechanisms.parts.ratings import Centring, RatingsProblem
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.rating_moment import RatingMoment

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
