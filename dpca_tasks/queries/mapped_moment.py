r"""The second moment of records under a public map: of records minus a public mean, shrunk along known directions.

>>> import numpy as np
>>> from dpca_tasks.records.blocks import ArrayBlocks
>>> from dpca_tasks.sums.exact_sum import exact_sum
>>> halved = {"directions": np.array([[4096], [0]]), "reductions": np.array([[2048], [0]])}
>>> query = MappedMoment(n_features=2, clip_norm=1.0, relation="add_remove", bits=6, norm=norm_of(1.0), **halved)
>>> exact_sum(ArrayBlocks(np.eye(2)), query) / query.steps_per_unit
array([0.25, 0.  , 1.  ])
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import append_constants, grid_records
from dpca_tasks.kernels.mapped_records import MAP_BITS, mapped_strips
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.recentred_moment import is_short, relation_around
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import RowBlock

RECORD_BITS = 14
"""Records are on a grid of step ``2^-14`` before the map, the finest for which all sums are exact."""
WIDEST = 64
"""The largest number of directions of a map."""
LEAST_NORM, MOST_NORM = 2.0**-20, 2.0
"""Range of the norm to which images are clipped, in clip norms."""
FIRST_CENTRED, NEXT = 4, 16
"""The constants have a quarter, or a sixteenth, of a record's bound."""

_LONGEST = 2.0**MAP_BITS * (1.0 + 2.0**-6)


def norm_of(norm: float) -> NDArray[np.float64]:
    """Return a norm in clip norms, limited to its range, as the array that a step stores."""
    return np.array([min(max(norm, LEAST_NORM), MOST_NORM)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MappedMoment(RowSum):
    r"""Sum ``Z_u^T Z_u`` over records u, where ``Z_u`` is the clipped image of ``X_u`` under a public map.

    ``X_u`` is clipped to the clip norm. Its p rows become ``y = T (x - m / sqrt(p))`` with ``T = I - W U^T``. All rows
    of a record together are clipped to Frobenius norm c, in clip norms. With constants, each row of ``Z_u`` ends in
    ``a c / sqrt(p)``.

    Parameters
    ----------
    directions, reductions : int64 arrays of shape (n_features, r)
        U and W in steps of ``2^-12``, those of a `dpca_tasks.refinement.public_map.PublicMap`. There are at most 64
        columns, and none for ``T = I``.
    norm : float64 array of shape (1,)
        c, from ``2^-20`` to 2; `norm_of` returns it.
    shift : int64 array of shape (n_features,), optional
        The mean m in steps of ``2^-16`` clip norms, of norm at most 1.
    part : int
        The constants have ``1 / part`` of the bound of ``Z_u``: ``a^2 = 1 / (part - 1)``. 0 for no constants.

    Notes
    -----
    Sensitivity. Let U, W, m and c be public: any functions of earlier answers. The contribution ``Z_u`` is an integer
    matrix with ``||Z_u||_F^2 <= B = 4^bits``, which is one unit of the output. Write ``M_u = Z_u^T Z_u``, a positive
    semi-definite matrix of trace at most 1, in units of B.

    - *add_remove.* The sum moves by ``||M_u||_F <= tr M_u <= 1``.
    - *replace_one.* ``||M_u - M_v||_F^2 = ||M_u||^2 + ||M_v||^2 - 2 <M_u, M_v> <= 2``, since
      ``<M_u, M_v> = ||Z_u Z_v^T||_F^2`` is not negative. Orthogonal records at the bound attain ``sqrt 2``.
    - *zero_out around a mean.* An emptied record keeps its rows, which are at ``-m``, so it is another record:
      ``sqrt 2``. A record whose image is orthogonal to that of ``-m`` attains it.
    - *zero_out without a mean.* The map of 0 is 0. So an emptied record has ``Z = [0, z']`` with constants of square b,
      where ``Z_u = [Y, z]`` has ``||Y||^2 = s <= 1 - g`` and ``||z||^2 = a <= g``, for ``g = 1 / part`` or 0; b is at
      most g. The square of the change is at most ``s^2 + 2 a s + (a - b)^2``, convex in a and in b, and rising in s. At
      the corners it is ``(1 - g)^2``, ``(1 - g)^2 + g^2``, 1 and ``1 - g^2``: at most 1.

    The proof uses no property of U, W, m or c. They need not be orthonormal, short or at most 1. It rests on three
    properties of the program.

    - *The bound holds in integers*: `dpca_tasks.kernels.mapped_records.clip_images` compares ``||Y_u||^2`` with
      ``B - B // part`` after all rounding, for all rows of a record together. The constants of p rows are
      ``floor(sqrt((B // part) / p))``.
    - *A contribution is a function of one record.* The record is clipped and rounded separately to the grid of step
      ``2^-14`` (`dpca_tasks.records.blocks`), and its image is clipped separately. The mean and the constants of a row
      depend only on the number of rows of its record.
    - *It is the same function in every block*: all products are exact. With ``b = 14``, the norm of a row of
      `dpca_tasks.kernels.mapped_records` is ``|z| <= 2^(b + 17)``. Rows and columns of U and W of norm above
      ``2^12 (1 + 2^-6)`` are refused. So all partial sums of ``z U`` are below ``2^(b + 30)``. With r at most 64 all
      partial sums of the second product are below ``2^(b + 34) < 2^53``. Products by powers of two are exact.

    Noise is added to the sum, so it is isotropic after the map. ``T^-1`` is post-processing. The rounding of U and W
    changes the map by about ``2^-12``. The T of a release is the one of these integers, and need not be symmetric.

    *Memory.* Rows become dense a strip of whole records at a time, `dpca_tasks.kernels.dense_products.CELLS` cells or
    one longer record. Without a map and a mean they stay sparse, and are clipped by
    `dpca_tasks.kernels.gridding.grid_records`. The capacity is that of `SecondMoment`.
    """

    directions: NDArray[np.int64]
    reductions: NDArray[np.int64]
    norm: NDArray[np.float64]
    shift: NDArray[np.int64] | None = None
    part: int = 0

    name: ClassVar[str] = "mapped_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the map, the mean and the norm, for which all products are exact."""
        RowSum.__post_init__(self)
        shapes = {self.directions.shape, self.reductions.shape}
        width = self.directions.shape[-1]
        if shapes != {(self.n_features, width)} or width > WIDEST:
            raise InvalidInput(
                f"directions of shape {self.directions.shape} and reductions of shape {self.reductions.shape} must "
                f"have n_features={self.n_features} rows and the same number of columns, at most {WIDEST}; pass those "
                "of a PublicMap."
            )
        if not (_is_fit(self.directions) and _is_fit(self.reductions)):
            raise InvalidInput(
                "directions and reductions must be integers with rows and columns of norm at most 1, in steps of "
                "2^-12; pass those of a PublicMap of orthonormal directions."
            )
        if self.norm.shape != (1,) or not LEAST_NORM <= self.norm[0] <= MOST_NORM:
            raise InvalidInput(f"norm={self.norm} must be one number from 2^-20 to 2; pass what norm_of returns.")
        shift = self.shift
        if shift is not None and (shift.shape != (self.n_features,) or shift.dtype != np.int64 or not is_short(shift)):
            raise InvalidInput(
                f"shift of shape {shift.shape} must have n_features={self.n_features} entries and norm at most 1; "
                "pass what on_shift_grid returns."
            )
        if self.part not in (0, FIRST_CENTRED, NEXT):
            raise InvalidInput(f"part={self.part} must be 0, {FIRST_CENTRED} or {NEXT}; pass one of them.")

    @property
    def kind(self) -> str:
        """The key in the table of sensitivities, which includes whether there is a mean."""
        return f"{self.name} {self.version}" + ("" if self.shift is None else " around a mean")

    @property
    def record_bits(self) -> int:
        """The bits of the grid before the map."""
        return RECORD_BITS

    @property
    def layout(self) -> Layout:
        """A symmetric matrix, of order d + 1 with constants."""
        return self._moment.layout

    @property
    def constant(self) -> float:
        """``a c``, in clip norms: the norm of the constants of a record; 0 if there are none."""
        return float(self.norm[0]) / math.sqrt(self.part - 1) if self.part else 0.0

    @property
    def unit(self) -> float:
        """The squared norm bound of an image with its constants."""
        return float((self.clip_norm * self.norm[0]) ** 2 + (self.clip_norm * self.constant) ** 2)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for mapped records; use symmetric Gaussian noise (l2).")
        return self._moment.sensitivity(norm)

    def images(self, block: RowBlock) -> Iterator[NDArray[np.int32]]:
        """Yield the images of the block's records as dense rows in grid steps, a strip of whole records at a time."""
        bound, square = self._bounds
        yield from mapped_strips(
            block.values,
            block.indices,
            block.row_ptr,
            block.record_ptr,
            RECORD_BITS,
            self.directions,
            self.reductions,
            np.zeros(self.n_features, np.int64) if self.shift is None else self.shift,
            float(self.norm[0]),
            bound,
            square,
        )

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the outer products of the images of the block's records, in steps of ``4^-bits``."""
        if self.directions.size or (self.shift is not None and self.shift.any()):
            for strip in self.images(block):
                self._moment.add(_dense_rows(strip, block, bits=self.bits), total)
        else:
            self._moment.add(self._unmapped(block), total)

    @property
    def _moment(self) -> SecondMoment:
        return SecondMoment(
            n_features=self.n_features + (self.part > 0),
            clip_norm=self.clip_norm,
            relation=self.relation if self.shift is None else relation_around(self.relation),
            bits=self.bits,
        )

    @property
    def _bounds(self) -> tuple[int, int | None]:
        """The largest sums of squares of an image and of its constants, in squared steps."""
        whole = 4**self.bits
        return (whole - whole // self.part, whole // self.part) if self.part else (whole, None)

    def _unmapped(self, block: RowBlock) -> RowBlock:
        """Return `images` without a map and a mean: zeros stay zeros."""
        bound, square = self._bounds
        values = grid_records(
            block.values * 0.5**RECORD_BITS, block.row_ptr, block.record_ptr, float(self.norm[0]), bound
        )
        rows = dataclasses.replace(block, values=values, bits=self.bits)
        if square is None:
            return rows
        values, indices, row_ptr = append_constants(
            values, rows.indices, rows.row_ptr, rows.record_ptr, square, self.n_features
        )
        return dataclasses.replace(
            rows, values=values, indices=indices, row_ptr=row_ptr, n_features=self.n_features + 1
        )


def _dense_rows(strip: NDArray[np.int32], block: RowBlock, *, bits: int) -> RowBlock:
    """Return dense rows as a block; the bounds of its records are not known, and not needed for products of rows."""
    n_rows, width = strip.shape
    row_ptr = np.arange(n_rows + 1, dtype=np.int64) * width
    return dataclasses.replace(
        block,
        values=strip.ravel(),
        indices=np.tile(np.arange(width, dtype=np.int32), n_rows),
        row_ptr=row_ptr,
        record_ptr=np.arange(n_rows + 1, dtype=np.int64),
        n_features=width,
        bits=bits,
        density=1.0,
    )


def _is_fit(matrix: NDArray[np.int64]) -> bool:
    """Return whether the norms of rows and columns are within the bound for exact products."""
    if matrix.dtype != np.int64:
        return False
    squares = np.square(matrix.astype(np.float64))
    return all(bool((squares.sum(axis=axis) <= _LONGEST**2).all()) for axis in (0, 1))
