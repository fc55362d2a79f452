"""Levels of noise: the largest eigenvalues and singular values of noise alone, and the edge at which signal begins.

What can stand above them is forecast in `dpca_tasks.forecast.noise_forecast`, before anything is spent.

>>> round(semicircle_edge(400, std=3.0), 1)
122.2

References
----------
Tracy and Widom (1996), On orthogonal and symplectic matrix ensembles, for the edge; Baik, Ben Arous and Peche (2005)
for signals hidden below it.

Notes
-----
In units of the noise, a release is ``A = S + E``: E symmetric, with independent normal entries of standard deviation 1
off the diagonal and sqrt 2 on it, so E is alike in every direction. Its eigenvalues fill ``-e .. e``, ``e = 2
sqrt(d)``. A signal of strength theta shows as an eigenvalue ``theta + d / theta``, and not at all where theta is below
``sqrt(d)``.

>>> round(float(spike_strengths(np.array([90.0]), order=400)[0]), 2)
85.31
>>> above_edge(np.array([90.0, 39.0]), edge=edge_quantile(400))
1
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import Plan, Subspace

FAILED = (
    "FAILED: the eigengap did not pass its test: noise outweighs the components, which may be random; do not use them; "
    "the budget is spent."
)
_WISHART_EDGE = 3.330
_WISHART_VISIBLE = math.sqrt(2.0 + math.sqrt(5.0))  # where ``(x - 1)^2 = 2 (x + 1)`` for its square x


def semicircle_edge(order: int, *, std: float) -> float:
    """Return the 99 % quantile of the largest eigenvalue of a symmetric noise matrix.

    ``std`` is that of the entries off the diagonal: the edge is ``2 std sqrt(order)``, and the quantile of the largest
    eigenvalue ``2.02 std order^(-1/6)`` above it.
    """
    return std * (2.0 * math.sqrt(order) + 2.02 * math.pow(order, -1 / 6))


def wishart_edge(order: int) -> float:
    """Return the largest eigenvalue of ``A^T A - B^T B`` for standard normal A and B with one more row than columns."""
    return _WISHART_EDGE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def wishart_visible(order: int) -> float:
    """Return the least strength of a signal that leaves the spectrum of such a difference.

    A signal of strength theta shows as ``theta + 2 b^2 theta / (theta^2 - b^2)``, b the order plus 1. That is least
    where the direction that is found has nothing in common with the signal's, at 2.06 b.
    """
    return _WISHART_VISIBLE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def product_edge(order: int, width: int, *, std: float) -> float:
    """Return the spectral norm of a noise matrix of ``order`` rows and ``width`` columns."""
    return std * (math.sqrt(order) + math.sqrt(width))


def release_warnings(plan: Plan, subspace: Subspace) -> tuple[str, ...]:
    """Return the warnings about the utility of a release: those of its plan, and one if its result looks like noise.

    Only released numbers are used, so this is post-processing.
    """
    outcome = subspace.outcome or {}
    if outcome.get("failed"):
        return (*plan.warnings, FAILED)
    if plan.noise_edge is None or subspace.eigenvalues is None:
        return plan.warnings
    clip_norm = plan.problem.clip_norm if subspace.clip_norm is None else subspace.clip_norm
    edge = plan.noise_edge * clip_norm**2
    if subspace.eigenvalues[0] > edge:
        return plan.warnings
    return (
        *plan.warnings,
        f"none of the {len(subspace.eigenvalues)} released eigenvalues is above {edge:.6g}, which noise alone reaches: "
        "the components cannot be told from random ones; do not use them, and spend more epsilon or use more records "
        "in another release.",
    )


type Matrix = NDArray[np.float64]

_ONE_IN_100 = 2.33  # the 99 % quantile of a normal
_CRITICAL = 2.5  # by how much that quantile of the largest eigenvalue grows where it is about to leave, times d^(1/6)


def edge_quantile(order: int) -> float:
    """Return what the largest eigenvalue of noise stays below, 99 times in 100."""
    return semicircle_edge(order, std=1.0)


def above_edge(values: Matrix, *, edge: float) -> int:
    """Count the eigenvalues above an edge; where the edge is a 99 % quantile, 99 times in 100 at most rank S."""
    return int(np.count_nonzero(values > edge))


def spike_strengths(values: Matrix, *, order: int) -> Matrix:
    """Return the strengths of the signals behind eigenvalues; at or below the edge, that of a signal at the edge."""
    edge = 2.0 * math.sqrt(order)
    beyond = np.maximum(values, edge)
    return (beyond + np.sqrt((beyond - edge) * (beyond + edge))) / 2.0


def least_visible(order: int) -> float:
    """Return the least strength of a signal whose eigenvalue is expected above `edge_quantile`."""
    return float(spike_strengths(np.array([edge_quantile(order)]), order=order)[0])


def widened_edge(order: int, *, shift: float) -> float:
    """Return `edge_quantile` for a matrix that was centred at a released mean.

    Centring multiplies the noise by the root of ``I + m m^T`` on either side, m the mean over the constant that extends
    the rows. With ``w = 1 + |m|^2`` above 2 an eigenvalue of noise alone leaves the others, for ``w sqrt(d / (w - 1))``
    in the mean, with variance ``w^2 (w - 2) / (2 w - 2)``; towards 2 the largest eigenvalue spreads further. Measured
    at d from 30 to 200, the quantile is passed in 2 % of draws at most.

    Parameters
    ----------
    order : int
        d.
    shift : float
        ``|m|^2``.
    """
    widened = 1.0 + shift
    spread = edge_quantile(order) + _CRITICAL * min(shift, 1.0) * math.pow(order, -1 / 6)
    if widened <= 2.0:
        return spread
    outside = widened / (2.0 * math.sqrt(shift)) * spread
    return outside + _ONE_IN_100 * widened * math.sqrt((widened - 2.0) / (2.0 * shift))
