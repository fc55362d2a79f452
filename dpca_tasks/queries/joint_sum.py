"""A statistic of several named parts, each with its own bound and grid, that are released together under one event."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a joint statistic.

    Parameters
    ----------
    layout : Layout
        How its coordinates are packed.
    bound : float
        How far one record moves it, in units of `unit`: in l2, or in the Frobenius norm of the whole matrix or tensor.
    share : float
        Its share of the squared loss; the shares of all parts add up to at most 1. A larger share is less noise.
    unit : float, data units
        One unit of the part.
    steps_per_unit : int
        Grid steps in a unit, a power of two.
    """

    layout: Layout
    bound: float
    share: float
    unit: float
    steps_per_unit: int

    @property
    def scale(self) -> float:
        """The std of its noise at noise multiplier 1, in units, rounded up."""
        return math.nextafter(self.bound / math.nextafter(math.sqrt(self.share), 0.0), math.inf)


class JointSum(RowSum):
    """A sum whose coordinates are those of its parts, one part after the other.

    Notes
    -----
    Sensitivity. Divide each part p by ``bound_p / sqrt(share_p)``. A record moves part p by at most ``bound_p``, so it
    moves the divided statistic by at most ``sqrt(sum_p share_p) <= 1`` in l2. Gaussian noise of std z there is one
    Gaussian mechanism of noise multiplier z; multiplied back it has std ``z bound_p / sqrt(share_p)`` in part p.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check the shares."""
        RowSum.__post_init__(self)
        shares = [Fraction(part.share) for part in self.parts.values()]
        if not (shares and all(share > 0 for share in shares) and sum(shares) <= 1):
            found = ", ".join(str(float(share)) for share in shares)
            raise InvalidInput(f"shares ({found}) of parts must be positive and add up to at most 1; correct them.")

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Part]:
        """The parts by name, in the order of their coordinates; they follow from the fields, so the digest has them."""

    @property
    def layout(self) -> Layout:
        """All coordinates, one part after the other."""
        return Layout(kind="joint", order=sum(part.layout.size for part in self.parts.values()))

    def sensitivity(self, norm: Norm) -> float:
        """See the class notes for the proof."""
        if norm != "joint":
            raise InvalidInput(
                f"norm={norm!r} is not stated for a statistic of several parts; use JointGaussian noise."
            )
        return 1.0

    def split(self, total: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return views of the coordinates of each part."""
        found, start = {}, 0
        for name, part in self.parts.items():
            found[name] = total[start : start + part.layout.size]
            start += part.layout.size
        return found
