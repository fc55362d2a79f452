"""Rows, and the estimator that all tests of estimators use."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.estimators import InMemoryBudget, PrivatePCA

ROWS: NDArray[np.float64] = np.random.default_rng(7).normal(size=(4_000, 5)) * [9.0, 4.0, 1.0, 1.0, 1.0] + 3.0
NEIGHBOUR = ROWS.copy()
NEIGHBOUR[17] += 1.0  # NEIGHBOUR differs from ROWS in one row
TERMS: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6}


def model(**changed) -> PrivatePCA:
    """Return an estimator of two components, with an unbounded budget by default."""
    return PrivatePCA(**{"n_components": 2, "clip_norm": 30.0, "budget": InMemoryBudget(), **TERMS, **changed})
