"""The Python code of an exported MLflow model.

`dpca.artifacts.exports` copies this file into the model's folder, so the file imports only NumPy and nothing from this
package. MLflow calls `_load_pyfunc` with the path of the subfolder ``data``, and `Subspace.predict` with rows of
numbers.
"""

from pathlib import Path
from typing import Any

import numpy as np


class Subspace:
    """A projection of rows onto released components."""

    def __init__(self, folder: str) -> None:
        with np.load(Path(folder) / "subspace.npz", allow_pickle=False) as archive:
            self.components = archive["components"]
            self.offset = archive["offset"]
            self.names = archive["names"].tolist() if "names" in archive else None

    def predict(self, rows: Any, params: object = None) -> Any:
        """Return the scores of an array, a sparse matrix or a data frame; columns of a frame are matched by name.

        Raises
        ------
        ValueError
            If rows hold dates, durations or categories, which would be converted to meaningless integers, or if values
            are masked.
        """
        kinds = list(rows.dtypes) if hasattr(rows, "dtypes") else [getattr(rows, "dtype", None)]
        if any(getattr(kind, "kind", "") in ("m", "M") or str(kind) == "category" for kind in kinds):
            raise ValueError("rows hold dates, durations or categories, which are not numbers; convert them first")
        if np.ma.is_masked(rows):
            raise ValueError("rows have masked values, which are missing data; impute them first")
        if self.names is not None and hasattr(rows, "columns"):
            rows = rows[self.names].to_numpy(dtype=np.float64)
        return np.asarray(rows @ self.components.T) - self.offset


def _load_pyfunc(path: str) -> Subspace:
    return Subspace(path)
