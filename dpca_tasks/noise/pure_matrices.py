r"""Pure noise for symmetric matrices and cubes: radial Laplace and symmetrised Wishart.

*Radial Laplace* noise has a uniform direction, and a length with an exponentially falling density.

>>> from dpca_tasks.noise.keystream import subkey
>>> noise = CubeRadial(noise_multiplier=0.5)
>>> noise.event
{'name': 'approximate', 'epsilon': 2.0, 'delta': 0.0}
>>> noise.draw(subkey(bytes(32), label="noise", info=b""), 3, scale_in_steps=2.0**20).shape
(10,)

Notes
-----
In the p coordinates of an orthonormal basis of the symmetric tensors (Frobenius norm) the noise b has a density
proportional to ``exp(-|b| / s)``. Suppose that a record moves the sum by at most ``Delta = epsilon s``. Then by the
triangle inequality the density of the noisy sum changes by at most a factor of ``exp(epsilon)``: pure epsilon-DP, with
the l2 sensitivity.

*Sampling.* The characteristic function of b is ``(1 + s^2 |t|^2)^(-(p + 1) / 2)``. The product ``b = s R Z`` has this
characteristic function. Here Z is standard normal in p coordinates, and ``R^2`` is the sum of p + 1 squared standard
normals, independent of Z. R is one number, computed from the key. Given R, each coordinate is drawn separately.
``|b| / s`` has the distribution Gamma(p), and a coordinate has the variance ``(p + 1) s^2``.

*Floating point.* Given R, the nearest integers are decided exactly, as for `Symmetric` and `Cube`. R is a float64. The
squares of float normals, each accurate to ``2^-46`` of itself, are rounded, and their sum is exact. Then the sum is
rounded, and so is its square root. So the relative error of R is below ``2^-44``, and R takes one of many floats. A
relative error h of R changes the density of ``s R Z`` at the values it takes by about ``h sqrt(p)`` of itself: for a
thousand features, ``2^-34``. Neither the privacy claim nor `tail_mass` includes this error. Laplace noise on packed
coordinates has an exact sampler (`dpca_tasks.noise.distributions.SymmetricLaplace`), and much more noise.

References
----------
Chaudhuri, Monteleoni and Sarwate (2011), Differentially private empirical risk minimization, Algorithm 1; Imtiaz and
Sarwate (2018), Improved algorithms for differentially private orthogonal tensor decomposition.

*The symmetrised Wishart distribution* is pure epsilon-DP noise for symmetric sums, computed in floats.

>>> from dpca_tasks.noise.keystream import subkey
>>> distribution = WishartDifference(epsilon=0.5)
>>> distribution.noise_multiplier
1.0
>>> distribution.draw(subkey(bytes(32), label="noise", info=b""), 3, scale_in_steps=2.0**20).shape
(6,)
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import wishart_noise_multiplier
from dpca_tasks.accounting.events import float_up
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.distributions import (
    ROUNDING,
    Cube,
    LayoutKind,
    NoiseDistribution,
    Norm,
    Symmetric,
    check_scale,
    checked_stop,
)
from dpca_tasks.noise.keystream import RESOLUTION, SecretKey, normals, subkey

_FAR = 16.0
"""The random factor R of the noise scale exceeds ``sqrt(p + 1) + _FAR`` with a probability below ``exp(-128)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RadialLaplace(NoiseDistribution):
    """Noise of density proportional to ``exp(-|b| / s)``; the multiplier is s / (L2 sensitivity) = ``1 / epsilon``."""

    noise_multiplier: float

    norm: ClassVar[Norm] = "l2"
    tail_mass: ClassVar[float] = 5 * RESOLUTION  # p exact coordinates, and p + 1 float normals for R
    """A bound, per coordinate, on the probability that a uniform runs out of bits; see the notes on floats."""
    given_length: ClassVar[type[Symmetric | Cube]]
    """The distribution of the noise if the random factor R of its scale is given."""

    def __post_init__(self) -> None:
        """Check that the multiplier is positive and finite."""
        if not 0 < self.noise_multiplier < math.inf:
            raise InvalidInput(
                f"noise_multiplier={self.noise_multiplier!r} must be positive and finite; pass 1 / epsilon."
            )

    @property
    def event(self) -> events.Event:
        """The DP event of a pure epsilon-DP mechanism, with epsilon rounded up."""
        return events.approximate(float_up(1 / Fraction(self.noise_multiplier)), 0.0)

    @classmethod
    def spread(cls, order: int) -> float:
        """Return the std of a coordinate of weight 1, ``sqrt(p + 1)`` times s, for p packed coordinates."""
        return math.sqrt(Layout(kind=cls.layout, order=order).size + 1)

    def draw(
        self, key: SecretKey, order: int, *, scale_in_steps: float, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int64]:
        """Return the noise of a range of coordinates. Every call computes R, the random factor of the scale, anew.

        ``scale_in_steps`` is s in grid steps. The std of a coordinate must stay below `LARGEST_SCALE`.
        """
        stop = checked_stop(self.layout, order, start, stop)
        check_scale(scale_in_steps * (self.spread(order) + _FAR))
        count = Layout(kind=self.layout, order=order).size + 1
        squares = np.square(normals(subkey(key.secret, label="length", info=b""), start=0, stop=count))
        scale = scale_in_steps * math.sqrt(math.fsum(squares))
        given = self.given_length(noise_multiplier=1.0)
        return given.draw(key, order, scale_in_steps=scale, start=start, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetricRadial(_RadialLaplace):
    """Pure epsilon-DP noise for a symmetric matrix whose sensitivity is bounded in the Frobenius norm."""

    name: ClassVar[str] = "SymmetricRadial"
    layout: ClassVar[LayoutKind] = "symmetric"
    given_length: ClassVar[type[Symmetric | Cube]] = Symmetric


@dataclass(frozen=True, slots=True, kw_only=True)
class CubeRadial(_RadialLaplace):
    """Pure epsilon-DP noise for a symmetric tensor of order 3 whose sensitivity is bounded in the Frobenius norm."""

    name: ClassVar[str] = "CubeRadial"
    layout: ClassVar[LayoutKind] = "cube"
    given_length: ClassVar[type[Symmetric | Cube]] = Cube


_ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WishartDifference(NoiseDistribution):
    """The symmetrised Wishart matrix ``c (A^T A - B^T B)``, A and B standard normal of shape (d + 1) x d.

    Pure epsilon-DP: when the sum moves by P of nuclear norm t, the density of the noisy sum changes by a
    factor of at most ``exp(t / 2c)``. The std is ``c sqrt(2 (d + 1))`` off the diagonal and
    ``2 c sqrt(d + 1)`` on it.

    Notes
    -----
    Proof. ``W = c A^T A`` has density proportional to ``exp(-tr W / 2c)`` on ``W >= 0``, because d + 1 degrees of
    freedom leave no determinant. So the noise has density ``h(D) = const * exp(tr D / 2c) * Int exp(-tr W / c) dW``
    over ``W >= 0``, ``W >= D``. Let ``P >= 0``. From D to ``D + P`` the factor in front of the integral grows by
    ``exp(tr P / 2c)`` and the domain shrinks. From D to ``D - P``, with ``W' = W + P``, the factors are
    ``exp(-tr P / 2c)`` and ``exp(tr P / c)``, and the domain of W' is a subset of the old domain. Any symmetric P is a
    difference of two positive semi-definite matrices of total trace t.

    Adding one Wishart matrix, as Jiang, Xie and Zhang (2016) do, is not DP: its support distinguishes neighbours.

    *Floating point.* The proof is for real matrices. Here the normals are floats, accurate to ``2^-46`` of themselves,
    and sums of 2 (d + 1) of their products are rounded. So a coordinate is off by about ``d 2^-53`` of its std before
    it is rounded to an integer. At d = 1,000 and ``2^28`` steps that is at most a few thousandths of a step. The
    probability of a single integer changes by the same fraction. Neither the privacy claim nor `tail_mass` includes
    this error. Laplace noise on the packed triangle has an exact sampler (`SymmetricLaplace`).
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
        """The DP event of a pure epsilon-DP mechanism."""
        return events.approximate(self.epsilon, 0.0)

    def draw(
        self, key: SecretKey, order: int, *, scale_in_steps: float, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int64]:
        """Return the noise of a range of coordinates; every call computes the whole matrix.

        ``scale_in_steps`` is c in grid steps. The std on the diagonal must not exceed `LARGEST_SCALE`.
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
    """Add ``sign * row^T row`` to a packed upper triangle for each row in turn."""
    order = rows.shape[1]
    base = 0
    for i in range(order):
        for k in range(rows.shape[0]):
            factor = signs[k] * rows[k, i]
            for j in range(i, order):
                packed[base + j - i] += factor * rows[k, j]
        base += order - i
