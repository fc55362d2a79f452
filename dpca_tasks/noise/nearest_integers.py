r"""Keyed integers nearest to a scaled normal or Laplace variate, decided exactly.

A float64 is too coarse for noise of std ``2^28`` steps: uniforms of 53 bits, and the rounding of quantile and product,
move the edges between integers by up to ``2^-23`` of a step, and the probabilities of integers by the same fraction. So
floats only propose an integer. If the proposal is closer to an edge than its error, about once in 100,000 draws, the
edge is compared with the random bits in integer arithmetic.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> NORMAL.nearest(key, start=0, scales=np.full(3, 1000.0)).shape
(3,)

Notes
-----
*The rule.* Index i has 191 random bits H and a separate sign bit. ``u = (H + 1/2) 2^-191`` is the tail probability of
the magnitude z: ``u = P(|Z| > z)``. The magnitude of the integer is the number of edges ``(k + 1/2) / scale``,
``k >= 0``, below z, that is, of those with ``P(|Z| > edge) > u``. The rule contains no float, so a key gives the same
integers on every machine.

*Distance from the ideal distribution.* The values of u are the centres of ``2^191`` equal cells of [0, 1]. A uniform
real of the same cell is on the same side of every edge as u, unless the edge cuts the cell. So

- the probability of every integer is exact to ``2^-190`` (two edges, and one cell for the error of a comparison);
- with E possible edges, the distribution is at most ``2 E 2^-191`` from the ideal one in total variation. A normal ends
  at 16.2, a Laplace variate at 133.1, and scales are at most ``2^30``: E is below ``2^38``, and the distance below
  `DISTANCE` ``= 2^-152`` per coordinate. For a release of n coordinates it is at most n times that.

*Why a proposal is safe.* With the float z' from the float u', the nearest integer to ``z' scale`` is taken if that
product is farther from an edge than ``(2^-46 z' + 2^-51) scale``. This exceeds the error of the product, because:

- ``|u' - u| <= 2^-52 u`` (53 significant bits, and what lies beyond them), which moves a normal quantile by ``2^-52 u /
  (2 phi(z))``, Mills' ratio times ``2^-52``, hence by less than ``1.26 2^-52``, and a logarithm by ``2^-52``;
- AS 241 states about 1e-16 for its rational functions as such; the tests bound them by ``2^-50``;
- their polynomials of degree 7 have positive coefficients and arguments, so Horner's rule is accurate to ``15 2^-53``
  in each, and their quotient, which takes two more operations, to ``32 2^-53 = 2^-48``;
- the argument ``r = 0.180625 - q^2`` is accurate to ``2^-54``, and the logarithmic derivative of a polynomial of
  positive coefficients is at most the largest ``i a_i / a_(i-1)``, here 43: ``2^-48``; in the tail,
  ``r = sqrt(-log(u / 2))`` is accurate to ``2^-51``, relative, and ``r / z dz/dr`` is below 2: ``2^-50``. A logarithm
  is accurate to 1 ulp;
- the product is rounded once: ``2^-53``.

The sum is below ``2^-46 z + 2^-51``. In the far tail, where u' may have fewer bits, every proposal is compared.

*The comparison.* ``P(|Z| <= x)`` in fixed point of 448 bits: ``2 phi(x) sum x^(2n+1) / (1 3 5 ... (2n+1))`` for the
normal, whose terms are all positive, and ``1 - e^-x`` for Laplace. A term is below ``2^191`` for x below 16.3, fewer
than 1,000 terms are rounded once each, and the sum is multiplied by ``e^(-x^2/2)``: the error is below ``2^-230``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.noise.keystream import WORDS_PER_TILE, Further, SecretKey, Words, further_words, uniforms_of, words
from dpca_tasks.noise.variates import fill_exponentials, fill_normal_magnitudes

DISTANCE = 2.0**-152
"""The largest total variation distance of a coordinate from the ideal distribution, for scales up to 2^30."""

UNIFORM_BITS = 191
_PRECISION = 448
_ROOT_2_OVER_PI = int(
    "cc42299ea1b284687e59e2805d5c717fa7053e60a24e0db1808e369004c73a5d3bf158aa88fa7b6e47eba75766e9d11bd6284ef2e17c2a26",
    16,
)  # times 2^448
_HALVINGS = 16


@dataclass(frozen=True, slots=True)
class Standard:
    """A standard variate: its float quantile, its exact distribution, and the bound above which floats are not used."""

    fill: Callable[[NDArray[np.float64], NDArray[np.int64]], None]
    mass_within: Callable[[int], int]
    farthest: float

    def nearest(self, key: SecretKey, *, start: int, scales: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the integers nearest to ``scale * Z`` for the indices from ``start`` on, one for each scale.

        Parameters
        ----------
        key : SecretKey
            A key used for these draws only.
        start : int
        scales : float64 array
            Each positive and at most 2^30.

        Returns
        -------
        float64 array of scales.size
            Whole numbers, below 2^38.
        """
        made = np.empty(scales.size)
        for first in range(0, scales.size, WORDS_PER_TILE):  # pieces fit into the processor's cache
            last = min(first + WORDS_PER_TILE, scales.size)
            high = words(key, stream=0, start=start + first, stop=start + last)
            made[first:last] = self.of_words(high, further_words(key, start=start + first), scales[first:last])
        return made

    def of_words(self, high: Words, further: Further, scales: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert random words to integers: the last bit of the first is the sign, the other 191 are the magnitude."""
        variates, signs = uniforms_of(high, further)
        self.fill(variates, variates.view(np.int64))
        nearest = np.empty(scales.size)
        doubtful = np.empty(scales.size, np.bool_)
        if _propose(variates, signs, scales, self.farthest, nearest, doubtful):
            places = np.flatnonzero(doubtful)
            for at, middle, low in zip(places, *further(places), strict=True):
                bits = (int(high[at]) >> 1) << 128 | int(middle) << 64 | int(low)
                nearest[at] = signs[at] * self._decided(bits, float(scales[at]), int(abs(nearest[at])))
        return nearest

    def _decided(self, bits: int, scale: float, proposed: int) -> int:
        """Find the magnitude by exact comparisons; a correct proposal takes two."""
        above = 2 * bits + 1  # in units of 2^-192
        within = ((1 << (UNIFORM_BITS + 1)) - above) << (_PRECISION - UNIFORM_BITS - 1)
        numerator, denominator = scale.as_integer_ratio()

        def is_passed(edge: int) -> bool:
            """Tell whether the variate is above ``(edge + 1/2) / scale``."""
            return within > self.mass_within(((2 * edge + 1) * denominator << _PRECISION) // (2 * numerator))

        low, reach = proposed, 1
        while low > 0 and not is_passed(low - 1):
            low, reach = max(0, low - reach), 2 * reach
        high, reach = proposed, 1
        while is_passed(high):
            high, reach = high + reach, 2 * reach
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if is_passed(middle) else (low, middle)
        return low


@njit(cache=True, nogil=True)
def _propose(
    variates: NDArray[np.float64],
    signs: NDArray[np.float64],
    scales: NDArray[np.float64],
    farthest: float,
    nearest: NDArray[np.float64],
    doubtful: NDArray[np.bool_],
) -> int:
    """Round scaled variates; mark and count those that are too close to an edge."""
    count = 0
    for i in range(variates.size):
        scaled = variates[i] * scales[i]
        whole = np.rint(scaled)
        slack = 2.0**-46 * scaled + 2.0**-51 * scales[i]
        near = (np.abs(scaled - whole) + slack >= 0.5) | (variates[i] > farthest)
        doubtful[i] = near
        count += near
        nearest[i] = whole * signs[i]
    return count


def _normal_mass_within(x: int) -> int:
    """Return ``P(|Z| <= x)`` of a standard normal, in fixed point."""
    square = x * x >> _PRECISION
    term = total = x
    odd = 1
    while term:
        odd += 2
        term = (term * square >> _PRECISION) // odd
        total += term
    return (_ROOT_2_OVER_PI * _exp_minus(square >> 1) >> _PRECISION) * total >> _PRECISION


def _laplace_mass_within(x: int) -> int:
    """Return ``P(|Z| <= x)`` of a standard Laplace variate, in fixed point."""
    return (1 << _PRECISION) - _exp_minus(x)


def _exp_minus(x: int) -> int:
    """Return ``e^-x`` in fixed point: the Taylor series at x / 2^16, squared 16 times."""
    part = x >> _HALVINGS
    term = total = 1 << _PRECISION
    n = 0
    while term:
        n += 1
        term = (term * part >> _PRECISION) // n
        total += -term if n % 2 else term
    for _ in range(_HALVINGS):
        total = total * total >> _PRECISION
    return total


NORMAL = Standard(fill_normal_magnitudes, _normal_mass_within, 13.0)
LAPLACE = Standard(fill_exponentials, _laplace_mass_within, 88.0)
