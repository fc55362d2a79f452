"""Noise levels: the largest eigenvalues and singular values of noise alone, and the edge at which signal begins.

`dpca_tasks.forecast.noise_forecast` forecasts which components exceed these levels, before any budget is spent.

>>> round(semicircle_edge(400, std=3.0), 1)
122.2

References
----------
Tracy and Widom (1996), On orthogonal and symplectic matrix ensembles, for the edge; Baik, Ben Arous and Peche (2005)
for signals hidden below it.

Notes
-----
In units of the noise, a release is ``A = S + E``. E is symmetric, with independent normal entries of standard deviation
1 off the diagonal and sqrt 2 on it, so E is isotropic. Its eigenvalues fill ``-e .. e``, ``e = 2 sqrt(d)``. A signal of
strength theta appears as an eigenvalue ``theta + d / theta``, and not at all if theta is below ``sqrt(d)``.

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

    ``std`` is the standard deviation of the entries off the diagonal. The edge is ``2 std sqrt(order)``, and the
    quantile of the largest eigenvalue lies ``2.02 std order^(-1/6)`` above the edge.
    """
    return std * (2.0 * math.sqrt(order) + 2.02 * math.pow(order, -1 / 6))


def wishart_edge(order: int) -> float:
    """Return the largest eigenvalue of ``A^T A - B^T B`` for standard normal A and B with one more row than columns."""
    return _WISHART_EDGE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def wishart_visible(order: int) -> float:
    """Return the least strength of a signal that leaves the spectrum of the difference in `wishart_edge`.

    A signal of strength theta appears as the eigenvalue ``theta + 2 b^2 theta / (theta^2 - b^2)``, where b is the order
    plus 1. This is least at 2.06 b, where the found direction is orthogonal to the signal's direction.
    """
    return _WISHART_VISIBLE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def product_edge(order: int, width: int, *, std: float) -> float:
    """Return the spectral norm of a noise matrix of ``order`` rows and ``width`` columns."""
    return std * (math.sqrt(order) + math.sqrt(width))


def release_warnings(plan: Plan, subspace: Subspace) -> tuple[str, ...]:
    """Return the plan's utility warnings, and one more if the result of the release looks like noise.

    Only released numbers are used, so this is post-processing.
    """
    outcome = subspace.outcome or {}
    if outcome.get("failed"):
        return (*plan.warnings, FAILED)
    if plan.noise_edge is None or subspace.eigenvalues is None:
        return plan.warnings
    clip_norm = plan.problem.clip_norm if subspace.clip_norm is None else subspace.clip_norm
    edge = plan.noise_edge * clip_norm**2
    if subspace.rounds is not None and subspace.rounds.noise_edge is not None:
        edge = subspace.rounds.noise_edge
    if subspace.eigenvalues[0] > edge:
        return plan.warnings
    return (
        *plan.warnings,
        f"none of the {len(subspace.eigenvalues)} released eigenvalues is above {edge:.6g}, which noise alone reaches: "
        "the components are indistinguishable from random ones; do not use them, and spend more epsilon or use more "
        "records in another release.",
    )


type Matrix = NDArray[np.float64]

_ONE_IN_100 = 2.33  # the 99 % quantile of a normal
_CRITICAL = 2.5  # growth of the largest eigenvalue's 99 % quantile where it is about to leave, times d^(1/6)


def edge_quantile(order: int) -> float:
    """Return the 99 % quantile of the largest eigenvalue of noise."""
    return semicircle_edge(order, std=1.0)


def above_edge(values: Matrix, *, edge: float) -> int:
    """Count the eigenvalues above an edge.

    If the edge is a 99 % quantile, the count is at most the rank of S in 99 of 100 cases.
    """
    return int(np.count_nonzero(values > edge))


def spike_strengths(values: Matrix, *, order: int) -> Matrix:
    """Return the strengths of the signals behind eigenvalues.

    An eigenvalue at or below the edge gives the strength of a signal at the edge.
    """
    edge = 2.0 * math.sqrt(order)
    beyond = np.maximum(values, edge)
    return (beyond + np.sqrt((beyond - edge) * (beyond + edge))) / 2.0


def least_visible(order: int) -> float:
    """Return the least strength of a signal whose eigenvalue is expected above `edge_quantile`."""
    return float(spike_strengths(np.array([edge_quantile(order)]), order=order)[0])


def widened_edge(order: int, *, shift: float) -> float:
    """Return `edge_quantile` for a matrix that was centred at a released mean.

    Centring multiplies the noise by the root of ``I + m m^T`` on both sides, where m is the mean divided by the
    constant that extends the rows. If ``w = 1 + |m|^2`` is above 2, one eigenvalue of noise alone leaves the others.
    Its mean is ``w sqrt(d / (w - 1))`` and its variance ``w^2 (w - 2) / (2 w - 2)``. As w approaches 2, the largest
    eigenvalue spreads further. Measured at d from 30 to 200, at most 2 % of draws exceed the returned quantile.

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
