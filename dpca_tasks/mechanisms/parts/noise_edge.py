"""Where noise ends and signal begins in the spectrum of a released matrix, in units of the noise.

A release is ``A = S + E``: E symmetric, with independent normal entries of standard deviation 1 off the diagonal and
sqrt 2 on it, so E is alike in every direction. Its eigenvalues fill ``-e .. e``, ``e = 2 sqrt(d)``. A signal of
strength theta shows as an eigenvalue ``theta + d / theta``, and not at all where theta is below ``sqrt(d)``.

>>> round(float(spike_strengths(np.array([90.0]), order=400)[0]), 2)
85.31
>>> above_edge(np.array([90.0, 39.0]), edge=edge_quantile(400))
1
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.parts.noise_level import semicircle_edge

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
