"""Program that runs a page's code in the environment of another library, and prints scores and lineage as JSON.

    python child.py CODE FOLDER

The code can use the exported files, ``rows`` (an array) and ``table`` (the same, as a data frame if columns have
names).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(code: Path, folder: Path) -> dict[str, Any]:
    """Run the page's code in the folder, and return its scores and lineage."""
    os.chdir(folder)
    rows = np.load("rows.npy")
    names: list[str] | None = json.loads(Path("names.json").read_text())
    table: Any = rows
    if names is not None and code.name == "mlflow.py":
        import pandas as pd

        table = pd.DataFrame(rows, columns=names)[names[::-1]]
    found: dict[str, Any] = {"rows": rows, "table": table}
    exec(compile(code.read_text(), code.name, "exec"), found)
    refused = None
    if names is not None and hasattr(table, "columns"):
        try:
            found["model"].predict(table.drop(columns=names[0]))
        except found["mlflow"].exceptions.MlflowException as error:
            refused = str(error)
    registered = dict(found["version"].tags) if "version" in found else None
    scores = np.asarray(found["scores"])
    return {
        "scores": scores.tolist(),
        "dtype": str(scores.dtype),
        "lineage": dict(found["lineage"]),
        "registered": registered,
        "refused": refused,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))))
