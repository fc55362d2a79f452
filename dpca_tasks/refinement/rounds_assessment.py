"""Quality of a release in rounds, estimated from its last answer given all earlier ones.

In the last round a record x has the weight ``w = min(1, c^2 / |T (x - m)|^2)``, so that long records count less. The
weighted moment is ``S_w = T^-1 M T^-T``, for the exact answer M. No weight exceeds 1, so without centring S_w is at
most the moment S of all records. Hence a lower bound on ``tr(U^T S_w U)`` is also a lower bound on ``tr(U^T S U)``.

*Fission.* Given the earlier answers, T, m and c are constants, and the last answer is ``A = M + E`` with isometric E.
Let Z be a public random matrix with the law of this noise. Then ``A + h Z`` and ``A - Z / h`` are independent. The
whole computation (correction for clipping, combination of rounds, components) gives U from ``A + h Z``. With
``V = T^-T U``, the score ``tr(V^T (A - Z / h) V)`` is an unbiased estimate of ``tr(U^T S_w U)``, at noise
``sqrt(1 + h^2)`` times as large. Both signs of Z are scored, and h is `CHOICE_SHARE`. For a centred release, the score
adds the variance that the noise of the mean removes.

*Bounds.* The sum of the k largest eigenvalues is convex. So, by Jensen's inequality, its mean over unbiased estimates
of S_w is at least its value for S_w. Two standard deviations cover its spread.

References
----------
Oliveira, Lei and Tibshirani (2021), Unbiased risk estimation in the normal means problem via coupled bootstrap
techniques; Bellec and Zhang (2021), Second-order Stein, for the variance.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dpca_tasks.mechanisms.noise_level import above_edge, edge_quantile
from dpca_tasks.refinement.constrained_release import constrained
from dpca_tasks.refinement.leading_pairs import CHOICE_SHARE, Refinement, Score, probes, public_noise
from dpca_tasks.refinement.noisy_moment import REPORT, Method, NoisyMoment
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.refined_release import BELOW, Assessment, assess, part, with_shares
from dpca_tasks.refinement.rounds import Answer, Estimate, around_own_mean, begun, components, continued
from dpca_tasks.refinement.schema_constraints import Constraints
from dpca_tasks.threads import one_thread, two_at_once

type Matrix = NDArray[np.float64]


def estimated(answers: Sequence[Answer], *, centred: bool, constraints: Constraints | None = None) -> Estimate:
    """Return the estimate from the answers of all rounds so far, under constraints if they are given."""
    found = functools.reduce(continued, answers[1:], begun(answers[0], centred=centred))
    return found if constraints is None else constrained(found, answers[0], constraints)


def assessed(
    answers: Sequence[Answer],
    refinement: Refinement,
    *,
    centred: bool,
    unit: float = 1.0,
    constraints: Constraints | None = None,
) -> Assessment:
    """Assess the components that `dpca_tasks.refinement.rounds.components` found.

    Parameters
    ----------
    answers : sequence of Answer
        The answers of all rounds: at least two, or one with a warm start.
    refinement : Refinement
        The components from the estimate of all rounds. The computation is repeated, with the same method, on copies of
        the last answer with more noise.
    centred : bool
        Whether records were centred.
    unit : float
        The squared clip norm in data units, by which all variances of the result are multiplied.
    constraints : Constraints, optional
        The constraints under which the rounds were combined.

    Returns
    -------
    Assessment
        All fields except ``noise_std``, ``above_noise`` and ``share_low_of_all`` refer to the records as weighted in
        the last round. Without centring, ``captured_low`` is also a lower bound for unweighted records. If no round had
        a map or could clip a record, all weights are 1, and the estimate is assessed like a single release.
    """
    with one_thread():
        last, follow = answers[-1], _rule(answers[:-1], centred=centred, constraints=constraints)
        estimate = follow(last)
        moment = NoisyMoment(
            matrix=last.map.around(estimate.matrix),
            noise_std=estimate.noise_std,
            step=estimate.rounds[-1].step,
            constraints=None if centred else constraints,
        )
        if len(answers) > 1 and all(each.energy is None for each in answers) and not centred:
            shown = assess(moment, refinement)
            return _scaled(replace(shown, share_low_of_all=shown.share_low), unit)
        values = eigh(moment.matrix, eigvals_only=True)
        shown = Assessment(
            noise_std=estimate.noise_std,
            above_noise=above_edge(values, edge=edge_of(estimate, constraints)),
        )
        if not moment.guarded:
            return _scaled(shown, unit)
        score = _scored(follow, last, refinement, centred=centred)
        shown = replace(shown, probes=probes(len(values)))
        whole = _most_energy(answers[0], estimate)
        return _scaled(_estimated(shown, _unmapped(last, centred=centred), last, score, whole=whole), unit)


def _unmapped(answer: Answer, *, centred: bool) -> Matrix:
    """Return an unbiased estimate of the weighted moment S_w of records, around their mean if they are centred."""
    return answer.map.inverse_around(_moment(answer, centred=centred))


def _moment(answer: Answer, *, centred: bool) -> Matrix:
    """Return the second moment of mapped records, around their mean if centred, without an appended constant."""
    order = len(answer.map.directions)
    return around_own_mean(answer) if centred else answer.released[:order, :order]


def edge_of(estimate: Estimate, constraints: Constraints | None) -> float:
    """Return the bound that eigenvalues of noise alone exceed in 1 of 100 cases, after the last map."""
    if constraints is None:
        return estimate.noise_std * edge_quantile(len(estimate.matrix))
    ratio = constraints.ratio(centred=estimate.mean is not None)
    return estimate.noise_std / ratio * edge_quantile(constraints.width)


def _rule(early: Sequence[Answer], *, centred: bool, constraints: Constraints | None) -> Callable[[Answer], Estimate]:
    """Return a function that computes the estimate from a last answer, given the ``early`` answers."""
    before = estimated(early, centred=centred) if early else None

    def follow(last: Answer) -> Estimate:
        found = begun(last, centred=centred) if before is None else continued(before, last)
        return found if constraints is None else constrained(found, early[0] if early else last, constraints)

    return follow


def _scored(follow: Callable[[Answer], Estimate], last: Answer, refinement: Refinement, *, centred: bool) -> Score:
    """Estimate the variance ``tr(U^T S_w U)`` of the weighted moment that the components U capture, by fission."""
    count, share = len(refinement.components), CHOICE_SHARE
    noise_std = math.sqrt(2.0) * last.noise_std

    def seen_from(signed_noise: Matrix, method: Method) -> tuple[Matrix, Matrix]:
        louder = replace(
            last,
            released=last.released + share * signed_noise,
            noise_std=math.hypot(1.0, share) * last.noise_std,
        )
        found = components(follow(louder), n_components=count, method=method)
        columns = last.map.inverse_transposed(found.components.T)
        other = replace(last, released=last.released - signed_noise / share)
        scores = np.einsum("ij,ij->j", columns, _moment(other, centred=centred) @ columns)
        return scores + _bias_of_mean(last, columns, share=share) if centred else scores, columns

    def probed(probe: int) -> tuple[Matrix, float, float]:
        noise = noise_std * public_noise(len(last.released), stream=REPORT, probe=probe)
        (plus, one), (minus, other) = (seen_from(sign * noise, refinement.refined_by) for sign in (1.0, -1.0))
        lengths = float(np.linalg.norm(one.T @ one) ** 2 + np.linalg.norm(other.T @ other) ** 2)
        shared = 2.0 * float(np.linalg.norm(one.T @ other) ** 2)
        return (plus + minus) / 2.0, (lengths + shared) / 4.0, max(lengths - shared, 0.0) / 4.0

    of_each = two_at_once(probed, range(probes(len(last.map.directions))))
    parts, fixed, turned = (np.array(each) for each in zip(*of_each, strict=True))
    spread = float(parts.sum(axis=1).var(ddof=1)) / len(parts)
    variance = noise_std**2 * float(fixed.mean() + turned.mean() / share**2) + spread
    return Score(parts=parts.mean(axis=0), std=math.sqrt(variance))


def _bias_of_mean(last: Answer, columns: Matrix, *, share: float) -> Matrix:
    """Return the variance along each column that centring at a noisy mean removes in expectation."""
    total = max(float(last.released[-1, -1]), last.constant**2)
    louder = last.noise_std**2 * (1.0 + 1.0 / share**2)
    return np.square(columns).sum(axis=0) * louder / total


def _estimated(shown: Assessment, moment: Matrix, last: Answer, score: Score, *, whole: float | None) -> Assessment:
    """Add the fields that follow from a score to an assessment.

    ``moment`` is an unbiased estimate of the weighted moment S_w of records.
    """
    noise_std, count = math.sqrt(2.0) * last.noise_std, len(score.parts)
    low = max(score.total - BELOW * score.std, 0.0)
    values, vectors = (found[..., ::-1] for found in eigh(moment))
    mapped = last.map.inverse_transposed(vectors)
    gram = mapped[:, :count].T @ mapped
    best = float(values[:count].sum())
    most = best + BELOW * noise_std * float(np.linalg.norm(gram[:, :count]))
    trace, spread = float(values.sum()), noise_std * _trace_spread(last.map)
    shown = replace(
        shown, captured=score.total, captured_low=low, share_low_of_all=None if whole is None else part(low, whole)
    )
    shown = with_shares(shown, score, low=low, trace=trace, spread=spread)
    if shown.above_noise and most > 0.0:
        shown = replace(
            shown,
            captured_variance=part(score.total, max(score.total, best - _raised(values, mapped, gram, last.noise_std))),
            captured_variance_low=part(low, max(score.total, most)),
        )
    return shown


def _raised(values: Matrix, mapped: Matrix, gram: Matrix, noise_std: float) -> float:
    """Return how much noise raises the sum of the k largest eigenvalues, to second order."""
    count = len(gram)
    gaps = values[:count, None] - values[count:]
    lengths = np.square(mapped).sum(axis=0)
    variances = np.multiply.outer(lengths[:count], lengths[count:]) + np.square(gram[:, count:])
    return noise_std**2 * float((variances / gaps).sum()) if (gaps > 0.0).all() else 0.0


def _trace_spread(last: PublicMap) -> float:
    """Return the std of ``tr(T^-1 E T^-T)`` for the map T and isotropic noise E whose diagonal has std 1."""
    return float(np.linalg.norm(last.inverse_around(np.eye(len(last.directions)))))


def _most_energy(first: Answer, estimate: Estimate) -> float | None:
    """Return an upper bound on the sum of squared norms of all records; None if their number was not released.

    The result is the smaller of two bounds. One follows from the number of records, whose norms are at most 1. The
    other follows from the trace of the first round, which has no map; a warm start lacks it.
    """
    if not first.constant:
        return None
    noise_std, constant = math.sqrt(2.0) * first.noise_std, first.constant**2
    by_number = max(estimate.n_records + BELOW * noise_std / constant, 0.0)
    if len(estimate.rounds) == 1:  # a warm start, whose only round can clip records
        return by_number
    matrix = estimate.rounds[0].matrix
    trace = float(np.trace(matrix)) + estimate.extra + BELOW * noise_std * math.sqrt(len(matrix))
    return max(min(trace, by_number), 0.0)


def _scaled(shown: Assessment, unit: float) -> Assessment:
    def in_units(value: float | None) -> float | None:
        return None if value is None else value * unit

    return replace(
        shown,
        noise_std=in_units(shown.noise_std),
        captured=in_units(shown.captured),
        captured_low=in_units(shown.captured_low),
    )
