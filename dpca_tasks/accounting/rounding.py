"""Directed rounding of exact numbers to floats.

>>> float_up(Fraction(1, 10)) == 0.1, float_down(Fraction(1, 10)) < 0.1
(True, True)
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
