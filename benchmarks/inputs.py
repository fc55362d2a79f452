"""The declarations of all inputs of all benchmarks.

An input is a name, a size, a public bound on its row norms, and a function that makes its rows. Generators are seeded,
so an input is the same matrix everywhere. Real data are fetched by ``make data``, and are offered only if fetched.

>>> from benchmarks.inputs import A9A_LIKE
>>> A9A_LIKE.rows(toy=True).shape
(1000, 123)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

DATA = Path(__file__).parent.parent / "data"
TOY_ROWS = 1_000
SEED = 20_261_121

# The widths of a9a's 14 attributes: each attribute sets exactly one of its columns in every row.
A9A_WIDTHS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A matrix for measurements, with its size, its generator and the density that its owner declares."""

    name: str
    n_rows: int
    n_features: int
    clip_norm: float
    make: Callable[[int], sp.csr_array]
    density: float | None = None

    def rows(self, *, toy: bool) -> sp.csr_array:
        """Make all rows, or a toy number of them."""
        return self.make(TOY_ROWS if toy else self.n_rows)


def one_hot_rows(n_rows: int, *, seed: int = SEED) -> sp.csr_array:
    """Draw one column of each attribute per row; the j-th column of an attribute is 1/j as frequent as the first."""
    rng = np.random.default_rng(seed)
    indices = np.empty((n_rows, len(A9A_WIDTHS)), np.int32)
    start = 0
    for attribute, width in enumerate(A9A_WIDTHS):
        popularity = 1 / np.arange(1, width + 1)
        indices[:, attribute] = start + rng.choice(width, n_rows, p=popularity / popularity.sum())
        start += width
    row_ptr = np.arange(n_rows + 1, dtype=np.int32) * len(A9A_WIDTHS)
    return sp.csr_array((np.ones(indices.size), indices.ravel(), row_ptr), shape=(n_rows, start))


def scattered_rows(n_rows: int) -> sp.csr_array:
    """Set each of 2,000 columns with probability 1 % to a standard normal value, independently."""
    n_features, density = 2_000, 0.01
    rng = np.random.default_rng(SEED)
    n_cells = n_rows * n_features
    enough = int(n_cells * density + 8 * np.sqrt(n_cells * density)) + 8
    cells = np.cumsum(rng.geometric(density, enough)) - 1  # gaps between the set cells in row-major order
    cells = cells[cells < n_cells]
    row_ptr = np.searchsorted(cells, np.arange(n_rows + 1) * n_features).astype(np.int32)
    indices = (cells % n_features).astype(np.int32)
    return sp.csr_array((rng.standard_normal(cells.size), indices, row_ptr), shape=(n_rows, n_features))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of bytes in the IDX format of the MNIST files."""
    content = path.read_bytes()
    n_dimensions = content[3]
    shape = np.frombuffer(content, ">i4", n_dimensions, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_dimensions).reshape(shape)


def mnist_rows(n_rows: int) -> sp.csr_array:
    """Return the first training images of MNIST, one per row, scaled to [0, 1]."""
    images = read_idx(DATA / "mnist" / "train-images-idx3-ubyte")[:n_rows]
    return sp.csr_array(images.reshape(images.shape[0], -1) / 255.0)


def decaying_rows(n_rows: int, *, n_features: int) -> sp.csr_array:
    """Draw dense normal rows of norm at most 1, whose j-th column has standard deviation 1/j."""
    rows = np.random.default_rng(SEED).standard_normal((n_rows, n_features)) / np.arange(1, n_features + 1)
    return sp.csr_array(rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True)))


def uniform_rows(n_rows: int, *, n_features: int, density: float) -> sp.csr_array:
    """Draw entries at random places, uniform on [0, 1]."""
    rng = np.random.default_rng(SEED)
    return sp.csr_array(sp.random_array((n_rows, n_features), density=density, format="csr", rng=rng))


def text_rows(n_rows: int, *, n_features: int = 20_000) -> sp.csr_array:
    """Draw short texts with TF-IDF weights, of 8 words per row on average, with rows of norm 1.

    Half of the words come from the text's topic, one of 400 topics with 60 words each; the others come from all words.
    Topics, their words and all words are Zipf-distributed.
    """
    topics, vocabulary = 400, 60
    rng = np.random.default_rng(SEED)

    def zipf(size: int, count: int) -> NDArray[np.int64]:
        frequency = np.cumsum(1 / np.arange(1, size + 1))
        return np.asarray(np.searchsorted(frequency, rng.random(count) * frequency[-1]))

    lengths = 1 + rng.poisson(8, n_rows)
    rows = np.repeat(np.arange(n_rows), lengths)
    topic = zipf(topics, n_rows)[rows]
    words_of = rng.integers(0, n_features, (topics, vocabulary))
    own = words_of[topic, zipf(vocabulary, rows.size)]
    words = np.where(rng.random(rows.size) < 0.5, own, zipf(n_features, rows.size))
    counts = sp.csr_array((np.ones(rows.size), (rows, words)), shape=(n_rows, n_features))
    texts_with = np.bincount(counts.indices, minlength=n_features)
    weights = counts.data * (np.log((1 + n_rows) / (1 + texts_with[counts.indices])) + 1)
    norms = np.sqrt(np.add.reduceat(weights * weights, counts.indptr[:-1]))
    weights /= np.repeat(norms * (1 + 1e-12), np.diff(counts.indptr))
    return sp.csr_array((weights, counts.indices.astype(np.int32), counts.indptr), shape=counts.shape)


A9A_LIKE = Input(name="a9a-like", n_rows=1_000_000, n_features=123, clip_norm=14**0.5, make=one_hot_rows)
SYN = Input(name="syn", n_rows=200_000, n_features=2_000, clip_norm=12.0, make=scattered_rows)
WIDE = Input(name="wide", n_rows=20_000, n_features=500, clip_norm=1.0, make=partial(decaying_rows, n_features=500))
DENSE = Input(name="dense", n_rows=200_000, n_features=500, clip_norm=1.0, make=partial(decaying_rows, n_features=500))
MNIST = Input(name="mnist", n_rows=60_000, n_features=784, clip_norm=28.0, make=mnist_rows, density=0.19)
FILLED = tuple(
    Input(
        name=f"uniform-{100 * density:.0f}",
        n_rows=int(10_000 / density),
        n_features=784,
        clip_norm=28.0,
        make=partial(uniform_rows, n_features=784, density=density),
        density=density,
    )
    for density in (0.2, 1.0)
)
TEXT = Input(name="text", n_rows=300_000, n_features=20_000, clip_norm=1.0, make=text_rows)

GENERATED = (A9A_LIKE, SYN)


def spine_inputs() -> tuple[Input, ...]:
    """Return the inputs of the main job: the generators, and MNIST if ``make data`` has fetched it."""
    fetched = (DATA / "mnist" / "train-images-idx3-ubyte").is_file()
    return (*GENERATED, MNIST) if fetched else GENERATED
