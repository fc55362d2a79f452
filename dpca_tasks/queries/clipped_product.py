"""The product X^T (X V) of records whose contributions are clipped to a norm below 1: less noise, the same directions.

For a Gaussian row x the clipped contribution has mean ``Sigma V M`` with M positive definite, by Stein's lemma, so its
columns span what those of ``Sigma V`` span; for other rows clipping is a robust weighting.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.base import Norm
from dpca_tasks.queries.replaced_product import ReplacedProduct

_ROUNDING = 2.0**-11
_UP = 1.0 + 2.0**-50  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClippedProduct(ReplacedProduct):
    r"""Sum what `ReplacedProduct` sums, with every contribution clipped to a norm.

    Parameters
    ----------
    message_clip : float
        The bound c on the Frobenius norm of a record's contribution, in ``(0, 1]``; rounded down to the grid.

    Notes
    -----
    For add_remove and zero_out the sensitivity is c, compared in integers: ``||X_u^T Y_u|| <= ||X_u|| ||Y_u|| <= c``.

    For replace_one it is `replaced_bound` of c and of the rounding errors that `ReplacedProduct` bounds. There record u
    adds ``M V + E``: M is positive semi-definite of trace at most 1, ``||M V|| <= c + ||E||``, and V is a contraction
    up to a factor `length`. A contraction is a block of orthonormal columns in more dimensions, where M has zeros, so
    let V be the first columns of the identity, with blocks ``M V = [P; S^T]`` and R the block beside P, and P', S', R'
    those of another record. Let m and n be the norms of ``M V`` and ``M' V``, and ``q = sqrt(tr(P P'))``. Then

        ||M V - M' V||^2 = m^2 + n^2 + 2 T,    T = -q^2 - <S, S'>.

    - ``m^2 <= tr(P)``, since M is at most 1; so ``tr(R) <= 1 - m^2``. As ``S = P^(1/2) K R^(1/2)`` for a contraction K,
      ``|<S, S'>| <= ||P'^(1/2) P^(1/2)|| ||R^(1/2) R'^(1/2)|| <= q r`` with ``r = sqrt((1 - m^2) (1 - n^2))``.
    - If ``q <= m n``, then T is at most the largest ``t r - t^2`` for t up to m n. With ``m = sin(a)``, ``n = sin(b)``
      the bound ``m^2 + n^2 + 2 T`` is ``sin(a + b)^2`` where ``tan(a) tan(b) <= 1/2`` (then ``a + b < pi / 2``), and
      ``(1 + m^2) (1 + n^2) / 2`` elsewhere. Both grow with m and n, so it is largest at ``m = n = c``.
    - If ``q > m n``: ``|<S, S'>| <= sqrt((m^2 - |P|^2) (n^2 - |P'|^2)) <= m n - |P| |P'| <= m n - q^2``, so that the
      bound is ``(m + n)^2 - 4 m^2 n^2``. For ``c^2 <= 1/3`` it grows with m and n and is the former at ``m = n = c``.
      For larger c, with m the larger of the two: up to ``m^2 = 1/2`` it is at most ``4 m^2 (1 - m^2)``, beyond that at
      most ``4 m^4 / (4 m^2 - 1)``, both at most ``(1 + m^2)^2 / 2``.

    For one direction ``||(M - M') v|| <= 1`` besides, since the spectral norm of ``M - M'`` is at most 1.

    References
    ----------
    Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA in distributed systems, for the step;
    the clipping and its bounds are proved here.
    """

    message_clip: float

    name: ClassVar[str] = "clipped_product"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the bound: at least one step of the grid."""
        ReplacedProduct.__post_init__(self)
        if not 0 < self.message_clip <= 1 or self.most < 1:
            raise InvalidInput(
                f"message_clip={self.message_clip!r} must be above 0, at least one step of the grid, and at most 1 "
                "(no clipping); 0.25 is usual."
            )

    @property
    def most(self) -> int:
        """The largest norm of a record's contribution, in steps: the clip rounded down."""
        return math.floor(self.message_clip * self.steps_per_unit)

    @property
    def rounding(self) -> float:
        """The largest change of a contribution by rounded scores of several rows: little, as it is short."""
        return _ROUNDING

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        unclipped = ReplacedProduct.sensitivity(self, norm)
        clip = self.most / self.steps_per_unit
        if self.relation != "replace_one":
            return clip
        if not self.is_contraction():
            return min(unclipped, 2.0 * clip)
        replaced = replaced_bound(min(clip + self.error, 1.0), width=self.directions.shape[1]) * self.length
        return min(unclipped, 2.0 * clip, (replaced + 2.0 * self.error) * _UP)


def replaced_bound(clip: float, *, width: int) -> float:
    """Return the largest distance of the exact contributions of two records to ``width`` directions, each clipped.

    It is ``2 c sqrt(1 - c^2)`` up to ``c^2 = 1/3``, then ``(1 + c^2) / sqrt(2)``; at most 1 for one direction.
    """
    square = clip * clip
    bound = 2.0 * clip * math.sqrt(1.0 - square) if 3.0 * square <= 1.0 else (1.0 + square) / math.sqrt(2.0)
    return min(bound, 1.0) if width == 1 else bound
