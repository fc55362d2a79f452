"""Run methods on request in a process of their own: a JSON object a line in, one out.

A request names a method, a file of rows, the number of components, epsilon and delta, where to write the directions,
and how many seconds of processor time the run may take: the process is ended when they are over. As a script this runs
two libraries in the environment that has them, without our packages.
"""

import json
import logging
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp

type Directions = Any  # a float array (k, d), of libraries without types
type Method = Callable[[dict[str, Any]], Directions]


@lru_cache(maxsize=1)
def rows_of(path: str) -> sp.csr_array:
    """Hold the rows of the requests, loaded once."""
    return sp.csr_array(sp.load_npz(path))


def diffprivlib_directions(rows: Any, *, n_components: int, epsilon: float, clip_norm: float) -> Directions:
    """Fit diffprivlib's PCA to dense rows, not centred."""
    from diffprivlib.models import PCA

    return PCA(n_components, epsilon=epsilon, centered=True, data_norm=clip_norm).fit(rows).components_


def opendp_directions(rows: Any, *, n_components: int, epsilon: float, clip_norm: float) -> Directions:
    """Fit OpenDP's PCA to dense rows; a third of its epsilon goes to a mean."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "floating-point", "honest-but-curious", "idealized-numerics")
    model = dp.sklearn.decomposition.PCA(
        epsilon=epsilon,
        row_norm=clip_norm,
        n_samples=rows.shape[0],
        n_features=rows.shape[1],
        n_components=n_components,
    )
    return model.fit(rows).components_


def diffprivlib_pca(request: dict[str, Any]) -> Directions:
    """Run diffprivlib on rows of norm 1."""
    rows = rows_of(request["rows"]).toarray()
    return diffprivlib_directions(rows, n_components=request["k"], epsilon=request["epsilon"], clip_norm=1.0)


def opendp_pca(request: dict[str, Any]) -> Directions:
    """Run OpenDP on rows of norm 1."""
    rows = rows_of(request["rows"]).toarray()
    return opendp_directions(rows, n_components=request["k"], epsilon=request["epsilon"], clip_norm=1.0)


LIBRARIES: dict[str, Method] = {"diffprivlib": diffprivlib_pca, "opendp": opendp_pca}


def serve(methods: Mapping[str, Method]) -> None:
    """Answer requests until the pipe closes; a run past its time, or an error, ends the process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    for line in sys.stdin:
        request = json.loads(line)
        rows_of(request["rows"])
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # the signal's default is to end the process
        start = time.process_time()
        try:
            directions, refusal = methods[request["method"]](request), None
        except Exception as error:  # noqa: BLE001 - of anyone's library: told to the parent, which goes on
            directions, refusal = None, f"{type(error).__name__}: {error}"
        seconds = time.process_time() - start
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if refusal is None:
            np.save(request["output"], np.asarray(directions, np.float64))
        print(json.dumps({"seconds": seconds, "refusal": refusal}), file=answers, flush=True)


if __name__ == "__main__":
    serve(LIBRARIES)
