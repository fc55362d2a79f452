"""Single words of a stream, at places far apart: the words of `dpca_tasks.noise.keystream`, a block of ChaCha20 each.

>>> import numpy as np
>>> from dpca_tasks.noise.keystream import subkey, words
>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> made = words_at(key, stream=1, places=np.array([3, 20_000]))
>>> bool((made == words(key, stream=1, start=0, stop=20_001)[[3, 20_000]]).all())
True
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.noise.keystream import WORDS_PER_BLOCK, WORDS_PER_TILE, SecretKey

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
