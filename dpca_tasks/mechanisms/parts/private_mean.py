"""A mean released in the first step, for mechanisms that never form a second moment.

With ``center=private`` a mechanism releases the sum of the rows and their count; their use is post-processing. There
are two cases. *Products* with public directions are linear, so the mean is subtracted from their answers
(`Centre.shifted`); the mean's Gaussian step takes `MEAN_SHARE` of mu^2. *Draws and computed directions* use records
from which the mean was already subtracted (`dpca_tasks.queries.recentred_moment`), and a mechanism that is known by its
(epsilon, delta) only; the mean takes `MEAN_SHARE` of both, by basic composition (`mean_first`).
"""

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.events import Event, composed
from dpca_tasks.accounting.pure import laplace_noise_multiplier
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.noise.distributions import Gaussian, Laplace, check_tail
from dpca_tasks.noise.grid import grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.queries.augmented_moment import CONSTANT
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.poisson_sampled import sampled
from dpca_tasks.queries.recentred_moment import SHIFT_STEP, on_shift_grid
from dpca_tasks.queries.record_mean import RecordMean

MEAN_SHARE = Fraction(1, 8)

MeanNoise = Gaussian | Laplace


class Centre:
    """The released sum and count of the rows, and their mean."""

    def __init__(self, total: NDArray[np.float64], count: float) -> None:
        self.mean = total / max(count, 1.0)
        self._total = total

    def shifted(
        self, product: NDArray[np.float64], directions: NDArray[np.float64], *, part: float = 1.0
    ) -> NDArray[np.float64]:
        """Return the product of the rows around their mean, for a product over a share ``part`` of the records."""
        return product - part * np.outer(self._total, self.mean @ directions)


def mean_share(problem: Problem) -> Fraction:
    """Return the share of mu^2 that the mean takes."""
    return MEAN_SHARE if problem.center == "private" else Fraction(0)


def mean_noise(problem: Problem, target: PrivacyTarget) -> Gaussian | None:
    """Return the noise of a mean that takes `mean_share` of a target's mu^2; None if the problem is not centred."""
    if problem.center == "none":
        return None
    return Gaussian(
        noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, share=MEAN_SHARE)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanFirst:
    """A target divided by basic composition: the noise of the mean, and the target of the following steps."""

    noise: MeanNoise | None
    rest: PrivacyTarget

    def event(self, following: Event) -> Event:
        """Return the event of the mean, if any, composed with the following event."""
        return following if self.noise is None else composed(self.noise.event, following)


def mean_first(problem: Problem, target: PrivacyTarget, *, pure: bool = False) -> MeanFirst:
    """Divide a target between a mean and the following steps, if the problem is centred.

    Parameters
    ----------
    problem, target
        The request.
    pure : bool
        Whether the following steps are pure for any delta; the mean then is, too.

    Returns
    -------
    MeanFirst
        Gaussian noise at `MEAN_SHARE` of epsilon and of delta, exact as a power of two, or Laplace noise at that share
        of epsilon without a delta; and the rest of both, rounded down, so that the sums do not exceed the target.
    """
    if problem.center == "none":
        return MeanFirst(noise=None, rest=target)
    share = float(MEAN_SHARE)
    epsilon, delta = share * target.epsilon, 0.0 if pure else share * target.delta
    noise: MeanNoise = (
        Gaussian(noise_multiplier=gaussian_noise_multiplier(epsilon=epsilon, delta=delta))
        if delta
        else Laplace(noise_multiplier=laplace_noise_multiplier(epsilon=epsilon))
    )
    check_tail(noise, draws=problem.n_features + 1, delta=delta)
    mean_query(problem, noise)
    rest = dataclasses.replace(
        target,
        epsilon=math.nextafter(target.epsilon - epsilon, 0.0),
        delta=math.nextafter(target.delta - delta, 0.0) if delta else target.delta,
    )
    return MeanFirst(noise=noise, rest=rest)


def release_centre(
    curator: Curator, problem: Problem, noise: MeanNoise | None, *, halved: bool = False
) -> Centre | None:
    """Release the mean in the first step; without noise return None and take no step.

    With ``halved`` the release is priced through the empty record, as for `sampled`.
    """
    if noise is None:
        return None
    noisy = curator.release(mean_query(problem, noise, halved=halved), noise)
    constant = CONSTANT * problem.clip_norm
    return Centre(noisy[:-1] / constant, float(noisy[-1]) / constant**2)


def release_shift(curator: Curator, problem: Problem, noise: MeanNoise | None) -> NDArray[np.int64] | None:
    """Release the mean and round it, to norm at most one clip norm, to the grid on which it is subtracted."""
    centre = release_centre(curator, problem, noise)
    return None if centre is None else on_shift_grid(centre.mean / problem.clip_norm)


def mean_of(asked: RowSum | Eigensolver) -> NDArray[np.float64] | None:
    """Return the mean, in data units, that a request subtracted from the records; None if it did not."""
    shift = asked.public_inputs().get("shift")
    return None if shift is None else shift * (asked.clip_norm * SHIFT_STEP)


def mean_query(problem: Problem, noise: MeanNoise, *, halved: bool = False) -> RowSum:
    """Return the query for the sum of the rows and their count, on a grid that fits the noise.

    Raises
    ------
    InvalidInput
        When there is no such grid: plans ask for the query, so that nothing is charged then.
    """
    coarse = RecordMean(n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=1)
    spread = math.sqrt(2.0) if noise.norm == "l1" else 1.0  # the ratio of std and scale
    noise_std = noise.noise_multiplier * sampled(coarse, rate=1.0, halved=halved).sensitivity(noise.norm) * spread
    query = dataclasses.replace(coarse, bits=grid_bits(noise_std=noise_std, degree=RecordMean.degree))
    return sampled(query, rate=1.0, halved=halved)
