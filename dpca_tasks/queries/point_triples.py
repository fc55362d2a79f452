"""The third moment of points along a few public directions, without what spherical noise adds to it."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.word_moments import add_point_cores, first_row_scores
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS
from dpca_tasks.queries.words import check_directions
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock
from dpca_tasks.records.gridding import as_floats, canonical, grid_block

SCORE_BITS = 18
"""Scores have ``2^18`` steps in their bound."""
_UP = 1.0 + 2.0**-48  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointTriples(RowSum):
    r"""Sum ``y y y - s2 Sym3(y)`` over points x, with ``y = U^T x`` clipped to ``score_norm``, as a cube of order K.

    ``Sym3(y)_pqr = y_p [q = r] + y_q [p = r] + y_r [p = q]``: what noise of variance s2 in every direction adds to the
    third moment of its mean.

    Parameters
    ----------
    directions : int64 array of shape (n_features, K)
        U in steps of ``2^-24``, entries at most 1 in magnitude; orthonormal columns in practice.
    score_norm : float, data units
        R, the bound on ``|y|``; longer scores are scaled down to it.
    noise_variance : float, squared data units
        s2, public or released, at most ``2 / (K + 2)`` and at most half of ``R^2``. Both numbers are kept as arrays:
        public inputs like the directions, which a resumed release takes as an earlier run stored them.
    clip_norm : float
        1: points themselves are not clipped.
    **others
        As for `RowSum`; the sum lies on a grid of step ``2^-bits`` in units of ``R^3``.

    Notes
    -----
    Only the first row of a record is read, whatever the record holds; jobs refuse datasets whose records may have more.
    A point with a value that is not finite, or so large that its scores are not, adds nothing.

    Sensitivity, in units of ``R^3`` and in the Frobenius norm of the full cube. The scores of a point are computed from
    it and U alone, in a fixed order, and put on a grid of ``2^18`` steps in R, where their squares are compared with
    the bound in integers: ``|y| <= 1``. On a grid of ``2^-36`` lies s2. So ``f(y) = y y y - s2 Sym3(y)`` is an integer
    multiple of ``2^-54``, computed exactly, and only then rounded toward zero, which makes no norm larger.

    - ``|f(y)|^2 = r^6 - 6 s2 r^4 + (3 K + 6) s2^2 r^2`` with ``r = |y|``, since ``<y y y, Sym3(y)> = 3 r^4`` and
      ``|Sym3(y)|^2 = (3 K + 6) r^2``. For K of 2 and more it never falls, so it is at most its value at r = 1; for
      K = 1 it is ``r^2 (r^2 - 3 s2)^2``, with another peak of ``4 s2^3`` at ``r^2 = s2``. Let g be the square root of
      the larger of both. With s2 at most ``2 / (K + 2)`` and 1/2 it is at most 1.
    - *add_remove, zero_out.* g; a point at 0 adds nothing.
    - *replace_one.* ``2 g`` by the triangle inequality; f is odd, so opposite points attain it.

    The proof uses no property of U.
    """

    directions: NDArray[np.int64]
    score_norm: NDArray[np.float64] | float
    noise_variance: NDArray[np.float64] | float
    clip_norm: float = 1.0

    name: ClassVar[str] = "point_triples"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        RowSum.__post_init__(self)
        check_directions(self.directions, n_features=self.n_features)
        if self.clip_norm != 1.0:
            raise InvalidInput(f"clip_norm={self.clip_norm} must be 1: scores are clipped instead; leave it out.")
        for name in ("score_norm", "noise_variance"):
            number = np.asarray(getattr(self, name), np.float64).reshape(-1)
            if number.size != 1:
                raise InvalidInput(f"{name} of {number.size} numbers must be one; pass a float.")
            object.__setattr__(self, name, number)
        if not 1e-100 <= self.radius <= 1e100:
            raise InvalidInput(f"score_norm={self.radius!r} must be positive, between 1e-100 and 1e100.")
        most, variance = min(0.5, 2.0 / (self.layout.order + 2)) * self.radius**2, float(np.sum(self.noise_variance))
        if not 0.0 <= variance <= most:
            raise InvalidInput(
                f"noise_variance={variance!r} must be from 0 to {most:.3g}, for scores of norm {self.radius:.3g}; "
                "take a larger score_norm."
            )

    @property
    def layout(self) -> Layout:
        """A symmetric cube over the directions."""
        return Layout(kind="cube", order=self.directions.shape[1])

    @property
    def radius(self) -> float:
        """The bound of scores, as a float."""
        return float(np.sum(self.score_norm))

    @property
    def unit(self) -> float:
        """One unit of the output in data units."""
        return self.radius**3

    @property
    def variance_steps(self) -> int:
        """The noise variance, in steps of ``2^-36`` of the squared bound of scores, rounded down."""
        return math.floor(float(np.sum(self.noise_variance)) / self.radius**2 * 4.0**SCORE_BITS)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for triples of points; use noise for the l2 norm.")
        order, s2 = self.layout.order, self.variance_steps / 4.0**SCORE_BITS
        largest = max(1.0 - 6.0 * s2 + (3 * order + 6) * s2**2, 4.0 * s2**3 if order == 1 else 0.0)
        alone = math.sqrt(largest * _UP)
        return 2.0 * alone if self.relation == "replace_one" else alone

    def grid(self, block: Block) -> RowBlock:
        """Put the scores of each record's first row on their grid, clipped to `score_norm`."""
        rows = canonical(block, n_features=self.n_features)
        directions = self.directions / 2.0**DIRECTION_BITS
        scores = first_row_scores(as_floats(rows.values), rows.indices, rows.row_ptr, rows.record_ptr, directions)
        records, width = scores.shape
        of_scores = CsrBlock(
            values=scores.reshape(-1),
            indices=np.tile(np.arange(width, dtype=np.int32), records),
            row_ptr=width * np.arange(records + 1),
            record_ptr=np.arange(records + 1),
            first_record=block.first_record,
            density=1.0,
        )
        return grid_block(of_scores, n_features=width, clip_norm=self.radius, bits=SCORE_BITS)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the cores of the block's points."""
        add_point_cores(block.values, self.layout.order, self.variance_steps, 3 * SCORE_BITS - self.bits, total)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sum of the block's cores."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total
