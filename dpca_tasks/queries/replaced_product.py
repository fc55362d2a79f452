"""The product X^T (X V), rounded so that its sensitivity for replaced records is proved near sqrt 2 instead of 2."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpca_tasks.queries.base import Norm
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, UNLIMITED, MomentProduct
from dpca_tasks.threads import one_thread

ROUNDING = 2.0**-7
"""The largest change of a record's contribution by rounded scores; a coarse grid makes an exception for one row."""

_LENGTH = 1.0 + 2.0**-12  # a bound on the spectral norm of V
_SCORES = 1.25  # root mean square change of a score by rounding and clipping, in steps: (1 + 1/4) ** (1/2), rounded up
_UP = 1.0 + 2.0**-50  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplacedProduct(MomentProduct):
    r"""Sum ``X_u^T Y_u`` over records u of few rows, and the rounded ``X_u^T X_u V`` over the others.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        V, as for `MomentProduct`; of spectral norm about 1.

    Notes
    -----
    Sensitivity for replace_one, in l2. Record u adds ``s M_u V + E_u``, where ``M_u = X_u^T X_u``, s in [0, 1] is 1
    unless something was clipped, and E is the rounding error. ``A = s M_u`` and the B of another record are positive
    semi-definite with trace at most 1, so ``||A - B||_F^2 <= ||A||^2 + ||B||^2 <= 2``, and ``||A - B||_2 <= 1``. Hence
    ``||(A - B) V||_F <= sqrt(2) ||V||_2``, and ``||V||_2`` for a single direction. The rounding errors of two records
    add at most ``2 ||E||_F``:

    - *A record of m rows, at most* `longest`. With ``Y_u = s X_u V + R``, ``||E||_F = ||X_u^T R||_F <= ||R||_F``.
      Scores rounded to nearest, with s = 1, have ``||R||_F <= sqrt(m p) / 2`` steps of ``2^-bits``. Clipped ones are
      those of ``t X_u V`` rounded toward zero: for ``t <= 1`` take s = t, and ``||R||_F <= sqrt(m p)``. For ``t > 1``
      take s = 1: here ``(t - 1) ||X_u V||_F <= sqrt(m p) / 2``, since rounding to nearest made the scores too long,
      and an entry is off by at most 1, or by ``t - 1`` of itself: ``||R||_F <= sqrt(m p + m p / 4)``.
    - *Any other.* Its d p entries are off by at most 1 step of ``4^-bits`` each: ``||E||_F <= sqrt(d p) / 4^bits``.

    The spectral norm of V must be at most 1 + 2^-12. If it is not, or if 2 is smaller, the bound is 2, by the triangle
    inequality. For the other relations the bound is 1, as proved for `MomentProduct`: contributions of both kinds have
    norm at most 1, compared in integers.
    """

    name: ClassVar[str] = "replaced_product"
    version: ClassVar[int] = 1

    @property
    def longest(self) -> int:
        """The largest number of rows whose rounded scores change a contribution by at most `rounding`; at least 1."""
        if self.relation != "replace_one":
            return UNLIMITED
        rows: int = math.floor((self.rounding * 2.0**self.bits / _SCORES) ** 2 / self.directions.shape[1])
        return max(1, rows)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        triangle = MomentProduct.sensitivity(self, norm)
        if self.relation != "replace_one" or not self.is_contraction():
            return triangle
        exact = (1.0 if self.directions.shape[1] == 1 else math.sqrt(2.0)) * self.length
        return min(triangle, (exact + 2.0 * self.error) * _UP)

    @property
    def rounding(self) -> float:
        """The largest change of a record's contribution by rounded scores of several rows."""
        return ROUNDING

    @property
    def error(self) -> float:
        """A bound on the norm of one record's rounding error."""
        order, width = self.directions.shape
        scores = _SCORES * math.sqrt(self.longest * width) / 2.0**self.bits
        return max(scores, math.sqrt(order * width) / 4.0**self.bits)

    @property
    def length(self) -> float:
        """The bound on the spectral norm of V that `is_contraction` tests."""
        return _LENGTH

    def is_contraction(self) -> bool:
        """Tell whether the spectral norm of V is at most `length`; testing its square leaves a margin for rounding."""
        columns = self.directions / 2.0**DIRECTION_BITS
        with one_thread():
            return bool(np.linalg.eigvalsh(columns.T @ columns)[-1] <= _LENGTH)
