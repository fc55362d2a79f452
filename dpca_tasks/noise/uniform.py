"""Keyed coins, and keyed uniforms that keep full relative precision near zero.

A uniform of 53 random bits is a multiple of 2^-53, so the far tail of a distribution made from it has holes: integers
on a fine grid that the noise can never produce, which distinguish two datasets. Here ``u`` comes from 191 random bits
and has the 53 significant bits of a float64 at every magnitude down to 2^-138. Near 1 it is still a multiple of 2^-53,
and quantiles are rounded. This is enough for accept-reject tests and for directions on a coarse grid, but not for
integers on a fine one, which `dpca_tasks.noise.nearest_integers` decides from all bits.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="coins", info=b"step 0")
>>> coins(key, start=0, stop=8, rate=1.0).all()
np.True_
"""

import math
from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.keystream import SecretKey, words
from dpca_tasks.noise.scattered_words import words_at

RESOLUTION = 2.0**-138
"""The value below which ``u`` has fewer than 53 random bits."""
SMALL = 2.0**-10
"""The value from which 53 bits of a first word are significant."""

type Words = NDArray[np.uint64]
type Further = Callable[[NDArray[np.int64]], tuple[Words, Words]]

_ONE = np.uint64(1)
_TOP_BIT = np.uint64(63)
_NORMAL_FORM = np.uint64(1 << 62)


def coins(key: SecretKey, *, start: int, stop: int, rate: float) -> NDArray[np.bool_]:
    """Toss one coin for each index of a range.

    Parameters
    ----------
    key : SecretKey
        A key used for these coins only.
    start, stop : int
        The range of indices (the ordinals of records in their snapshot).
    rate : float
        The probability of True, at least 2**-64 and at most 1.

    Returns
    -------
    ndarray of bool of shape (stop - start,)

    Guarantees
    ----------
    The probability is exactly ``floor(rate * 2**64) / 2**64``: at most the rate (a lower sampling rate costs no more
    privacy), and equal to it when the rate is at least 2**-12.
    """
    if not 2.0**-64 <= rate <= 1.0:
        raise InvalidInput(f"rate={rate} must be between 2**-64 and 1; choose such a sampling rate")
    last = math.floor(math.ldexp(rate, 64)) - 1
    return words(key, stream=0, start=start, stop=stop) <= np.uint64(last)


def signed_uniforms(key: SecretKey, *, start: int, stop: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return uniforms in ``(0, 1]`` and independent signs for each index of a range.

    Returns
    -------
    uniforms : ndarray of float64 of shape (stop - start,)
    signs : ndarray of float64 of shape (stop - start,)
        Each -1.0 or 1.0.
    """
    return uniforms_of(words(key, stream=0, start=start, stop=stop), further_words(key, start=start))


def further_words(key: SecretKey, *, start: int) -> Further:
    """Return what finds the words of the second and the third stream at some places from ``start`` on."""
    return lambda places: (
        words_at(key, stream=1, places=start + places),
        words_at(key, stream=2, places=start + places),
    )


def uniforms_of(high: Words, further: Further) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute ``u`` from 63 bits of a word, and of two further ones where that is small, and a sign from its last bit.

    Parameters
    ----------
    high : uint64 array
    further : callable
        Gives the second and the third words of some places of `high`: one in a thousand is asked for.
    """
    uniforms, signs = np.empty(high.size), np.empty(high.size)
    places = np.empty(high.size + 1, np.int64)
    places = places[: _fill_from_first(high, uniforms, signs, places)]
    if places.size:
        _refill_small(high, *further(places), places, uniforms)
    return uniforms, signs


@njit(cache=True, nogil=True)
def _fill_from_first(
    high: Words, uniforms: NDArray[np.float64], signs: NDArray[np.float64], small: NDArray[np.int64]
) -> int:
    """Fill what one word determines; note and count the places where fewer than 53 bits are significant."""
    for i in range(high.size):
        signs[i] = 1.0 - 2.0 * np.float64(np.int64(high[i] & _ONE))
        uniforms[i] = np.float64(np.int64(high[i] >> _ONE)) * 2.0**-63
    count = 0
    for i in range(high.size):
        small[count] = i
        count += uniforms[i] < SMALL
    return count


@njit(cache=True, nogil=True)
def _refill_small(
    high: Words, middle: Words, low: Words, places: NDArray[np.int64], uniforms: NDArray[np.float64]
) -> None:
    """Compute ``u`` at some places of `high` from all bits."""
    for j in range(places.size):
        top, second, third = high[places[j]] >> _ONE, middle[j], low[j]
        step = 2.0**-63
        while top < _NORMAL_FORM and step > 2.0**-191:
            top = (top << _ONE) | (second >> _TOP_BIT)
            second = (second << _ONE) | (third >> _TOP_BIT)
            third = third << _ONE
            step *= 0.5
        uniforms[places[j]] = np.float64(np.int64(top | _ONE)) * step
