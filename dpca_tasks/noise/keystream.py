"""Secret keys, their random words, and keyed coins, uniforms, normal and Laplace variates.

*Keys and words.* Word ``i`` of a stream is a function of the key, the number of the stream and ``i`` only: any process
can compute any range, in any order and repeatedly. The words are ChaCha20 (RFC 8439), so without the key they cannot be
distinguished from fair coin tosses. Keys for different purposes are derived from one secret by labelled HKDF (RFC
5869).

>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> key
SecretKey(...)
>>> bool((words(key, stream=0, start=5, stop=9) == words(key, stream=0, start=0, stop=9)[5:]).all())
True

*Scattered words.* `words_at` computes single words of a stream, each from one block of ChaCha20. They equal the words
that `words` returns.

>>> import numpy as np
>>> from dpca_tasks.noise.keystream import subkey, words
>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> made = words_at(key, stream=1, places=np.array([3, 20_000]))
>>> bool((made == words(key, stream=1, start=0, stop=20_001)[[3, 20_000]]).all())
True

*Coins and uniforms.* Keyed uniforms have full relative precision near zero.

A uniform of 53 random bits is a multiple of 2^-53, so the far tail of a distribution made from it has holes: integers
on a fine grid that the noise can never produce, which distinguish two datasets. Here ``u`` comes from 191 random bits
and has the 53 significant bits of a float64 at every magnitude down to 2^-138. Near 1 it is still a multiple of 2^-53,
and quantiles are rounded. This is enough for accept-reject tests and for directions on a coarse grid. It is not enough
for integers on a fine grid, which `dpca_tasks.noise.discrete_gaussian` decides from all bits.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="coins", info=b"step 0")
>>> coins(key, start=0, stop=8, rate=1.0).all()
np.True_

*Normal and Laplace variates* are computed by inversion: variate ``i`` depends only on the key and ``i``.

The magnitude of a variate Z is a quantile of ``|Z|`` at a keyed uniform ``u``: a small ``u`` gives a large magnitude.
The sign is a separate bit. The quantiles use ``+ - * / sqrt`` and the bits of a float64, compiled without fast-math,
mathematical library or fused operations. So a key gives the same bits on every machine.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> bool((normals(key, start=3, stop=6) == normals(key, start=0, stop=9)[3:6]).all())
True
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput

KEY_BYTES = 32
WORDS_PER_TILE = 1 << 14
"""Number of words under one nonce. It is part of the definition of a stream: another value gives other words."""

WORDS_PER_BLOCK = 8
_ZEROS = bytes(8 * WORDS_PER_TILE)


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """A ChaCha20 key that can be pickled and whose repr hides the secret."""

    secret: bytes

    def __post_init__(self) -> None:
        """Check the length."""
        if len(self.secret) != KEY_BYTES:
            raise InvalidInput(f"a key must have {KEY_BYTES} bytes, not {len(self.secret)}; derive it with subkey(...)")

    def __repr__(self) -> str:
        """Return the type name only, so that no log shows the key."""
        return "SecretKey(...)"


def subkey(key: bytes, *, label: str, info: bytes) -> SecretKey:
    """Derive the key for one purpose.

    Parameters
    ----------
    key : bytes of length 32
        The secret of a release.
    label : str
        The purpose, such as ``"noise"`` or ``"coins"``.
    info : bytes
        The object of the purpose, such as the digest of everything that determines the answer.

    Returns
    -------
    SecretKey
        Equal exactly when all three arguments are equal (the label is length-prefixed, so ``("a", b"bc")``
        and ``("ab", b"c")`` differ), and otherwise unrelated.
    """
    name = label.encode()
    context = struct.pack("<I", len(name)) + name + info
    return SecretKey(HKDF(SHA256(), KEY_BYTES, salt=None, info=context).derive(SecretKey(key).secret))


def words(key: SecretKey, *, stream: int, start: int, stop: int) -> NDArray[np.uint64]:
    """Return the random 64-bit words number ``start`` to ``stop - 1`` of one stream of a key.

    Parameters
    ----------
    key : SecretKey
    stream : int
        The number of one of the key's independent streams, ``0 .. 2**32 - 1``.
    start, stop : int
        The range, ``0 <= start <= stop``.

    Returns
    -------
    ndarray of uint64 of shape (stop - start,)

    Raises
    ------
    InvalidInput
        If the range is invalid.

    Notes
    -----
    Tile ``t`` holds words ``t * WORDS_PER_TILE`` onwards. Its nonce is the stream in 4 bytes and ``t`` in 8,
    both little-endian; the block counter starts at 0 and stays below 2**11, so no two tiles share a block.
    """
    if not 0 <= start <= stop:
        raise InvalidInput(f"the range {start}:{stop} must satisfy 0 <= start <= stop; pass such a range")
    lead = start % WORDS_PER_BLOCK
    made = np.empty(lead + stop - start, np.dtype("<u8"))
    room = memoryview(made).cast("B")
    at = start - lead
    while at < stop:
        tile, first = divmod(at, WORDS_PER_TILE)
        count = min(WORDS_PER_TILE - first, stop - at)
        nonce = struct.pack("<IIQ", first // WORDS_PER_BLOCK, stream, tile)
        cipher = Cipher(algorithms.ChaCha20(key.secret, nonce), mode=None).encryptor()
        cipher.update_into(memoryview(_ZEROS)[: 8 * count], room[: 8 * count])
        room = room[8 * count :]
        at += count
    return made[lead:].astype(np.uint64, copy=False)


_LANES = 16
"""Number of blocks computed at a time."""
_DOUBLE_ROUNDS = 10
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")


def words_at(key: SecretKey, *, stream: int, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the words of one stream of a key at the given indices ``places``, which must not be negative."""
    known = np.concatenate([_CONSTANTS, np.frombuffer(key.secret, "<u4")]).astype(np.uint32)
    made = np.empty(places.size, np.uint64)
    _fill(known, np.uint32(stream), places, made)
    return made


@njit(cache=True, nogil=True)
def _fill(known: NDArray[np.uint32], stream: np.uint32, places: NDArray[np.int64], made: NDArray[np.uint64]) -> None:
    """Compute the ChaCha20 block that contains each place (RFC 8439, section 2.3), and store its word in ``made``."""
    first, state = np.zeros((16, _LANES), np.uint32), np.empty((16, _LANES), np.uint32)
    for row in range(known.size):
        first[row] = known[row]
    first[13] = stream
    for begin in range(0, places.size, _LANES):
        count = min(_LANES, places.size - begin)
        for lane in range(count):
            tile, within = divmod(places[begin + lane], WORDS_PER_TILE)
            first[12, lane] = np.uint32(within // WORDS_PER_BLOCK)
            first[14, lane] = np.uint32(tile & 0xFFFFFFFF)
            first[15, lane] = np.uint32(tile >> 32)
        state[:] = first
        for _ in range(_DOUBLE_ROUNDS):
            for column in range(4):
                _quarter(state[column], state[4 + column], state[8 + column], state[12 + column])
            for column in range(4):
                others = (4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
                _quarter(state[column], state[others[0]], state[others[1]], state[others[2]])
        for lane in range(count):
            row = 2 * (places[begin + lane] % WORDS_PER_BLOCK)
            low, high = state[row, lane] + first[row, lane], state[row + 1, lane] + first[row + 1, lane]
            made[begin + lane] = np.uint64(np.uint32(low)) | (np.uint64(np.uint32(high)) << np.uint64(32))


@njit(cache=True, nogil=True)
def _quarter(a: NDArray[np.uint32], b: NDArray[np.uint32], c: NDArray[np.uint32], d: NDArray[np.uint32]) -> None:
    """Apply the quarter round of ChaCha20 to every lane, which is one of several blocks computed at a time."""
    for lane in range(_LANES):
        p, q, r, s = a[lane], b[lane], c[lane], d[lane]
        p = np.uint32(p + q)
        s = _rotated(s ^ p, 16)
        r = np.uint32(r + s)
        q = _rotated(q ^ r, 12)
        p = np.uint32(p + q)
        s = _rotated(s ^ p, 8)
        r = np.uint32(r + s)
        q = _rotated(q ^ r, 7)
        a[lane], b[lane], c[lane], d[lane] = p, q, r, s


@njit(inline="always")
def _rotated(word: np.uint32, by: int) -> np.uint32:
    word = np.uint32(word)
    return np.uint32(np.uint32(word << np.uint32(by)) | np.uint32(word >> np.uint32(32 - by)))


RESOLUTION = 2.0**-138
"""Uniforms ``u`` below this value have fewer than 53 random bits."""
SMALL = 2.0**-10
"""Uniforms ``u`` from this value on have 53 significant bits in their first random word."""

type Words = NDArray[np.uint64]
type Further = Callable[[NDArray[np.int64]], tuple[Words, Words]]

_ONE = np.uint64(1)
_TOP_BIT = np.uint64(63)
_NORMAL_FORM = np.uint64(1 << 62)


def coins(key: SecretKey, *, start: int, stop: int, rate: float) -> NDArray[np.bool_]:
    """Return a random boolean (coin) for each index of a range, True with probability ``rate``.

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
    """Return a function that takes places, counted from ``start``, and returns the words of streams 1 and 2 there."""
    return lambda places: (
        words_at(key, stream=1, places=start + places),
        words_at(key, stream=2, places=start + places),
    )


def uniforms_of(high: Words, further: Further) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute uniforms ``u`` and signs from random words.

    The last bit of the first word gives the sign, and its other 63 bits give ``u``. For a small ``u``, two further
    words give more bits.

    Parameters
    ----------
    high : uint64 array
    further : callable
        Returns the second and the third words for given indices of `high`. On average it is called for one index in a
        thousand.
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
    """Compute ``u`` and signs from first words; list and count the places where ``u`` has too few significant bits."""
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
    """Compute ``u`` at the given places of `high` from the bits of all three words."""
    for j in range(places.size):
        top, second, third = high[places[j]] >> _ONE, middle[j], low[j]
        step = 2.0**-63
        while top < _NORMAL_FORM and step > 2.0**-191:
            top = (top << _ONE) | (second >> _TOP_BIT)
            second = (second << _ONE) | (third >> _TOP_BIT)
            third = third << _ONE
            step *= 0.5
        uniforms[places[j]] = np.float64(np.int64(top | _ONE)) * step


_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_SQRT2 = 1.4142135623730951
_MANTISSA = np.int64((1 << 52) - 1)
_TAIL = 0.15
"""The least ``u`` for which `_central_magnitude` is used."""
_FAR = 5.0
"""The largest ``r`` for which `_tail_magnitude` is used."""


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
    for first in range(start, stop, WORDS_PER_TILE):  # pieces that fit into the processor's cache
        last = min(first + WORDS_PER_TILE, stop)
        magnitudes, signs = signed_uniforms(key, start=first, stop=last)
        fill(magnitudes, magnitudes.view(np.int64))
        np.multiply(magnitudes, signs, out=made[first - start : last - start])
    return made


@njit(cache=True, nogil=True)
def _minus_log(x: float, bits: int) -> float:
    """Return ``-log(x)`` for a normal (not subnormal) float64 x with these bits (method of FreeBSD's ``e_log.c``)."""
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

    Tails are processed separately after the other values, so that either loop can be vectorised.

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
    """Return ``-ndtri(u / 2)`` for ``u`` of at least 0.15."""
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
    """Return ``-ndtri(u / 2)``, given ``r = sqrt(-log(u / 2))`` of at most 5."""
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
    """Return ``-ndtri(u / 2)``, given ``r = sqrt(-log(u / 2))`` above 5."""
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
