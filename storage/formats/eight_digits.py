"""Read up to eight digits of text at once, as the bytes of one 64-bit word, in a compiled loop.

The first byte of the text is the lowest of the word, on every machine.

>>> number, bits = leading_digits(load_eight(np.frombuffer(b"2026-11-23", dtype=np.uint8), 0))
>>> int(number), int(bits) // 8
(2026, 4)

References
----------
D. Lemire, Number parsing at a gigabyte per second, Software: Practice and Experience 51(8), 2021, Section 5.
"""

from typing import Any

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros

EIGHT = 8  # bytes of a word
_trailing_zeros: Any = trailing_zeros  # its signature is that of code generation
_ZEROS = np.uint64(0x3030303030303030)
_HIGHEST = np.uint64(0x8080808080808080)  # bit of each byte
_TO_HIGHEST = np.uint64(0x7676767676767676)  # 128 - 10: what carries a byte above 9 into its highest bit


@njit(cache=True, nogil=True, inline="always")
def load_eight(text, start):  # type: ignore[no-untyped-def]
    """Load the word of the eight bytes from `start` on, which the uint8 array `text` has."""
    first, word = np.uint64(start), np.uint64(0)
    for byte in range(EIGHT):
        word |= np.uint64(text[first + np.uint64(byte)]) << np.uint64(8 * byte)
    return word


@njit(cache=True, nogil=True, inline="always")
def leading_digits(word):  # type: ignore[no-untyped-def]
    """Read the digits with which a word begins.

    Returns
    -------
    number : uint64
        The number that they are, 0 if there is none.
    bits : uint64
        Bits of the word before its first byte that is no digit, 64 if all are.
    """
    word ^= _ZEROS
    others = (word | (word + _TO_HIGHEST)) & _HIGHEST
    bits = np.uint64(_trailing_zeros(others)) & np.uint64(0x78)
    if bits < np.uint64(64):
        word = (word << np.uint64(8)) << (np.uint64(56) - bits)  # zeros come first
    pairs = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(10_000) + (fours >> np.uint64(32))) & np.uint64(0xFFFFFFFF), bits
