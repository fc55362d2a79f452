"""Statistics of several named parts that are released together as one Gaussian mechanism.

Each part has a bound on the change by one record, and an integer grid. A statistic with coordinates for each item can
be computed for a range of items (a tile) at a time, from rows that are prepared once.
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
        The kind and number of the packed coordinates of the part.
    bound : float
        The largest change of the part by one record, in units of `unit`. The norm is l2, or the Frobenius norm of the
        full matrix or tensor.
    share : float
        The share of the squared privacy loss that goes to the part. The shares of all parts add up to at most 1. A
        larger share gives less noise.
    unit : float, data units
        The size of one unit of the part.
    steps_per_unit : int
        The number of grid steps in one unit, a power of two.
    """

    layout: Layout
    bound: float
    share: float
    unit: float
    steps_per_unit: int

    @property
    def scale(self) -> float:
        """The standard deviation of the noise of this part at noise multiplier 1, in units of `unit`, rounded up."""
        return math.nextafter(self.bound / math.nextafter(math.sqrt(self.share), 0.0), math.inf)


class JointSum(RowSum):
    """Base class of sums of several parts, whose coordinates are concatenated.

    Notes
    -----
    Sensitivity. Divide each part p by ``bound_p / sqrt(share_p)``. One record changes part p by at most ``bound_p``. So
    one record changes the divided statistic by at most ``sqrt(sum_p share_p) <= 1`` in l2. Adding Gaussian noise of
    standard deviation z to the divided statistic is one Gaussian mechanism of noise multiplier z. In the original units
    the noise of part p then has standard deviation ``z bound_p / sqrt(share_p)``.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check that the shares of the parts are positive and add up to at most 1."""
        RowSum.__post_init__(self)
        shares = [Fraction(part.share) for part in self.parts.values()]
        if not (shares and all(share > 0 for share in shares) and sum(shares) <= 1):
            found = ", ".join(str(float(share)) for share in shares)
            raise InvalidInput(f"the shares of parts ({found}) must be positive and add up to at most 1; correct them.")

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Part]:
        """The parts by name, in the order of their coordinates.

        All parts must follow from fields of the query, because `digest` covers only fields.
        """

    @property
    def layout(self) -> Layout:
        """The layout of the statistic: the coordinates of all parts, one part after another."""
        return Layout(kind="joint", order=sum(part.layout.size for part in self.parts.values()))

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity in the norm ``joint``, as proved in the Notes section of `JointSum`."""
        if norm != "joint":
            raise InvalidInput(
                f"a statistic of several parts has no sensitivity in norm={norm!r}; use JointGaussian noise."
            )
        return 1.0

    def split(self, total: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Split the concatenated coordinates: return a view of the coordinates of each part, by name."""
        found, start = {}, 0
        for name, part in self.parts.items():
            found[name] = total[start : start + part.layout.size]
            start += part.layout.size
        return found


TILE = 1 << 22
"""The largest number of coordinates of a tile (a range of items), 32 MiB, unless one item has more coordinates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A tile: items ``first <= j < last`` of a statistic, and the number ``size`` of coordinates of these items."""

    first: int
    last: int
    size: int


class Prepared(Protocol):
    """The interface of a block of rows that a query has prepared, so that several tiles can be summed from it.

    A prepared block is secret data. It is a pure function of the rows and of the public inputs of the query.
    """

    @property
    def nbytes(self) -> int: ...  # noqa: D102

    def add(self, tile: Tile, total: NDArray[np.int64]) -> None:
        """Add the sums over the records of this block, for the items of a tile, to the total of that tile."""


class TiledSum(JointSum):
    """A joint sum over items that can be computed one tile (a range of items) at a time.

    Each part of the sum has the same number of coordinates for every item, in the order of the items. Only a part of
    layout ``symmetric`` belongs to no item, and is computed with the first tile.
    """

    __slots__ = ()

    @abstractmethod
    def with_secrets(self, secrets: StepSecrets) -> Self:
        """Return the query with the secret key of its random choices; only the curator has the key and calls this."""

    @abstractmethod
    def prepare(self, block: RowBlock) -> Prepared:
        """Return the data that the sums of all tiles need, computed once from a block on the grid."""

    @property
    @abstractmethod
    def prepared_bytes(self) -> tuple[int, int, int, int]:
        """Bounds on the bytes of a prepared block: per record, per row, per stored value, and per block."""

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles that together cover all items; they depend only on public facts."""
        of_item = sum(part.layout.size for part in self.parts.values() if part.layout.kind != "symmetric")
        step = max(1, TILE // (of_item // self.n_features))
        return tuple(self.tile(first, min(first + step, self.n_features)) for first in range(0, self.n_features, step))

    def tile(self, first: int, last: int) -> Tile:
        """Return the tile of the items from ``first`` to before ``last``."""
        ranges = self._ranges(first, last).values()
        return Tile(first=first, last=last, size=sum(stop - start for start, stop in ranges))

    def ranges(self, tile: Tile) -> dict[str, tuple[int, int]]:
        """Return, for each part, the half-open range of coordinates of the part that belong to a tile."""
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
        """Split the total of a tile: return a view of each part's coordinates, by name of the part.

        Parts without coordinates in the tile are omitted.
        """
        found, at = {}, 0
        for name, (start, stop) in self.ranges(tile).items():
            if stop > start:
                found[name] = total[at : at + stop - start]
                at += stop - start
        return found

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the statistic of a block for all items to ``total``, computed as a single tile of all items."""
        self.prepare(block).add(self.tile(0, self.n_features), total)
