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
The functions use the noise's std off the diagonal as the unit. In this unit, a release of order d is ``A = S + E``,
where S is the exact matrix. E is a symmetric noise matrix, with independent normal entries of standard deviation 1 off
the diagonal and sqrt 2 on the diagonal. So E is isotropic, and its eigenvalues fill the interval from ``-2 sqrt(d)`` to
``2 sqrt(d)``. An eigenvalue theta of S (a signal of strength theta) appears as the eigenvalue ``theta + d / theta`` of
A. If theta is below ``sqrt(d)``, the signal has no visible eigenvalue.

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
    "FAILED: the bound on the eigengap is too small, so the components may be random; do not use them. The budget is "
    "spent."
)
_WISHART_EDGE = 3.330
_WISHART_VISIBLE = math.sqrt(2.0 + math.sqrt(5.0))  # the square root of the larger solution of (x - 1)^2 = 2 (x + 1)


def semicircle_edge(order: int, *, std: float) -> float:
    """Return the 99 % quantile of the largest eigenvalue of a symmetric Gaussian noise matrix.

    ``std`` is the standard deviation of the entries off the diagonal. The edge of the semicircle law is
    ``2 std sqrt(order)``. The quantile is ``2.02 std order^(-1/6)`` above this edge.
    """
    return std * (2.0 * math.sqrt(order) + 2.02 * math.pow(order, -1 / 6))


def wishart_edge(order: int) -> float:
    """Return the edge of Wishart noise ``A^T A - B^T B``: noise alone rarely has a larger eigenvalue.

    A and B are independent standard normal matrices of ``order + 1`` rows and ``order`` columns.
    """
    return _WISHART_EDGE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def wishart_visible(order: int) -> float:
    """Return the least strength of a signal whose eigenvalue exceeds all eigenvalues of Wishart noise.

    The noise is ``A^T A - B^T B``, as in `wishart_edge`. A signal of strength theta appears as the
    eigenvalue ``theta + 2 b^2 theta / (theta^2 - b^2)`` of the noisy matrix, where b is ``order + 1``. This eigenvalue
    is least for theta = 2.06 b. There the eigenvector is orthogonal to the signal's direction.
    """
    return _WISHART_VISIBLE * (order + 1.0) * (1.0 + 1.01 * math.pow(order, -2 / 3))


def product_edge(order: int, width: int, *, std: float) -> float:
    """Return the expected spectral norm of a matrix of independent normal noise, of shape (order, width)."""
    return std * (math.sqrt(order) + math.sqrt(width))


def release_warnings(plan: Plan, subspace: Subspace, *, above_noise: int | None = None) -> tuple[str, ...]:
    """Return the plan's utility warnings, and a further warning if the released subspace looks like noise.

    The function uses released numbers only, so it is post-processing. For a release in rounds, the further warning
    depends on ``above_noise``, the number of components above the noise of the last round. The reason is that
    ``plan.noise_edge`` is only an upper bound for such a release.
    """
    outcome = subspace.outcome or {}
    if outcome.get("failed"):
        return (*plan.warnings, FAILED)
    if plan.noise_edge is None or subspace.eigenvalues is None:
        return plan.warnings
    clip_norm = plan.problem.clip_norm if subspace.clip_norm is None else subspace.clip_norm
    edge, count = plan.noise_edge * clip_norm**2, len(subspace.eigenvalues)
    if subspace.rounds is not None:
        if above_noise:
            return plan.warnings
        why = f"none of the {count} components is above the noise of the last round"
    elif subspace.eigenvalues[0] > edge:
        return plan.warnings
    else:
        why = f"none of the {count} released eigenvalues is above {edge:.6g}, which noise alone reaches"
    return (
        *plan.warnings,
        f"{why}: the components are indistinguishable from random directions; do not use them, and spend more epsilon "
        "or use more records in another release.",
    )


type Matrix = NDArray[np.float64]

_ONE_IN_100 = 2.33  # the 99 % quantile of a standard normal variable
_CRITICAL = 2.5  # the difference widened_edge(d, shift=1) - edge_quantile(d), times d^(1/6)


def edge_quantile(order: int) -> float:
    """Return the 99 % quantile of the largest eigenvalue of noise whose std off the diagonal is 1."""
    return semicircle_edge(order, std=1.0)


def above_edge(values: Matrix, *, edge: float) -> int:
    """Count the eigenvalues of a noisy matrix above an edge.

    If the edge is the 99 % quantile of the largest eigenvalue of noise, the count is at most the rank of the exact
    matrix in 99 of 100 cases.
    """
    return int(np.count_nonzero(values > edge))


def spike_strengths(values: Matrix, *, order: int) -> Matrix:
    """Estimate the eigenvalues of an exact matrix from the leading eigenvalues ``values`` of the noisy matrix.

    The noise has the std 1 off the diagonal. An eigenvalue at or below the edge ``2 sqrt(order)`` of the noise gives
    the strength ``sqrt(order)``, the least strength that has a visible eigenvalue.
    """
    edge = 2.0 * math.sqrt(order)
    beyond = np.maximum(values, edge)
    return (beyond + np.sqrt((beyond - edge) * (beyond + edge))) / 2.0


def least_visible(order: int) -> float:
    """Return the least strength of a signal whose eigenvalue is expected above `edge_quantile`, for noise of std 1."""
    return float(spike_strengths(np.array([edge_quantile(order)]), order=order)[0])


def widened_edge(order: int, *, shift: float) -> float:
    """Return a high quantile of the largest noise eigenvalue, for a second moment centred at a released mean.

    Without centring, this is `edge_quantile`. Centring multiplies the noise by the square root of ``I + m m^T`` on both
    sides. Here m is the released mean divided by the constant that was appended to the rows. Let ``w = 1 + |m|^2``. If
    w is above 2, the largest eigenvalue of noise alone is separate from the others: its mean is
    ``w sqrt(d / (w - 1))``, its variance ``w^2 (w - 2) / (2 w - 2)``. If w is near 2, the largest eigenvalue varies
    more than without centring. In simulations with d from 30 to 200, at most 2 % of draws exceed the returned quantile.

    Parameters
    ----------
    order : int
        The order d of the matrix.
    shift : float
        The squared norm ``|m|^2``, for m as above.
    """
    widened = 1.0 + shift
    spread = edge_quantile(order) + _CRITICAL * min(shift, 1.0) * math.pow(order, -1 / 6)
    if widened <= 2.0:
        return spread
    outside = widened / (2.0 * math.sqrt(shift)) * spread
    return outside + _ONE_IN_100 * widened * math.sqrt((widened - 2.0) / (2.0 * shift))
