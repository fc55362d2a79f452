"""Secret keys, their random words, and keyed coins and uniforms.

Secret keys, and the random words that they determine.

Word ``i`` of a stream is a function of the key, the number of the stream and ``i`` only: any process can compute any
range, in any order and repeatedly. The words are ChaCha20 (RFC 8439), so without the key they cannot be distinguished
from fair coin tosses. Keys for different purposes are derived from one secret by labelled HKDF (RFC 5869).

>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> key
SecretKey(...)
>>> bool((words(key, stream=0, start=5, stop=9) == words(key, stream=0, start=0, stop=9)[5:]).all())
True

Single words of a stream, at places far apart: the words of `dpca_tasks.noise.keystream`, a block of ChaCha20 each.

>>> import numpy as np
>>> from dpca_tasks.noise.keystream import subkey, words
>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> made = words_at(key, stream=1, places=np.array([3, 20_000]))
>>> bool((made == words(key, stream=1, start=0, stop=20_001)[[3, 20_000]]).all())
True

Keyed coins, and keyed uniforms that keep full relative precision near zero.

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
"""The number of words under one nonce. It is part of the definition of a stream: another value gives other words."""

WORDS_PER_BLOCK = 8
_ZEROS = bytes(8 * WORDS_PER_TILE)


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """A ChaCha20 key that pickles as usual and whose repr is blank."""

    secret: bytes

    def __post_init__(self) -> None:
        """Check the length."""
        if len(self.secret) != KEY_BYTES:
            raise InvalidInput(f"a key of {len(self.secret)} bytes must have {KEY_BYTES}; derive it with subkey(...)")

    def __repr__(self) -> str:
        """Show the type and nothing else."""
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
    """Return words ``start`` to ``stop - 1`` of one stream of a key.

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
"""Blocks at a time."""
_DOUBLE_ROUNDS = 10
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")


def words_at(key: SecretKey, *, stream: int, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the words of one stream of a key at some places, each not negative."""
    known = np.concatenate([_CONSTANTS, np.frombuffer(key.secret, "<u4")]).astype(np.uint32)
    made = np.empty(places.size, np.uint64)
    _fill(known, np.uint32(stream), places, made)
    return made


@njit(cache=True, nogil=True)
def _fill(known: NDArray[np.uint32], stream: np.uint32, places: NDArray[np.int64], made: NDArray[np.uint64]) -> None:
    """Compute one block a place (RFC 8439, section 2.3), several at once, and take one word of each."""
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
    """Take a quarter round of every lane."""
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
