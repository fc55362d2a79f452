"""The matrix-free form of a mechanism on one noised second moment: the same release, without forming the matrix.

The client holds only a few blocks of directions, and the noise stays on the workers. With ``center=private``
the rows are extended by a public constant, as in `dpca_tasks.mechanisms.parts.released_moment`; the matrix's last
column gives mean and count, and centring is post-processing of every product.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.parts.block_lanczos import block_width, leading_eigenpairs_of
from dpca_tasks.mechanisms.parts.noisy_products import start_directions
from dpca_tasks.mechanisms.parts.private_mean import Centre
from dpca_tasks.mechanisms.parts.released_moment import moment_query, noise_facts
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.released_operator import NoisedOperator
from dpca_tasks.queries.augmented_moment import CONSTANT
from dpca_tasks.queries.operator_product import DIRECTION_BITS


def decompose_unformed(curator: Curator, plan: Plan, noise: Symmetric, *, n_components: int) -> Subspace:
    """Release the planned second moment as an operator, and return its k leading eigenpairs.

    The pairs of the other columns of the products come as ``further``: refining by ``eb`` shrinks them together.
    """
    problem = plan.problem
    query = moment_query(problem, bits=plan.bits)
    operator, facts = curator.release_operator(query, noise), noise_facts(query, noise, problem)
    start = start_directions(problem.n_features, block_width(problem.n_features, n_components))
    if problem.center == "none":
        values, rows = leading_eigenpairs_of(operator.product, start, n_components)
        return _pairs(values, rows, n_components, mean=None, noise=facts)
    centred = _CentredOperator(operator, constant=CONSTANT * problem.clip_norm)
    values, rows = leading_eigenpairs_of(centred.product, start, n_components)
    return _pairs(values, rows, n_components, mean=centred.centre.mean, noise=facts)


def _pairs(
    values: NDArray[np.float64],
    rows: NDArray[np.float64],
    count: int,
    *,
    mean: NDArray[np.float64] | None,
    noise: Mapping[str, Any],
) -> Subspace:
    return Subspace(
        components=rows[:count],
        eigenvalues=values[:count],
        spectrum=np.minimum.accumulate(values),
        further=rows[count:] if count < len(rows) else None,
        mean=mean,
        noise=noise,
    )


class _CentredOperator:
    """The operator of the rows around their mean; the first product also computes the mean."""

    centre: Centre

    def __init__(self, operator: NoisedOperator, *, constant: float) -> None:
        self._operator, self._constant = operator, constant

    def product(self, directions: NDArray[np.int64]) -> NDArray[np.float64]:
        extended = np.vstack([directions, np.zeros_like(directions[:1])])
        if not hasattr(self, "centre"):
            last = np.zeros_like(extended[:, :1])
            last[-1] = 1 << DIRECTION_BITS
            images = self._operator.product(np.hstack([extended, last]))
            constant, column = self._constant, images[:, -1]
            self.centre = Centre(column[:-1] / constant, float(column[-1]) / constant**2)
            images = images[:, :-1]
        else:
            images = self._operator.product(extended)
        return self.centre.shifted(images[:-1], directions.astype(np.float64) * 2.0**-DIRECTION_BITS)
