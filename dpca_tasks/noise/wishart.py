"""The symmetrised Wishart distribution: pure epsilon-DP noise for symmetric sums, computed in floats.

>>> from dpca_tasks.noise.keystream import subkey
>>> distribution = WishartDifference(epsilon=0.5)
>>> distribution.noise_multiplier
1.0
>>> distribution.draw(subkey(bytes(32), label="noise", info=b""), 3, scale_in_steps=2.0**20).shape
(6,)
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.pure import wishart_noise_multiplier
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.distributions import ROUNDING, LayoutKind, NoiseDistribution, Norm, check_scale, checked_stop
from dpca_tasks.noise.keystream import RESOLUTION, SecretKey
from dpca_tasks.noise.variates import normals

_ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WishartDifference(NoiseDistribution):
    """The symmetrised Wishart matrix ``c (A^T A - B^T B)``, A and B standard normal of shape (d + 1) x d.

    Pure epsilon-DP: when the sum moves by P of nuclear norm t, the density of the noisy sum changes by a
    factor of at most ``exp(t / 2c)``. The std is ``c sqrt(2 (d + 1))`` off the diagonal and
    ``2 c sqrt(d + 1)`` on it.

    Notes
    -----
    Proof. ``W = c A^T A`` has density proportional to ``exp(-tr W / 2c)`` on ``W >= 0`` (d + 1 degrees of
    freedom leave no determinant). So the noise has density ``h(D) = const * exp(tr D / 2c) * Int
    exp(-tr W / c) dW`` over ``W >= 0``, ``W >= D``. Let ``P >= 0``. From D to ``D + P`` the factor in front
    grows by ``exp(tr P / 2c)`` and the domain shrinks. From D to ``D - P``, with ``W' = W + P``, the factors
    are ``exp(-tr P / 2c)`` and ``exp(tr P / c)``, and the domain of W' lies in the old one. Any symmetric P
    is a difference of two such, of total trace t.

    Adding one Wishart matrix, as Jiang, Xie and Zhang (2016) do, is not DP: its support distinguishes neighbours.

    *Floating point.* The proof is for real matrices. Here the normals are floats, accurate to ``2^-46`` of themselves,
    and sums of 2 (d + 1) of their products are rounded, so a coordinate is off by about ``d 2^-53`` of its std before
    it is rounded to an integer: at most a few thousandths of a step at d = 1,000 and ``2^28`` steps, and the same
    fraction of the probability of a single integer. Neither the privacy claim nor `tail_mass` includes this error.
    Laplace noise on the packed triangle has an exact sampler (`SymmetricLaplace`).
    """

    name: ClassVar[str] = "WishartDifference"
    layout: ClassVar[LayoutKind] = "symmetric"
    norm: ClassVar[Norm] = "nuclear"
    tail_mass: ClassVar[float] = 4 * RESOLUTION  # 2 d (d + 1) normals for d (d + 1) / 2 coordinates
    """A bound, per coordinate, on the probability that a uniform runs out of bits; see the notes on floats."""

    epsilon: float
    noise_multiplier: float = field(init=False)
    """The factor c for sensitivity 1."""

    def __post_init__(self) -> None:
        """Calibrate c."""
        object.__setattr__(self, "noise_multiplier", wishart_noise_multiplier(epsilon=self.epsilon))

    @property
    def event(self) -> events.Event:
        """The event of a pure mechanism."""
        return events.approximate(self.epsilon, 0.0)

    def draw(
        self, key: SecretKey, order: int, *, scale_in_steps: float, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int64]:
        """Return the noise of a range of coordinates; every call computes the whole matrix.

        The scale is c in steps; the std on the diagonal must not exceed `LARGEST_SCALE`.
        """
        stop = checked_stop(self.layout, order, start, stop)
        check_scale(scale_in_steps * 2.0 * math.sqrt(order + 1))
        packed = np.zeros(Layout(kind="symmetric", order=order).size)
        n_rows = 2 * (order + 1)
        for first in range(0, n_rows, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, n_rows)
            rows = normals(key, start=first * order, stop=last * order).reshape(last - first, order)
            signs = np.where(np.arange(first, last) <= order, 1.0, -1.0)
            _add_outer_products(rows, signs, packed)
        packed *= scale_in_steps * ROUNDING
        return np.rint(packed[start:stop]).astype(np.int64)


@njit(cache=True, nogil=True)
def _add_outer_products(rows: NDArray[np.float64], signs: NDArray[np.float64], packed: NDArray[np.float64]) -> None:
    """Add ``sign * row^T row`` to a packed upper triangle, one row after the other."""
    order = rows.shape[1]
    base = 0
    for i in range(order):
        for k in range(rows.shape[0]):
            factor = signs[k] * rows[k, i]
            for j in range(i, order):
                packed[base + j - i] += factor * rows[k, j]
        base += order - i
