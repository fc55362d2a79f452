"""What a subspace captures of the signal, estimated from the noisy matrix alone, without bias.

*From eigenvalues* (the leading eigenvectors only): ``E tr(V^T S V) = E [sum lambda_i - 2 sum 1 / (lambda_i -
lambda_j)]``, i among the k leading, j beyond, in units of the noise, exactly for every S and d. Proof: Stein's identity
for normal E, ``E <E, V V^T> = 2 E div(V V^T)``, and the derivative of a spectral projector.

*By fission* (any rule): with Z a public copy of the noise, ``A + h Z`` and ``A - Z / h`` are independent given S. So a
subspace found in the first is scored on the second without bias, for the same rule at noise ``sqrt(1 + h^2)`` times as
large; no smoothness is needed. The score is the mean over `PROBES` of them, with a term of mean zero taken off.

References
----------
Oliveira, Lei and Tibshirani (2021), Unbiased risk estimation in the normal means problem via coupled bootstrap
techniques; Bellec and Zhang (2021), Second-order Stein, for the variance.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.parts.noisy_moment import PUBLIC_SEED, Standardised
from dpca_tasks.mechanisms.parts.spectral_shrinkage import Method, frames
from dpca_tasks.threads import two_at_once

type Matrix = NDArray[np.float64]

PROBES = 8

_DIAGONAL = math.sqrt(2.0)
"""The std of the noise on the diagonal: s, where that off it is 1."""


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
    """Score the leading eigenvectors by all d eigenvalues, descending; None where two tie across the k-th.

    Raises
    ------
    Refused
        If the noise is not isometric, as after centring.
    """
    if standard.least is not None or standard.noise in ("wishart", "laplace"):
        raise Refused(
            "noise that is not alike in every direction breaks the identity behind this score; score by fission "
            "before centring, or not at all."
        )
    gaps = values[:n_components, None] - values[n_components:]
    if not (gaps > 0.0).all():
        return None
    inverse = 1.0 / gaps
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
        Orthonormal columns that each method found in it.
    share : float
        h: probes see noise ``sqrt(1 + h^2)`` times as large.
    stream : int
        Which public random numbers to use.

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
    methods = tuple(subspaces)

    def probed(probe: int) -> dict[Method, tuple[Matrix, float]]:
        """Return what each method's subspace gains by a probe, column by column, and how far it turns."""
        noise = public_noise(len(standard.released), stream=stream, probe=probe)
        seen = standard.centred(standard.released + scale * noise) / math.hypot(1.0, share)
        found = frames(seen, n_components=_components(subspaces), methods=methods)
        other = standard.centred(standard.released - (_DIAGONAL / share) * noise)
        known = (_DIAGONAL / share) * standard.centred_noise(noise)
        seen_by: dict[Method, tuple[Matrix, float]] = {}
        for method, (_, columns) in found.items():
            before = subspaces[method]
            gained = _quadratic(other, columns) + _quadratic(known, before) + _bias_of_centring(standard, share)
            seen_by[method] = gained, 2.0 * (len(columns.T) - float(np.linalg.norm(before.T @ columns) ** 2))
        return seen_by

    of_each = two_at_once(probed, range(PROBES))
    scores: dict[Method, Score] = {}
    for method in methods:
        parts, turns = zip(*(seen_by[method] for seen_by in of_each), strict=True)
        scores[method] = _summary(standard, subspaces[method], np.array(parts), np.array(turns), scale)
    return scores


def public_noise(order: int, *, stream: int, probe: int) -> Matrix:
    """Return a public isometric matrix, std 1 on its diagonal: a constant, of which no release knows."""
    square = np.random.default_rng((PUBLIC_SEED, stream, probe)).standard_normal((order, order)) / 2.0
    return np.asarray(square + square.T)


def _quadratic(matrix: Matrix, columns: Matrix) -> Matrix:
    return np.asarray(np.einsum("ij,ij->j", columns, matrix @ columns))


def _bias_of_centring(standard: Standardised, share: float) -> float:
    """Return what centring takes off each component because the mean is noisy, in the part that scores."""
    if standard.least is None:
        return 0.0
    return (1.0 + 1.0 / (share * share)) / max(float(standard.released[-1, -1]), standard.least)


def _summary(standard: Standardised, subspace: Matrix, parts: Matrix, turns: Matrix, scale: float) -> Score:
    """Return the mean over probes, and its standard deviation: of the noise on U, of U, and over probes."""
    along_mean = float(np.linalg.norm(standard.mean @ subspace) ** 2)
    fixed = len(subspace.T) + 2.0 * along_mean + along_mean**2
    moved = float(np.maximum(turns, 0.0).mean()) / scale**2
    spread = float(parts.sum(axis=1).var(ddof=1)) / len(parts)
    return Score(parts=parts.mean(axis=0), std=math.sqrt(2.0 * fixed + 4.0 * moved + spread))


def _components(subspaces: Mapping[Method, Matrix]) -> int:
    return len(next(iter(subspaces.values())).T)
