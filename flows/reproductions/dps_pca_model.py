"""The model of the DPS-PCA paper, with every row divided by its norm.

The paper draws Gaussian rows of norm about 70 and adds the noise of rows of norm 1, so its printed figures carry no
guarantee. The true subspace of the divided rows is the same, since the rows are elliptical.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

type Matrix = NDArray[np.float64]

_SEED = 20180411


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Gaussian rows whose k leading directions, of variance 100, lie in s features; other variances are below 10.

    ``rows_kept`` is the number of features that truncating arms keep.
    """

    n_features: int = 1_000
    n_records: int = 100_000
    n_components: int = 5
    n_relevant: int = 10
    rows_kept: int = 50

    def draw(self, seed: int) -> tuple[NDArray[np.float32], Matrix]:
        """Return rows of norm 1 and the true directions as columns."""
        rng = np.random.default_rng([_SEED, seed])
        d, k = self.n_features, self.n_components
        leading = np.zeros((d, k))
        leading[: self.n_relevant] = np.linalg.qr(rng.standard_normal((self.n_relevant, k)))[0]
        rest = rng.standard_normal((d, d - k))
        rest = np.linalg.qr(rest - leading @ (leading.T @ rest))[0]
        root = np.hstack([10.0 * leading, rest * np.sqrt(rng.uniform(0.0, 10.0, d - k))]).T.astype(np.float32)
        rows = rng.standard_normal((self.n_records, d), np.float32) @ root
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows, leading


PAPER = Model()
"""The model of figures 2, 3 and 4a."""
