"""Post-processing of a release: refinement of its components, and assessment of their quality.

The inputs are only released numbers and public facts: no rows, keys or noise streams. So every result has the guarantee
of the release, however often it is computed.

Eigenvalues of a noisy matrix A are not variances, since they contain noise; the leading eigenvalues contain most of
it. Let S be the exact matrix, and let the columns of U be the components. The variance ``tr(U^T S U)`` that they
capture is estimated without bias (`dpca_tasks.refinement.leading_pairs`), and bounded from below.

- ``captured`` is the estimate C of ``tr(U^T S U)``. ``captured_low`` is C minus two standard deviations: 95 of 100
  releases capture more than this bound, and in the measured cases 96 to 99.
- ``share`` is ``C / tr A``, the part of all variance.
- ``captured_variance`` is C divided by an estimate of the variance that the best k directions capture. If few
  components are above the noise, the estimate is unreliable; use its lower bound instead.

If the noise is not normal, or the grid is coarse, only lower bounds are known. They follow from the edge of the noise,
which no eigenvalue of the noise exceeds in 99 of 100 cases.

References
----------
Weyl's inequality for the bounds without fission; second-order perturbation, Cauchy-Schwarz and the trace for the
variance that the best k directions capture.

>>> import numpy as np
>>> alone = refine_release(Subspace(components=np.eye(2, 5)), n_components=2)
>>> alone.assessment.above_noise is None, verdict(alone.facts(), n_components=2)
(True, 'the release holds directions only, which do not show whether they are signal or noise.')
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.noise_level import above_edge, edge_quantile, spike_strengths, widened_edge
from dpca_tasks.refinement.leading_pairs import (
    Refinement,
    Request,
    Score,
    probes,
    refine,
    refine_kept_pairs,
    score_by_eigenvalues,
    score_by_fission,
)
from dpca_tasks.refinement.noisy_moment import PUBLIC_SEED, REPORT, NoisyMoment, Standardised
from dpca_tasks.refinement.schema_constraints import Constraints
from dpca_tasks.threads import one_thread

type Matrix = NDArray[np.float64]

REPORT_SHARE = 0.2
"""The factor h of `score_by_fission` for the chosen method.

It is small, because the score is for noise ``sqrt(1 + h^2)`` times as large.
"""
BELOW = 2.0
"""The number of standard deviations from an estimate to its lower bound; not 1.645, since the error is skewed."""
_ONE_SIDED, _ONE_IN_100 = 1.645, 2.33  # the 95 % and 99 % quantiles of a standard normal variable
_LAST_BITS = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Quality of a release, estimated from the release itself; a field is None if it is unknown.

    Parameters
    ----------
    noise_std : float, units of the matrix
        The std of the noise off the diagonal.
    above_noise : int
        The number of eigenvalues above the 99 % quantile of noise alone. At most this many components are individually
        meaningful.
    captured, captured_low : float, units of the matrix
        Variance in the subspace, not divided by the number of records, and its lower bound.
    share, share_low : float, from 0 to 1
        ``captured`` and ``captured_low``, divided by all variance.
    share_low_of_all : float, from 0 to 1
        For a release in rounds, ``captured_low`` divided by an upper bound on the variance of unweighted records.
    captured_variance, captured_variance_low : float, from 0 to 1
        ``captured`` and ``captured_low``, divided by the variance that the best k directions capture.
    explained_variance_ratio : tuple of float
        Each component's part of ``share``; none is negative, and their sum is at most 1.
    probes, seed : int
        The number of public random matrices that were used, each with both signs, and the seed that generates them.
    """

    noise_std: float | None = None
    above_noise: int | None = None
    captured: float | None = None
    captured_low: float | None = None
    share: float | None = None
    share_low: float | None = None
    share_low_of_all: float | None = None
    captured_variance: float | None = None
    captured_variance_low: float | None = None
    explained_variance_ratio: tuple[float, ...] | None = None
    probes: int = 0
    seed: int = PUBLIC_SEED


UNKNOWN = Assessment()
"""The assessment of mechanisms that release no symmetric matrix."""


def assess(moment: NoisyMoment, refinement: Refinement) -> Assessment:
    """Assess the components that a refinement found in a release.

    Parameters
    ----------
    moment : NoisyMoment
        The release.
    refinement : Refinement
        The refinement of this release. Its method is applied again to copies of the release with more noise.

    Returns
    -------
    Assessment
        Ratios are None if the denominator cannot be distinguished from noise: shares if the trace is at most 1.645
        standard deviations of its noise, captured variances if no component is above the noise.

    Guarantees
    ----------
    As for `dpca_tasks.refinement.leading_pairs.refine`: the same bits for the same input, and no NaN.
    """
    with one_thread():
        if not moment.resolved:
            return _without_noise(moment, refinement)
        standard = moment.standard
        values = standard.eigenvalues
        shown = Assessment(noise_std=moment.noise_std, above_noise=above_edge(values, edge=standard.edge))
        if not moment.guarded:
            return _bounded(shown, moment, standard, values, refinement)
        score: Score | None
        if refinement.refined_by == "none" and moment.isotropic:
            score = score_by_eigenvalues(standard, values, n_components=len(refinement.components))
        else:
            columns = standard.columns(refinement.components)
            scores = score_by_fission(standard, {refinement.refined_by: columns}, share=REPORT_SHARE, stream=REPORT)
            score, shown = scores[refinement.refined_by], replace(shown, probes=probes(moment.order))
    if score is None or not (math.isfinite(score.total) and math.isfinite(score.std)):
        return shown
    return _estimated(shown, moment, values, score)


def _estimated(shown: Assessment, moment: NoisyMoment, values: Matrix, score: Score) -> Assessment:
    """Add the fields that follow from a score to the assessment ``shown``."""
    count, low = len(score.parts), max(score.total - BELOW * score.std, 0.0)
    before = moment.standard.isotropic_std
    trace, spread = float(values.sum()), math.sqrt(2.0 * len(values)) * before
    shown = replace(shown, captured=score.total * moment.noise_std, captured_low=low * moment.noise_std)
    shown = with_shares(shown, score, low=low, trace=trace, spread=spread)
    best, most = (
        _best_possible(
            values, count=count, above=shown.above_noise or 0, trace=trace + quantile * spread, slack=slack * before
        )
        for quantile, slack in ((_ONE_SIDED, 0.0), (_ONE_IN_100, _ONE_IN_100))
    )
    if shown.above_noise and best > 0.0:
        shown = replace(
            shown,
            captured_variance=part(score.total, max(score.total, best)),
            captured_variance_low=part(low, max(score.total, most)),
        )
    return shown


def with_shares(shown: Assessment, score: Score, *, low: float, trace: float, spread: float) -> Assessment:
    """Add the shares of the trace to an assessment, unless the trace is hidden by its noise of std ``spread``."""
    if trace <= _ONE_SIDED * spread:
        return shown
    share = part(score.total, trace)
    return replace(
        shown,
        share=share,
        share_low=part(low, trace + BELOW * spread),
        explained_variance_ratio=divided(share, np.maximum(score.parts, 0.0)),
    )


def _best_possible(values: Matrix, *, count: int, above: int, trace: float, slack: float) -> float:
    """Estimate the sum of the k largest eigenvalues of the exact matrix S.

    The result is the least of three estimates:

    - second-order perturbation, which counts invisible components as if they were at the edge of the noise;
    - the strengths of the visible components plus, by Cauchy-Schwarz, the most that the rest of ``||S||_F^2`` can add;
      ``slack`` is the number of standard deviations that are added to the estimate of this rest;
    - the trace.
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
    shown: Assessment, moment: NoisyMoment, standard: Standardised, values: Matrix, refinement: Refinement
) -> Assessment:
    """Add lower bounds to the assessment ``shown`` that depend only on the edge of the noise, not on its law."""
    edge, spread = standard.edge, math.sqrt(2.0 * len(values))
    if standard.least is not None:
        edge = (1.0 + float(standard.mean @ standard.mean)) * edge + 2.0 * len(values) / standard.count
    found = refinement.values / moment.noise_std
    low = float(np.maximum(found - edge, 0.0).sum())
    shown = replace(shown, captured_low=low * moment.noise_std)
    trace = float(values.sum()) + BELOW * spread
    if trace > (BELOW + _ONE_SIDED) * spread:
        shown = replace(shown, share_low=part(low, trace))
    if shown.above_noise:
        most = float((np.maximum(values[: len(found)], 0.0) + edge).sum())
        shown = replace(shown, captured_variance_low=part(low, min(most, max(trace, low))))
    return shown


def _without_noise(moment: NoisyMoment, refinement: Refinement) -> Assessment:
    """Assess a release whose noise is 0 or below rounding errors, so that its eigenvalues are variances."""
    matrix, rows = moment.centred(), refinement.components
    values = eigh(matrix, eigvals_only=True)[::-1]
    parts = np.maximum(np.einsum("ij,ij->i", rows, rows @ matrix), 0.0)
    captured, trace = float(parts.sum()), float(np.trace(matrix))
    best = float(np.maximum(values[: len(parts)], 0.0).sum())
    shown = Assessment(
        noise_std=moment.noise_std,
        above_noise=above_edge(values, edge=_LAST_BITS * float(np.abs(values).max())),
        captured=captured,
        captured_low=captured,
    )
    if not trace > 0.0:
        return shown
    share = part(captured, trace)
    return replace(
        shown,
        share=share,
        share_low=share,
        captured_variance=part(captured, best),
        captured_variance_low=part(captured, best),
        explained_variance_ratio=divided(share, parts),
    )


def part(amount: float, whole: float) -> float:
    """Return ``amount / whole``, limited to [0, 1]; 0 if ``whole`` is not positive."""
    return min(max(amount / whole, 0.0), 1.0) if whole > 0.0 else 0.0


def divided(share: float, weights: Matrix) -> tuple[float, ...] | None:
    """Divide a share in proportion to weights, or evenly if all weights are 0; the parts' sum is at most 1."""
    total = float(weights.sum())
    parts = share * (weights / total if total > 0.0 else np.full(len(weights), 1.0 / len(weights)))
    while float(parts.sum()) > 1.0:
        parts = np.nextafter(parts, 0.0)
    return tuple(float(part) for part in parts)


AUTO = "auto"
"""As the number of components: as many as are above the noise. As the method: the one with the highest score."""
ENOUGH = 0.99
"""``auto`` does not refine if the lower bound on the captured variance is at least this: little could be gained."""
_RITZ_ERROR = 1.01  # a margin, since eigenvalues of a matrix that is not formed are accurate to about a thousandth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefinedRelease:
    """A release after its post-processing.

    Parameters
    ----------
    subspace : Subspace
        The subspace with the components to publish.
    refined_by : str
        The method that computed these components; ``none`` for the components of the mechanism.
    assessment : Assessment
    noise_edge : float, units of the matrix, optional
        The upper bound on eigenvalues of noise alone that holds in 99 of 100 cases.
    """

    subspace: Subspace
    refined_by: str
    assessment: Assessment
    noise_edge: float | None = None

    def facts(self) -> dict[str, Any]:
        """Return the assessment as plain JSON values, by the names of the manifest's ``outcome``."""
        shown = self.assessment
        return {
            "refined_by": self.refined_by,
            "above_noise": shown.above_noise,
            "captured": shown.captured,
            "captured_low": shown.captured_low,
            "share": shown.share,
            "share_low": shown.share_low,
            **({} if shown.share_low_of_all is None else {"share_low_of_all": shown.share_low_of_all}),
            "cv": shown.captured_variance,
            "cv_low": shown.captured_variance_low,
            "explained_variance_ratio": None
            if shown.explained_variance_ratio is None
            else list(shown.explained_variance_ratio),
            "noise_std": shown.noise_std,
            "noise_edge": self.noise_edge,
            "probes": shown.probes,
            "seed": shown.seed,
        }


def refine_release(
    released: Subspace, *, n_components: int | str, method: Request = "none", edge: float | None = None
) -> RefinedRelease:
    """Refine the components of a release, and assess them.

    Parameters
    ----------
    released : Subspace
        The result of a mechanism. A release in rounds is refined by `dpca_tasks.refinement.refined_rounds`.
    n_components : int or "auto"
        The number k of components. ``auto``: the number of components above the noise, at least one.
    method : {"none", "eb", "spikes", "all", "auto"}
        As for `dpca_tasks.refinement.leading_pairs.refine`, except that ``auto`` is ``none`` if the eigenvectors
        already capture `ENOUGH`. If the matrix was not formed, ``eb`` uses the stored pairs.
    edge : float, units of the matrix, optional
        The upper bound on eigenvalues of noise alone, if the release has no further facts about its noise.

    Raises
    ------
    Refused
        When the release does not allow this refinement; see `check_refinement`.

    Guarantees
    ----------
    With method ``none``, components and eigenvalues equal those of the mechanism bit for bit. If the matrix was formed,
    the spectrum is equal too. If not, only the requested pairs are kept, since other pairs need not have converged.
    """
    if released.rounds is not None:
        made: RefinedRelease = released.rounds.refined(released, n_components=n_components, method=method)
        return made
    check_refinement(
        method,
        n_components=n_components,
        law=None if released.noise is None else released.noise["law"],
        formed=released.released is not None,
    )
    if released.released is None:
        return _of_pairs(released, n_components=int(n_components), method=method, edge=edge)
    moment = moment_of(released)
    edge, above = _seen(moment)
    count = int(n_components) if n_components != AUTO else min(max(above, 1), moment.order - 1)
    raw = leading(released, moment, count)
    assert raw.eigenvalues is not None
    plain = Refinement(components=raw.components, values=raw.eigenvalues, refined_by="none", scores={})
    if method == "auto" and moment.constant is None:
        shown = assess(moment, plain)
        if (shown.captured_variance_low or 0.0) >= ENOUGH:
            return RefinedRelease(subspace=raw, refined_by="none", assessment=shown, noise_edge=edge)
    found = plain if method == "none" else refine(moment, n_components=count, method=method)
    if found.refined_by == "none":
        return RefinedRelease(subspace=raw, refined_by="none", assessment=assess(moment, plain), noise_edge=edge)
    refined = dataclasses.replace(released, components=found.components, eigenvalues=found.values, further=None)
    return RefinedRelease(
        subspace=refined, refined_by=found.refined_by, assessment=assess(moment, found), noise_edge=edge
    )


def check_refinement(method: str, *, n_components: int | str, law: str | None, formed: bool) -> None:
    """Refuse a refinement that a release does not allow.

    ``law`` is the law of the noise of the released matrix, or None if no matrix is released. ``formed`` is false if the
    matrix is used only through products.

    Raises
    ------
    Refused
        The message states the reason and an alternative.
    """
    if n_components == AUTO and (law is None or not formed):
        raise Refused(
            "components=auto counts the eigenvalues above the noise, which this mechanism does not compute; state a "
            "number, or use analyze_gauss in its dense form."
        )
    if method == "none":
        return
    if law is None:
        raise Refused(
            f"refine={method} needs a noisy symmetric matrix, and this mechanism releases none; use refine=none, or "
            "another mechanism such as analyze_gauss."
        )
    if not formed and method != "eb":
        raise Refused(
            f"refine={method} needs the released matrix, which the operator form does not compute; use refine=none or "
            "eb, or --settings form=dense."
        )
    if method in ("spikes", "all") and law not in ("isometric", "upper_triangle"):
        raise Refused(
            f"refine={method} needs normal noise, and this mechanism has {law} noise; use refine=auto, eb or none."
        )


def moment_of(released: Subspace) -> NoisyMoment:
    """Return the released matrix, with the public facts about its noise, as input of a refinement."""
    assert released.released is not None
    assert released.noise is not None
    noise, constant = released.noise, released.noise["constant"]
    known = released.all_eigenvalues
    order = len(released.released) - (constant is not None)
    constraints = Constraints.of(noise.get("constraints"), n_features=order)
    ratio = 1.0 if constraints is None else constraints.ratio(constant=constant is not None)
    return NoisyMoment(
        matrix=released.released,
        noise_std=ratio * noise["std"],
        noise=noise["law"],
        constant=constant,
        step=noise["step"],
        eigenvalues=known,
        vectors=None if known is None else _directions(released),
        constraints=constraints,
    )


def leading(released: Subspace, moment: NoisyMoment, count: int) -> Subspace:
    """Return the release with ``count`` leading eigenpairs."""
    if count == len(released.components):
        return released
    assert released.spectrum is not None
    values, rows = released.spectrum, _directions(released)
    if count > len(rows):
        values, rows = leading_eigenpairs(moment.centred(), count)
    return dataclasses.replace(
        released,
        components=rows[:count],
        eigenvalues=values[:count],
        spectrum=values,
        further=rows[count:] if count < len(rows) else None,
    )


def verdict(facts: Mapping[str, Any], *, n_components: int) -> str:
    """Summarize the quality of a release in one sentence, from the ``outcome`` of its manifest."""
    if facts.get("failed"):
        return "FAILED: noise outweighs the components, which may be random."
    above, low = facts.get("above_noise"), facts.get("cv_low")
    if above is None:
        return "the release holds directions only, which do not show whether they are signal or noise."
    seen = min(above, n_components)
    verb = "is" if seen == 1 else "are"
    signal = f"{seen} of {n_components} component{'s' * (n_components > 1)} {verb} above the noise"
    if not seen:
        return f"{signal}: they are indistinguishable from random ones."
    if not low:
        return f"{signal}; the release gives no lower bound of the captured variance."
    most = f"at least {percent_at_least(low)} of what any {n_components} component{'s' * (n_components > 1)} could"
    share, share_low = facts.get("share"), facts.get("share_low")
    if share is None:
        return f"captures {most}; {signal}."
    of_all = f"captures {100 * share:.{0 if share >= 0.1 else 1}f} % of all variance"
    of_all += " of the records as weighted in the last round" if "rounds" in facts else ""
    bound = "no lower bound" if share_low is None else f"at least {percent_at_least(share_low)}"
    low_of_all = facts.get("share_low_of_all")
    bound += "" if low_of_all is None else f"; of all records at least {percent_at_least(low_of_all)}"
    return f"{of_all} ({bound}), and {most}; {signal}."


def percent_at_least(share: float) -> str:
    """Format a share in percent, rounded down to whole percents, or below 10 % to one decimal."""
    scale = 100 if share >= 0.1 else 1000
    return f"{math.floor(share * scale) * 100 / scale:.{0 if scale == 100 else 1}f} %"


def _directions(released: Subspace) -> Matrix:
    """Return all released directions: the components, then the ``further`` eigenvectors."""
    return released.components if released.further is None else np.vstack([released.components, released.further])


def _seen(moment: NoisyMoment) -> tuple[float | None, int]:
    """Return the edge of the noise (99 % bound on its eigenvalues), and the number of eigenvalues above the edge."""
    if not moment.resolved:
        return None, moment.order
    with one_thread():
        standard = moment.standard
        return standard.edge * moment.noise_std, above_edge(standard.eigenvalues, edge=standard.edge)


def _of_pairs(released: Subspace, *, n_components: int, method: Request, edge: float | None) -> RefinedRelease:
    """Refine and assess a release without its matrix, from the stored pairs."""
    values, noise = released.eigenvalues, released.noise
    if values is None or noise is None:
        shown = UNKNOWN if values is None or edge is None else Assessment(above_noise=above_edge(values, edge=edge))
        return RefinedRelease(subspace=released, refined_by="none", assessment=shown, noise_edge=edge)
    order, std = released.components.shape[1], noise["std"]
    edge = std * _pairs_edge(order, released.mean, noise["constant"])
    shown = Assessment(noise_std=std, above_noise=above_edge(values, edge=edge))
    if method == "eb":
        further, spectrum = released.further, released.spectrum
        found = refine_kept_pairs(
            values if further is None or spectrum is None else spectrum,
            _directions(released),
            noise_std=std,
            n_components=n_components,
        )
        if found.refined_by == "eb":
            refined = dataclasses.replace(released, components=found.components, eigenvalues=found.values, further=None)
            return RefinedRelease(subspace=refined, refined_by="eb", assessment=shown, noise_edge=edge)
    if noise["constant"] is None and shown.above_noise:
        low = float(np.maximum(values - edge, 0.0).sum())
        most = _RITZ_ERROR * float(values.sum()) + len(values) * edge
        shown = dataclasses.replace(shown, captured_low=low, captured_variance_low=low / most)
    plain = dataclasses.replace(released, spectrum=values, further=None)  # the further pairs need not have converged
    return RefinedRelease(subspace=plain, refined_by="none", assessment=shown, noise_edge=edge)


def _pairs_edge(order: int, mean: Matrix | None, constant: float | None) -> float:
    """Return the 99 % bound on eigenvalues of normal noise, in units of its std; centring at a mean makes it larger."""
    if mean is None or constant is None:
        return edge_quantile(order)
    return widened_edge(order, shift=float(mean @ mean) / constant**2)
