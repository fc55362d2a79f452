r"""The second moment of records under a public map, which subtracts a mean and shrinks known directions.

The example halves the first of two features, so the entry of the second moment for it falls from 1 to 0.25.

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
"""Before the map, records are on a grid of step ``2^-14``, the finest grid for which all sums are exact."""
WIDEST = 64
"""The largest number of directions that a map may shrink."""
LEAST_NORM, MOST_NORM = 2.0**-20, 2.0
"""Range of the norm to which mapped records are clipped, in clip norms."""
FIRST_CENTRED, NEXT = 4, 16
"""Values of `MappedMoment.part`: appended constants take a quarter, or a sixteenth, of the bound on squared norms."""

_LONGEST = 2.0**MAP_BITS * (1.0 + 2.0**-6)


def norm_of(norm: float) -> NDArray[np.float64]:
    """Return a clipping norm for `MappedMoment`, limited to the allowed range, as an array of one number."""
    return np.array([min(max(norm, LEAST_NORM), MOST_NORM)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MappedMoment(RowSum):
    r"""Sum ``Z_u^T Z_u`` over records u, where ``Z_u`` is the clipped image of the rows ``X_u`` under a public map.

    ``X_u`` is clipped to the clip norm. Each row x of a record of p rows becomes ``y = T (x - m / sqrt(p))``, with
    ``T = I - W U^T`` and the public mean m. The rows y of a record are clipped together to Frobenius norm c, in clip
    norms. Optionally a constant ``a c / sqrt(p)`` is appended to each row, so that sum and count of the rows y are
    released too.

    Parameters
    ----------
    directions, reductions : int64 arrays of shape (n_features, r)
        The matrices U and W in steps of ``2^-12``, from a `dpca_tasks.refinement.public_map.PublicMap`. There are at
        most 64 columns, and none for ``T = I``.
    norm : float64 array of shape (1,)
        The clipping norm c, from ``2^-20`` to 2, as returned by `norm_of`.
    shift : int64 array of shape (n_features,), optional
        The mean m in steps of ``2^-16`` clip norms, of norm at most 1.
    part : int
        The constants take ``1 / part`` of the squared bound of ``Z_u``, so ``a^2 = 1 / (part - 1)``. 0 for no
        constants.

    Notes
    -----
    Sensitivity. U, W, m and c are public, and may be functions of earlier noisy answers. ``Z_u`` is an integer matrix
    with ``||Z_u||_F^2 <= B = 4^bits``, which is one unit of the output. Write ``M_u = Z_u^T Z_u``, a positive
    semi-definite matrix of trace at most 1, in units of B.

    - *add_remove.* The sum changes by ``||M_u||_F <= tr M_u <= 1``.
    - *replace_one.* ``||M_u - M_v||_F^2 = ||M_u||^2 + ||M_v||^2 - 2 <M_u, M_v> <= 2``, since
      ``<M_u, M_v> = ||Z_u Z_v^T||_F^2`` is not negative. Orthogonal records at the bound attain ``sqrt 2``.
    - *zero_out around a mean.* An emptied record keeps its rows, which become ``T (-m / sqrt(p))``. So emptying a
      record replaces it by a particular other record, and the bound is ``sqrt 2``. A record whose image is orthogonal
      to the image of the emptied record attains ``sqrt 2``.
    - *zero_out without a mean.* Let ``g = 1 / part``, or 0 without constants. A record has ``Z_u = [Y, z]``: the image
      Y with ``||Y||^2 = s <= 1 - g``, and the constants z with ``||z||^2 = a <= g``. The image of 0 is 0, so an emptied
      record has ``[0, z']``, where z' are constants with ``||z'||^2 = b <= g``. The squared change is at most
      ``s^2 + 2 a s + (a - b)^2``, which is convex in a and in b, and grows with s. At the corners of the domain it is
      ``(1 - g)^2``, ``(1 - g)^2 + g^2``, 1 and ``1 - g^2``, so it is at most 1.

    The proof uses no property of U, W, m or c: columns need not be orthonormal, m need not be short, and c need not be
    at most 1. The proof rests on three properties of the program.

    - *The bound holds in integers*: `dpca_tasks.kernels.mapped_records.clip_images` compares the squared norm of the
      image of a record with ``B - B // part`` after all rounding, for all rows of the record together. The constants
      of p rows are ``floor(sqrt((B // part) / p))``.
    - *A contribution is a function of one record.* The record is clipped and rounded to the grid of step ``2^-14``
      without regard to other records (`dpca_tasks.records.blocks`), and so is its image. The subtracted mean and the
      constants depend only on the number of rows of the record.
    - *It is the same function in every block*, because all products are exact. With ``b = 14``, the rows z in
      `dpca_tasks.kernels.mapped_records` have norm at most ``2^(b + 17)``. Rows and columns of U and W of norm above
      ``2^12 (1 + 2^-6)`` are refused. So all partial sums of ``z U`` are below ``2^(b + 30)``. With at most 64 columns
      all partial sums of the second product are below ``2^(b + 34) < 2^53``. Products by powers of two are exact.

    Noise is added to the sum of mapped records, so it is isotropic after the map. The inverse map ``T^-1`` is applied
    to the noisy sum as post-processing. The rounding of U and W changes the map by about ``2^-12``. A release uses
    the T of the rounded U and W, which need not be symmetric.

    *Memory.* Mapped rows are dense. They are computed for one strip of whole records at a time, with at most
    `dpca_tasks.kernels.dense_products.CELLS` cells unless a single record has more. Without a map and a mean, rows stay
    sparse and are clipped by `dpca_tasks.kernels.gridding.grid_records`. The sum has room for as many records as
    `SecondMoment`.
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
        """Check that the map, the mean and the norm are within the ranges for which all products are exact."""
        RowSum.__post_init__(self)
        shapes = {self.directions.shape, self.reductions.shape}
        width = self.directions.shape[-1]
        if shapes != {(self.n_features, width)} or width > WIDEST:
            raise InvalidInput(
                f"directions of shape {self.directions.shape} and reductions of shape {self.reductions.shape} must "
                f"have n_features={self.n_features} rows and the same number of columns, at most {WIDEST}; pass the "
                "arrays of a PublicMap."
            )
        if not (_is_fit(self.directions) and _is_fit(self.reductions)):
            raise InvalidInput(
                "directions and reductions must be integers in steps of 2^-12, and their rows and columns must have "
                "norm at most 1; pass the arrays of a PublicMap of orthonormal directions."
            )
        if self.norm.shape != (1,) or not LEAST_NORM <= self.norm[0] <= MOST_NORM:
            raise InvalidInput(f"norm={self.norm} must be one number from 2^-20 to 2; pass the result of norm_of.")
        shift = self.shift
        if shift is not None and (shift.shape != (self.n_features,) or shift.dtype != np.int64 or not is_short(shift)):
            raise InvalidInput(
                f"shift of shape {shift.shape} must have n_features={self.n_features} entries and norm at most 1; "
                "pass the result of on_shift_grid."
            )
        if self.part not in (0, FIRST_CENTRED, NEXT):
            raise InvalidInput(f"part={self.part} must be 0, {FIRST_CENTRED} or {NEXT}; pass one of them.")

    @property
    def kind(self) -> str:
        """The key of this query in the table of sensitivities; with and without a mean the keys differ."""
        return f"{self.name} {self.version}" + ("" if self.shift is None else " around a mean")

    @property
    def record_bits(self) -> int:
        """The bits of the grid to which records are rounded before the map."""
        return RECORD_BITS

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a symmetric matrix of order d, or of order d + 1 with appended constants."""
        return self._moment.layout

    @property
    def constant(self) -> float:
        """The norm ``a c`` of the constants appended to the rows of a record, in clip norms; 0 without constants."""
        return float(self.norm[0]) / math.sqrt(self.part - 1) if self.part else 0.0

    @property
    def unit(self) -> float:
        """One unit of the output in data units: the largest squared norm of a mapped record with its constants."""
        return float((self.clip_norm * self.norm[0]) ** 2 + (self.clip_norm * self.constant) ** 2)

    def sensitivity(self, norm: Norm) -> float:
        """Return the l2 sensitivity, as proved in the Notes section of the class."""
        if norm != "l2":
            raise InvalidInput(
                f"mapped records have no sensitivity in norm={norm!r}; use symmetric Gaussian noise (l2)."
            )
        return self._moment.sensitivity(norm)

    def images(self, block: RowBlock) -> Iterator[NDArray[np.int32]]:
        """Yield the mapped and clipped records of a block as dense rows in grid steps, whole records at a time."""
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
        """Add the second moment of the mapped records of a block to ``total``, in steps of ``4^-bits``."""
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
        """The largest sum of squares of a mapped record without constants, and of its constants, in squared steps."""
        whole = 4**self.bits
        return (whole - whole // self.part, whole // self.part) if self.part else (whole, None)

    def _unmapped(self, block: RowBlock) -> RowBlock:
        """Return the rows of `images` as sparse rows, for the identity map without a mean."""
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
    """Return dense rows as a `RowBlock` in which each row counts as a separate record.

    Sums of outer products of rows do not depend on the division into records.
    """
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
    """Return whether all rows and columns of an integer matrix are short enough for exact products."""
    if matrix.dtype != np.int64:
        return False
    squares = np.square(matrix.astype(np.float64))
    return all(bool((squares.sum(axis=axis) <= _LONGEST**2).all()) for axis in (0, 1))
