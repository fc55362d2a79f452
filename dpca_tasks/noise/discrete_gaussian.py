r"""Keyed integers from discrete Gaussians and from rounded normal or Laplace variates.

*Discrete Gaussian.* The distribution of parameter ``s^2`` gives an integer x a probability proportional to
``exp(-x^2 / (2 s^2))``. All arithmetic is on integers and every decision compares integers. So the drawn distribution
is exact rather than a float approximation, given uniform random words; a ChaCha20 stream supplies them. A tile
of `TILE` draws has a separate stream, so any tile can be drawn alone.

A proposal so far in the tail that its acceptance probability is below ``exp(-500)`` is rejected outright.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"share")
>>> drawn = discrete_gaussians(key, start=0, stop=6, squared_scale=100)
>>> bool((discrete_gaussians(key, start=2, stop=6, squared_scale=100) == drawn[2:]).all())
True

References
----------
Canonne, Kamath and Steinke (2020), The discrete Gaussian for differential privacy, Algorithms 1 to 3.

*Wide discrete Gaussians* have a scale that is too large for the integer arithmetic of one draw. So they are computed as
the sum of a multiple of a coarse draw and a fine draw.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"share")
>>> wide_discrete_gaussians(key, size=3, squared_scale=drawable(2**40 + 1)).shape
(3,)

Notes
-----
Let y and z be discrete Gaussians of parameters u and v, and ``x = c y + z``. By completing the square,

    y^2 / 2u + (x - c y)^2 / 2v = x^2 / 2(c^2 u + v) + (y - m)^2 / 2r^2,    r^2 = u v / (c^2 u + v),

with m a multiple of x. Sum ``exp(-(y - m)^2 / 2r^2)`` over all integers y. By Poisson summation, the result is the same
for every m, up to a factor ``1 + 4 exp(-2 pi^2 r^2)``. So x is the discrete Gaussian of parameter ``c^2 u + v`` up to
that factor. Here ``v = FINE[parts] c^2``, and u is above `LARGEST` / 5. Even if both are divided by ``parts``, v is at
least ``32 c^2`` and u above `LARGEST` / 30. So r^2 is above 31, and the factor below ``1 + 1e-260``.

References
----------
Micciancio and Walter (2017), Gaussian sampling over the integers: efficient, generic, constant-time, Section 4.

*Nearest integers.* The integer nearest to a scaled normal or Laplace variate is decided exactly.

An edge is a point halfway between two integers. A float64 is too coarse for noise of std ``2^28`` steps. Uniforms of 53
bits, and the rounding of quantile and product, move the edges between integers by up to ``2^-23`` of a step. The
probabilities of integers change by the same fraction. So floats only propose an integer. If the proposal is closer to
an edge than its error, about once in 100,000 draws, the edge is compared with the random bits in integer arithmetic.

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
  at 16.2, a Laplace variate at 133.1, and scales are at most ``2^30``. So E is below ``2^38``, and the distance below
  `DISTANCE` ``= 2^-152`` per coordinate. For a release of n coordinates it is at most n times that.

*Why a proposal is safe.* The float z' is computed from the float u'. The nearest integer to ``z' scale`` is taken if
that product is farther from an edge than ``(2^-46 z' + 2^-51) scale``. This exceeds the error of the product, because:

- ``|u' - u| <= 2^-52 u`` (53 significant bits, and the bits beyond them). This moves a normal quantile by
  ``2^-52 u / (2 phi(z))``, Mills' ratio times ``2^-52``, hence by less than ``1.26 2^-52``, and a logarithm by
  ``2^-52``;
- AS 241 states an error of about 1e-16 for its exact rational functions; the tests bound it by ``2^-50``;
- their polynomials of degree 7 have positive coefficients and arguments. So Horner's rule is accurate to ``15 2^-53``
  in each polynomial, and their quotient, which takes two more operations, to ``32 2^-53 = 2^-48``;
- the argument ``r = 0.180625 - q^2`` is accurate to ``2^-54``, and the logarithmic derivative of a polynomial of
  positive coefficients is at most the largest ``i a_i / a_(i-1)``, here 43: ``2^-48``. In the tail,
  ``r = sqrt(-log(u / 2))`` is accurate to ``2^-51``, relative, and ``r / z dz/dr`` is below 2: ``2^-50``. A logarithm
  is accurate to 1 ulp;
- the product is rounded once: ``2^-53``.

The sum is below ``2^-46 z + 2^-51``. In the far tail, where u' may have fewer bits, every proposal is compared.

*The comparison.* ``P(|Z| <= x)`` is computed in fixed point with 448 bits. For the normal it is
``2 phi(x) sum x^(2n+1) / (1 3 5 ... (2n+1))``, whose terms are all positive. For Laplace it is ``1 - e^-x``. A term is
below ``2^191`` for x below 16.3, fewer than 1,000 terms are rounded once each, and the sum is multiplied by
``e^(-x^2/2)``: the error is below ``2^-230``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.keystream import (
    WORDS_PER_TILE,
    Further,
    SecretKey,
    Words,
    fill_exponentials,
    fill_normal_magnitudes,
    further_words,
    subkey,
    uniforms_of,
    words,
)

TILE = 1 << 12
"""Number of draws from one stream of random words. Another number would give other draws."""
LARGEST = 1 << 26
"""Largest squared scale for which every product in the integer arithmetic is below ``2^63``."""

_WORDS = 24 * TILE  # number of random words that are read for a tile; doubled if they do not suffice
MARGIN = 1000
"""Least number of unread words when a proposal begins. If a proposal exhausts them, the whole tile is drawn again."""
_FAR = 1 << 31  # a proposal this far in the tail is rejected: its exponent is above 500, and its square may overflow


def discrete_gaussians(key: SecretKey, *, start: int, stop: int, squared_scale: int) -> NDArray[np.int64]:
    """Return numbers ``start`` to ``stop - 1`` of the sequence of discrete Gaussian integers that a key determines.

    Parameters
    ----------
    key : SecretKey
        A separate key for each purpose: the draws of two scales under one key are dependent.
    start, stop : int
    squared_scale : int
        The parameter ``s^2``, from 1 to `LARGEST`. For small ``s^2`` the variance is slightly less than ``s^2``.
    """
    if not 1 <= squared_scale <= LARGEST:
        raise InvalidInput(
            f"squared_scale={squared_scale} must be from 1 to {LARGEST}, for exact arithmetic; use a coarser grid."
        )
    if not 0 <= start <= stop:
        raise InvalidInput(f"start={start} must be from 0 to stop={stop}; pass a range of draws.")
    drawn = np.empty(stop - start, np.int64)
    for tile in range(start // TILE, -(-stop // TILE)):
        first, last = max(start, tile * TILE), min(stop, (tile + 1) * TILE)
        of_tile = _tile(key, tile, squared_scale, size=last - tile * TILE)
        drawn[first - start : last - start] = of_tile[first - tile * TILE :]
    return drawn


def _tile(key: SecretKey, tile: int, squared_scale: int, *, size: int) -> NDArray[np.int64]:
    """Return the first ``size`` draws of a tile; each draw is the same for every ``size``."""
    drawn, count = np.empty(size, np.int64), _WORDS * size // TILE + 2 * MARGIN
    while not _fill(words(key, stream=tile, start=0, stop=count), squared_scale, math.isqrt(squared_scale) + 1, drawn):
        count *= 2
    return drawn


@njit(cache=True, nogil=True)
def _fill(source: NDArray[np.uint64], squared_scale: int, width: int, drawn: NDArray[np.int64]) -> bool:
    """Fill ``drawn`` with draws from the random words ``source``; return False if the words did not suffice."""
    at = np.zeros(1, np.int64)
    denominator = 2 * squared_scale * width * width
    for index in range(drawn.size):
        while True:
            if at[0] + MARGIN > source.size:
                return False
            proposal = _discrete_laplace(source, at, width)
            far = abs(proposal) * width - squared_scale
            if abs(far) < _FAR and _bernoulli_exp(source, at, far * far, denominator):
                drawn[index] = proposal
                break
    return bool(at[0] < source.size)


@njit(cache=True, nogil=True)
def _discrete_laplace(source: NDArray[np.uint64], at: NDArray[np.int64], width: int) -> int:
    """Draw x with probability proportional to ``exp(-|x| / width)``."""
    while True:
        low = _below(source, at, width)
        if not _bernoulli_exp_small(source, at, low, width):
            continue
        high = 0
        while _bernoulli_exp_small(source, at, 1, 1):
            high += 1
        magnitude = low + width * high
        is_negative = _below(source, at, 2) == 1
        if not (is_negative and magnitude == 0):
            return -magnitude if is_negative else magnitude


@njit(cache=True, nogil=True)
def _bernoulli_exp(source: NDArray[np.uint64], at: NDArray[np.int64], numerator: int, denominator: int) -> bool:
    """Return True with probability ``exp(-numerator / denominator)``."""
    for _ in range(numerator // denominator):
        if not _bernoulli_exp_small(source, at, 1, 1):
            return False
    return _bernoulli_exp_small(source, at, numerator % denominator, denominator)


@njit(cache=True, nogil=True)
def _bernoulli_exp_small(source: NDArray[np.uint64], at: NDArray[np.int64], numerator: int, denominator: int) -> bool:
    """Return True with probability ``exp(-numerator / denominator)``, for a ratio of at most 1.

    Toss coins of bias ratio / 1, ratio / 2, ... until the first failure. By the alternating series, the number of
    successes is even with that probability. After 300 coins (a chance of ``1 / 300!``) the next one counts as a
    failure.
    """
    count = 1
    while count < 300 and _below(source, at, denominator * count) < numerator:
        count += 1
    return count % 2 == 1


@njit(cache=True, nogil=True)
def _below(source: NDArray[np.uint64], at: NDArray[np.int64], bound: int) -> int:
    """Draw a uniform integer below a bound by rejection, from random 64-bit words; return 0 if no word is left."""
    size = np.uint64(bound)
    rest = (np.uint64(0) - size) % size  # 2^64 modulo the bound: words below it are rejected
    while at[0] < source.size:
        word = source[at[0]]
        at[0] += 1
        if word >= rest:
            return int(word % size)
    return 0


FINE = {2: 64, 6: 192}
"""For each allowed ``parts``: the squared scale of the fine draw divided by ``c^2``, where c is the factor of the
coarse draw. Other numbers would give other draws."""
WIDEST = {2: LARGEST * 2**20, 6: LARGEST * 2**18}
"""For each allowed ``parts``: the largest squared scale that can be drawn, limited by the scale of the fine draw."""


def drawable(squared_scale: int, *, parts: int = 2) -> int:
    """Return the least squared scale, at least ``squared_scale``, that `wide_discrete_gaussians` can draw.

    The result divided by ``part`` can be drawn too, for each ``part`` that divides ``parts``.
    """
    grain = parts * _coarseness(squared_scale, parts) ** 2
    found = -(-squared_scale // grain) * grain
    return found if found == squared_scale else drawable(found, parts=parts)


def wide_discrete_gaussians(
    key: SecretKey, *, size: int, squared_scale: int, part: int = 1, parts: int = 2
) -> NDArray[np.int64]:
    """Return ``size`` draws of a key from a discrete Gaussian, also for squared scales above `LARGEST`.

    Parameters
    ----------
    key : SecretKey
        A separate key for each purpose.
    size : int
    squared_scale : int
        The parameter ``s^2``, a value that `drawable` returns.
    part, parts : int
        The draws have the parameter ``s^2 / part``, where ``part`` divides ``parts``, and ``parts`` is 2 or 6.
    """
    if squared_scale != (found := drawable(squared_scale, parts=parts)):
        raise InvalidInput(f"squared_scale={squared_scale} is not drawable; use {found}.")
    coarseness, smooth = _coarseness(squared_scale, parts), FINE[parts]
    if coarseness == 1:
        return discrete_gaussians(key, start=0, stop=size, squared_scale=squared_scale // part)
    coarse, fine = (subkey(key.secret, label=label, info=b"") for label in ("coarse", "fine"))
    scale = (squared_scale // coarseness**2 - smooth) // part
    drawn = discrete_gaussians(coarse, start=0, stop=size, squared_scale=scale)
    drawn *= coarseness
    drawn += discrete_gaussians(fine, start=0, stop=size, squared_scale=smooth * coarseness**2 // part)
    return drawn


def _coarseness(squared_scale: int, parts: int) -> int:
    """Return the factor of the coarse draw: the least power of two c with ``s^2 <= c^2 LARGEST``."""
    if not 1 <= squared_scale <= WIDEST[parts]:
        most = math.log2(WIDEST[parts])
        raise InvalidInput(f"squared_scale={squared_scale} must be from 1 to 2^{most:.0f}; use a coarser grid.")
    coarseness = 1
    while coarseness**2 * LARGEST < squared_scale:
        coarseness *= 2
    return coarseness


DISTANCE = 2.0**-152
"""Bound on the total variation distance of a sampled coordinate from the ideal distribution, for scales up to 2^30."""

UNIFORM_BITS = 191
_PRECISION = 448
_ROOT_2_OVER_PI = int(
    "cc42299ea1b284687e59e2805d5c717fa7053e60a24e0db1808e369004c73a5d3bf158aa88fa7b6e47eba75766e9d11bd6284ef2e17c2a26",
    16,
)  # times 2^448
_HALVINGS = 16


@dataclass(frozen=True, slots=True)
class Standard:
    """The functions from which variates Z of a standard distribution are computed and rounded.

    ``fill`` replaces uniforms by magnitudes ``|Z|`` in floats. ``mass_within(x)`` is ``P(|Z| <= x)`` in fixed point.
    Variates beyond the magnitude ``farthest`` are always rounded by exact comparisons.
    """

    fill: Callable[[NDArray[np.float64], NDArray[np.int64]], None]
    mass_within: Callable[[int], int]
    farthest: float

    def nearest(self, key: SecretKey, *, start: int, scales: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each scale, the integer nearest to ``scale * Z``, with variates Z of a key from ``start`` on.

        Parameters
        ----------
        key : SecretKey
            A key used for these draws only.
        start : int
        scales : float64 array
            The scales, positive and at most 2^30.

        Returns
        -------
        float64 array of scales.size
            Whole numbers, below 2^38.
        """
        made = np.empty(scales.size)
        for first in range(0, scales.size, WORDS_PER_TILE):  # pieces that fit into the processor's cache
            last = min(first + WORDS_PER_TILE, scales.size)
            high = words(key, stream=0, start=start + first, stop=start + last)
            made[first:last] = self.of_words(high, further_words(key, start=start + first), scales[first:last])
        return made

    def of_words(self, high: Words, further: Further, scales: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert three random words to an integer: the last bit of the first is the sign, the rest the magnitude."""
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
        """Return the magnitude of one integer by exact comparisons; two suffice if ``proposed`` is correct."""
        above = 2 * bits + 1  # in units of 2^-192
        within = ((1 << (UNIFORM_BITS + 1)) - above) << (_PRECISION - UNIFORM_BITS - 1)
        numerator, denominator = scale.as_integer_ratio()

        def is_passed(edge: int) -> bool:
            """Return whether the variate is above ``(edge + 1/2) / scale``."""
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
    """Round ``variates * scales``; count products that floats may round wrongly, and mark them in ``doubtful``."""
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
    """Return ``P(|Z| <= x)`` for a standard normal Z, in fixed point with 448 fractional bits."""
    square = x * x >> _PRECISION
    term = total = x
    odd = 1
    while term:
        odd += 2
        term = (term * square >> _PRECISION) // odd
        total += term
    return (_ROOT_2_OVER_PI * _exp_minus(square >> 1) >> _PRECISION) * total >> _PRECISION


def _laplace_mass_within(x: int) -> int:
    """Return ``P(|Z| <= x)`` for a standard Laplace variate Z, in fixed point with 448 fractional bits."""
    return (1 << _PRECISION) - _exp_minus(x)


def _exp_minus(x: int) -> int:
    """Return ``e^-x`` in fixed point: the Taylor series gives ``e^(-x / 2^16)``, which is then squared 16 times."""
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
