"""Refined leading eigenpairs of a released matrix, and unbiased estimates of the signal that they capture.

A refinement captures more signal for the same privacy. It is computed from the released matrix, or from stored
eigenpairs. No function reads records, keys or the noise of a release: the inputs are a `NoisyMoment` and the number k
of components.

Notation: the released matrix is ``A = S + E``, with the exact matrix S and the noise E, in units of the noise. A *rule*
computes k components from a matrix, for example its leading eigenvectors. A *probe* is A with added public noise; a
rule is scored by its results on probes.

*Nearly leading eigenpairs* come from block Krylov iteration, with a public start and a fixed number of products with
the matrix. On a probe, they replace the eigenpairs with which the rules begin. They depend only on the matrix of the
probe, and need not converge. Components well above the noise are found up to rounding. For the others, the Krylov
subspace captures nearly as much as the eigenvectors do.

>>> values, rows = nearly_leading_eigenpairs(np.diag(np.r_[60.0, np.linspace(20.0, -20.0, 599)]), 2)
>>> values.round(3).tolist(), int(np.abs(rows[0]).argmax())
([60.0, 19.927], 0)

*Score from eigenvalues* (only for the leading eigenvectors V of A): the mean of ``tr(V^T S V)`` is the mean of
``sum_i lambda_i - 2 sum_ij 1 / (lambda_i - lambda_j)``. Here lambda are the eigenvalues of A, i runs from 1 to k, and j
from k + 1 to d. The identity is exact for every S and d. Proof: by Stein's identity for normal E, the mean of
``<E, V V^T>`` is twice the mean of ``div(V V^T)``; the divergence follows from the derivative of a spectral projector.

*After centring*, A is ``B - n m m^T``, where B, the sum n m and the number n of records are released with noise E, e
and f. To first order, the noise in A is then ``F = E - m e^T - e m^T + f m m^T``. In the basis of eigenvectors of A,
F_ij for different i and j has the variance ``1 + m_i^2 + m_j^2 + 2 m_i^2 m_j^2``. By Stein's identity for E, e and f,
each term of the sum over i and j is multiplied by this variance. The second-order part of A,
``-(e - f m) (e - f m)^T / n``, has the mean ``-(1 + 2 m_i^2) / n`` in entry ii, which is added back. The bias that
remains falls like 1 / n.

*Score by fission* (for any rule): let Z be a public random matrix with the law of the noise. Then the probe ``A + h Z``
and the matrix ``A - Z / h`` are independent, given S. So a subspace that is computed from the probe is scored on the
second matrix without bias. The score is for the same rule at noise ``sqrt(1 + h^2)`` times as large. It requires no
smoothness, and no step of the rule has to converge. Since -Z has the same law as Z, both signs are scored. In their
mean, all terms of odd order in h cancel. One of these terms is ``<Z, V V^T> / h``, for the subspace V that the rule
computes from A. The score is the mean over a few matrices Z, each with both signs.

On a probe, a rule starts only from the result of `nearly_leading_eigenpairs` on ``A + h Z``. It must not start from
eigenvectors of A, since these depend on the noise of ``A - Z / h``.

*Refinement* can also be harmful: if weak components involve other features than the strong components, up to .3 of the
captured variance is lost. ``auto`` therefore scores every method, including plain eigenvectors, and takes the best.

>>> import numpy as np
>>> noise = public_noise(40, stream=9, probe=0)
>>> released = np.diag(np.r_[60.0, np.zeros(39)]) + np.sqrt(2) * noise
>>> found = refine(NoisyMoment(matrix=released, noise_std=1.0), n_components=1)
>>> found.components.shape, found.values.shape
((1, 40), (1,))

*Stored pairs*: if leading eigenpairs were stored without the matrix, their posterior means can still be computed. The
matrix would determine the order of these means. Without it, the strengths of the pairs are used instead, which loses a
part of the gain. Without the matrix, no method can be scored, so a harmful refinement is not noticed. Therefore this
refinement is only used on request.

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
from dpca_tasks.mechanisms.eigenpairs import gauss_rule, leading_eigenpairs, signed
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
"""The number of Krylov products, divided by the cube root of ``order / count``.

The reason for the cube root: as this ratio grows, the gaps between eigenvalues at the edge of the noise become smaller.
"""
SHORT = 2.0**16
"""The largest matrix entry, in stds of the noise, for which single precision suffices.

Its rounding error is then below a hundredth of the noise.
"""

NODES = 24
"""The number of nodes that represent the mean of a centred release among the eigenvectors (`gauss_rule`).

For 784 and 2,000 columns, the sums of terms with the mean are then within 0.5 % for components above the noise, and
within 4 % for components at its edge.
"""

_SMALL = 2  # if the order is below this multiple of the Krylov space's dimension, eigenpairs are exact
_LOST = 1e-3  # if the loss of orthogonality is larger than this, exact eigenpairs are computed instead


def depth(order: int, count: int) -> int:
    """Return the public number of Krylov products for ``count`` pairs; 0 if exact eigenpairs are computed instead."""
    products = math.ceil(DEEPER * math.cbrt(order / count))
    return 0 if _SMALL * products * count > order else products


def shortened(matrix: Matrix, count: int) -> Products:
    """Convert a matrix to single precision if it is used in Krylov products and its noise exceeds the rounding."""
    fits = depth(len(matrix), count) and max(float(matrix.max()), -float(matrix.min())) <= SHORT
    return matrix.astype(np.float32) if fits else matrix


def nearly_leading_eigenpairs(matrix: Products, count: int) -> tuple[Matrix, Matrix]:
    """Approximate the leading eigenpairs by block Krylov iteration.

    Parameters
    ----------
    matrix : float64 or float32 array of shape (d, d)
        Symmetric; products use the precision of the matrix.
    count : int
        The number of pairs, from 1 to d. This many columns are multiplied at a time, `depth` times.

    Returns
    -------
    values : float64 array of shape (count,)
        Ritz values, descending.
    rows : float64 array of shape (count, d)
        Orthonormal Ritz vectors with fixed signs.

    Notes
    -----
    For a small matrix, or one whose Krylov space is too small, exact eigenpairs are returned (`leading_eigenpairs`).
    Subspaces refined from these pairs capture less variance than subspaces refined from exact pairs. On MNIST the loss
    is .001 at an epsilon of 1 and .003 at .3; on synthetic data of 1,000 columns it is at most .009. These are means of
    three or four draws, relative to the variance that the best directions capture.
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
"""The number of public random matrices for a score: for fewer than `WIDE` columns, and for at least `WIDE` columns.

Each matrix is used with both signs.
"""
WIDE = 500

_STRIP = 64  # the number of rows of a public matrix that are drawn at a time
_DIAGONAL = math.sqrt(2.0)
"""The std of the noise on the diagonal, if the std off the diagonal is 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score:
    """Estimates ``parts`` of ``u_i^T S u_i`` for the columns u_i of a subspace U, and the std of their sum.

    S is the exact matrix.
    """

    parts: Matrix
    std: float

    @property
    def total(self) -> float:
        """The estimate of ``tr(U^T S U)``, the variance of the exact matrix S that the subspace U captures."""
        return float(self.parts.sum())


def score_by_eigenvalues(standard: Standardised, values: Matrix, *, n_components: int) -> Score | None:
    """Estimate ``tr(V^T S V)`` for the k leading eigenvectors V, from all d eigenvalues in descending order.

    S is the exact matrix, centred if the release is. The result is None if the k-th eigenvalue equals a later one.

    Raises
    ------
    Refused
        If the noise is not isotropic and normal.
    """
    if not standard.source.isotropic:
        raise Refused(
            "a score from eigenvalues needs isotropic normal noise and no constraints; use score_by_fission for other "
            "normal noise or constraints, and no score for other noise."
        )
    gaps = values[:n_components, None] - values[n_components:]
    if not (gaps > 0.0).all():
        return None
    inverse = 1.0 / gaps
    with np.errstate(over="ignore"):  # near ties
        if standard.least is not None:
            return _centred_score(standard, values, inverse)
        variance = 2.0 * n_components + 4.0 * float((inverse**2).sum())
    return Score(parts=values[:n_components] - 2.0 * inverse.sum(axis=1), std=math.sqrt(variance))


def _centred_score(standard: Standardised, values: Matrix, inverse: Matrix) -> Score:
    """Return the score from eigenvalues of a centred release, whose inverse gaps are given.

    Sums over j of terms with ``m_j^2`` need no eigenvectors: `gauss_rule` gives them from the mean alone. In the std,
    ``m_j^4`` is replaced by its upper bound, m_j^2 times the sum of all of these squares.
    """
    moment, n_components = standard.source, len(inverse)
    known, total = moment.vectors, moment.matrix[:-1, -1] / moment.noise_std
    if known is None or len(known) < n_components:
        known = leading_eigenpairs(moment.centred(), n_components)[1]
    rows = known[:n_components]

    def product(vector: Matrix) -> Matrix:
        return moment.matrix[:-1, :-1] @ vector / moment.noise_std - total * (total @ vector / standard.count)

    mean = total / standard.count
    along = rows @ mean
    beside = mean - along @ rows
    nodes, weights = gauss_rule(product, beside, steps=NODES)
    gaps = values[:n_components, None] - np.minimum(nodes, values[n_components:].max(initial=-math.inf))
    own, both = 1.0 + along**2, 1.0 + 2.0 * along**2
    moved = own * inverse.sum(axis=1) + both * (weights / gaps).sum(axis=1)
    squared = own**2 * (inverse**2).sum(axis=1)
    squared += both * (2.0 * own + both * float(beside @ beside)) * (weights / gaps**2).sum(axis=1)
    fixed = n_components - 1 + (1.0 + float(along @ along)) ** 2
    return Score(
        parts=values[:n_components] - 2.0 * moved + both / standard.count,
        std=math.sqrt(2.0 * fixed + 4.0 * float(squared.sum())),
    )


def score_by_fission(
    standard: Standardised, subspaces: Mapping[Method, Matrix], *, share: float, stream: int
) -> dict[Method, Score]:
    """Score several refinement methods by fission, all with the same public random matrices.

    Parameters
    ----------
    standard : Standardised
        The release.
    subspaces : mapping of method to float64 array of shape (d, k)
        Orthonormal columns that each method computed from the release.
    share : float
        The number h. Each method is applied to the release plus h times public noise Z, and its result is scored on
        the release minus ``Z / h``. So the score is for noise ``sqrt(1 + h^2)`` times as large.
    stream : int
        The stream of public random numbers to use.

    Raises
    ------
    Refused
        If the noise is not normal.
    """
    if standard.noise in ("wishart", "laplace"):
        raise Refused(
            f"a score by fission needs normal noise, and this release has noise={standard.noise}; use no score."
        )
    scale = share * _DIAGONAL
    methods, n_components = tuple(subspaces), next(iter(subspaces.values())).shape[1]

    def seen_from(noise: Matrix, work: Matrix, sign: float) -> tuple[Matrix, list[Matrix]]:
        """Apply all methods to the release plus ``sign`` times public noise; return the scores, and the columns.

        The array ``work`` is overwritten.
        """
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
        """Return the mean scores over both signs of a public matrix, and ``turns`` as in `_summary`."""
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

    In all measurements, the mean over four matrices with both signs varies less than over eight matrices with one sign.
    The variance for two matrices with both signs is one to two times the variance for these eight. On MNIST and
    Reuters, a method that is chosen by two matrices captures as much variance as one that is chosen by four.
    """
    return PROBES if order < WIDE else FEW


def public_noise(order: int, *, stream: int, probe: int) -> Matrix:
    """Return a public random matrix of isotropic normal noise, with std 1 on the diagonal.

    The matrix is the same in every call with the same arguments, and independent of every release.
    """
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
    """Return the variance along a component that centring at a noisy mean removes on average; a score adds it back."""
    if standard.least is None:
        return 0.0
    return standard.isotropic_std**2 * (1.0 + 1.0 / (share * share)) / standard.count


def _summary(standard: Standardised, subspace: Matrix, parts: Matrix, turns: Matrix, scale: float) -> Score:
    """Return the score of one method: the mean of ``parts`` over probes, and its standard deviation.

    Let U be ``subspace``, and hZ the public noise of a probe. The standard deviation combines the noise on a fixed U,
    the variation of U, and the spread over probes. Each entry of ``turns`` is ``|P(hZ) - P(-hZ)|^2 / 4``, where P(hZ)
    projects onto the subspace computed from ``A + hZ``. The mean of ``turns``, divided by the variance of ``hZ``, is at
    least the squared derivative of the mean of P over Z. This derivative is the part of P of degree one in Z. Parts of
    even degree cancel.
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
"""The method that ``auto`` chooses unless another method has a higher score."""
CHOICE_SHARE = 0.5
"""The factor h (`score_by_fission`) for the choice of a method."""
ALIKE = 5e-4
"""If all subspaces are this close to the eigenvectors' subspace, ``auto`` scores none: no choice could gain much.

The limit is for the mean squared sine of the angles between two subspaces.
"""

_SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Refinement:
    """Leading pairs after a refinement.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows, each with its entry of largest magnitude positive.
    values : float64 array of shape (k,)
        ``u^T A u`` for each component u, descending. Like eigenvalues of A, they include the noise.
    refined_by : {"none", "eb", "spikes", "all"}
        The method that computed the pairs; ``none``: the eigenvectors, up to rounding.
    scores : mapping of method to float
        The scores that ``auto`` compared, in units of the matrix; empty if it compared none.
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
        ``none``: the eigenpairs. ``eb``: posterior means of the eigenvectors (empirical Bayes). ``spikes``, ``all``:
        approximate message passing from the eigenpairs above the noise, or from the k + 10 leading eigenpairs.
        ``auto``: the method with the highest score of these four. In three cases, ``auto`` uses ``none`` without a
        score. First, if the noise is not normal, or the grid is coarse, so that no score is valid. Second, if no
        eigenvalue minus the mean eigenvalue exceeds the edge of the noise, so that no direction to start from is known.
        On MNIST and a9a with so much noise, the methods capture within .02 of what the eigenvectors capture. Third, if
        all four subspaces nearly agree (`ALIKE`).

    Returns
    -------
    Refinement
        The eigenpairs, if refinement is impossible: without noise, with noise below the rounding errors of the entries,
        or if d is at most k + 10.

    Raises
    ------
    InvalidInput
        If k or the method is invalid.
    Refused
        If message passing is requested and the noise is not normal.

    Guarantees
    ----------
    The same input gives the same bits on one machine, for any number of threads. If columns of the data are permuted,
    or change their sign, so do the columns of the components, and nothing else changes. Another unit of measurement
    changes only rounding errors. Components are orthonormal up to rounding, and never NaN.
    """
    if method not in REQUESTS:
        raise InvalidInput(f"method={method!r} must be one of {', '.join(REQUESTS)}; pass one of them")
    if not 1 <= n_components <= moment.order:
        raise InvalidInput(f"n_components={n_components} must be from 1 to n_features={moment.order}; correct it")
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
    """Return the methods that `refine` compares; a single method needs no score."""
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
    """Return whether the largest eigenvalue, minus the mean eigenvalue, exceeds the edge of the noise.

    The mean is subtracted because an isotropic signal shifts all eigenvalues alike. Centring adds noise that the edge
    does not include, so the test passes more often for a centred release.
    """
    return bool(standard.eigenvalues[0] - standard.eigenvalues.mean() > edge_quantile(standard.source.order))


def _alike(subspaces: Mapping[Method, Matrix]) -> bool:
    """Return whether all subspaces nearly equal the eigenvectors' subspace.

    This happens if all features have similar sizes, or are far above the noise.
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
    """Refine the k leading eigenpairs by posterior means, from stored eigenpairs without the matrix.

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
        If fewer pairs were stored than requested, or if shapes or noise are invalid.
    """
    kept, order = rows.shape
    if values.shape != (kept,) or not (np.isfinite(values).all() and np.isfinite(rows).all()):
        raise InvalidInput(
            f"values of shape {values.shape} and rows of shape {rows.shape} must be finite and have the same length; "
            "pass eigenvalues with their eigenvectors"
        )
    if not 1 <= n_components <= kept:
        raise InvalidInput(
            f"n_components={n_components} must be from 1 to the number {kept} of stored pairs; correct it"
        )
    if not noise_std >= 0.0:
        raise InvalidInput(f"noise_std={noise_std} must not be negative; pass the planned std of the noise")
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
