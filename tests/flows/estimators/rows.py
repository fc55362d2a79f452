"""Rows that the tests of estimators share, and the estimator that they fit."""

from typing import Any

import numpy as np

from flows.estimators import PrivatePCA

ROWS = np.random.default_rng(7).normal(size=(4_000, 5)) * [9.0, 4.0, 1.0, 1.0, 1.0] + 3.0
TERMS: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6}


def model(**changed) -> PrivatePCA:
    """Return an estimator of two components."""
    return PrivatePCA(**{"n_components": 2, "clip_norm": 30.0, **TERMS, **changed})
