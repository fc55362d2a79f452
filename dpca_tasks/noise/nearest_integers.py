r"""Keyed integers that are the nearest to a scaled normal or Laplace variate, decided exactly.

A float64 cannot hold a noise of ``2^28`` steps a std finely enough: uniforms of 53 bits, the rounding of the quantile
and that of the product move the edges between integers by up to ``2^-23`` of a step, and so the masses of integers by
as much of themselves. Here floats only propose. Where a proposal is nearer to an edge than its error, about once in
100,000 draws, the edge is compared with the random bits in integers.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> NORMAL.nearest(key, start=0, scales=np.full(3, 1000.0)).shape
(3,)

Notes
-----
*The rule.* Index i has 191 random bits H and a sign of its own. ``u = (H + 1/2) 2^-191`` is the probability that the
magnitude of a standard variate is above its own: ``u = P(|Z| > z)``. The integer's magnitude is the number of edges
``(k + 1/2) / scale``, ``k >= 0``, below z, that is, of those with ``P(|Z| > edge) > u``. No float is part of this rule,
so a key gives the same integers on every machine.

*What follows for the law.* The values of u are the centres of ``2^191`` equal cells of [0, 1], and u lies on the other
side of an edge than a uniform real of the same cell at most where the edge cuts the cell. So

- the mass of every integer is right to ``2^-190`` (two edges, and one cell for the error of a comparison);
- with E edges within reach, the law is at most ``2 E 2^-191`` from the ideal one in total variation. A normal ends at
  16.2, a Laplace variate at 133.1, and scales are at most ``2^30``: E is below ``2^38``, the distance below
  `DISTANCE` ``= 2^-152`` a coordinate. Of a release of n coordinates it is at most n times that.

*Why a proposal can be trusted.* With the float z' from the float u', it is the nearest integer to ``z' scale`` that is
taken where that product is farther from an edge than ``(2^-46 z' + 2^-51) scale``. That is more than its error, for:

- ``|u' - u| <= 2^-52 u`` (53 significant bits, and what lies beyond them), which moves a normal quantile by ``2^-52 u /
  (2 phi(z))``, Mills' ratio times ``2^-52``, hence by less than ``1.26 2^-52``, and a logarithm by ``2^-52``;
- AS 241 states about 1e-16 for its rational functions as such; the tests bound them by ``2^-50``;
- their polynomials of degree 7 have positive coefficients and arguments, so Horner's rule is right to ``15 2^-53`` in
  each, and their quotient, which takes two operations more, to ``32 2^-53 = 2^-48``;
- the argument ``r = 0.180625 - q^2`` is right to ``2^-54``, and the logarithmic derivative of a polynomial of positive
  coefficients is at most the largest ``i a_i / a_(i-1)``, here 43: ``2^-48``; in the tail, ``r = sqrt(-log(u / 2))`` is
  right to ``2^-51``, relative, and ``r / z dz/dr`` is below 2: ``2^-50``. A logarithm is right to 1 ulp;
- the product is rounded once: ``2^-53``.

The sum is below ``2^-46 z + 2^-51``. Far out, where u' may have fewer bits, every proposal is compared.

*The comparison.* ``P(|Z| <= x)`` in fixed point of 448 bits: ``2 phi(x) sum x^(2n+1) / (1 3 5 ... (2n+1))`` for the
normal, whose terms are all positive, and ``1 - e^-x`` for Laplace. A term is below ``2^191`` for x below 16.3, of less
than 1,000 terms each is rounded once, and what multiplies the sum is ``e^(-x^2/2)``: the error is below ``2^-230``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.noise.keystream import WORDS_PER_TILE, SecretKey, words
from dpca_tasks.noise.uniform import fill_signed_uniforms
from dpca_tasks.noise.variates import fill_exponentials, fill_normal_magnitudes

DISTANCE = 2.0**-152
"""How far a coordinate's law may be from the ideal one, in total variation, for scales up to 2^30."""

UNIFORM_BITS = 191
_PRECISION = 448
_ROOT_2_OVER_PI = int(
    "cc42299ea1b284687e59e2805d5c717fa7053e60a24e0db1808e369004c73a5d3bf158aa88fa7b6e47eba75766e9d11bd6284ef2e17c2a26",
    16,
)  # times 2^448
_HALVINGS = 16

type Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Standard:
    """A standard variate: its float quantile, its exact distribution, and a bound beyond which floats are not used."""

    fill: Callable[[NDArray[np.float64], NDArray[np.int64]], None]
    mass_within: Callable[[int], int]
    farthest: float

    def nearest(self, key: SecretKey, *, start: int, scales: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the integers nearest to ``scale * Z`` of indices from ``start`` on, one for each scale.

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
        for first in range(0, scales.size, WORDS_PER_TILE):  # a piece stays in the processor's cache
            last = min(first + WORDS_PER_TILE, scales.size)
            high, middle, low = (words(key, stream=at, start=start + first, stop=start + last) for at in range(3))
            made[first:last] = self.of_words(high, middle, low, scales[first:last])
        return made

    def of_words(self, high: Words, middle: Words, low: Words, scales: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the integers of random words: a bit of sign, the last one of ``high``, and 191 of magnitude."""
        variates, signs = np.empty(scales.size), np.empty(scales.size)
        fill_signed_uniforms(high, middle, low, variates, signs)
        self.fill(variates, variates.view(np.int64))
        nearest = np.empty(scales.size)
        doubtful = np.empty(scales.size, np.bool_)
        if _propose(variates, signs, scales, self.farthest, nearest, doubtful):
            for at in np.flatnonzero(doubtful):
                bits = (int(high[at]) >> 1) << 128 | int(middle[at]) << 64 | int(low[at])
                nearest[at] = signs[at] * self._decided(bits, float(scales[at]), int(abs(nearest[at])))
        return nearest

    def _decided(self, bits: int, scale: float, proposed: int) -> int:
        """Return the magnitude by comparisons, two where the proposal is right."""
        above = 2 * bits + 1  # in units of 2^-192
        within = ((1 << (UNIFORM_BITS + 1)) - above) << (_PRECISION - UNIFORM_BITS - 1)
        numerator, denominator = scale.as_integer_ratio()

        def is_passed(edge: int) -> bool:
            """Tell whether the variate is beyond ``(edge + 1/2) / scale``."""
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
    """Round scaled variates, mark those that are too near to an edge, and count them."""
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
    """Return ``P(|Z| <= x)`` of a standard normal, fixed point to fixed point."""
    square = x * x >> _PRECISION
    term = total = x
    odd = 1
    while term:
        odd += 2
        term = (term * square >> _PRECISION) // odd
        total += term
    return (_ROOT_2_OVER_PI * _exp_minus(square >> 1) >> _PRECISION) * total >> _PRECISION


def _laplace_mass_within(x: int) -> int:
    """Return ``P(|Z| <= x)`` of a standard Laplace variate."""
    return (1 << _PRECISION) - _exp_minus(x)


def _exp_minus(x: int) -> int:
    """Return ``e^-x``: a Taylor series of x over 2^16, squared 16 times."""
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
