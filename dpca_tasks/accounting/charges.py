"""The charges of releases: vectors of integers, which add up exactly and are stored with equal width.

>>> decode(encode((1, 2**100))) == (1, 2**100)
True
>>> total_of([encode((1, 2)), encode((3, 4))], zero=(0, 0))
(4, 6)
"""

from collections.abc import Sequence

import numpy as np

Charge = tuple[int, ...]
"""The epsilon and delta of standalone charges, then the numbers of the composition; its failures come last."""

_LIMBS = 4  # of 32 bits, in which a number of a charge is stored


def add(total: Charge, charge: Charge) -> Charge:
    """Add two charges."""
    return tuple(left + right for left, right in zip(total, charge, strict=True))


def subtract(total: Charge, charge: Charge) -> Charge:
    """Take a charge off a total that holds it."""
    return tuple(left - right for left, right in zip(total, charge, strict=True))


def encode(charge: Charge) -> bytes:
    """Store a charge as little-endian 128-bit integers."""
    return b"".join(number.to_bytes(4 * _LIMBS, "little") for number in charge)


def decode(stored: bytes) -> Charge:
    """Read a stored charge."""
    size = 4 * _LIMBS
    return tuple(int.from_bytes(stored[at : at + size], "little") for at in range(0, len(stored), size))


def total_of(charges: Sequence[bytes], *, zero: Charge) -> Charge:
    """Add up stored charges, limb by limb, so that no sum overflows."""
    table = np.frombuffer(b"".join(charges), "<u4").reshape(-1, len(zero), _LIMBS)
    sums = table.sum(axis=0, dtype=np.uint64).tolist()
    return tuple(sum(limb << 32 * place for place, limb in enumerate(limbs)) for limbs in sums)


def totals_after(charges: Sequence[bytes], *, zero: Charge) -> list[Charge]:
    """Return the total of stored charges after each of them, added up limb by limb as `total_of` does."""
    table = np.frombuffer(b"".join(charges), "<u4").reshape(-1, len(zero), _LIMBS)
    limbs = table.cumsum(axis=0, dtype=np.uint64).astype(object)
    numbers = np.add.reduce([limbs[:, :, place] << 32 * place for place in range(_LIMBS)])
    return [tuple(total) for total in numbers.tolist()]
