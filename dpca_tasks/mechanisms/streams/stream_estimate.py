r"""Post-processing of a stream's stored answers into estimates, a drift test, and aligned versions.

*Estimates* cover all arrivals, the arrivals of a window, or all arrivals with weights that halve. Every estimate is a
public linear map of answers that are already charged. An answer weights the arrivals of s ticks ago by ``c_s``, with
``c_0 = 1``. So the arrivals of tick t are ``x_t = y_t - sum_{s<t} c_{t-s} x_s`` plus noise, and an estimate is a sum of
these. Written as one sum over answers, it needs one answer in memory at a time.

If the answer of a tick was lost, or an operator closed the tick, the tick is left out. Its arrivals still appear, in
part, in later answers.

>>> from dpca_tasks.accounting.factorisation import choose_weights
>>> year = choose_weights("sqrt", ticks=365)
>>> coefficients(year, kept=[1, 2, 3]).tolist()
[0.375, 0.5, 1.0]
>>> coefficients(year, kept=[1, 3]).tolist()
[0.625, 1.0]

*Drift* is a test with a known null that uses only the answers of a stream. Its directions V come from an estimate at
tick t_0; the noise of later answers is independent of that estimate. Suppose that arrivals up to tick tau have the
moment M_1 per record, and later arrivals M_2. Then the answers from ``t_0 + 1`` on are ``m1_t M_1 + m2_t M_2 + noise``,
with ``m1_t = sum_{j<=tau} c_{t-j} n_j`` and ``m2_t`` likewise over later ticks. Least squares give ``D = M_2 - M_1`` as
``sum_t a_t y_t``. If the two moments are equal, the block of D between V and its orthogonal complement is noise alone.
The sum of its squares over its variance is then chi-squared with ``k (d - k)`` degrees.

Newly drawn records also differ by chance. In the mean this adds at most a part rho to the sum, since ``|V^T x|^2
|V_perp^T x|^2 <= 1/4`` for clipped rows of one record. So the p-value is computed from the sum over ``1 + rho``. The
null of equal realised moments is exact; the correction for the tail is a heuristic.

The test detects a rotation of the directions. A change that only moves variance among the directions, or from them to
directions orthogonal to them, leaves the block unchanged.

*Alignment* with the previous version keeps coordinates of rows from jumping between versions. A subspace has many
bases. The basis of the new subspace nearest to the previous aligned basis is the orthogonal Procrustes solution. It
spans the same subspace and captures the same variance, but its rows are no longer principal axes. Only published
directions are used.

>>> turned = align(np.eye(2, 3)[::-1], np.eye(2, 3), method="procrustes")
>>> turned.components.tolist(), turned.cosines.tolist(), turned.broke
([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [1.0, 1.0], False)
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from dpca_tasks.accounting.factorisation import AnswerKind, Weights
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Problem, Subspace
from dpca_tasks.mechanisms.released_moment import decompose, moment_from

type Matrix = NDArray[np.float64]


def coefficients(
    weights: Weights,
    *,
    kept: Sequence[int],
    answer: AnswerKind | None = None,
    window: int | None = None,
    half_life: float | None = None,
) -> Matrix:
    """Return the multiplier of each kept answer in the estimate at the last kept tick.

    Parameters
    ----------
    weights : Weights
    kept : sequence of int
        The ticks with answers, from 1, rising; the estimate is for the last one.
    answer : {"prefix", "window", "decay"}, optional
        The estimated quantity: the sum over all arrivals, over the arrivals of the last ticks, or over all arrivals
        with weights that halve. By default the one for which the strategy is designed.
    window, half_life
        Length of the window or the half-life, in ticks; by default the strategy's value.

    Returns
    -------
    float64 array of shape (len(kept),)
        The multipliers. Their norm is the std of the estimate over the std of one answer.
    """
    check_kept(kept)
    tick, ticks = kept[-1], np.asarray(kept)
    wanted = weights.wanted(tick, answer or weights.answer, window=window, half_life=half_life)
    series = np.zeros(tick)
    series[: len(weights.weights)] = weights.series[:tick]
    found: Matrix = wanted[tick - ticks]
    for at in range(len(kept) - 2, -1, -1):
        found[at] -= found[at + 1 :] @ series[ticks[at + 1 :] - ticks[at]]
    return found


def combined(answers: Iterable[NDArray[Any]], multipliers: Sequence[float] | Matrix) -> Matrix:
    """Sum answers times multipliers, reading one answer at a time.

    Parameters
    ----------
    answers : iterable of array
        Answers in the order of the multipliers, all in one form: full matrices in data units, or packed ones.
    multipliers : sequence of float

    Returns
    -------
    float64 array
        The sum, in the form of the answers. Memory: three arrays of the size of one answer.
    """
    total: Matrix | None = None
    for answer, multiplier in zip(answers, multipliers, strict=True):
        if total is None:
            total, scaled = np.zeros(answer.shape), np.empty(answer.shape)
        np.multiply(answer, multiplier, out=scaled)
        total += scaled
    if total is None:
        raise InvalidInput("an estimate needs at least one answer; release a tick first.")
    return total


def streamed_subspace(
    estimate: Matrix, problem: Problem, *, noise: Mapping[str, Any], multipliers: Matrix, n_components: int
) -> Subspace:
    """Return the leading directions of an estimate, with the facts about its noise for refinement and assessment.

    Parameters
    ----------
    estimate : float64 array of shape (d, d), data units
        The result of `combined`, of order ``d + 1`` if the problem is centred.
    problem : Problem
    noise : mapping
        The public facts about the noise of one answer.
    multipliers : float64 array
        The multipliers of the estimate.
    n_components : int
        k.
    """
    facts = {**noise, "std": noise["std"] * math.sqrt(float(multipliers @ multipliers))}
    return decompose(moment_from(estimate, problem, noise=facts), n_components=n_components)


def check_kept(kept: Sequence[int]) -> None:
    """Refuse ticks that are not unique, rising numbers from 1."""
    if not len(kept) or kept[0] < 1 or any(np.diff(np.asarray(kept)) < 1):
        raise InvalidInput("kept must be ticks from 1, each once and in order; pass the ticks that have answers.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contrast:
    """Ticks and multipliers of a comparison of answers: ``D = sum_t multipliers_t y_t``.

    Parameters
    ----------
    ticks : tuple of int
        The ticks of the answers.
    multipliers : float64 array of shape (len(ticks),)
    drawn : float
        The sum over arrivals of ``n_j (sum_t a_t c_{t-j})^2``. This is what newly drawn records add to the square of D,
        for records of norm 1.
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
        Chi-squared if nothing changed.
    degrees : int
        ``k (d - k)``.
    rho : float
        The part that newly drawn records may add to the statistic in the mean.
    p : float
        The probability of at least this statistic over ``1 + rho`` if nothing changed.
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
        The ticks with answers, rising.
    before : int
        t_0, the tick of the estimate that the directions come from; only later answers are used.
    change : int
        tau, the last tick before the tested change, beyond t_0. Both ticks are chosen before the answers are seen.
    counts : sequence of float
        The number of records that arrived at each tick from 1 to the last: public, or noisy. Negative numbers count as
        0.

    Raises
    ------
    InvalidInput
        When the ticks are out of order or the counts incomplete, or when the answers do not distinguish the two
        moments.
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
            f"the {len(ticks)} answers after tick {before} do not separate arrivals before tick {change} from those "
            "after it; choose an earlier tick, or wait for more answers."
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
        The result of `combined` for the contrast's answers, without the last row and column if rows were extended.
    components : float64 array of shape (k, d)
        Orthonormal rows, from the estimate at tick t_0.
    contrast : Contrast
    noise_std : float, data units
        The std of the noise of one answer off the diagonal.
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


Alignment = Literal["procrustes", "signs", "none"]

BROKEN = 0.5
"""The cosine between two subspaces below which some coordinate of one has no counterpart in the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aligned:
    """A version of a subspace in coordinates near the coordinates of the previous version.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows: ``rotation`` times the given components.
    rotation : float64 array of shape (k, k)
        Orthogonal. A row's coordinates in the given components, times the transpose of ``rotation``, are its
        coordinates in the aligned components.
    cosines : float64 array of shape (k,)
        The cosines of the principal angles between the two subspaces, falling.
    """

    components: Matrix
    rotation: Matrix
    cosines: Matrix

    @property
    def broke(self) -> bool:
        """True if some direction has no counterpart in the previous version."""
        return bool(self.cosines[-1] < BROKEN)


def align(components: Matrix, before: Matrix, *, method: Alignment) -> Aligned:
    """Align components with the components of the previous version.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows.
    before : float64 array of shape (k, d)
        The published rows of the previous version.
    method : {"procrustes", "signs", "none"}
        ``procrustes``: the nearest basis. ``signs``: components stay principal axes, and only their signs are chosen.
        ``none``: components stay unchanged; cosines are still computed.
    """
    if method not in get_args(Alignment):
        raise InvalidInput(f"align={method!r} must be one of {', '.join(get_args(Alignment))}; choose one.")
    if components.shape != before.shape:
        raise InvalidInput(
            f"components of shape {components.shape} cannot be aligned with ones of shape {before.shape}; both "
            "versions must have the same components and columns: align with another version, or not at all."
        )
    crossed = before @ components.T
    left, cosines, right = np.linalg.svd(crossed)
    rotation = np.eye(len(components))
    if method == "procrustes":
        rotation = left @ right
    elif method == "signs":
        rotation[np.diag_indices_from(rotation)] = np.where(np.diag(crossed) < 0.0, -1.0, 1.0)
    return Aligned(components=rotation @ components, rotation=rotation, cosines=np.minimum(cosines, 1.0))
