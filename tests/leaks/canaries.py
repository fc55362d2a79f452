"""Canary values of private data that can be recognized in text, in bytes and in numbers."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = (0.7390851332151607, 0.5671432904097838, 0.9159655941772190, 0.6180339887498949)
"""The values of the canary record, in its first columns."""

SMALLEST_TOTAL = 10**7  # smaller integer totals occur by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """Byte patterns and numbers that no leftover may contain."""

    pattern: re.Pattern[bytes]
    numbers: frozenset[int | float]

    def found_in(self, piece: bytes | int | float) -> list[str]:
        """Return the canary values that occur in a piece of content."""
        if isinstance(piece, bytes):
            return [repr(match) for match in set(self.pattern.findall(piece))]
        near = [number for number in self.numbers if math.isclose(piece, number, rel_tol=1e-9)]
        return [repr(number) for number in near]


def canaries_of(values: Iterable[float], totals: Iterable[int] = ()) -> Canaries:
    """Build the patterns of floating-point values and of integer totals, in all binary and decimal forms."""
    floats = np.array([*values], np.float64)
    wholes = np.array([total for total in totals if abs(total) >= SMALLEST_TOTAL], np.int64)
    words = [*map(_decimal, floats.tolist()), *map(_whole, wholes.tolist())]
    for order in "<>":
        words += _cut(floats.astype(f"{order}f8"), 1)
        words += _cut(wholes.astype(f"{order}f8"), 1)
        words += _cut(wholes.astype(f"{order}i8"), 1)
        # in single precision, four bytes match by chance; the bytes of two neighboring values do not
        words += _cut(floats.astype(f"{order}f4"), 2)
        words += _cut(wholes.astype(f"{order}f4"), 2)
    numbers = frozenset([*floats.tolist(), *wholes.tolist()])
    return Canaries(pattern=re.compile(b"|".join(words), re.DOTALL), numbers=numbers)


def _cut(numbers: NDArray[Any], length: int) -> list[bytes]:
    return [re.escape(numbers[at : at + length].tobytes()) for at in range(len(numbers) - length + 1)]


def _decimal(value: float) -> bytes:
    """Return a pattern that matches a value in any printed form with 8 or more digits after the point."""
    whole, point, digits = f"{abs(value):.17f}".partition(".")
    rounded = f"{abs(value):.8f}".partition(".")[2]
    printed = b"|".join(re.escape((point + text).encode()) for text in sorted({digits[:8], rounded}))
    exponent = re.escape(f"{abs(value):.8e}"[:9].encode())
    return b"(?:" + (re.escape(whole.lstrip("0").encode()) + b"(?:" + printed + b")") + b"|" + exponent + b"[0-9]*e)"


def _whole(total: int) -> bytes:
    return b"(?<![0-9a-fA-F])" + str(abs(total)).encode() + b"(?![0-9a-fA-F])"
