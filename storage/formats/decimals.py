"""Conversion of decimal text into the nearest float64 in compiled code, with the same result as ``float(text)``.

Up to eight digits are read at once: eight bytes of text are loaded as one 64-bit integer, called a word. The first byte
of the text is the lowest byte of the word, whatever the machine's byte order.

>>> number, bits = leading_digits(load_eight(np.frombuffer(b"2026-11-23", dtype=np.uint8), 0))
>>> int(number), int(bits) // 8
(2026, 4)

References
----------
D. Lemire, Number parsing at a gigabyte per second, Software: Practice and Experience 51(8), 2021, Section 5.

Two methods with proofs convert almost every number: a product or quotient of two exact floats, rounded once (Clinger),
and a 128-bit product with a truncated power of five (Eisel and Lemire). Numbers that neither method can round reliably
are reported as `UNDECIDED`. The caller then passes the text to `float`.

>>> import numpy as np
>>> text = np.frombuffer(b"0.1 ", dtype=np.uint8)
>>> scan_decimal(text, 0) == (DECIDED, 0.1, 3)
True

References
----------
W. D. Clinger, How to read floating point numbers accurately, PLDI 1990.
D. Lemire, Number parsing at a gigabyte per second, Software: Practice and Experience 51(8), 2021, Algorithm
1.
"""

from typing import Any

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros
from numpy.typing import NDArray

EIGHT = 8  # number of bytes in a word
_trailing_zeros: Any = trailing_zeros  # Numba's type annotation does not fit a call from Python code
_ZEROS = np.uint64(0x3030303030303030)
_HIGHEST = np.uint64(0x8080808080808080)  # the highest bit of each byte of a word
_TO_HIGHEST = np.uint64(0x7676767676767676)  # adding 128 - 10 to each byte sets the highest bit of every byte above 9


@njit(cache=True, nogil=True, inline="always")
def load_eight(text, start):  # type: ignore[no-untyped-def]
    """Load eight bytes of a uint8 array from `start` on as one word; the array must be long enough."""
    first, word = np.uint64(start), np.uint64(0)
    for byte in range(EIGHT):
        word |= np.uint64(text[first + np.uint64(byte)]) << np.uint64(8 * byte)
    return word


@njit(cache=True, nogil=True, inline="always")
def leading_digits(word):  # type: ignore[no-untyped-def]
    """Convert the decimal digits at the start of a word (eight bytes of text) to a number.

    Returns
    -------
    number : uint64
        The number that the digits represent; 0 without a leading digit.
    bits : uint64
        Number of bits before the first byte that is not a digit; 64 if all eight bytes are digits.
    """
    word ^= _ZEROS
    others = (word | (word + _TO_HIGHEST)) & _HIGHEST
    bits = np.uint64(_trailing_zeros(others)) & np.uint64(0x78)
    if bits < np.uint64(64):
        word = (word << np.uint64(8)) << (np.uint64(56) - bits)  # digits are padded with leading zeros to eight
    pairs = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(10_000) + (fours >> np.uint64(32))) & np.uint64(0xFFFFFFFF), bits


DECIDED, UNDECIDED, MALFORMED = 0, 1, 2

_PLUS, _MINUS, _POINT, _ZERO, _LOWER_E, _UPPER_E = (ord(c) for c in "+-.0eE")
_MOST_DIGITS = 19  # 10^19 < 2^64
# for powers of ten outside this range, every number of 19 digits is 0 or infinite in float64
_LEAST_POWER, _MOST_POWER = -342, 308
_EXPONENT_CAP = 100_000


def _powers_of_five() -> NDArray[np.uint64]:
    """Return the 128 leading bits of each 5^q, high word first: truncated for q >= 0, rounded up for q < 0."""
    words = np.empty((_MOST_POWER - _LEAST_POWER + 1, 2), dtype=np.uint64)
    for row, q in enumerate(range(_LEAST_POWER, _MOST_POWER + 1)):
        power = 5 ** abs(q)
        if q < 0:
            power = (1 << (power.bit_length() + 127 if q >= -27 else 2 * power.bit_length() + 128)) // power + 1
        excess = power.bit_length() - 128
        mantissa = power >> excess if excess > 0 else power << -excess
        words[row] = mantissa >> 64, mantissa & (2**64 - 1)
    return words


_FIVES = _powers_of_five()
_TENS = np.array([10.0**k for k in range(23)])  # exact in float64


@njit(cache=True, nogil=True, inline="always")
def _multiply(a, b):  # type: ignore[no-untyped-def]
    """Return the 128-bit product of two uint64 as (high word, low word)."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & mask, a >> half, b & mask, b >> half
    low, middle, other = a0 * b0, a1 * b0, a0 * b1
    carried = (low >> half) + (middle & mask) + (other & mask)
    high = a1 * b1 + (middle >> half) + (other >> half) + (carried >> half)
    return high, (low & mask) | (carried << half)


@njit(cache=True, nogil=True, error_model="numpy")
def _round_product(digits, power, fives):  # type: ignore[no-untyped-def]
    """Round ``digits * 10**power``, with digits > 0, to a normal float64, by Algorithm 1 of Lemire.

    Return (whether the rounding is certain, the value). `fives` are the results of `_powers_of_five`.
    """
    one, ones = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
    shift = 0
    while digits < np.uint64(1 << 63):
        digits <<= one
        shift += 1
    high, low = _multiply(digits, fives[power - _LEAST_POWER, 0])
    # the low bits of 5^q that were left out may still change the 55 leading bits of the product
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more, _ = _multiply(digits, fives[power - _LEAST_POWER, 1])
        low += more
        if low < more:
            high += one
    if low == ones and not -27 <= power <= 55:
        return False, 0.0
    top = high >> np.uint64(63)
    mantissa = high >> (top + np.uint64(9))
    exponent = ((217706 * power) >> 16) + 63 + np.int64(top) - shift + 1023
    if exponent <= 0:
        return False, 0.0
    if (
        low <= one
        and -4 <= power <= 23
        and mantissa & np.uint64(3) == one
        and (mantissa << (top + np.uint64(9))) == high
    ):
        mantissa &= ~one  # the number is exactly half way between two floats, so it is rounded to even
    mantissa = (mantissa + (mantissa & one)) >> one
    if mantissa >= np.uint64(1 << 53):
        mantissa >>= one
        exponent += 1
    if exponent >= 2047:
        return False, 0.0
    return True, np.ldexp(np.float64(np.int64(mantissa)), exponent - 1075)


@njit(cache=True, nogil=True, error_model="numpy")
def scan_decimal(text, start):  # type: ignore[no-untyped-def]
    """Convert the longest decimal number at `start` in a text: ``[+-] digits [. digits] [e [+-] digits]``.

    Parameters
    ----------
    text : uint8 array of shape (n_bytes,)
        The text. At least one byte that cannot belong to a number must follow the number.
    start : int
        Position of the first byte to read.

    Returns
    -------
    verdict : int
        `DECIDED`, `UNDECIDED` (the text is a number that the caller must pass to `float`) or `MALFORMED` (no number).
    value : float
        The number if the verdict is `DECIDED`, otherwise 0.0.
    stop : int
        Position of the first byte after the number.

    Guarantees
    ----------
    With the verdict `DECIDED`, the value has the same bits as ``float(text[start:stop])``, including the sign of zero.
    """
    at = start
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    digits, power = np.uint64(0), 0
    first = at
    while True:
        digit = np.uint64(text[at]) - np.uint64(_ZERO)
        if digit > np.uint64(9):
            break
        digits = digits * np.uint64(10) + digit
        at += 1
    n_digits = at - first
    if text[at] == _POINT:
        at += 1
        fraction = at
        while at + EIGHT <= len(text):
            number, bits = leading_digits(load_eight(text, at))
            if bits < np.uint64(64):
                break
            digits = digits * np.uint64(100_000_000) + number
            at += EIGHT
        while True:
            digit = np.uint64(text[at]) - np.uint64(_ZERO)
            if digit > np.uint64(9):
                break
            digits = digits * np.uint64(10) + digit
            at += 1
        power = fraction - at
        n_digits -= power
    if n_digits == 0:
        return MALFORMED, 0.0, at
    if text[at] == _LOWER_E or text[at] == _UPPER_E:
        at += 1
        down = text[at] == _MINUS
        if down or text[at] == _PLUS:
            at += 1
        lead, exponent = at, 0
        while np.uint64(text[at]) - np.uint64(_ZERO) <= np.uint64(9):
            exponent = min(exponent * 10 + int(text[at]) - _ZERO, _EXPONENT_CAP)
            at += 1
        if at == lead:
            return MALFORMED, 0.0, at
        power += -exponent if down else exponent
    if n_digits > _MOST_DIGITS:
        while text[first] == _ZERO or text[first] == _POINT:
            n_digits -= text[first] == _ZERO
            first += 1
        if n_digits > _MOST_DIGITS:
            return UNDECIDED, 0.0, at
    value = 0.0
    if digits <= np.uint64(1 << 53) and -22 <= power <= 22:
        value = np.float64(np.int64(digits))
        if power < 0:
            value /= _TENS[-power]
        elif power > 0:
            value *= _TENS[power]
    elif digits > np.uint64(0):
        if not _LEAST_POWER <= power <= _MOST_POWER:
            return UNDECIDED, 0.0, at
        decided, value = _round_product(digits, power, _FIVES)
        if not decided:
            return UNDECIDED, 0.0, at
    return DECIDED, -value if negative else value, at
