"""Statistics of several named parts, summed as a whole or for some items at a time.

Each part has a bound and a grid, and all parts are released together under one event. Sums over items can be computed
for some items at a time, from rows that are prepared once.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum, StepSecrets
from dpca_tasks.records.blocks import RowBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a joint statistic.

    Parameters
    ----------
    layout : Layout
        The packing of its coordinates.
    bound : float
        How far one record moves it, in units of `unit`: in l2, or in the Frobenius norm of the whole matrix or tensor.
    share : float
        Its share of the squared loss; the shares of all parts add up to at most 1. A larger share gives less noise.
    unit : float, data units
        One unit of the part.
    steps_per_unit : int
        Grid steps in one unit, a power of two.
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
    """A sum whose coordinates are the concatenated coordinates of its parts.

    Notes
    -----
    Sensitivity. Divide each part p by ``bound_p / sqrt(share_p)``. A record moves part p by at most ``bound_p``, so it
    moves the divided statistic by at most ``sqrt(sum_p share_p) <= 1`` in l2. Gaussian noise of std z on the divided
    statistic is one Gaussian mechanism of noise multiplier z. Multiplied back it has std ``z bound_p / sqrt(share_p)``
    in part p.
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
        """The parts by name, in the order of their coordinates; the digest covers the fields that determine them."""

    @property
    def layout(self) -> Layout:
        """All coordinates, part by part."""
        return Layout(kind="joint", order=sum(part.layout.size for part in self.parts.values()))

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
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


TILE = 1 << 22
"""Largest number of coordinates of a tile, 32 MiB, unless one item has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Items ``first <= j < last`` of a statistic, and the number of their coordinates."""

    first: int
    last: int
    size: int


class Prepared(Protocol):
    """A block as prepared by a query: secret, and a pure function of the block and of the query's public inputs."""

    @property
    def nbytes(self) -> int: ...  # noqa: D102

    def add(self, tile: Tile, total: NDArray[np.int64]) -> None:
        """Add the contributions of the block to the items of a tile to a running total of the tile's coordinates."""


class TiledSum(JointSum):
    """A joint sum whose parts hold equally many coordinates of each item, in the items' order, or belong to no item.

    A part of layout ``symmetric`` belongs to no item; it is in the first tile.
    """

    __slots__ = ()

    @abstractmethod
    def with_secrets(self, secrets: StepSecrets) -> Self:
        """Return the query with the coins that it needs; only the curator has them."""

    @abstractmethod
    def prepare(self, block: RowBlock) -> Prepared:
        """Return the data of a block on the grid that all tiles need."""

    @property
    @abstractmethod
    def prepared_bytes(self) -> tuple[int, int, int, int]:
        """The largest number of bytes of prepared blocks per record, row, stored value and block."""

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles, which depend on public facts alone."""
        of_item = sum(part.layout.size for part in self.parts.values() if part.layout.kind != "symmetric")
        step = max(1, TILE // (of_item // self.n_features))
        return tuple(self.tile(first, min(first + step, self.n_features)) for first in range(0, self.n_features, step))

    def tile(self, first: int, last: int) -> Tile:
        """Return the tile of some items."""
        ranges = self._ranges(first, last).values()
        return Tile(first=first, last=last, size=sum(stop - start for start, stop in ranges))

    def ranges(self, tile: Tile) -> dict[str, tuple[int, int]]:
        """Return the half-open coordinate range of each part in a tile."""
        return self._ranges(tile.first, tile.last)

    def _ranges(self, first: int, last: int) -> dict[str, tuple[int, int]]:
        found = {}
        for name, part in self.parts.items():
            if part.layout.kind == "symmetric":
                found[name] = (0, part.layout.size if first == 0 else 0)
            else:
                each = part.layout.size // self.n_features
                found[name] = (each * first, each * last)
        return found

    def split_tile(self, tile: Tile, total: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return views of a tile's coordinates of each part; parts without coordinates in the tile are left out."""
        found, at = {}, 0
        for name, (start, stop) in self.ranges(tile).items():
            if stop > start:
                found[name] = total[at : at + stop - start]
                at += stop - start
        return found

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the whole statistic of a block to a running total: a tile of all items has all coordinates in order."""
        self.prepare(block).add(self.tile(0, self.n_features), total)
