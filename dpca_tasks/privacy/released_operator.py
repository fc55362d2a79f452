"""A noised matrix that is too large to form: the operator V -> (S + E) V, for any number of V."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import StepMismatch
from dpca_tasks.privacy.tiled_noise import NoiseOperator
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.operator_product import DIRECTION_BITS, LOW_BITS, UnroundedProduct, as_words, carried
from dpca_tasks.queries.second_moment import SecondMoment

type Integers = NDArray[np.int64]
type CheckColumns = tuple[Integers, Integers]

CHECK_COLUMNS = 4
"""The number of columns of the first product that are stored, and with which every product must agree."""


class NoisedOperator:
    r"""One released matrix ``M = S + E``, applied to public directions; made by `Curator.release_operator`.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        The query of S.
    total : callable
        Returns the exact sum of a product of the moment.
    noise : callable
        Returns the operator of E, which draws the noise when it is first applied.
    load_or_store : callable
        Takes check columns of V and of ``M V``; returns the stored ones of the step, of which the first writer wins.

    Notes
    -----
    *Why any number of products costs one release.* M is the integer matrix that `Curator.release` would have stored for
    the same request: E is the same function of key and digest, coordinate by coordinate. A product is computed from the
    same records without rounding, so it equals ``M V`` exactly for every V and is post-processing of M. V may depend on
    earlier products, and a resumed run may choose other V.

    *Why M stays the same.* The request digest (of snapshot content, step, query, noise, scale; not V) is stored with
    the check columns before the first product leaves, and another request is refused. The digest does not detect rows
    or programs that changed without notice. They would give another S with the same E, and the difference of two
    answers would have no noise. But M is symmetric, so a product Y of V satisfies ``V_0^T Y = (M V_0)^T V`` for the
    check columns ``V_0``. A difference ``D V`` is missed only if it is orthogonal to all check columns. Both sides are
    compared as integers modulo ``2^64``, and a product that fails the comparison does not leave.
    """

    def __init__(
        self,
        moment: SecondMoment | CentredMoment,
        total: Callable[[UnroundedProduct], Integers],
        noise: Callable[[], NoiseOperator],
        load_or_store: Callable[[CheckColumns], CheckColumns],
    ) -> None:
        self.order = moment.layout.order
        self._moment, self._total, self._make_noise, self._load_or_store = moment, total, noise, load_or_store
        self._step = moment.unit / moment.steps_per_unit / 2.0**DIRECTION_BITS
        self._noise: NoiseOperator | None = None
        self._check: CheckColumns | None = None

    def product(self, directions: NDArray[Any]) -> NDArray[np.float64]:
        """Return ``M V``, computed in exact integers and rounded to floats at the end.

        Parameters
        ----------
        directions : integer array of shape (order, p)
            V in steps of ``2^-15``, columns of norm at most ``sqrt 2``.

        Returns
        -------
        float64 array of shape (order, p), data units squared

        Raises
        ------
        InvalidInput
            When V has another shape, or longer columns.
        StepMismatch
            When the step was answered for another request, or from another matrix. The product does not leave.
        """
        asked = np.ascontiguousarray(directions, np.int64)
        high, low = self._exactly(asked)
        wrapped = (high << LOW_BITS) + low
        if self._check is None:
            self._check = self._load_or_store((asked[:, :CHECK_COLUMNS], wrapped[:, :CHECK_COLUMNS]))
        columns, images = self._check
        if not np.array_equal(np.einsum("ij,ik->jk", columns, wrapped), np.einsum("ij,ik->jk", images, asked)):
            raise StepMismatch(
                "a product differs from the matrix that this step released, so it does not leave; run "
                "`dpca dataset verify`, and finish the release with the version that began it."
            )
        return np.asarray((high * 2.0**LOW_BITS + low) * self._step)

    def _exactly(self, directions: Integers) -> Integers:
        """Return ``M V`` as two words; the cluster draws and applies the noise while it sums the rows."""
        product = UnroundedProduct.of(self._moment, directions)
        if self._noise is None:
            self._noise = self._make_noise()
        noised = self._noise.begin(directions)
        return carried(self._total(product).reshape(2, *directions.shape) + as_words(noised()))
