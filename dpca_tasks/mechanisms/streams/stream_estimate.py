r"""Post-processing of a stream's stored answers: estimates, a test for drift, and alignment of versions.

*Estimates* are of all that arrived, of a window, or with weights that halve. Everything here is a public linear map of
answers that were paid for. An answer weights what arrived s ticks ago by ``c_s``, and ``c_0 = 1``: so tonight's
arrivals are ``x_t = y_t - sum_{s<t} c_{t-s} x_s`` plus noise, and an estimate is a sum of these. Written as one sum
over answers it needs one of them in memory at a time.

A tick whose answer was lost, or that an operator closed, is left out: what arrived at it is then seen, in parts, in the
answers after it.

>>> from dpca_tasks.accounting.factorisation import choose_weights
>>> year = choose_weights("sqrt", ticks=365)
>>> coefficients(year, kept=[1, 2, 3]).tolist()
[0.375, 0.5, 1.0]
>>> coefficients(year, kept=[1, 3]).tolist()
[0.625, 1.0]

*Drift*: a test with a known null, from the answers of a stream alone. Directions V are those of an estimate at tick
t_0; later answers have noise that is independent of it. If all that arrived up to tick tau has the moment M_1 a record
and all after it M_2, answers from ``t_0 + 1`` on are ``m1_t M_1 + m2_t M_2 + noise``, with ``m1_t = sum_{j<=tau}
c_{t-j} n_j`` and ``m2_t`` likewise over later ticks. Least squares give ``D = M_2 - M_1`` as ``sum_t a_t y_t``, and
where the two are equal, the block of D between V and what is orthogonal to it is noise alone: the sum of its squares
over its variance is chi-squared with ``k (d - k)`` degrees.

Records that are drawn anew differ by chance too. In the mean that adds at most a part rho to the sum, since ``|V^T x|^2
|V_perp^T x|^2 <= 1/4`` for clipped rows of one record: the p-value is that of the sum over ``1 + rho``. The null of
equal realised moments is exact; the correction for its tail is a heuristic.

What is seen is a turn of the directions. A change that only moves variance among them, or from them to others that are
orthogonal to them, leaves the block as it is.

*Alignment* with the previous version, so that coordinates of rows do not jump overnight: a subspace has many bases. Of
the bases of tonight's, the one nearest to last night's aligned basis is the orthogonal Procrustes solution. It spans
the same subspace and captures the same variance, but its rows are no principal axes any more. Only published directions
are used.

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
    """Return what each kept answer is multiplied by in the estimate of the last of their ticks.

    Parameters
    ----------
    weights : Weights
    kept : sequence of int
        The ticks whose answers there are, from 1, rising; the last is the one that is estimated.
    answer : {"prefix", "window", "decay"}, optional
        What is estimated: the sum over all arrivals, over those of the last ticks, or one with weights that halve. By
        default what the strategy is made for.
    window, half_life
        Of the answer, in ticks; by default those of the strategy.

    Returns
    -------
    float64 array of shape (len(kept),)
        Its norm is the std of the estimate over that of one answer.
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
    """Add up answers times multipliers, reading one answer at a time.

    Parameters
    ----------
    answers : iterable of array
        In the order of the multipliers, all in one form: full matrices in data units, or packed ones.
    multipliers : sequence of float

    Returns
    -------
    float64 array
        In the form of the answers. Memory: three arrays of their size.
    """
    total: Matrix | None = None
    for answer, multiplier in zip(answers, multipliers, strict=True):
        if total is None:
            total, scaled = np.zeros(answer.shape), np.empty(answer.shape)
        np.multiply(answer, multiplier, out=scaled)
        total += scaled
    if total is None:
        raise InvalidInput("an estimate of no answers must have at least one; release a tick first.")
    return total


def streamed_subspace(
    estimate: Matrix, problem: Problem, *, noise: Mapping[str, Any], multipliers: Matrix, n_components: int
) -> Subspace:
    """Return the leading directions of an estimate, with what is known of its noise: ready to be refined and assessed.

    Parameters
    ----------
    estimate : float64 array of shape (d, d), data units
        What `combined` returns; of order ``d + 1`` where the problem is centred.
    problem : Problem
    noise : mapping
        What is public about the noise of one answer.
    multipliers : float64 array
        Those of the estimate.
    n_components : int
        k.
    """
    facts = {**noise, "std": noise["std"] * math.sqrt(float(multipliers @ multipliers))}
    return decompose(moment_from(estimate, problem, noise=facts), n_components=n_components)


def check_kept(kept: Sequence[int]) -> None:
    """Refuse what are no ticks in their order."""
    if not len(kept) or kept[0] < 1 or any(np.diff(np.asarray(kept)) < 1):
        raise InvalidInput("kept must be ticks from 1, each once and in order; pass those whose answers there are.")


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


Alignment = Literal["procrustes", "signs", "none"]

BROKEN = 0.5
"""The cosine between two subspaces below which some coordinate of the one has no counterpart in the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aligned:
    """A version of a subspace in coordinates near those of the version before.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows: ``rotation`` times those that were given.
    rotation : float64 array of shape (k, k)
        Orthogonal; a row's coordinates in the given components, times its transpose, are those in these.
    cosines : float64 array of shape (k,)
        Of the principal angles between the two subspaces, falling.
    """

    components: Matrix
    rotation: Matrix
    cosines: Matrix

    @property
    def broke(self) -> bool:
        """Whether coordinates broke: some direction has no counterpart in the version before."""
        return bool(self.cosines[-1] < BROKEN)


def align(components: Matrix, before: Matrix, *, method: Alignment) -> Aligned:
    """Turn components toward those of the version before.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows.
    before : float64 array of shape (k, d)
        The rows of the version before, as they were published.
    method : {"procrustes", "signs", "none"}
        ``procrustes``: the nearest basis. ``signs``: components stay principal axes, and only their signs are chosen.
        ``none``: as they are; cosines are computed all the same.
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
