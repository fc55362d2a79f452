"""Directed rounding of exact numbers to floats.

>>> float_up(Fraction(1, 10)) == 0.1, float_down(Fraction(1, 10)) < 0.1
(True, True)
>>> root_down(Fraction(2)), root_up(Fraction(2))
(1.414213562373095, 1.4142135623730951)
"""

import math
import sys
from fractions import Fraction


def float_up(value: Fraction) -> float:
    """Return the smallest float that is not below a number; infinity where no float is so large."""
    if value > Fraction(sys.float_info.max):
        return math.inf
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def float_down(value: Fraction) -> float:
    """Return the largest float that is not above a number, 0 for negative ones."""
    nearest = float(value)
    return max(0.0, nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf))


def root_up(value: Fraction) -> float:
    """Return the smallest float whose square is not below a number that is not negative."""
    root = math.sqrt(value)
    while Fraction(root) ** 2 < value:
        root = math.nextafter(root, math.inf)
    while root and Fraction(math.nextafter(root, 0.0)) ** 2 >= value:
        root = math.nextafter(root, 0.0)
    return root


def root_down(value: Fraction) -> float:
    """Return the largest float whose square is not above a number that is not negative."""
    root = root_up(value)
    return root if Fraction(root) ** 2 == value else math.nextafter(root, 0.0)
