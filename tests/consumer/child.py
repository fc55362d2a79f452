"""A program that loads, verifies and applies an artifact as a consumer does.

    python child.py ADDRESS NAME KEY [--only MODULE,MODULE...]

KEY is the pinned root key, or ``none``. With ``--only``, only the listed modules and the standard library can be
imported. The measurements are printed as JSON; a refusal is printed as ``refused``.
"""

import importlib.util
import json
import sys
import time
from importlib.abc import MetaPathFinder
from typing import Any

UNWANTED = (
    *("prefect", "dask", "distributed", "sqlalchemy", "alembic", "duckdb", "numba", "pyarrow", "zarr"),
    *("dp_accounting", "fastapi", "matplotlib", "sklearn"),
)


class Only(MetaPathFinder):
    """Import hook that allows only the listed modules and the standard library."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Refuse to import a module that is neither listed nor in the standard library."""
        ours = fullname.partition(".")[0] in self.names | sys.stdlib_module_names
        if not (ours or fullname.startswith("_sysconfigdata")):  # standard modules whose name contains the platform
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def foreign(before: set[str]) -> list[str]:
    """Return the packages imported since the start of the program, except the standard library."""
    tops = {name.partition(".")[0] for name in set(sys.modules) - before}
    return sorted(tops - sys.stdlib_module_names - {"_uuid"})


def main(address: str, name: str, key: str, only: str | None) -> dict[str, Any]:
    """Load the artifact at an address, apply it to rows, and return the measurements."""
    if only is not None:
        sys.meta_path.insert(0, Only(set(only.split(","))))
    import numpy as np
    import scipy.sparse

    arrays, before = time.process_time(), set(sys.modules)
    import dpca

    opened_by = dpca.Registry.open
    ready, imported = time.process_time(), foreign(before)
    from dpca.errors import StorageError

    registry = opened_by(address, trust=None if key == "none" else key)
    try:
        resolved, subspace = registry.verify(name), registry.load(name)
    except StorageError as error:
        return {"refused": str(error)}
    rows = np.linspace(-1.0, 1.0, 2 * subspace.n_features).reshape(2, -1)
    scores = subspace.fit(rows).transform(rows)
    assert len(subspace.get_feature_names_out()) == subspace.n_components
    assert np.allclose(subspace.transform(scipy.sparse.csr_array(rows)), scores, rtol=0.0, atol=1e-12)
    return {
        "artifact": str(resolved),
        "scores": scores.tolist(),
        "imported": imported,
        "used": foreign(before),
        "found": [name for name in UNWANTED if only is None and importlib.util.find_spec(name) is not None],
        "milliseconds": 1e3 * (ready - arrays),
    }


if __name__ == "__main__":
    known = sys.argv[4:]
    address, name, key = sys.argv[1:4]
    print(json.dumps(main(address, name, key, known[1] if known else None)))
