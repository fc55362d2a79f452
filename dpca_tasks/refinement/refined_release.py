"""Post-processing of a release of any mechanism: refine its components, and state what it says of its own quality.

Only released numbers and public facts come in: no rows, no keys, no streams of noise. So everything here has the
guarantee of the release, however often it is done.

>>> import numpy as np
>>> alone = refine_release(Subspace(components=np.eye(2, 5)), n_components=2)
>>> alone.assessment.above_noise is None, verdict(alone.facts(), n_components=2)
(True, 'the release has directions alone: nothing in it tells signal from noise.')
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.noise_level import above_edge, edge_quantile, widened_edge
from dpca_tasks.refinement.assessment import UNKNOWN, Assessment, assess
from dpca_tasks.refinement.leading_pairs import Refinement, Request, refine, refine_kept_pairs
from dpca_tasks.refinement.noisy_moment import NoisyMoment
from dpca_tasks.threads import one_thread

type Matrix = NDArray[np.float64]

AUTO = "auto"
"""The number of components that stand above the noise, and the refinement that scores highest."""
ENOUGH = 0.99
"""The bound from below on the captured variance, from which ``auto`` does not refine: too little is left to gain."""
_RITZ_ERROR = 1.01  # eigenvalues of a matrix that is not formed are right to about a thousandth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefinedRelease:
    """A release after its post-processing.

    Parameters
    ----------
    subspace : Subspace
        With the components that are published.
    refined_by : str
        The method that made them; ``none``: as the mechanism returned them.
    assessment : Assessment
    noise_edge : float, units of the matrix, optional
        What eigenvalues of noise alone stay below, 99 times in 100.
    """

    subspace: Subspace
    refined_by: str
    assessment: Assessment
    noise_edge: float | None = None

    def facts(self) -> dict[str, Any]:
        """Return what the release says of itself, as plain JSON values by the names of the manifest's ``outcome``."""
        told = self.assessment
        return {
            "refined_by": self.refined_by,
            "above_noise": told.above_noise,
            "captured": told.captured,
            "captured_low": told.captured_low,
            "share": told.share,
            "share_low": told.share_low,
            "cv": told.captured_variance,
            "cv_low": told.captured_variance_low,
            "explained_variance_ratio": None
            if told.explained_variance_ratio is None
            else list(told.explained_variance_ratio),
            "noise_std": told.noise_std,
            "noise_edge": self.noise_edge,
            "probes": told.probes,
            "seed": told.seed,
        }


def refine_release(
    released: Subspace, *, n_components: int | str, method: Request = "none", edge: float | None = None
) -> RefinedRelease:
    """Refine the components of a release, and assess them.

    Parameters
    ----------
    released : Subspace
        As a mechanism returned it.
    n_components : int or "auto"
        k. ``auto``: as many as stand above the noise, one at least.
    method : {"none", "eb", "spikes", "all", "auto"}
        As of `dpca_tasks.refinement.leading_pairs.refine`, and ``auto`` is ``none`` where the eigenvectors hold
        `ENOUGH` already. Where the matrix was not formed, ``eb`` works on the pairs that there are.
    edge : float, units of the matrix, optional
        What eigenvalues of noise alone stay below, where the release does not say more about its noise.

    Raises
    ------
    Refused
        When the release allows no such refinement: `check_refinement`.

    Guarantees
    ----------
    With method ``none``, components and eigenvalues are those of the mechanism, to the bit, and so is the spectrum of a
    matrix that was formed. Of one that was not, only the pairs that were asked for are kept: others need not have
    converged.
    """
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
        told = assess(moment, plain)
        if (told.captured_variance_low or 0.0) >= ENOUGH:
            return RefinedRelease(subspace=raw, refined_by="none", assessment=told, noise_edge=edge)
    found = plain if method == "none" else refine(moment, n_components=count, method=method)
    if found.refined_by == "none":
        return RefinedRelease(subspace=raw, refined_by="none", assessment=assess(moment, plain), noise_edge=edge)
    refined = dataclasses.replace(released, components=found.components, eigenvalues=found.values, further=None)
    return RefinedRelease(
        subspace=refined, refined_by=found.refined_by, assessment=assess(moment, found), noise_edge=edge
    )


def check_refinement(method: str, *, n_components: int | str, law: str | None, formed: bool) -> None:
    """Refuse a refinement that a release does not allow; ``law`` is that of its noise, None where it has no matrix.

    Raises
    ------
    Refused
        With the reason and the next move.
    """
    if n_components == AUTO and (law is None or not formed):
        raise Refused(
            "components=auto counts the eigenvalues above the noise, and this mechanism releases no whole matrix; "
            "state a number, or use analyze_gauss in its dense form."
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
            f"refine={method} needs the released matrix, which the operator form does not form: nothing could guard "
            "against harm; use refine=none or eb, or --settings form=dense."
        )
    if method in ("spikes", "all") and law not in ("isometric", "upper_triangle"):
        raise Refused(
            f"refine={method} needs normal noise, and this mechanism's is {law}; use refine=auto, eb or none."
        )


def moment_of(released: Subspace) -> NoisyMoment:
    """Return the released matrix with what is public about its noise."""
    assert released.released is not None
    assert released.noise is not None
    noise = released.noise
    known = released.all_eigenvalues
    return NoisyMoment(
        matrix=released.released,
        noise_std=noise["std"],
        noise=noise["law"],
        constant=noise["constant"],
        step=noise["step"],
        eigenvalues=known,
        vectors=None if known is None else _directions(released),
    )


def leading(released: Subspace, moment: NoisyMoment, count: int) -> Subspace:
    """Return the release with another number of its leading eigenpairs."""
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
    """Say in one line what the facts of a release mean for whoever uses it."""
    if facts.get("failed"):
        return "FAILED: noise outweighs the components, which may be random."
    above, low = facts.get("above_noise"), facts.get("cv_low")
    if above is None:
        return "the release has directions alone: nothing in it tells signal from noise."
    seen = min(above, n_components)
    stand = f"{seen} of {n_components} component{'s' * (n_components > 1)} stand{'s' * (seen == 1)} above the noise"
    if not seen:
        return f"{stand}: they cannot be told from random ones."
    if not low:
        return f"{stand}; the release gives no lower bound of the variance that the subspace holds."
    return f"{stand}; the subspace holds at least {floored(low)} of the variance that {n_components} could hold."


def floored(share: float) -> str:
    """Write a share with two digits, rounded down: a lower bound stays one."""
    return f"{math.floor(share * 100) / 100:.2f}".removeprefix("0")


def _directions(released: Subspace) -> Matrix:
    """Return all directions of a release, the leading ones first."""
    return released.components if released.further is None else np.vstack([released.components, released.further])


def _seen(moment: NoisyMoment) -> tuple[float | None, int]:
    """Return the edge of the noise, and how many eigenvalues stand above it."""
    if not moment.resolved:
        return None, moment.order
    with one_thread():
        standard = moment.standard
        return standard.edge * moment.noise_std, above_edge(standard.eigenvalues, edge=standard.edge)


def _of_pairs(released: Subspace, *, n_components: int, method: Request, edge: float | None) -> RefinedRelease:
    """Refine and assess a release without its matrix, from the pairs that there are."""
    values, noise = released.eigenvalues, released.noise
    if values is None or noise is None:
        told = UNKNOWN if values is None or edge is None else Assessment(above_noise=above_edge(values, edge=edge))
        return RefinedRelease(subspace=released, refined_by="none", assessment=told, noise_edge=edge)
    order, std = released.components.shape[1], noise["std"]
    edge = std * _pairs_edge(order, released.mean, noise["constant"])
    told = Assessment(noise_std=std, above_noise=above_edge(values, edge=edge))
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
            return RefinedRelease(subspace=refined, refined_by="eb", assessment=told, noise_edge=edge)
    if noise["constant"] is None and told.above_noise:
        low = float(np.maximum(values - edge, 0.0).sum())
        most = _RITZ_ERROR * float(values.sum()) + len(values) * edge
        told = dataclasses.replace(told, captured_low=low, captured_variance_low=low / most)
    plain = dataclasses.replace(released, spectrum=values, further=None)  # the further pairs need not have converged
    return RefinedRelease(subspace=plain, refined_by="none", assessment=told, noise_edge=edge)


def _pairs_edge(order: int, mean: Matrix | None, constant: float | None) -> float:
    """Return the edge of normal noise in units of its std; wider where the matrix was centred at a released mean."""
    if mean is None or constant is None:
        return edge_quantile(order)
    return widened_edge(order, shift=float(mean @ mean) / constant**2)
