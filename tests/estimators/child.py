"""A program: hold every estimator against scikit-learn's own checks, and print what each came to as JSON."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sklearn
from sklearn.utils.estimator_checks import check_estimator

from flows import estimators
from flows.estimators import PrivateMatrixFactorization, PrivatePCA


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An estimator, and the checks that it fails for a reason."""

    make: Callable[[], Any]
    exceptions: Mapping[str, str] = field(default_factory=dict)


_MATRIX = "predict returns the ratings of all items, a matrix, where the check wants one value a row"

SUBJECTS = {
    "PrivatePCA": Subject(make=PrivatePCA),
    "PrivatePCA, clip norm and number stated": Subject(make=lambda: PrivatePCA(1, epsilon=2.0, clip_norm=4.0)),
    "PrivateMatrixFactorization": Subject(
        make=lambda: PrivateMatrixFactorization(1, ratings_between=(-1000, 1000), ratings_per_user=10),
        exceptions={"check_estimator_sparse_array": _MATRIX, "check_estimator_sparse_matrix": _MATRIX},
    ),
}


def outcomes(subject: Subject) -> list[dict[str, str]]:
    """Return the name, the status and the error of each check."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(subject.make(), on_skip=None, on_fail=None)
    return [
        {
            "check": result["check_name"],
            "status": result["status"],
            "error": "" if result["exception"] is None else f"{result['exception']!r:.200}",
        }
        for result in results
    ]


def main() -> dict[str, Any]:
    """Return the versions, where the package was found, and the outcomes."""
    return {
        "scikit-learn": sklearn.__version__,
        "package": estimators.__file__,
        "outcomes": {name: outcomes(subject) for name, subject in SUBJECTS.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main()))
