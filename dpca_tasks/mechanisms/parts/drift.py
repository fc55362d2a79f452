r"""Whether what arrives has changed: a test with a known null, from the answers of a stream alone.

Directions V are those of an estimate at tick t_0; later answers have noise that is independent of it. If all that
arrived up to tick tau has the moment M_1 a record and all after it M_2, answers from ``t_0 + 1`` on are ``m1_t M_1 +
m2_t M_2 + noise``, with ``m1_t = sum_{j<=tau} c_{t-j} n_j`` and ``m2_t`` likewise over later ticks. Least squares give
``D = M_2 - M_1`` as ``sum_t a_t y_t``, and where the two are equal, the block of D between V and what is orthogonal to
it is noise alone: the sum of its squares over its variance is chi-squared with ``k (d - k)`` degrees.

Records that are drawn anew differ by chance too. In the mean that adds at most a part rho to the sum, since ``|V^T x|^2
|V_perp^T x|^2 <= 1/4`` for clipped rows of one record: the p-value is that of the sum over ``1 + rho``. The null of
equal realised moments is exact; the correction for its tail is a heuristic.

What is seen is a turn of the directions. A change that only moves variance among them, or from them to others that are
orthogonal to them, leaves the block as it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from dpca_tasks.accounting.factorisation import Weights
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.parts.stream_estimate import check_kept

type Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contrast:
    """Which answers are compared, and how: ``D = sum_t multipliers_t y_t``.

    Parameters
    ----------
    ticks : tuple of int
        The ticks of the answers.
    multipliers : float64 array of shape (len(ticks),)
    drawn : float
        The sum over arrivals of ``n_j (sum_t a_t c_{t-j})^2``: what records drawn anew add to the square of D, for
        records of norm 1.
    """

    ticks: tuple[int, ...]
    multipliers: Matrix
    drawn: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The outcome of a test for drift.

    Parameters
    ----------
    statistic : float
        Chi-squared where nothing changed.
    degrees : int
        ``k (d - k)``.
    rho : float
        The part that records drawn anew may add to the statistic in the mean.
    p : float
        The probability of so large a statistic over ``1 + rho`` where nothing changed.
    """

    statistic: float
    degrees: int
    rho: float
    p: float


def contrast_of(
    weights: Weights, *, kept: Sequence[int], before: int, change: int, counts: Sequence[float]
) -> Contrast:
    """Return the multipliers that estimate the change of moments at a tick.

    Parameters
    ----------
    weights : Weights
    kept : sequence of int
        The ticks whose answers there are, rising.
    before : int
        t_0, the tick of the estimate that the directions are from; only later answers are used.
    change : int
        tau, the last tick before the change that is tested for, beyond t_0. Both are chosen before the answers are
        seen.
    counts : sequence of float
        How many records arrived at each tick from 1 to the last: public, or noisy. Negative ones count as 0.

    Raises
    ------
    InvalidInput
        When the answers do not tell the two moments apart.
    """
    check_kept(kept)
    ticks = np.array([tick for tick in kept if tick > before])
    arrived = np.maximum(np.asarray(counts, np.float64), 0.0)
    if not before < change < kept[-1] or len(arrived) < kept[-1]:
        raise InvalidInput(
            f"before={before}, change={change} must be ticks with answers after both, and counts={len(arrived)} must "
            f"be of every tick up to {kept[-1]}; choose earlier ticks."
        )
    arrived = arrived[: kept[-1]]
    series = np.zeros(kept[-1])
    series[: len(weights.weights)] = weights.series[: kept[-1]]
    ages = ticks[:, None] - np.arange(1, kept[-1] + 1)
    reach = np.where(ages >= 0, series[ages], 0.0)
    design = np.stack([reach[:, :change] @ arrived[:change], reach[:, change:] @ arrived[change:]], axis=1)
    if len(ticks) < 2 or np.linalg.matrix_rank(design) < 2:
        raise InvalidInput(
            f"the {len(ticks)} answers after tick {before} do not tell arrivals before and after tick {change} apart; "
            "choose an earlier tick, or wait for more answers."
        )
    inverse = np.linalg.pinv(design)
    multipliers = inverse[1] - inverse[0]
    drawn = float(arrived @ (multipliers @ reach) ** 2)
    return Contrast(ticks=tuple(ticks.tolist()), multipliers=multipliers, drawn=drawn)


def measure_drift(
    difference: Matrix, components: Matrix, contrast: Contrast, *, noise_std: float, clip_norm: float
) -> Drift:
    """Test a difference of moments for drift of the directions.

    Parameters
    ----------
    difference : float64 array of shape (d, d), data units
        `stream_estimate.combined` of the contrast's answers; without the last row and column where rows were extended.
    components : float64 array of shape (k, d)
        Orthonormal rows, of the estimate at tick t_0.
    contrast : Contrast
    noise_std : float, data units
        That of one answer off the diagonal.
    clip_norm : float, data units
    """
    k, d = components.shape
    crossed = components @ difference
    block = crossed - (crossed @ components.T) @ components
    variance = noise_std**2 * float(contrast.multipliers @ contrast.multipliers)
    degrees = k * (d - k)
    statistic = float((block**2).sum()) / variance
    rho = clip_norm**4 * contrast.drawn / (4.0 * degrees * variance)
    p = float(gammaincc(degrees / 2.0, statistic / (1.0 + rho) / 2.0))
    return Drift(statistic=statistic, degrees=degrees, rho=rho, p=p if math.isfinite(p) else 0.0)
