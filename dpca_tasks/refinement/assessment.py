"""What a release says about its own quality, from the released matrix and public facts alone.

Eigenvalues of a noisy matrix are no variances: they hold the noise, and the leading ones most of it. What components
capture of the signal S is estimated without bias (`dpca_tasks.refinement.fission`), and bounded from below.

- ``captured`` is C, an estimate of ``tr(U^T S U)``, and ``captured_low`` is C less two standard deviations: 95 of 100
  releases hold more, and 96 to 99 in what was measured.
- ``share`` is ``C / tr A``, the part of all variance.
- ``captured_variance`` is C over an estimate of what the best k directions hold. That is a guess where few components
  stand above the noise; look at its lower bound there.

Of noise that is not normal, or on a coarse grid, lower bounds alone are known: no direction of noise is longer than
its edge, 99 times in 100.

References
----------
Weyl's inequality for the bounds without fission; second-order perturbation, Cauchy-Schwarz and the trace for what the
best k directions hold.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dpca_tasks.mechanisms.noise_level import above_edge, spike_strengths
from dpca_tasks.refinement.fission import Score, probes, score_by_eigenvalues, score_by_fission
from dpca_tasks.refinement.leading_pairs import Refinement
from dpca_tasks.refinement.noisy_moment import PUBLIC_SEED, REPORT, NoisyMoment, Standardised
from dpca_tasks.threads import one_thread

type Matrix = NDArray[np.float64]

REPORT_SHARE = 0.2
"""h of the probes that score what was chosen: small, since the score is that of the rule at so much more noise."""
BELOW = 2.0
"""Standard deviations from an estimate to its lower bound: not 1.645, since the error is skewed."""
_ONE_SIDED, _ONE_IN_100 = 1.645, 2.33  # quantiles of a normal
_LAST_BITS = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What a release says of itself: plain numbers, None where it says nothing.

    Parameters
    ----------
    noise_std : float, units of the matrix
        Of the noise off the diagonal.
    above_noise : int
        Eigenvalues above what noise alone reaches, 99 times in 100; at most so many components are worth a look one
        by one.
    captured, captured_low : float, units of the matrix
        Variance in the subspace, not divided by the number of records, and its lower bound.
    share, share_low : float, from 0 to 1
        The same over all variance.
    captured_variance, captured_variance_low : float, from 0 to 1
        The same over what the best k directions hold.
    explained_variance_ratio : tuple of float
        Each component's part of ``share``; none negative, and their sum is at most 1.
    probes, seed : int
        Public random matrices that were used, each with both signs, and the seed that makes them.
    """

    noise_std: float | None = None
    above_noise: int | None = None
    captured: float | None = None
    captured_low: float | None = None
    share: float | None = None
    share_low: float | None = None
    captured_variance: float | None = None
    captured_variance_low: float | None = None
    explained_variance_ratio: tuple[float, ...] | None = None
    probes: int = 0
    seed: int = PUBLIC_SEED


UNKNOWN = Assessment()
"""What mechanisms say that release no symmetric matrix."""


def assess(moment: NoisyMoment, refinement: Refinement) -> Assessment:
    """Assess the components that a refinement found in a release.

    Parameters
    ----------
    moment : NoisyMoment
        The release.
    refinement : Refinement
        Of this release and no other; its rule is run again on copies with more noise.

    Returns
    -------
    Assessment
        Ratios are None where the denominator cannot be told from noise: shares where the trace is within 1.645
        standard deviations of 0, captured variances where no component stands above the noise.

    Guarantees
    ----------
    As of `dpca_tasks.refinement.leading_pairs.refine`: the same bits for the same input, and no NaN.
    """
    with one_thread():
        if not moment.resolved:
            return _without_noise(moment, refinement)
        standard = moment.standard
        values = standard.eigenvalues
        told = Assessment(noise_std=moment.noise_std, above_noise=above_edge(values, edge=standard.edge))
        if not moment.guarded:
            return _bounded(told, moment, standard, values, refinement)
        score: Score | None
        if refinement.refined_by == "none" and moment.constant is None:
            score = score_by_eigenvalues(standard, values, n_components=len(refinement.components))
        else:
            columns = standard.columns(refinement.components)
            scores = score_by_fission(standard, {refinement.refined_by: columns}, share=REPORT_SHARE, stream=REPORT)
            score, told = scores[refinement.refined_by], replace(told, probes=probes(moment.order))
    if score is None or not (math.isfinite(score.total) and math.isfinite(score.std)):
        return told
    return _estimated(told, moment, values, score)


def _estimated(told: Assessment, moment: NoisyMoment, values: Matrix, score: Score) -> Assessment:
    """Fill in what follows from a score."""
    weights = np.maximum(score.parts, 0.0)
    count, low = len(weights), max(score.total - BELOW * score.std, 0.0)
    trace, spread = float(values.sum()), math.sqrt(2.0 * len(values))
    told = replace(told, captured=score.total * moment.noise_std, captured_low=low * moment.noise_std)
    if trace > _ONE_SIDED * spread:
        share = _part(score.total, trace)
        told = replace(
            told,
            share=share,
            share_low=_part(low, trace + BELOW * spread),
            explained_variance_ratio=_divided(share, weights),
        )
    best, most = (
        _best_possible(values, count=count, above=told.above_noise or 0, trace=trace + quantile * spread, slack=slack)
        for quantile, slack in ((_ONE_SIDED, 0.0), (_ONE_IN_100, _ONE_IN_100))
    )
    if told.above_noise and best > 0.0:
        told = replace(
            told,
            captured_variance=_part(score.total, max(score.total, best)),
            captured_variance_low=_part(low, max(score.total, most)),
        )
    return told


def _best_possible(values: Matrix, *, count: int, above: int, trace: float, slack: float) -> float:
    """Estimate the sum of the k largest eigenvalues of S, its second term with so many standard deviations of slack.

    The least of three: second-order perturbation, counting what is not seen as at the edge; strengths of what is seen,
    and by Cauchy-Schwarz the most that the rest of ``||S||_F^2`` can add; all of the trace.
    """
    order, seen = len(values), min(above, count)
    gaps = values[:count, None] - values[count:]
    strengths = spike_strengths(values[:seen], order=order)
    energy = float((values**2).sum()) - order * (order + 1.0)
    deviation = math.sqrt(8.0 * max(energy, 0.0) + 4.0 * order * (order + 1.0))
    rest = max(energy - float((strengths**2).sum()) + slack * deviation, 0.0)
    bound = min(float(strengths.sum()) + math.sqrt((count - seen) * rest), trace)
    return min(bound, float(values[:count].sum() - (1.0 / gaps).sum())) if (gaps > 0.0).all() else bound


def _bounded(
    told: Assessment, moment: NoisyMoment, standard: Standardised, values: Matrix, refinement: Refinement
) -> Assessment:
    """Fill in lower bounds that need the edge of the noise alone, and no law but that."""
    edge, spread = standard.edge, math.sqrt(2.0 * len(values))
    if standard.least is not None:
        count = max(float(standard.released[-1, -1]), standard.least)
        edge = (1.0 + float(standard.mean @ standard.mean)) * edge + 2.0 * len(values) / count
    found = refinement.values / moment.noise_std
    low = float(np.maximum(found - edge, 0.0).sum())
    told = replace(told, captured_low=low * moment.noise_std)
    trace = float(values.sum()) + BELOW * spread
    if trace > (BELOW + _ONE_SIDED) * spread:
        told = replace(told, share_low=_part(low, trace))
    if told.above_noise:
        most = float((np.maximum(values[: len(found)], 0.0) + edge).sum())
        told = replace(told, captured_variance_low=_part(low, min(most, max(trace, low))))
    return told


def _without_noise(moment: NoisyMoment, refinement: Refinement) -> Assessment:
    """Assess a release without noise, or with less than rounding shows: its eigenvalues are variances."""
    matrix, rows = moment.centred(), refinement.components
    values = eigh(matrix, eigvals_only=True)[::-1]
    parts = np.maximum(np.einsum("ij,ij->i", rows, rows @ matrix), 0.0)
    captured, trace = float(parts.sum()), float(np.trace(matrix))
    best = float(np.maximum(values[: len(parts)], 0.0).sum())
    told = Assessment(
        noise_std=moment.noise_std,
        above_noise=above_edge(values, edge=_LAST_BITS * float(np.abs(values).max())),
        captured=captured,
        captured_low=captured,
    )
    if not trace > 0.0:
        return told
    share = _part(captured, trace)
    return replace(
        told,
        share=share,
        share_low=share,
        captured_variance=_part(captured, best),
        captured_variance_low=_part(captured, best),
        explained_variance_ratio=_divided(share, parts),
    )


def _part(amount: float, whole: float) -> float:
    return min(max(amount / whole, 0.0), 1.0) if whole > 0.0 else 0.0


def _divided(share: float, weights: Matrix) -> tuple[float, ...] | None:
    """Divide a share in proportion to weights, and evenly where there are none; never above the share in sum."""
    total = float(weights.sum())
    parts = share * (weights / total if total > 0.0 else np.full(len(weights), 1.0 / len(weights)))
    while float(parts.sum()) > 1.0:
        parts = np.nextafter(parts, 0.0)
    return tuple(float(part) for part in parts)
