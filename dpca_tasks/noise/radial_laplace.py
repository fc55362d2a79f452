r"""Pure noise for a symmetric matrix or cube: a uniform direction, and a length that falls exponentially.

>>> from dpca_tasks.noise.keystream import subkey
>>> noise = CubeRadial(noise_multiplier=0.5)
>>> noise.event
{'name': 'approximate', 'epsilon': 2.0, 'delta': 0.0}
>>> noise.draw(subkey(bytes(32), label="noise", info=b""), 3, scale_in_steps=2.0**20).shape
(10,)

Notes
-----
In the p coordinates of an orthonormal basis of the symmetric tensors (Frobenius norm) the noise b has a density
proportional to ``exp(-|b| / s)``. A sum that a record moves by at most ``Delta = epsilon s`` has a density that changes
by at most ``exp(epsilon)``, by the triangle inequality: pure epsilon-DP, with the l2 sensitivity.

*How it is drawn.* Its characteristic function is ``(1 + s^2 |t|^2)^(-(p + 1) / 2)``: that of ``b = s R Z`` with Z
standard normal in p coordinates, and ``R^2`` the sum of p + 1 squared standard normals, independent of Z. So given R,
one number of the key, each coordinate is drawn by itself. ``|b| / s`` has the distribution Gamma(p), and a coordinate
the variance ``(p + 1) s^2``.

*Floating point.* Given R the nearest integers are decided exactly, as for `Symmetric` and `Cube`. R is a float64: the
exact sum of rounded squares of float normals, each accurate to ``2^-46`` of itself, rounded, and its root, rounded. So
R is off by less than ``2^-44`` of itself, and takes one of many floats. A relative error h of R changes the density of
``s R Z`` at the values it takes by about ``h sqrt(p)`` of itself: for a thousand features, ``2^-34``. Neither the
privacy claim nor `tail_mass` includes this error. Laplace noise on packed coordinates has an exact sampler
(`dpca_tasks.noise.distributions.SymmetricLaplace`), and much more noise.

References
----------
Chaudhuri, Monteleoni and Sarwate (2011), Differentially private empirical risk minimization, Algorithm 1; Imtiaz and
Sarwate (2018), Improved algorithms for differentially private orthogonal tensor decomposition.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.rounding import float_up
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.distributions import (
    Cube,
    LayoutKind,
    NoiseDistribution,
    Norm,
    Symmetric,
    check_scale,
    checked_stop,
)
from dpca_tasks.noise.keystream import RESOLUTION, SecretKey, subkey
from dpca_tasks.noise.variates import normals

_FAR = 16.0
"""``R`` exceeds ``sqrt(p + 1)`` by more with probability below ``exp(-128)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RadialLaplace(NoiseDistribution):
    """Noise of the density ``exp(-|b| / s)``; the multiplier is s divided by the L2 sensitivity, ``1 / epsilon``."""

    noise_multiplier: float

    norm: ClassVar[Norm] = "l2"
    tail_mass: ClassVar[float] = 5 * RESOLUTION  # p exact coordinates, and p + 1 float normals of the length
    """A bound, per coordinate, on the probability that a uniform runs out of bits; see the notes on floats."""
    given_length: ClassVar[type[Symmetric | Cube]]
    """The distribution of the noise given R."""

    def __post_init__(self) -> None:
        """Refuse a multiplier that is not positive and finite."""
        if not 0 < self.noise_multiplier < math.inf:
            raise InvalidInput(
                f"noise_multiplier={self.noise_multiplier!r} must be positive and finite; it is 1 / epsilon."
            )

    @property
    def event(self) -> events.Event:
        """The event of a pure mechanism, its epsilon rounded up."""
        return events.approximate(float_up(1 / Fraction(self.noise_multiplier)), 0.0)

    @classmethod
    def spread(cls, order: int) -> float:
        """Return the std of a coordinate of weight 1, in units of s: ``sqrt(p + 1)``."""
        return math.sqrt(Layout(kind=cls.layout, order=order).size + 1)

    def draw(
        self, key: SecretKey, order: int, *, scale_in_steps: float, start: int = 0, stop: int | None = None
    ) -> NDArray[np.int64]:
        """Return the noise of a range of coordinates; every call computes the length.

        The scale is s in steps; the std of a coordinate must stay below `LARGEST_SCALE`.
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
    """A symmetric matrix of pure noise for its Frobenius norm."""

    name: ClassVar[str] = "SymmetricRadial"
    layout: ClassVar[LayoutKind] = "symmetric"
    given_length: ClassVar[type[Symmetric | Cube]] = Symmetric


@dataclass(frozen=True, slots=True, kw_only=True)
class CubeRadial(_RadialLaplace):
    """A symmetric tensor of order 3 of pure noise for its Frobenius norm."""

    name: ClassVar[str] = "CubeRadial"
    layout: ClassVar[LayoutKind] = "cube"
    given_length: ClassVar[type[Symmetric | Cube]] = Cube
