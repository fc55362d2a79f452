"""The calibration of exponential mechanisms: the range of their privacy loss from (epsilon, delta).

A draw with density proportional to ``exp(score / scale)`` has a privacy loss within an interval of length r that
holds 0, when one record moves all scores at once by amounts within an interval of length ``r scale``. Such a
*bounded range* r is epsilon-DP for ``r <= epsilon``, and more precisely:

- *One draw.* By convexity the worst law of a loss in ``[t - r, t]`` is the one on its two ends whose likelihood ratio
  has mean 1, and the worst t is ``(epsilon + r) / 2``. So a draw is (epsilon, delta)-DP exactly when
  ``r <= epsilon`` or ``(1 - e^((epsilon - r) / 2))^2 <= delta (1 - e^-r)``.
- *Renyi divergence.* For the loss L under the other neighbour's law, ``K(a) = log E e^(a L)`` vanishes at 0 and 1, and
  ``K''`` is the variance of a law on an interval of length r, at most ``r^2 / 4``. So ``K(a) <= a (a - 1) r^2 / 8``
  for ``a > 1``: a draw is ``r^2 / 8``-zCDP. Divergences of adaptively chosen draws add up.

>>> round(largest_range(epsilon=1.0, delta=1e-3), 4)
1.0517
>>> largest_range(epsilon=1.0, delta=0.0, draws=4)
0.25

References
----------
McSherry and Talwar (2007), Mechanism design via differential privacy. Dong, Durfee and Rogers (2020), Optimal
differential privacy composition for exponential mechanisms. Cesar and Rogers (2021), Bounding, concentrating, and
truncating: the bound on the divergence. Canonne, Kamath and Steinke (2020), Proposition 12: from divergence to delta.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from dpca_tasks.errors import InvalidInput

if TYPE_CHECKING:
    from mpmath import mpf

_SMALLEST = 2.0**-28
_LARGEST_EPSILON = 1e9
_DIGITS = 60
_ORDERS = tuple(1.0 + 2.0 ** (step / 8) for step in range(-80, 321))


@cache
def largest_range(*, epsilon: float, delta: float, draws: int = 1) -> float:
    """Return the largest range that each of several draws may have, so that together they keep a guarantee.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all draws together; delta 0 is pure.
    draws : int
        How many there are; each may depend on those before it.

    Returns
    -------
    float
        The better of two: every draw (epsilon, delta) / draws-DP by the exact condition, or the draws together
        ``draws r^2 / 8``-zCDP, converted at the best of many orders. Rounded down: the condition was checked for the
        number returned, with 60 digits.

    Raises
    ------
    InvalidInput
        If an argument is out of its domain, or the range would pass below 2**-28.
    """
    if not (0 < epsilon <= _LARGEST_EPSILON and 0 <= delta < 1 and draws >= 1):
        raise InvalidInput(
            f"epsilon={epsilon} must be positive and at most {_LARGEST_EPSILON:g}, delta={delta} in [0, 1) and "
            f"draws={draws} at least 1; choose how much privacy to spend."
        )
    found = _one_by_one(epsilon, delta, draws)
    if delta > 0 and draws > 1:
        found = max(found, _together(epsilon, delta, draws))
    if found < _SMALLEST:
        raise InvalidInput(f"epsilon={epsilon} must allow a range of at least 2**-28 a draw; ask for more epsilon.")
    return found


def _one_by_one(epsilon: float, delta: float, draws: int) -> float:
    """Solve the exact condition of one draw, a quadratic equation in ``e^(r / 2)``, for a share of the guarantee."""
    from mpmath import mp

    with mp.workdps(_DIGITS):
        loss, failure = mp.mpf(epsilon) / draws, mp.mpf(delta) / draws
        half = mp.exp(loss / 2)
        root = 2 * mp.log((half + mp.sqrt(failure * (half**2 - 1 + failure))) / (1 - failure))

        def holds(found: "mpf") -> bool:
            return bool(found <= loss or (1 - mp.exp((loss - found) / 2)) ** 2 <= failure * (1 - mp.exp(-found)))

        return _down(root, holds)


def _together(epsilon: float, delta: float, draws: int) -> float:
    """Solve the conversion of the draws' divergence at the order that allows the most of it."""
    from mpmath import mp

    with mp.workdps(_DIGITS):

        def allowed(order: float) -> "mpf":
            above = mp.mpf(order) - 1
            slack = mp.log(mp.mpf(delta)) + mp.log(above) - order * mp.log1p(-1 / mp.mpf(order))
            return (slack / above + mp.mpf(epsilon)) / order

        rho = max(map(allowed, _ORDERS))
        return _down(mp.sqrt(8 * rho / draws), lambda found: draws * found**2 <= 8 * rho) if rho > 0 else 0.0


def _down(root: "mpf", holds: "Callable[[mpf], bool]") -> float:
    """Return the largest float up to a root for which a condition holds."""
    from mpmath import mp

    found = float(root)
    while found > 0 and not holds(mp.mpf(found)):
        found = math.nextafter(found, 0.0)
    return found
