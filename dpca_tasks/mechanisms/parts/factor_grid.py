"""The grid of item factors, on which users compute: one unit for training and prediction, whatever the mechanism."""

import numpy as np
from numpy.typing import NDArray

UNIT = 2.0**-24
"""One step of the grid of item factors, and of directions of ratings."""


def in_steps(factors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return factors in steps of `UNIT`, rounded to the nearest."""
    return np.rint(factors / UNIT).astype(np.int64)


def on_grid(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors rounded to the grid."""
    return np.rint(factors / UNIT) * UNIT
