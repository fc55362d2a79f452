"""The model in an exported MLflow folder: this file is copied into it, and needs NumPy alone, nothing of this package.

MLflow calls `_load_pyfunc` with the folder ``data``, and `Subspace.predict` with rows of numbers.
"""

from pathlib import Path
from typing import Any

import numpy as np


class Subspace:
    """Project rows onto released components."""

    def __init__(self, folder: str) -> None:
        with np.load(Path(folder) / "subspace.npz", allow_pickle=False) as archive:
            self.components = archive["components"]
            self.offset = archive["offset"]
            self.names = archive["names"].tolist() if "names" in archive else None

    def predict(self, rows: Any, params: object = None) -> Any:
        """Return the scores of rows: an array, a sparse matrix, or a data frame, whose columns are taken by name."""
        if self.names is not None and hasattr(rows, "columns"):
            rows = rows[self.names].to_numpy(dtype=np.float64)
        return np.asarray(rows @ self.components.T) - self.offset


def _load_pyfunc(path: str) -> Subspace:
    return Subspace(path)
