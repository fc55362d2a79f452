"""How good a subspace is on given rows, computed without noise: numbers for the curator alone, which never leave.

They are no release: nothing is stored, charged or published. A mechanism cannot ask for them, since only a curator that
was built to disclose answers without noise.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.released_moment import centred, moment_query
from dpca_tasks.metrics import (
    captured_beyond_first,
    captured_variance,
    held_variance,
    principal_angles,
    reconstruction_error,
    subspace_distance,
)
from dpca_tasks.privacy.curator import DisclosingCurator
from dpca_tasks.queries.augmented_moment import CONSTANT

type Matrix = NDArray[np.float64]

BITS = 14


def diagnose(
    curator: DisclosingCurator, problem: Problem, components: Matrix, *, mean: Matrix | None
) -> dict[str, Any]:
    """Compare a subspace with the best one of the rows.

    Parameters
    ----------
    curator : DisclosingCurator
    problem : Problem
        The clip norm of the release; rows are taken around their own mean, without noise, if it is centred.
    components : array of shape (k, d)
    mean : array of shape (d,), optional
        The released mean; what is off the subspace is measured from it.

    Returns
    -------
    dict
        ``captured_variance`` and ``captured_beyond_first`` over what the best k directions hold, ``share`` and
        ``share_beyond_first`` of all variance, ``principal_angles`` to the best k directions in degrees, ascending,
        ``subspace_distance`` from them, ``reconstruction_error`` (the sum of squared distances of records to the
        subspace) and its mean over records. A number is None where nothing defines it.
    """
    exact = curator.disclose(moment_query(problem, bits=BITS))
    moment, away = exact, np.zeros(problem.n_features)
    count = None
    if problem.center != "none":
        constant = CONSTANT * problem.clip_norm
        count = float(exact[-1, -1]) / constant**2
        moment, own = centred(exact[:-1, :-1], exact[:-1, -1] / constant, count)
        away = own if mean is None else own - mean
    values, best = leading_eigenpairs(moment, len(components))
    total, held = float(np.trace(moment)), held_variance(moment, components)
    along = held_variance(moment, components[:1])
    around = moment if count is None else moment + count * np.outer(away, away)
    found = {
        "captured_variance": captured_variance(moment, components, values=values),
        "captured_beyond_first": captured_beyond_first(moment, components, first=best[0], values=values),
        "share": held / total if total > 0.0 else None,
        "share_beyond_first": (held - along) / (total - along) if len(components) > 1 and total > along else None,
        "principal_angles": [float(angle) for angle in np.degrees(principal_angles(components, best))],
        "subspace_distance": subspace_distance(components, best),
        "reconstruction_error": reconstruction_error(around, components, total=float(np.trace(around))),
    }
    return {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in found.items()}
