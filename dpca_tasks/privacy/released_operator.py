"""A noised matrix too large to form: the operator V -> (S + E) V, for as many V as one likes."""

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
"""Columns of the first product that are kept, and with which every product must agree."""


class NoisedOperator:
    r"""One released matrix ``M = S + E``, applied to public directions; made by `Curator.release_operator`.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        What S is.
    total : callable
        The exact sum of a product of the moment.
    noise : callable
        Makes E, which is drawn when it is first applied.
    load_or_store : callable
        From check columns, of V and of ``M V``, to the ones that are stored for the step: these or earlier ones.

    Notes
    -----
    *Why any number of products costs one release.* M is the matrix of integers that `Curator.release` would have kept
    for the same request: E is the same function of key and digest, coordinate by coordinate. A product is computed
    from the same records without rounding, hence equals ``M V`` exactly, for any V: it is post-processing of M. V may
    be chosen from earlier products, and otherwise by a resumed run.

    *Why it stays one M.* The request digest (of snapshot content, step, query, noise, scale; not V) is stored, with the
    check columns, before the first product leaves; another request is refused. What the digest cannot see, rows or
    programs that changed behind its back, would answer from another S on the same E, and the difference of two answers
    has no noise. But M is symmetric, so a product Y of V agrees with them, ``V_0^T Y = (M V_0)^T V``; a
    difference ``D V`` would go unseen only where all check columns are orthogonal to it. Both sides are compared as
    integers modulo ``2^64``, and a product that differs does not leave.
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
        """Return ``M V``, exact integers rounded to floats at the end.

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
            When the step was answered for another question, or from another matrix. The product does not leave.
        """
        asked = np.ascontiguousarray(directions, np.int64)
        high, low = self._exactly(asked)
        wrapped = (high << LOW_BITS) + low
        if self._check is None:
            self._check = self._load_or_store((asked[:, :CHECK_COLUMNS], wrapped[:, :CHECK_COLUMNS]))
        columns, images = self._check
        if not np.array_equal(np.einsum("ij,ik->jk", columns, wrapped), np.einsum("ij,ik->jk", images, asked)):
            raise StepMismatch(
                "a product differs from the matrix that this step released; nothing more leaves it: run "
                "`dpca dataset verify`, and finish the release with the version that began it."
            )
        return np.asarray((high * 2.0**LOW_BITS + low) * self._step)

    def _exactly(self, directions: Integers) -> Integers:
        """Return ``M V`` in two words; the cluster draws and applies the noise while it sums the rows."""
        product = UnroundedProduct.of(self._moment, directions)
        if self._noise is None:
            self._noise = self._make_noise()
        noised = self._noise.begin(directions)
        return carried(self._total(product).reshape(2, *directions.shape) + as_words(noised()))
