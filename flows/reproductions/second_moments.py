"""Real data with rows of norm 1, and second moments on which refining is reproduced: theirs, and of made signals.

a9a ships with the package. MNIST and Reuters are there after ``make data``; Reuters needs scikit-learn besides.
"""

import gzip
import json
import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import hadamard

from storage.formats.svmlight_parser import SvmlightParser

type Matrix = NDArray[np.float64]

MNIST, REUTERS = "mnist/train-images-idx3-ubyte", "reuters"
"""Where the fetched files are, from the folder of data."""
FEW = 5_000
"""Rows of the small MNIST."""

_A9A_FEATURES, _TERMS, _IDX_HEADER = 123, 2_000, 16
_SEED = 5


def a9a() -> Matrix:
    """Return the second moment of the shipped a9a, rows of norm 1."""
    return second_moment(a9a_rows())


def mnist(data: Path, *, n_rows: int | None = None) -> Matrix:
    """Return the second moment of the first training images of MNIST, or of all, rows of norm 1."""
    return second_moment(mnist_rows(data, n_rows=n_rows))


def reuters(data: Path) -> Matrix:
    """Return the second moment of TF-IDF rows of Reuters items: 2,000 terms, rows of norm 1, empty ones left out."""
    return second_moment(reuters_rows(data))


def a9a_rows() -> sparse.csr_array:
    """Return the rows of the shipped a9a, of norm 1."""
    return of_norm_one(a9a_entries())


def a9a_entries() -> sparse.csr_array:
    """Return the rows of the shipped a9a as they are: at most 14 ones each."""
    text = gzip.decompress(files("flows").joinpath("data", "a9a.svm.gz").read_bytes())
    rows = SvmlightParser(n_features=_A9A_FEATURES, capacity=len(text)).parse(memoryview(text), first_line=1)
    shape = (len(rows.row_ptr) - 1, _A9A_FEATURES)
    return sparse.csr_array((rows.values, rows.indices, rows.row_ptr), shape=shape)


def mnist_rows(data: Path, *, n_rows: int | None = None) -> sparse.csr_array:
    """Return the first training images of MNIST, or all, as rows of norm 1."""
    pixels = np.frombuffer((data / MNIST).read_bytes(), np.uint8, offset=_IDX_HEADER).reshape(-1, 784)
    return of_norm_one(sparse.csr_array(pixels[:n_rows] / 255.0))


def reuters_rows(data: Path) -> sparse.csr_array:
    """Return TF-IDF rows of Reuters items: 2,000 terms, of norm 1, empty ones left out."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [
        f"{item.get('title') or ''} {item.get('body') or ''}"
        for path in sorted((data / REUTERS).glob("reuters-0*.json"))
        for item in json.loads(path.read_text(encoding="utf8"))
    ]
    return of_norm_one(sparse.csr_array(TfidfVectorizer(max_features=_TERMS).fit_transform(texts)))


def flat() -> Matrix:
    """Return a signal of three components whose loadings are all equally large, of order 512."""
    return _signal(hadamard(512)[:, [0, 5, 77]] / math.sqrt(512), 6000, 2500, 1500)


def giant() -> Matrix:
    """Return a signal of two single features and their common level, of order 400."""
    columns = np.zeros((400, 3))
    columns[0, 0] = columns[1, 1] = 1.0
    columns[:, 2] = 1.0 / math.sqrt(400)
    return _signal(columns, 3000, 1500, 1500)


def low_rank() -> Matrix:
    """Return a signal of four random directions, of order 300."""
    return _signal(_orthonormal(np.random.default_rng(_SEED).standard_normal((300, 4))), 8000, 4000, 2000, 1000)


def few_features() -> Matrix:
    """Return a signal of five components on 20 random features each, of order 1,000."""
    rng, columns = np.random.default_rng(_SEED), np.zeros((1000, 5))
    for column in columns.T:
        column[rng.choice(1000, 20, replace=False)] = rng.standard_normal(20)
    return _signal(_orthonormal(columns), 3000, 2000, 1500, 1000, 700)


def avoiding() -> Matrix:
    """Return a signal whose strong component and three weak ones share no feature, but for one, of order 600."""
    rng, columns = np.random.default_rng(_SEED), np.zeros((600, 4))
    columns[:300, [0, 3]] = rng.standard_normal((300, 2))
    columns[300:, [1, 2]] = rng.standard_normal((300, 2))
    return _signal(_orthonormal(columns), 20000, 1500, 1200, 1000)


def ruinous(noise_std: float) -> Matrix:
    """Return a signal that unguarded refining ruins: one strong component on 40 features, six weak ones on 360."""
    rng, columns = np.random.default_rng(_SEED), np.zeros((400, 7))
    columns[:40, 0] = rng.standard_normal(40)
    columns[40:, 1:] = rng.standard_normal((360, 6))
    seen = noise_std * math.sqrt(400)
    return _signal(_orthonormal(columns), 7.0 * seen, *[1.4 * seen] * 6)


def rotated(second_moment: Matrix) -> Matrix:
    """Return a second moment in random coordinates."""
    turn = _orthonormal(np.random.default_rng(_SEED).standard_normal(second_moment.shape))
    return turn.T @ second_moment @ turn


SYNTHETIC: dict[str, tuple[Callable[[], Matrix], int]] = {
    "flat": (flat, 3),
    "giant": (giant, 3),
    "low rank": (low_rank, 4),
    "sparse": (few_features, 5),
    "anti": (avoiding, 4),
}
"""Signals and their number of components."""


def of_norm_one(rows: sparse.csr_array) -> sparse.csr_array:
    """Scale rows to norm 1, each by itself, and leave empty ones out."""
    norms = np.sqrt(rows.multiply(rows).sum(axis=1))
    return sparse.csr_array(sparse.diags_array(1.0 / norms[norms > 0.0]) @ rows[norms > 0.0])


def second_moment(rows: sparse.csr_array) -> Matrix:
    """Return ``X^T X``."""
    return np.asarray((rows.T @ rows).toarray())


def _signal(columns: Matrix, *strengths: float) -> Matrix:
    return np.asarray((columns * np.array(strengths)) @ columns.T)


def _orthonormal(columns: Matrix) -> Matrix:
    return np.asarray(np.linalg.qr(columns)[0])
