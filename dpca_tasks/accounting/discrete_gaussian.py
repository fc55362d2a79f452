"""What the sum of several discrete Gaussian shares on the integers guarantees: that of a Gaussian a little smaller.

>>> round(shares_mu(sensitivity=5.0, shares=1, squared_scale=36), 4)
1.118
>>> shares_squared_scale(sensitivity=1000.0, shares=7, mu=0.25) * 7 >= (1000.0 / 0.25) ** 2
True
"""

import math

from dpca_tasks.errors import InvalidInput

ROUNDING = 16.0
"""The squared parameter of the randomised rounding that a discrete Gaussian contains."""
_UP = 1.0 + 2.0**-48


def shares_mu(*, sensitivity: float, shares: int, squared_scale: float, least_weight: float = 1.0) -> float:
    r"""Return mu such that the sum of integers and of H discrete Gaussian shares is mu-GDP; rounded up.

    Parameters
    ----------
    sensitivity : float, steps
        How far one record moves the integers, in the l2 norm of isometric coordinates: the norm after each coordinate
        is divided by its weight.
    shares : int
        The number H of honest shares, which nobody else knows.
    squared_scale : float
        The parameter ``s^2`` of a share where the weight is 1; a coordinate of weight w has ``w^2 s^2``.
    least_weight : float
        The least weight of a coordinate, at most 1.

    Notes
    -----
    Proof. (1) For a shift c, ``sum over integers k of exp(-(k - c)^2 / (2 r^2))`` is the same for all c up to a factor
    ``1 + 4 exp(-2 pi^2 r^2)`` by Poisson summation: below ``1 + 1e-136`` for r = 4. (2) So rounding a real y at random
    to the integer x with probability proportional to ``exp(-(x - y)^2 / (2 r^2))`` turns ``N(m, V - r^2)``, m an
    integer, into the discrete Gaussian of parameter V around m, up to that factor: integrate the product of both
    densities over y. (3) H discrete Gaussians of parameter ``w^2 s^2`` add up to one of ``H w^2 s^2``, up to a factor
    ``1 +- tau`` with ``tau = 10 sum_{k < H} exp(-2 pi^2 w^2 s^2 k / (k + 1))``, below ``1e-67 H`` where ``s w >= 4``
    (Kairouz, Liu and Steinke, 2021). (4) Hence the sum is post-processing of Gaussians of variance ``H w^2 s^2 - 16``
    around the same integers. Divided by its weight each has variance at least ``H s^2 - 16 / w_min^2``, and the shift
    has norm at most Delta: a Gaussian release of ``mu = Delta / sqrt(H s^2 - 16 / w_min^2)``. The factors change the
    probability of any event of p coordinates by less than ``1e-66 p H``: for every delta above 1e-40, mu is rounded up
    by far more.
    """
    _check(shares, least_weight)
    own = squared_scale * least_weight**2
    if own < ROUNDING or shares * own <= ROUNDING:
        raise InvalidInput(
            f"squared_scale={squared_scale} must be at least 16 over the squared least weight, and above it for one "
            "share: the sum of smaller shares is no discrete Gaussian; use a finer grid or more noise."
        )
    return sensitivity / math.sqrt(shares * squared_scale - ROUNDING / least_weight**2) * _UP


def shares_squared_scale(*, sensitivity: float, shares: int, mu: float, least_weight: float = 1.0) -> int:
    """Return the least even ``s^2`` with which H shares are mu-GDP: even, so that half of it is an integer too.

    Parameters
    ----------
    sensitivity, shares, least_weight
        As for `shares_mu`.
    mu : float
        The guarantee of the sum.
    """
    _check(shares, least_weight)
    if not (mu > 0 and math.isfinite(mu)):
        raise InvalidInput(f"mu={mu!r} must be positive and finite; 0.27 is about epsilon 1 at delta 1e-5.")
    rounding = ROUNDING / least_weight**2
    needed = ((sensitivity / mu) ** 2 * _UP + rounding) / shares
    scale = 2 * math.ceil(max(needed, rounding) / 2)
    terms = {"sensitivity": sensitivity, "shares": shares, "least_weight": least_weight}
    while shares * scale <= rounding or shares_mu(**terms, squared_scale=scale) > mu:  # type: ignore[arg-type]
        scale += 2 * max(1, scale >> 49)  # beyond 2^50 a step that a float notices
    return scale


def _check(shares: int, least_weight: float) -> None:
    if shares < 1:
        raise InvalidInput(f"shares={shares} must be at least 1: some honest site's noise has to be left.")
    if not 0 < least_weight <= 1:
        raise InvalidInput(f"least_weight={least_weight!r} must be above 0 and at most 1; it is a share of a norm.")
