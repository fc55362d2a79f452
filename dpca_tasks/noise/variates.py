"""Keyed standard normal and Laplace variates by inversion: variate ``i`` depends only on the key and ``i``.

A magnitude is a quantile of the folded distribution at a keyed uniform ``u`` of `dpca_tasks.noise.keystream`: a small
``u`` gives a large magnitude; the sign is a separate bit. The quantiles use ``+ - * / sqrt`` and the bits of a float64,
compiled without fast-math, mathematical library or fused operations, so a key gives the same bits on every machine.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> bool((normals(key, start=3, stop=6) == normals(key, start=0, stop=9)[3:6]).all())
True
"""

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.noise.keystream import WORDS_PER_TILE, SecretKey, signed_uniforms

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_SQRT2 = 1.4142135623730951
_MANTISSA = np.int64((1 << 52) - 1)
_TAIL = 0.15
"""The least ``u`` of the central branch."""
_FAR = 5.0
"""The largest ``r`` of the near tail."""


def normals(key: SecretKey, *, start: int, stop: int) -> NDArray[np.float64]:
    """Return standard normals ``start`` to ``stop - 1`` of a key.

    Returns
    -------
    ndarray of float64 of shape (stop - start,)

    Guarantees
    ----------
    ``|z| = -ndtri(u / 2)`` to a relative error below 1e-15, for ``u`` in ``[2**-191, 1]``; so ``|z| < 16.1``.
    """
    return _signed(key, start, stop, fill_normal_magnitudes)


def laplaces(key: SecretKey, *, start: int, stop: int) -> NDArray[np.float64]:
    """Return Laplace variates of scale 1, ``start`` to ``stop - 1`` of a key.

    Returns
    -------
    ndarray of float64 of shape (stop - start,)

    Guarantees
    ----------
    The magnitude is ``-log(u)`` to a relative error below 1e-15, for ``u`` in ``[2**-191, 1]``; so it is below 132.4.
    """
    return _signed(key, start, stop, fill_exponentials)


def _signed(
    key: SecretKey, start: int, stop: int, fill: Callable[[NDArray[np.float64], NDArray[np.int64]], None]
) -> NDArray[np.float64]:
    made = np.empty(max(stop - start, 0))
    for first in range(start, stop, WORDS_PER_TILE):  # pieces fit into the processor's cache
        last = min(first + WORDS_PER_TILE, stop)
        magnitudes, signs = signed_uniforms(key, start=first, stop=last)
        fill(magnitudes, magnitudes.view(np.int64))
        np.multiply(magnitudes, signs, out=made[first - start : last - start])
    return made


@njit(cache=True, nogil=True)
def _minus_log(x: float, bits: int) -> float:
    """Return ``-log(x)`` of a normal float64 with the given bits (the method of FreeBSD's ``e_log.c``)."""
    exponent = (bits >> 52) - 1023
    scaled = 1.0 + np.float64(bits & _MANTISSA) * 2.0**-52
    if scaled > _SQRT2:
        scaled *= 0.5
        exponent += 1
    f = scaled - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half_square = 0.5 * f * f
    k = np.float64(exponent)
    return ((half_square - (s * (half_square + (even + odd)) + k * _LN2_LOW)) - f) - k * _LN2_HIGH


@njit(cache=True, nogil=True)
def fill_exponentials(u: NDArray[np.float64], bits: NDArray[np.int64]) -> None:
    """Replace each ``u`` in ``(0, 1]`` by ``-log(u)``; ``bits`` is a view of the same memory."""
    for i in range(u.size):
        u[i] = _minus_log(u[i], bits[i])


@njit(cache=True, nogil=True, error_model="numpy")
def fill_normal_magnitudes(u: NDArray[np.float64], bits: NDArray[np.int64]) -> None:
    """Replace each ``u`` in ``(0, 1]`` by ``-ndtri(u / 2)``; ``bits`` is a view of the same memory.

    Tails are set apart first, so that either loop takes several at once.

    References
    ----------
    M. J. Wichura, Algorithm AS 241: the percentage points of the normal distribution, Applied Statistics 37
    (1988), routine PPND16. Its tail branch is fitted for probabilities down to 1e-316.
    """
    places, r = np.empty(u.size + 1, np.int64), np.empty(u.size)
    count = 0
    for i in range(u.size):
        places[count] = i
        count += u[i] < _TAIL
    for j in range(count):
        r[j] = u[places[j]]
    tail_bits = bits[places[:count]]
    for j in range(count):
        r[j] = np.sqrt(_minus_log(r[j], tail_bits[j]) + 0.6931471805599453)
    for i in range(u.size):
        u[i] = _central_magnitude(u[i])
    for j in range(count):
        u[places[j]] = _tail_magnitude(r[j]) if r[j] <= _FAR else _far_magnitude(r[j])


@njit(cache=True, nogil=True, error_model="numpy")
def _central_magnitude(u: float) -> float:
    """Return ``-ndtri(u / 2)`` of ``u`` from .15 on."""
    q = 0.5 - 0.5 * u
    r = 0.180625 - q * q
    above = 2.5090809287301226727e3
    above = above * r + 3.3430575583588128105e4
    above = above * r + 6.7265770927008700853e4
    above = above * r + 4.5921953931549871457e4
    above = above * r + 1.3731693765509461125e4
    above = above * r + 1.9715909503065514427e3
    above = above * r + 1.3314166789178437745e2
    above = above * r + 3.3871328727963666080e0
    below = 5.2264952788528545610e3
    below = below * r + 2.8729085735721942674e4
    below = below * r + 3.9307895800092710610e4
    below = below * r + 2.1213794301586595867e4
    below = below * r + 5.3941960214247511077e3
    below = below * r + 6.8718700749205790830e2
    below = below * r + 4.2313330701600911252e1
    below = below * r + 1.0
    return q * above / below


@njit(cache=True, nogil=True, error_model="numpy")
def _tail_magnitude(r: float) -> float:
    """Return ``-ndtri(u / 2)`` from ``r = sqrt(-log(u / 2))``, up to 5."""
    r -= 1.6
    above = 7.7454501427834140764e-4
    above = above * r + 2.27238449892691845833e-2
    above = above * r + 2.41780725177450611770e-1
    above = above * r + 1.27045825245236838258e0
    above = above * r + 3.64784832476320460504e0
    above = above * r + 5.76949722146069140550e0
    above = above * r + 4.63033784615654529590e0
    above = above * r + 1.42343711074968357734e0
    below = 1.05075007164441684324e-9
    below = below * r + 5.47593808499534494600e-4
    below = below * r + 1.51986665636164571966e-2
    below = below * r + 1.48103976427480074590e-1
    below = below * r + 6.89767334985100004550e-1
    below = below * r + 1.67638483018380384940e0
    below = below * r + 2.05319162663775882187e0
    below = below * r + 1.0
    return above / below


@njit(cache=True, nogil=True, error_model="numpy")
def _far_magnitude(r: float) -> float:
    """Return ``-ndtri(u / 2)`` from ``r = sqrt(-log(u / 2))``, beyond 5."""
    r -= 5.0
    above = 2.01033439929228813265e-7
    above = above * r + 2.71155556874348757815e-5
    above = above * r + 1.24266094738807843860e-3
    above = above * r + 2.65321895265761230930e-2
    above = above * r + 2.96560571828504891230e-1
    above = above * r + 1.78482653991729133580e0
    above = above * r + 5.46378491116411436990e0
    above = above * r + 6.65790464350110377720e0
    below = 2.04426310338993978564e-15
    below = below * r + 1.42151175831644588870e-7
    below = below * r + 1.84631831751005468180e-5
    below = below * r + 7.86869131145613259100e-4
    below = below * r + 1.48753612908506148525e-2
    below = below * r + 1.36929880922735805310e-1
    below = below * r + 5.99832206555887937690e-1
    below = below * r + 1.0
    return above / below
