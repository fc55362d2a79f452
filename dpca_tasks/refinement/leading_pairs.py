"""Refined leading pairs of a release, and unbiased estimates of the signal that they capture.

A refinement captures more signal for the same privacy. It is computed from the released matrix, or from stored pairs.
No function reads records, keys or a release's noise: the inputs are a `NoisyMoment` and k.

*Nearly leading eigenpairs* are the approximations that a fixed number of products with the matrix gives. A probe needs
a rule that only depends on the probe's matrix, and is close to the scored rule; the rule need not converge. Block
Krylov from a public start is such a rule. Components well above the noise are found to rounding. Of the others, the
subspace captures nearly as much as the eigenvectors do.

>>> values, rows = nearly_leading_eigenpairs(np.diag(np.r_[60.0, np.linspace(20.0, -20.0, 599)]), 2)
>>> values.round(3).tolist(), int(np.abs(rows[0]).argmax())
([60.0, 19.927], 0)

*Score from eigenvalues* (only for the leading eigenvectors): ``E tr(V^T S V) = E [sum lambda_i - 2 sum 1 / (lambda_i -
lambda_j)]``, with i among the k leading and j beyond, in units of the noise. The identity is exact for every S and d.
Proof: Stein's identity for normal E, ``E <E, V V^T> = 2 E div(V V^T)``, and the derivative of a spectral projector.

*Score by fission* (for any rule): with Z a public copy of the noise, ``A + h Z`` and ``A - Z / h`` are independent
given S. So a subspace found in the first matrix is scored on the second without bias. The score applies to the same
rule at noise ``sqrt(1 + h^2)`` times as large. It requires no smoothness, and none of the rule's steps has to converge.
Since -Z has the same law as Z, both signs are scored. In their mean all terms of odd order in h cancel, including
``<Z, V V^T> / h`` of the subspace without a probe. The score is the mean over a few such pairs.

Such a rule starts only from the result of `nearly_leading_eigenpairs` on ``A + h Z``. It must not start from
eigenvectors of A, since these depend on the noise of ``A - Z / h``.

*Refinement* can also be harmful: weak components on features that the strong ones avoid lose up to .3 of captured
variance. ``auto`` therefore scores every method, including plain eigenvectors, and takes the best.

>>> import numpy as np
>>> noise = public_noise(40, stream=9, probe=0)
>>> released = np.diag(np.r_[60.0, np.zeros(39)]) + np.sqrt(2) * noise
>>> found = refine(NoisyMoment(matrix=released, noise_std=1.0), n_components=1)
>>> found.components.shape, found.values.shape
((1, 40), (1,))

*Kept pairs*: if leading pairs were stored without the matrix, posterior means need only the pairs. Ordering the means
would need the matrix, so the strengths of the pairs replace it. This loses a part of the gain. Nothing can be scored,
so nothing guards against harm; this refinement is only used on request.

>>> rows = np.eye(40)[:20]
>>> found = refine_kept_pairs(np.linspace(90.0, 12.0, 20), rows, noise_std=1.0, n_components=3)
>>> found.refined_by, found.components.shape
('eb', (3, 40))

References
----------
Oliveira, Lei and Tibshirani (2021), Unbiased risk estimation in the normal means problem via coupled bootstrap
techniques; Bellec and Zhang (2021), Second-order Stein, for the variance; Musco and Musco (2015), Randomized block
Krylov methods for stronger and faster approximate singular value decomposition.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.mechanisms.noise_level import edge_quantile, spike_strengths
from dpca_tasks.refinement.noisy_moment import (
    CHOICE,
    METHODS,
    PUBLIC_SEED,
    RESOLVED,
    START,
    Method,
    NoisyMoment,
    Standardised,
    frames,
    posterior_mean,
    width,
)
from dpca_tasks.threads import one_thread, two_at_once

type Matrix = NDArray[np.float64]
type Products = NDArray[np.float64 | np.float32]

DEEPER = 3.0
"""Products over the cube root of ``order / width``, the rate at which gaps at the edge of the noise close."""
SHORT = 2.0**16
"""Entries over the noise up to which single precision suffices: it rounds by less than a hundredth of the noise."""

_SMALL = 2  # orders below this multiple of the tried directions are decomposed as a whole
_LOST = 1e-3  # loss of orthogonality beyond which the whole matrix is decomposed


def depth(order: int, count: int) -> int:
    """Return the number of products, which is public; 0 if the whole matrix is decomposed instead."""
    products = math.ceil(DEEPER * math.cbrt(order / count))
    return 0 if _SMALL * products * count > order else products


def shortened(matrix: Matrix, count: int) -> Products:
    """Convert a matrix to single precision if `nearly_leading_eigenpairs` multiplies it and noise exceeds rounding."""
    fits = depth(len(matrix), count) and max(float(matrix.max()), -float(matrix.min())) <= SHORT
    return matrix.astype(np.float32) if fits else matrix


def nearly_leading_eigenpairs(matrix: Products, count: int) -> tuple[Matrix, Matrix]:
    """Return leading Ritz values, descending, and orthonormal Ritz vectors as rows, with their signs fixed.

    Parameters
    ----------
    matrix : float64 or float32 array of shape (d, d)
        Symmetric; products use the precision of the matrix.
    count : int
        The number of pairs, from 1 to d. This many columns are multiplied at a time, `depth` times.

    Returns
    -------
    values : float64 array of shape (count,)
    rows : float64 array of shape (count, d)

    Notes
    -----
    A small matrix is decomposed by `leading_eigenpairs`, and so is a matrix whose Krylov space is too small. Subspaces
    refined from these pairs capture less variance than subspaces refined from exact pairs. On MNIST the loss is .001 at
    an epsilon of 1 and .003 at .3; on synthetic data of 1,000 columns it is at most .009. These are means of three or
    four draws, relative to the variance that the best directions capture.
    """
    products = depth(len(matrix), count)
    if products:
        values, vectors = _krylov(matrix, count, products)
        if np.abs(vectors.T @ vectors - np.eye(count)).max() <= _LOST:
            return values, signed(np.linalg.qr(vectors)[0].T)
    return leading_eigenpairs(matrix.astype(np.float64, copy=False), count)


def _krylov(matrix: Products, count: int, products: int) -> tuple[Matrix, Matrix]:
    """Return Ritz values, descending, and vectors as columns, of the Krylov space of ``products`` blocks."""
    start = np.random.default_rng((PUBLIC_SEED, START)).standard_normal((len(matrix), count))
    block = np.linalg.qr(start.astype(matrix.dtype))[0]
    basis = np.empty((len(matrix), products * count), matrix.dtype, order="F")
    small = np.zeros((products * count, products * count))
    for held in range(0, products * count, count):
        basis[:, held : held + count] = block
        spanned = basis[:, : held + count]
        image = matrix @ block
        inner = spanned.T @ image
        small[: held + count, held : held + count] = inner
        image -= spanned @ inner
        image -= spanned @ (spanned.T @ image)
        block = np.linalg.qr(image)[0]
    values, mixtures = np.linalg.eigh(small, UPLO="U")
    return values[: -count - 1 : -1].copy(), basis.astype(np.float64) @ mixtures[:, : -count - 1 : -1]


PROBES, FEW = 4, 2
"""The number of public random matrices, each with both signs, below `WIDE` columns, and from `WIDE` columns on."""
WIDE = 500

_STRIP = 64  # rows of a public matrix that are drawn at a time
_DIAGONAL = math.sqrt(2.0)
"""The std s of the noise on the diagonal, if the std off the diagonal is 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score:
    """An estimate of ``u_i^T S u_i`` for each column of a subspace, and the standard deviation of their sum."""

    parts: Matrix
    std: float

    @property
    def total(self) -> float:
        """The estimate of ``tr(U^T S U)``."""
        return float(self.parts.sum())


def score_by_eigenvalues(standard: Standardised, values: Matrix, *, n_components: int) -> Score | None:
    """Score the leading eigenvectors by all d eigenvalues, descending; None if the k-th and a later one are equal.

    Raises
    ------
    Refused
        If the noise is not isometric, as after centring.
    """
    if standard.least is not None or standard.noise in ("wishart", "laplace"):
        raise Refused(
            "noise that differs by direction breaks the identity behind this score; score by fission before centring, "
            "or not at all."
        )
    gaps = values[:n_components, None] - values[n_components:]
    if not (gaps > 0.0).all():
        return None
    inverse = 1.0 / gaps
    with np.errstate(over="ignore"):  # near ties
        variance = 2.0 * n_components + 4.0 * float((inverse**2).sum())
    return Score(parts=values[:n_components] - 2.0 * inverse.sum(axis=1), std=math.sqrt(variance))


def score_by_fission(
    standard: Standardised, subspaces: Mapping[Method, Matrix], *, share: float, stream: int
) -> dict[Method, Score]:
    """Score the rules that found subspaces, all with the same public probes.

    Parameters
    ----------
    standard : Standardised
        The release.
    subspaces : mapping of method to float64 array of shape (d, k)
        Orthonormal columns that each method found in the release.
    share : float
        h: a probe has noise ``sqrt(1 + h^2)`` times as large.
    stream : int
        The stream of public random numbers to use.

    Raises
    ------
    Refused
        If the noise is not normal.
    """
    if standard.noise in ("wishart", "laplace"):
        raise Refused(
            f"noise={standard.noise} is not normal, and a release does not split into independent parts; score normal "
            "noise only."
        )
    scale = share * _DIAGONAL
    methods, n_components = tuple(subspaces), next(iter(subspaces.values())).shape[1]

    def seen_from(noise: Matrix, work: Matrix, sign: float) -> tuple[Matrix, list[Matrix]]:
        """Return the scores of each method's columns for signed noise, and the subspaces."""
        louder = standard.centred(_added(standard.released, sign * scale, noise, out=work))
        louder /= math.hypot(1.0, share)
        count = width(standard.source.order, n_components)
        seen = shortened(louder, count)
        pairs = nearly_leading_eigenpairs(seen, count)
        found = frames(seen, n_components=n_components, methods=methods, pairs=pairs)
        columns = [found[method][1] for method in methods]
        other = standard.centred(_added(standard.released, -sign * _DIAGONAL / share, noise, out=work))
        gains = _quadratic(other, np.hstack(columns)) + _bias_of_centring(standard, share)
        return gains.reshape(len(methods), n_components), columns

    def probed(probe: int) -> tuple[Matrix, Matrix]:
        """Return the mean scores over both signs of a public matrix, and the rotation of each subspace between them."""
        noise = standard.projected(public_noise(len(standard.released), stream=stream, probe=probe))
        noise *= standard.isotropic_std
        work = np.empty_like(noise)
        (plus, one), (minus, other) = (seen_from(noise, work, sign) for sign in (1.0, -1.0))
        kept = [np.linalg.norm(first.T @ second) ** 2 for first, second in zip(one, other, strict=True)]
        return (plus + minus) / 2.0, (n_components - np.array(kept)) / 2.0

    of_each = two_at_once(probed, range(probes(standard.source.order)))
    parts, turns = (np.array(seen) for seen in zip(*of_each, strict=True))
    return {
        method: _summary(standard, columns, parts[:, number], turns[:, number], scale)
        for number, (method, columns) in enumerate(subspaces.items())
    }


def probes(order: int) -> int:
    """Return the number of public random matrices that score a release of ``order`` columns.

    In all measurements, four matrices with both signs spread less than eight with one sign. Two matrices have the
    variance of those eight, or up to twice as much. On MNIST and Reuters, methods chosen by two matrices capture as
    much.
    """
    return PROBES if order < WIDE else FEW


def public_noise(order: int, *, stream: int, probe: int) -> Matrix:
    """Return a public isometric matrix with std 1 on its diagonal: a constant, independent of every release."""
    rng = np.random.default_rng((PUBLIC_SEED, stream, probe))
    noise = np.empty((order, order))
    for start in range(0, order, _STRIP):
        strip = rng.standard_normal((min(_STRIP, order - start), order - start)) * math.sqrt(0.5)
        corner = strip[:, : len(strip)]
        corner[:] = (corner + corner.T) * math.sqrt(0.5)
        noise[start : start + _STRIP, start:] = strip
        noise[start:, start : start + _STRIP] = strip.T
    return noise


def _added(matrix: Matrix, factor: float, noise: Matrix, *, out: Matrix) -> Matrix:
    np.multiply(noise, factor, out=out)
    out += matrix
    return out


def _quadratic(matrix: Matrix, columns: Matrix) -> Matrix:
    return np.asarray(np.einsum("ij,ij->j", columns, matrix @ columns))


def _bias_of_centring(standard: Standardised, share: float) -> float:
    """Return the bias of each component's score: the variance that centring at a noisy mean removes in expectation."""
    if standard.least is None:
        return 0.0
    variance = standard.isotropic_std**2 * (1.0 + 1.0 / (share * share))
    return variance / max(float(standard.released[-1, -1]), standard.least)


def _summary(standard: Standardised, subspace: Matrix, parts: Matrix, turns: Matrix, scale: float) -> Score:
    """Return the mean over probes and its standard deviation.

    The standard deviation combines the noise on U, the variation of U, and the spread over probes. ``turns`` are
    ``|P(hZ) - P(-hZ)|^2 / 4``, P the projector. Their mean, over the variance of ``hZ``, is at least the squared
    derivative of the mean of P over Z, which is the part of degree one. Parts of even degree cancel.
    """
    around = subspace if standard.least is None else np.vstack([subspace, -standard.mean @ subspace])
    free = standard.source.constraints is None
    fixed = float(np.linalg.norm(around.T @ around if free else standard.projected(around @ around.T)) ** 2)
    moved = float(np.maximum(turns, 0.0).mean()) / scale**2
    spread = float(parts.sum(axis=1).var(ddof=1)) / len(parts)
    variance = standard.isotropic_std**2 * (2.0 * fixed + 4.0 * moved)
    return Score(parts=parts.mean(axis=0), std=math.sqrt(variance + spread))


type Request = Literal["none", "eb", "spikes", "all", "auto"]

REQUESTS: tuple[Request, ...] = (*METHODS, "auto")
BASE: Method = "spikes"
"""The method that is chosen if no other scores higher."""
CHOICE_SHARE = 0.5
"""h of the probes that choose the method."""
ALIKE = 5e-4
"""Mean squared sine of the angles to the eigenvectors up to which nothing is scored, since no more can be gained."""

_SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Refinement:
    """Leading pairs after a refinement.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows, each with its entry of largest magnitude positive.
    values : float64 array of shape (k,)
        ``u^T A u`` of each, descending. Like eigenvalues of A, they include the noise.
    refined_by : {"none", "eb", "spikes", "all"}
        The method that computed the pairs; ``none``: the eigenvectors, up to rounding.
    scores : mapping of method to float
        The scores that ``auto`` compared, units of the matrix; empty if there was nothing to choose.
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
        The release and the public facts about its noise.
    n_components : int
        k, from 1 to d.
    method : {"none", "eb", "spikes", "all", "auto"}
        ``none``: the eigenpairs. ``eb``: posterior means of the eigenvectors. ``spikes``, ``all``: message passing on
        the pairs above the noise, or on all pairs. ``auto``: the one of these four with the highest score. It is
        ``none`` if the noise is not normal or the grid is coarse, since there is no score. It is also ``none`` if no
        eigenvalue, less the mean of all, exceeds the edge of the noise: the rules then have no direction to start
        from. On MNIST and a9a at such noise they capture within .02 of what the eigenvectors capture. If all four are
        `ALIKE`, nothing is scored and ``none`` is taken.

    Returns
    -------
    Refinement
        The eigenpairs if there is nothing to refine: no noise, noise below the double precision of the entries, or at
        most 10 columns beyond k.

    Raises
    ------
    InvalidInput
        If k or the method is invalid.
    Refused
        If message passing is requested and the noise is not normal.

    Guarantees
    ----------
    The same input gives the same bits on one machine, for any number of threads. Permuting or flipping columns only
    permutes or flips the result's columns; another unit only changes rounding. Components are orthonormal up to
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
    """Return whether a direction may be above the noise.

    An isotropic signal only shifts all eigenvalues, so their mean is subtracted. Centring adds noise that this edge
    does not include, so the test then passes more often.
    """
    return bool(standard.eigenvalues[0] - standard.eigenvalues.mean() > edge_quantile(standard.source.order))


def _alike(subspaces: Mapping[Method, Matrix]) -> bool:
    """Return whether all subspaces nearly equal the eigenvectors' subspace.

    This happens if all features are alike, or far above the noise.
    """
    plain = subspaces["none"]
    cosines = [float(np.linalg.norm(plain.T @ each) ** 2) / plain.shape[1] for each in subspaces.values()]
    return bool(min(cosines) >= 1.0 - ALIKE)


def _best(scores: Mapping[Method, float]) -> Method:
    """Return the method with the highest score; `BASE` unless another score is higher by more than rounding."""
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
        The eigenvectors of these eigenvalues.
    noise_std : float, units of the matrix
        The planned standard deviation of the noise off the diagonal.
    n_components : int
        k, at most m.

    Returns
    -------
    Refinement
        The pairs refined by ``eb``, whose values are estimates of strengths. If d is at most k + 10, or the noise is
        negligible, the pairs are returned unchanged.

    Raises
    ------
    InvalidInput
        If fewer pairs were kept than requested, or if shapes or noise are invalid.
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
