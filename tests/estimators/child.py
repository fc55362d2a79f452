"""Program that runs scikit-learn's own checks on every estimator, and prints the outcomes as JSON.

The program runs as a module of a copy of the tests, without any source of the package nearby.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import sklearn
from sklearn.utils.estimator_checks import check_estimator

from dpca.artifacts.subspace import PrivateSubspace
from flows import estimators
from flows.estimators import PrivateMatrixFactorization, PrivatePCA, PrivateRidge
from tests.dpca.artifacts import test_subspace


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An estimator to check.

    ``makes`` constructs it in several ways. ``exceptions`` has the checks that all of these fail, with reasons, and
    ``left_out`` those that may be skipped.
    """

    makes: Sequence[Callable[[], Any]]
    exceptions: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


_MATRIX = "predict returns the ratings of all items, a matrix, where the check wants one value a row"


FRESH_NOISE = {
    "check_fit_idempotent": "each fit is a release with fresh noise: fits that agreed would reveal that rows are equal"
}
NON_DETERMINISTIC = frozenset(
    {"check_pipeline_consistency", "check_transformer_data_not_an_array", "check_transformer_general"}
)
"""Checks that scikit-learn skips for the tag ``non_deterministic``, because they compare two fits too."""


OF_TWO_FITS = (
    *("check_fit_idempotent", "check_regressor_data_not_an_array"),
    *("check_regressors_int", "check_supervised_y_2d"),
)
"""Checks of regressors that compare two fits."""


def loaded(width: int) -> PrivateSubspace:
    """Return a published subspace with the given number of columns."""
    return PrivateSubspace(components=np.eye(1, width), manifest={})


SUBJECTS = {
    "PrivatePCA": Subject(makes=[PrivatePCA], exceptions=FRESH_NOISE, left_out=NON_DETERMINISTIC),
    "PrivatePCA, clip norm and number stated": Subject(
        makes=[lambda: PrivatePCA(1, epsilon=2.0, clip_norm=4.0)], exceptions=FRESH_NOISE, left_out=NON_DETERMINISTIC
    ),
    "PrivateMatrixFactorization": Subject(
        makes=[lambda: PrivateMatrixFactorization(1, ratings_between=(-1000, 1000), ratings_per_user=10)],
        exceptions={
            "check_estimator_sparse_array": _MATRIX,
            "check_estimator_sparse_matrix": _MATRIX,
            **FRESH_NOISE,
        },
        left_out=NON_DETERMINISTIC,
    ),
    "PrivateRidge": Subject(
        makes=[lambda: PrivateRidge(clip_norm=20.0, epsilon=1e6)],
        exceptions={name: FRESH_NOISE["check_fit_idempotent"] for name in OF_TWO_FITS},
        left_out=frozenset({"check_pipeline_consistency"}),
    ),
    "PrivateSubspace, loaded": Subject(
        makes=[partial(loaded, width) for width in test_subspace.WIDTHS],
        exceptions=test_subspace.EXCEPTIONS,
    ),
}


def outcomes(subject: Subject) -> list[dict[str, str]]:
    """Return name, status and error of each check; a check passes if it passes for one way of construction."""
    best: dict[str, dict[str, str]] = {}
    for make in subject.makes:
        found: dict[str, dict[str, str]] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(make(), on_skip=None, on_fail=None)
        for result in results:
            name, status = result["check_name"], result["status"]
            error = "" if result["exception"] is None else f"{result['exception']!r:.200}"
            if found.get(name, {"status": "passed"})["status"] == "passed":
                found[name] = {"check": name, "status": status, "error": error}
        for name, outcome in found.items():
            if outcome["status"] == "passed" or name not in best:
                best[name] = outcome
    return list(best.values())


def main() -> dict[str, Any]:
    """Return the package versions, the location of the package, and the outcomes of all checks."""
    return {
        "scikit-learn": sklearn.__version__,
        "package": estimators.__file__,
        "outcomes": {name: outcomes(subject) for name, subject in SUBJECTS.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main()))
