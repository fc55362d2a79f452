"""The second moment X^T X of clipped records: the sufficient statistic of PCA."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.dense_products import add_dense_outer_products, is_dense
from dpca_tasks.kernels.outer_products import add_outer_products, add_packed_outer_products, is_packed
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.records.blocks import RowBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SecondMoment(RowSum):
    r"""Sum ``X_u^T X_u`` over records u, packed as an upper triangle.

    Notes
    -----
    Sensitivity, with every record ``X_u`` (rows of one individual, divided by the clip norm) of
    Frobenius norm at most 1, as `dpca_tasks.records.blocks` ensures in integers. Write ``M_u = X_u^T X_u``; it is
    positive semi-definite with trace ``||X_u||_F^2 <= 1``.

    - *l2* (Frobenius norm of the full matrix). ``||M_u||_F <= tr M_u <= 1``: add_remove and zero_out move the
      sum by one ``M_u``. For replace_one, ``||M_u - M_v||_F^2 = ||M_u||^2 + ||M_v||^2 - 2 <M_u, M_v> <= 2``,
      since the inner product of positive semi-definite matrices is not negative; orthogonal unit rows attain
      ``sqrt 2``.
    - *nuclear* (the sum of the absolute eigenvalues of the difference). ``||M_u||_* = tr M_u <= 1``, and 2
      for replace_one by the triangle inequality. *Scores* ``tr(V^T S V)``, for V of orthonormal columns, move by
      ``||X_u V||_F^2``, within [0, 1], or by the difference of two such, within [-1, 1]: the same numbers.
    - *l1* of the packed triangle. With ``s = sum_r ||x_r||_1^2 <= d sum_r ||x_r||_2^2 <= d``, the triangle's
      entries add up to at most ``(s + tr M_u) / 2 <= (d + 1) / 2``; twice that for replace_one.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang (2014), Analyze Gauss, Algorithm 1; the replace-one bound is the sharp one.
    """

    name: ClassVar[str] = "second_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    @property
    def layout(self) -> Layout:
        """A symmetric matrix of order d."""
        return Layout(kind="symmetric", order=self.n_features)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        replaced = self.relation == "replace_one"
        match norm:
            case "l2":
                return SQRT_2_UP if replaced else 1.0
            case "nuclear" | "scores":
                return 2.0 if replaced else 1.0
            case "l1":
                return (self.n_features + 1) * (1.0 if replaced else 0.5)
        raise InvalidInput(f"norm={norm!r} is unknown; the second moment states l1, l2, nuclear and scores.")

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the outer products of the block's rows, in steps of ``4^-bits``.

        A coordinate of one record, or of a part of its rows, is at most ``4^bits <= 2^28`` steps by Cauchy-Schwarz:
        int64 holds the sum of ``2^33`` records, the capacity of the design.
        """
        arguments = (block.values, block.indices, block.row_ptr, self.n_features, total)
        add_others = add_dense_outer_products if is_dense(block.density) else add_outer_products
        if is_packed(block.density, self.n_features):
            add_packed_outer_products(*arguments, add_others)
        else:
            add_others(*arguments)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sum of the block's outer products."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total
