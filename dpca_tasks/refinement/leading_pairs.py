"""Refined leading pairs of a release, from its matrix or from stored pairs: more signal for the same privacy.

Nothing here reads records, keys or a release's noise: functions take a `NoisyMoment` and k. Refining can also be
harmful: weak components on features that the strong ones avoid lose, by up to .3 of captured variance. ``auto``
therefore scores every method, plain eigenvectors among them, and takes the best.

>>> import numpy as np
>>> noise = public_noise(40, stream=9, probe=0)
>>> released = np.diag(np.r_[60.0, np.zeros(39)]) + np.sqrt(2) * noise
>>> found = refine(NoisyMoment(matrix=released, noise_std=1.0), n_components=1)
>>> found.components.shape, found.values.shape
((1, 40), (1,))

*Kept pairs*: where leading pairs were stored and not the matrix, posterior means need the pairs alone; to bring them
into order needs the matrix, in whose place the strengths of the pairs stand here. That loses a part of what refining
gains, nothing can be scored, and so nothing guards against harm: this is for who asks for it.

>>> rows = np.eye(40)[:20]
>>> found = refine_kept_pairs(np.linspace(90.0, 12.0, 20), rows, noise_std=1.0, n_components=3)
>>> found.refined_by, found.components.shape
('eb', (3, 40))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.mechanisms.noise_level import edge_quantile, spike_strengths
from dpca_tasks.refinement.fission import public_noise as public_noise
from dpca_tasks.refinement.fission import score_by_fission
from dpca_tasks.refinement.noisy_moment import CHOICE, RESOLVED, NoisyMoment, Standardised
from dpca_tasks.refinement.spectral_shrinkage import METHODS, Method, frames, posterior_mean, width
from dpca_tasks.threads import one_thread

type Matrix = NDArray[np.float64]
type Request = Literal["none", "eb", "spikes", "all", "auto"]

REQUESTS: tuple[Request, ...] = (*METHODS, "auto")
BASE: Method = "spikes"
"""The method that is taken where no other scores higher."""
CHOICE_SHARE = 0.5
"""h of the probes that choose."""
ALIKE = 5e-4
"""Mean squared sine of the angles to the eigenvectors up to which nothing is scored: no more is left to gain."""

_SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Refinement:
    """Leading pairs after a refinement.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows, each with its entry of largest magnitude positive.
    values : float64 array of shape (k,)
        ``u^T A u`` of each, descending: as raw as eigenvalues of A are, noise included.
    refined_by : {"none", "eb", "spikes", "all"}
        What made them; ``none``: the eigenvectors, up to rounding.
    scores : mapping of method to float
        What ``auto`` compared, units of the matrix; empty where there was nothing to choose.
    """

    components: Matrix
    values: Matrix
    refined_by: Method
    scores: Mapping[Method, float]


def refine(moment: NoisyMoment, *, n_components: int, method: Request = "auto") -> Refinement:
    """Refine the leading k eigenpairs of a release.

    Parameters
    ----------
    moment : NoisyMoment
        The release and what is public about its noise.
    n_components : int
        k, from 1 to d.
    method : {"none", "eb", "spikes", "all", "auto"}
        ``none``: the eigenpairs. ``eb``: posterior means of the eigenvectors. ``spikes``, ``all``: message passing on
        the pairs above the noise, or on all. ``auto``: the one of these four with the highest score; ``none`` where
        there is no score, because the noise is not normal, the grid is coarse, or all four are `ALIKE`; and where no
        eigenvalue, less the mean of all, passes the edge of the noise. The rules have no direction to begin with
        there: on MNIST and a9a at such noise they capture within .02 of what the eigenvectors do.

    Returns
    -------
    Refinement
        The eigenpairs wherever there is nothing to refine: no noise, noise too small for double precision to show
        beside the entries, or no more than 10 columns beyond k.

    Raises
    ------
    InvalidInput
        If k or the method is none.
    Refused
        If message passing is asked for and the noise is not normal.

    Guarantees
    ----------
    The same bits for the same input on one machine, whatever number of threads is set. Permuting or flipping columns
    permutes or flips the result's columns alone; another unit changes rounding only. Components are orthonormal to
    rounding and never NaN.
    """
    if method not in REQUESTS:
        raise InvalidInput(f"method={method!r} must be one of {', '.join(REQUESTS)}; pass one of them")
    if not 1 <= n_components <= moment.order:
        raise InvalidInput(f"n_components={n_components} must be from 1 to {moment.order}, the features; pass such a k")
    if method in ("spikes", "all") and not moment.isometric:
        raise Refused(
            f"method={method} needs normal noise, and this release has noise={moment.noise}; use method eb or none."
        )
    with one_thread():
        if not moment.resolved:
            values, rows = leading_eigenpairs(moment.centred(), n_components)
            return Refinement(components=rows, values=values, refined_by="none", scores=MappingProxyType({}))
        standard = moment.standard
        chosen, values, columns, scores = _refined(standard, n_components, _candidates(moment, n_components, method))
    return Refinement(
        components=signed(standard.own_rows(columns)),
        values=values * moment.noise_std,
        refined_by=chosen,
        scores=MappingProxyType({name: score * moment.noise_std for name, score in scores.items()}),
    )


def _candidates(moment: NoisyMoment, n_components: int, method: Request) -> tuple[Method, ...]:
    """Return the methods to choose from."""
    if width(moment.order, n_components) == moment.order:
        return ("none",)
    if method != "auto":
        return (method,)
    return METHODS if moment.guarded else ("none",)


def _refined(
    standard: Standardised, n_components: int, methods: tuple[Method, ...]
) -> tuple[Method, Matrix, Matrix, dict[Method, float]]:
    if len(methods) > 1 and not _stands_out(standard):
        methods = ("none",)
    pairs = standard.leading(width(standard.source.order, n_components))
    found = frames(standard.moment, n_components=n_components, methods=methods, pairs=pairs)
    subspaces = {method: columns for method, (_, columns) in found.items()}
    scores: dict[Method, float] = {}
    chosen = methods[0]
    if len(methods) > 1 and not _alike(subspaces):
        scored = score_by_fission(standard, subspaces, share=CHOICE_SHARE, stream=CHOICE)
        scores = {method: score.total for method, score in scored.items()}
        chosen = _best(scores)
    return chosen, *found[chosen], scores


def _stands_out(standard: Standardised) -> bool:
    """Return whether a direction stands above the noise, or may; a signal that is alike in all moves eigenvalues alone.

    Centring adds noise that this edge does not count: then more is taken for a direction.
    """
    return bool(standard.eigenvalues[0] - standard.eigenvalues.mean() > edge_quantile(standard.source.order))


def _alike(subspaces: Mapping[Method, Matrix]) -> bool:
    """Return whether all subspaces are that of the eigenvectors: features are alike, or far above the noise."""
    plain = subspaces["none"]
    cosines = [float(np.linalg.norm(plain.T @ each) ** 2) / plain.shape[1] for each in subspaces.values()]
    return bool(min(cosines) >= 1.0 - ALIKE)


def _best(scores: Mapping[Method, float]) -> Method:
    """Return the method of the highest score; `BASE` unless another's is higher by more than rounding."""
    base = scores[BASE]
    gains = {method: score - base for method, score in scores.items()}
    best = max(gains, key=lambda method: gains[method])
    return best if gains[best] >= _SAME * abs(base) else BASE


def refine_kept_pairs(values: Matrix, rows: Matrix, *, noise_std: float, n_components: int) -> Refinement:
    """Refine the leading k pairs by posterior means, from the pairs that were kept.

    Parameters
    ----------
    values : float64 array of shape (m,)
        Leading eigenvalues of the released matrix, descending.
    rows : float64 array of shape (m, d)
        Their eigenvectors.
    noise_std : float, units of the matrix
        The planned standard deviation of the noise off the diagonal.
    n_components : int
        k, at most m.

    Returns
    -------
    Refinement
        By ``eb``, its values being estimates of strengths; the pairs as they are where d is at most k + 10, or there
        is no noise to speak of.

    Raises
    ------
    InvalidInput
        If fewer pairs were kept than are asked for, or shapes or noise are none.
    """
    kept, order = rows.shape
    if values.shape != (kept,) or not (np.isfinite(values).all() and np.isfinite(rows).all()):
        raise InvalidInput(
            f"{values.shape} values and {rows.shape} rows must be pairs of finite numbers; pass such pairs"
        )
    if not 1 <= n_components <= kept:
        raise InvalidInput(
            f"n_components={n_components} must be from 1 to {kept}, the pairs that were kept; pass such a k"
        )
    if not noise_std >= 0.0:
        raise InvalidInput(f"noise_std={noise_std} must not be negative; pass the planned one")
    count = min(width(order, n_components), kept)
    if count == order or not np.abs(values[:1]).max() <= RESOLVED * noise_std:
        return Refinement(
            components=signed(rows[:n_components]), values=values[:n_components], refined_by="none", scores={}
        )
    with one_thread():
        strengths = spike_strengths(values[:count] / noise_std, order=order)
        shrunk = posterior_mean(rows[:count].T * strengths) / np.sqrt(strengths)
        directions, sizes, _ = np.linalg.svd(shrunk, full_matrices=False)
    return Refinement(
        components=signed(directions.T[:n_components]),
        values=sizes[:n_components] ** 2 * noise_std,
        refined_by="eb",
        scores={},
    )
