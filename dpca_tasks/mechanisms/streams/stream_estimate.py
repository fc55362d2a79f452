r"""Post-processing of a stream's stored answers into estimates, a drift test, and aligned versions.

*Answers.* In each tick t, records with the second moment ``x_t`` arrive, and the stream releases one noisy answer
``y_t``. The answer is the weighted sum of all arrivals so far, ``sum_{s<=t} c_{t-s} x_s`` with ``c_0 = 1``, plus noise.

*Estimates* are the second moment of all arrivals, of the arrivals of a window, or of all arrivals with weights that
decay with a half-life. Up to noise, the arrivals of tick t are ``x_t = y_t - sum_{s<t} c_{t-s} x_s``. So every estimate
is a public linear combination of answers that are already charged. It is computed with one answer in memory at a time.

If the answer of a tick was lost, or an operator closed the tick without an answer, estimates use the other answers. The
arrivals of this tick still enter the estimates in part, through later answers.

>>> from dpca_tasks.accounting.factorisation import choose_weights
>>> year = choose_weights("sqrt", ticks=365)
>>> coefficients(year, kept=[1, 2, 3]).tolist()
[0.375, 0.5, 1.0]
>>> coefficients(year, kept=[1, 3]).tolist()
[0.625, 1.0]

*Drift test.* The test uses only the answers of a stream, and its null distribution is known. The tested directions V
come from an estimate at tick t_0. The noise of later answers is independent of this estimate. Suppose that each record
up to tick tau has the mean second moment M_1, and each later record M_2. Let ``n_j`` be the number of records that
arrive in tick j. Then an answer after t_0 is ``y_t = m1_t M_1 + m2_t M_2 + noise``. The number ``m1_t`` is the sum of
``c_{t-j} n_j`` over the ticks ``j <= tau``, and ``m2_t`` is the sum over the later ticks. Least squares estimate the
change ``D = M_2 - M_1`` as a sum ``sum_t a_t y_t`` over answers. The test considers the block of D between V and its
orthogonal complement. If M_1 and M_2 are equal, this block is noise alone. Then the sum of its squared entries, divided
by their variance, is chi-squared with ``k (d - k)`` degrees of freedom.

Records of different ticks also differ by chance. This increases the mean of the sum by at most a part rho, because
``|V^T x|^2 |V_perp^T x|^2 <= 1/4`` for the clipped rows x of one record. So the p-value is computed from the sum
divided by ``1 + rho``. The null distribution is exact if the moments of the arrived records are equal. The correction
by rho is a heuristic for the tail of the distribution.

The test detects a rotation of the directions V. It does not detect a change of variance within the span of V, or a
transfer of variance from this span to orthogonal directions, because neither changes the block.

*Alignment* keeps the coordinates of rows stable from one version of a subspace to the next. A subspace has many bases.
The aligned basis of the new subspace is the basis nearest to the previous aligned basis (the orthogonal Procrustes
solution). The aligned basis spans the same subspace and captures the same variance, but its vectors are not principal
axes. Alignment uses published directions only.

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
    """Return the multipliers with which a stream's stored answers sum to an estimate at the last tick.

    A stream releases one noisy answer per tick (period). Each answer is a weighted sum of the second moments of the
    records that arrived in all ticks so far, the arrivals.

    Parameters
    ----------
    weights : Weights
        The weights of arrivals in the answers of the stream.
    kept : sequence of int
        The ticks with a stored answer, rising, from 1 on. The estimate is for the last of these ticks.
    answer : {"prefix", "window", "decay"}, optional
        The estimated quantity: the sum over all arrivals, the sum over the arrivals of the last ticks, or the sum over
        all arrivals with weights that decay. By default the quantity for which ``weights`` are designed.
    window, half_life
        The length of the window, or the half-life of the decay, in ticks. By default the value of ``weights``.

    Returns
    -------
    float64 array of shape (len(kept),)
        One multiplier for each answer. The norm of this array is the std of the estimate's noise divided by the std of
        one answer's noise.
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
    """Return the sum of a stream's answers times multipliers, with one answer in memory at a time.

    Parameters
    ----------
    answers : iterable of array
        The answers in the order of the multipliers. All are full matrices, or all are packed upper triangles, in the
        same units.
    multipliers : sequence of float
        One multiplier for each answer, such as the result of `coefficients`.

    Returns
    -------
    float64 array
        The sum, in the form and units of the answers. The memory is three arrays of the size of one answer.
    """
    total: Matrix | None = None
    for answer, multiplier in zip(answers, multipliers, strict=True):
        if total is None:
            total, scaled = np.zeros(answer.shape), np.empty(answer.shape)
        np.multiply(answer, multiplier, out=scaled)
        total += scaled
    if total is None:
        raise InvalidInput("an estimate needs at least one answer of the stream; release a tick first.")
    return total


def streamed_subspace(
    estimate: Matrix, problem: Problem, *, noise: Mapping[str, Any], multipliers: Matrix, n_components: int
) -> Subspace:
    """Return the leading directions of an estimate from a stream's answers, with the facts about the estimate's noise.

    Parameters
    ----------
    estimate : float64 array of shape (d, d), data units
        The noisy second moment, as returned by `combined`. Its order is ``d + 1`` if the problem is centred.
    problem : Problem
        The public facts of the stream.
    noise : mapping
        The public facts about the noise of one answer.
    multipliers : float64 array
        The multipliers of the answers in the estimate, from which the std of the estimate's noise follows.
    n_components : int
        The number of directions.
    """
    facts = {**noise, "std": noise["std"] * math.sqrt(float(multipliers @ multipliers))}
    return decompose(moment_from(estimate, problem, noise=facts), n_components=n_components)


def check_kept(kept: Sequence[int]) -> None:
    """Refuse a sequence of ticks that is empty, not strictly rising, or starts below 1."""
    if not len(kept) or kept[0] < 1 or any(np.diff(np.asarray(kept)) < 1):
        raise InvalidInput("ticks in kept must be at least 1 and strictly rising; pass the ticks with answers.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contrast:
    """A weighted sum of a stream's answers that estimates a change of the records' second moment.

    The estimate of the change is ``D = sum_t multipliers_t y_t``, where ``y_t`` is the answer of tick t.

    Parameters
    ----------
    ticks : tuple of int
        The ticks of the answers.
    multipliers : float64 array of shape (len(ticks),)
        One multiplier for each answer.
    drawn : float
        The sum of ``n_j (sum_t multipliers_t c_{t-j})^2`` over all ticks j, where ``n_j`` records arrive in tick j and
        have the weight ``c_{t-j}`` in the answer of tick t. Random differences between records add at most this number
        to the mean square of D, for records of norm 1.
    """

    ticks: tuple[int, ...]
    multipliers: Matrix
    drawn: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The outcome of a test whether the directions of a stream's subspace have changed.

    Parameters
    ----------
    statistic : float
        The test statistic, which is chi-squared distributed if the records' second moment has not changed.
    degrees : int
        The degrees of freedom, ``k (d - k)``.
    rho : float
        The largest relative increase of the statistic's mean by random differences between records.
    p : float
        The p-value: the probability that a chi-squared variable is at least ``statistic / (1 + rho)``.
    """

    statistic: float
    degrees: int
    rho: float
    p: float


def contrast_of(
    weights: Weights, *, kept: Sequence[int], before: int, change: int, counts: Sequence[float]
) -> Contrast:
    """Return the multipliers of a stream's answers that estimate the change of the second moment at a tick.

    Parameters
    ----------
    weights : Weights
        The weights with which each answer sums the second moments of all records that have arrived so far.
    kept : sequence of int
        The ticks (periods) with a stored answer, rising.
    before : int
        The tick t_0 of the estimate whose directions are tested. Only answers after this tick are used.
    change : int
        The last tick before the tested change; it must be after ``before``. For a valid test, both ticks are chosen
        before anyone has seen the answers.
    counts : sequence of float
        The number of records that arrived in each tick, from tick 1 to the last tick of ``kept``. The numbers are
        public or noisy. Negative numbers count as 0.

    Raises
    ------
    InvalidInput
        When the ticks are out of order, when counts are missing, or when the answers cannot separate the records before
        the change from the records after it.
    """
    check_kept(kept)
    ticks = np.array([tick for tick in kept if tick > before])
    arrived = np.maximum(np.asarray(counts, np.float64), 0.0)
    if not before < change < kept[-1] or len(arrived) < kept[-1]:
        raise InvalidInput(
            f"before={before} must be below change={change}, and change below the last tick with an answer, "
            f"{kept[-1]}; counts must have a number for every tick up to {kept[-1]} (got {len(arrived)} numbers); "
            "correct them."
        )
    arrived = arrived[: kept[-1]]
    series = np.zeros(kept[-1])
    series[: len(weights.weights)] = weights.series[: kept[-1]]
    ages = ticks[:, None] - np.arange(1, kept[-1] + 1)
    reach = np.where(ages >= 0, series[ages], 0.0)
    design = np.stack([reach[:, :change] @ arrived[:change], reach[:, change:] @ arrived[change:]], axis=1)
    if len(ticks) < 2 or np.linalg.matrix_rank(design) < 2:
        raise InvalidInput(
            f"the {len(ticks)} answers after tick {before} cannot separate records that arrived up to tick {change} "
            "from later records; choose an earlier tick, or wait for more answers."
        )
    inverse = np.linalg.pinv(design)
    multipliers = inverse[1] - inverse[0]
    drawn = float(arrived @ (multipliers @ reach) ** 2)
    return Contrast(ticks=tuple(ticks.tolist()), multipliers=multipliers, drawn=drawn)


def measure_drift(
    difference: Matrix, components: Matrix, contrast: Contrast, *, noise_std: float, clip_norm: float
) -> Drift:
    """Test whether the directions of a stream's subspace have changed, from an estimated difference of moments.

    Parameters
    ----------
    difference : float64 array of shape (d, d), data units
        The estimated change of the second moment: the result of `combined` for the ticks and multipliers of
        ``contrast``. If a constant was appended to the rows, the last row and column are omitted.
    components : float64 array of shape (k, d)
        The tested directions as orthonormal rows, from an estimate before all ticks of ``contrast``.
    contrast : Contrast
        The ticks and multipliers of the difference.
    noise_std : float, data units
        The std of the noise of one answer, off the diagonal.
    clip_norm : float, data units
        The bound on the norm of each record.
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
"""If the smallest cosine of the principal angles between two versions of a subspace is below this number, some
direction of one version has no counterpart in the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aligned:
    """A new version of a subspace, in the basis nearest to the basis of the previous version.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        The aligned basis as orthonormal rows: ``rotation`` times the original components of the new version.
    rotation : float64 array of shape (k, k)
        An orthogonal matrix. The coordinates of a data row in the original components, times the transpose of
        ``rotation``, are its coordinates in the aligned components.
    cosines : float64 array of shape (k,)
        The cosines of the principal angles between the new and the previous subspace, falling.
    """

    components: Matrix
    rotation: Matrix
    cosines: Matrix

    @property
    def broke(self) -> bool:
        """True if some direction of the new version has no counterpart in the previous version (see `BROKEN`)."""
        return bool(self.cosines[-1] < BROKEN)


def align(components: Matrix, before: Matrix, *, method: Alignment) -> Aligned:
    """Align the components of a new version of a subspace with the components of the previous version.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        The components of the new version, as orthonormal rows.
    before : float64 array of shape (k, d)
        The published components of the previous version, as orthonormal rows.
    method : {"procrustes", "signs", "none"}
        ``procrustes``: use the basis of the new subspace nearest to ``before``. ``signs``: keep the components as
        principal axes, and choose only their signs. ``none``: leave the components unchanged; cosines are still
        computed.
    """
    if method not in get_args(Alignment):
        raise InvalidInput(f"align={method!r} must be one of {', '.join(get_args(Alignment))}; choose one.")
    if components.shape != before.shape:
        raise InvalidInput(
            f"components of shape {components.shape} cannot be aligned with a previous version of shape "
            f"{before.shape}; both versions must have equal numbers of components and of columns: align with another "
            "version, or not at all."
        )
    crossed = before @ components.T
    left, cosines, right = np.linalg.svd(crossed)
    rotation = np.eye(len(components))
    if method == "procrustes":
        rotation = left @ right
    elif method == "signs":
        rotation[np.diag_indices_from(rotation)] = np.where(np.diag(crossed) < 0.0, -1.0, 1.0)
    return Aligned(components=rotation @ components, rotation=rotation, cosines=np.minimum(cosines, 1.0))
