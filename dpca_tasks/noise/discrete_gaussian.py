r"""Keyed draws from discrete Gaussians, narrow and wide, with integer arithmetic alone.

Keyed draws from the discrete Gaussian on the integers, with integer arithmetic alone.

The distribution of parameter ``s^2`` gives an integer x the probability proportional to ``exp(-x^2 / (2 s^2))``. Every
decision compares integers, so what is drawn is that distribution and not a float's idea of it, given fair words; ours
are those of a ChaCha20 stream. A tile of `TILE` draws has a stream of its own: any tile can be drawn by itself.

A proposal so far out that it is accepted with probability below ``exp(-500)`` is rejected outright.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"share")
>>> drawn = discrete_gaussians(key, start=0, stop=6, squared_scale=100)
>>> bool((discrete_gaussians(key, start=2, stop=6, squared_scale=100) == drawn[2:]).all())
True

References
----------
Canonne, Kamath and Steinke (2020), The discrete Gaussian for differential privacy, Algorithms 1 to 3.

Draws from discrete Gaussians too wide for the arithmetic of one draw: a coarse draw, smoothed by a fine one.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"share")
>>> wide_discrete_gaussians(key, size=3, squared_scale=drawable(2**40 + 1)).shape
(3,)

Notes
-----
Let y and z be discrete Gaussians of parameters u and v, and ``x = c y + z``. By completing the square,

    y^2 / 2u + (x - c y)^2 / 2v = x^2 / 2(c^2 u + v) + (y - m)^2 / 2r^2,    r^2 = u v / (c^2 u + v),

with m a multiple of x. Summed over all integers y, the second term gives the same for every m up to a factor
``1 + 4 exp(-2 pi^2 r^2)`` by Poisson summation. So x is the discrete Gaussian of parameter ``c^2 u + v`` up to that
factor. Here ``v = FINE[parts] c^2``, and u is above `LARGEST` / 5: also where both are divided by ``parts``, v is at
least ``32 c^2`` and u above `LARGEST` / 30, so r^2 is above 31, and the factor below ``1 + 1e-260``.

References
----------
Micciancio and Walter (2017), Gaussian sampling over the integers: efficient, generic, constant-time, Section 4.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.keystream import SecretKey, subkey, words

TILE = 1 << 12
"""Draws of one stream. It is part of the definition: another value gives other draws."""
LARGEST = 1 << 26
"""The largest squared scale: up to it no product of the arithmetic reaches ``2^63``."""

_WORDS = 24 * TILE  # of a tile, usually enough; if not, twice as many are read
MARGIN = 1000
"""Words left when a proposal begins. Should one take more, the tile ends without any left, and is drawn again."""
_FAR = 1 << 31  # beyond it the square of a distance does not fit, and its exponent is above 500


def discrete_gaussians(key: SecretKey, *, start: int, stop: int, squared_scale: int) -> NDArray[np.int64]:
    """Return the draws ``start`` to ``stop`` of a key.

    Parameters
    ----------
    key : SecretKey
        One for each purpose: the draws of two scales under one key are dependent.
    start, stop : int
    squared_scale : int
        The parameter ``s^2``, from 1 to `LARGEST`; the variance is slightly less than it for small values.
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
    """Return the first draws of a tile, which are the same however many are drawn."""
    drawn, count = np.empty(size, np.int64), _WORDS * size // TILE + 2 * MARGIN
    while not _fill(words(key, stream=tile, start=0, stop=count), squared_scale, math.isqrt(squared_scale) + 1, drawn):
        count *= 2
    return drawn


@njit(cache=True, nogil=True)
def _fill(source: NDArray[np.uint64], squared_scale: int, width: int, drawn: NDArray[np.int64]) -> bool:
    """Fill a tile from words; return whether they were enough."""
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

    The number of successes before the first failure of coins of bias ratio / 1, ratio / 2, ... is even with that
    probability, by the alternating series. After 300 coins (a chance of ``1 / 300!``) the next is taken for a failure.
    """
    count = 1
    while count < 300 and _below(source, at, denominator * count) < numerator:
        count += 1
    return count % 2 == 1


@njit(cache=True, nogil=True)
def _below(source: NDArray[np.uint64], at: NDArray[np.int64], bound: int) -> int:
    """Draw a uniform integer from 0 up to a bound, by rejection; 0 once the words are used up."""
    size = np.uint64(bound)
    rest = (np.uint64(0) - size) % size  # 2^64 modulo the bound: words below it are rejected
    while at[0] < source.size:
        word = source[at[0]]
        at[0] += 1
        if word >= rest:
            return int(word % size)
    return 0


FINE = {2: 64, 6: 192}
"""The squared scale of the fine draw, in squared steps of the coarse one, for parameters that can be divided by two, or
by two and three. It is part of the definition."""
WIDEST = {2: LARGEST * 2**20, 6: LARGEST * 2**18}
"""The largest squared scale: up to it the fine draw is one of the arithmetic."""


def drawable(squared_scale: int, *, parts: int = 2) -> int:
    """Return the least squared scale, from this one on, of which all parts can be drawn: 1, and 1/2 or 1/3 and 1/6."""
    grain = parts * _coarseness(squared_scale, parts) ** 2
    found = -(-squared_scale // grain) * grain
    return found if found == squared_scale else drawable(found, parts=parts)


def wide_discrete_gaussians(
    key: SecretKey, *, size: int, squared_scale: int, part: int = 1, parts: int = 2
) -> NDArray[np.int64]:
    """Return the draws of a key.

    Parameters
    ----------
    key : SecretKey
        One for each purpose.
    size : int
    squared_scale : int
        The parameter ``s^2``, one that `drawable` returns.
    part, parts : int
        The parameter is ``s^2 / part``, where ``part`` divides ``parts``, 2 or 6.
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
    """Return the least power of two c such that the coarse draw of ``s^2`` is one of the arithmetic."""
    if not 1 <= squared_scale <= WIDEST[parts]:
        most = math.log2(WIDEST[parts])
        raise InvalidInput(f"squared_scale={squared_scale} must be from 1 to 2^{most:.0f}; use a coarser grid.")
    coarseness = 1
    while coarseness**2 * LARGEST < squared_scale:
        coarseness *= 2
    return coarseness
