"""Shamir's sharing of a 32-byte secret: any t shares give it back, fewer tell nothing.

Integers modulo the least prime above ``2^256``, exact. A share is the value at a site's place, 1, 2 and so on, of a
polynomial of degree ``t - 1`` whose other coefficients are uniform.

>>> shares = split(bytes(31) + b"!", threshold=2, places=3)
>>> recover({2: shares[1], 3: shares[2]})[-1:]
b'!'
"""

import os
from collections.abc import Callable, Mapping

from dpca_tasks.errors import InvalidInput, MessageRefused

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33

Entropy = Callable[[int], bytes]
"""Returns so many random bytes; the operating system's but in tests."""


def split(secret: bytes, *, threshold: int, places: int, entropy: Entropy = os.urandom) -> list[int]:
    """Return the shares of places 1 to ``places``."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= places:
        raise InvalidInput(
            f"a secret of {len(secret)} bytes, threshold={threshold} and places={places} must be {SECRET_BYTES} bytes "
            "and 1 <= threshold <= places; correct them."
        )
    # 64 bytes modulo the prime are uniform up to 2^-255.
    coefficients = [int.from_bytes(entropy(64), "little") % PRIME for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "little"))
    return [_value(coefficients, at) for at in range(1, places + 1)]


def recover(shares: Mapping[int, int]) -> bytes:
    """Return the secret of as many shares, by place, as its threshold.

    Raises
    ------
    MessageRefused
        When the shares are certainly not of one secret. Whoever knows a hash of the secret compares that too.
    """
    total = 0
    for place, share in shares.items():
        weight = 1
        for other in shares:
            if other != place:
                weight = weight * other * pow(other - place, -1, PRIME) % PRIME
        total += weight * share
    total %= PRIME
    if total >= 2 ** (8 * SECRET_BYTES):
        raise MessageRefused("shares of a secret do not belong together; void the attempt and begin another.")
    return total.to_bytes(SECRET_BYTES, "little")


def _value(coefficients: list[int], at: int) -> int:
    """Return a polynomial's value, by Horner's rule, its highest coefficient first."""
    value = 0
    for coefficient in coefficients:
        value = (value * at + coefficient) % PRIME
    return value
