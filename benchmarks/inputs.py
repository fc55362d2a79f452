"""The input matrices of all benchmarks.

An input consists of a name, a size, a public bound on its row norms, and a function that makes its rows. Generators are
seeded, so an input is the same matrix on every machine. Inputs with real data are used only if ``make data`` has
fetched the data.

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

# The number of columns of each of the 14 attributes of a9a. In every row, each attribute sets one of its columns to 1.
A9A_WIDTHS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input matrix of benchmarks: its size, the function that makes its rows, and its declared density."""

    name: str
    n_rows: int
    n_features: int
    clip_norm: float
    make: Callable[[int], sp.csr_array]
    density: float | None = None

    def rows(self, *, toy: bool) -> sp.csr_array:
        """Make all rows of the input, or only `TOY_ROWS` rows if ``toy``."""
        return self.make(TOY_ROWS if toy else self.n_rows)


def one_hot_rows(n_rows: int, *, seed: int = SEED) -> sp.csr_array:
    """Draw rows like those of a9a, in which each categorical attribute sets one of its columns to 1.

    The j-th column of an attribute is set 1/j as often as the first.
    """
    rng = np.random.default_rng(seed)
    indices = np.empty((n_rows, len(A9A_WIDTHS)), np.int32)
    start = 0
    for attribute, width in enumerate(A9A_WIDTHS):
        popularity = 1 / np.arange(1, width + 1)
        indices[:, attribute] = start + rng.choice(width, n_rows, p=popularity / popularity.sum())
        start += width
    row_ptr = np.arange(n_rows + 1, dtype=np.int32) * len(A9A_WIDTHS)
    return sp.csr_array((np.ones(indices.size), indices.ravel(), row_ptr), shape=(n_rows, start))


def scattered_rows(n_rows: int, *, density: float = 0.01) -> sp.csr_array:
    """Draw rows of 2,000 columns, in which each entry is nonzero with a given probability and standard normal then."""
    n_features = 2_000
    rng = np.random.default_rng(SEED)
    n_cells = n_rows * n_features
    enough = int(n_cells * density + 8 * np.sqrt(n_cells * density)) + 8
    cells = np.cumsum(rng.geometric(density, enough)) - 1  # the gaps between nonzero entries, in row-major order
    cells = cells[cells < n_cells]
    row_ptr = np.searchsorted(cells, np.arange(n_rows + 1) * n_features).astype(np.int32)
    indices = (cells % n_features).astype(np.int32)
    return sp.csr_array((rng.standard_normal(cells.size), indices, row_ptr), shape=(n_rows, n_features))


def topical_rows(n_rows: int) -> sp.csr_array:
    """Draw rows of 2,000 columns with 20 leading directions; 1 % of the entries are nonzero.

    A row belongs to one of 20 topics, which have 20 columns each. Topic j is 0.9 times as frequent as topic j - 1. Of
    the columns of its topic, a row sets each with probability 0.5; all of them have the same standard normal value. The
    other nonzero entries of a row are random numbers at random positions, as in `scattered_rows`.

    The second moment, divided by the number of rows, has 20 leading eigenvalues, from 0.61 to 0.087, in nearly a
    geometric series. All others are at most 0.037.
    """
    topics, width, noise = 20, 20, scattered_rows(n_rows, density=0.005)
    rng = np.random.default_rng(SEED + 1)
    popularity = 0.9 ** np.arange(topics)
    topic = rng.choice(topics, n_rows, p=popularity / popularity.sum())
    row, column = np.nonzero(rng.random((n_rows, width), dtype=np.float32) < 0.5)
    places = row.astype(np.int32), (width * topic[row] + column).astype(np.int32)
    return sp.csr_array(noise + sp.csr_array((rng.standard_normal(n_rows)[row], places), shape=noise.shape))


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
    """Draw dense rows of normal values whose j-th column has standard deviation 1/j, and scale long rows to norm 1."""
    rows = np.random.default_rng(SEED).standard_normal((n_rows, n_features)) / np.arange(1, n_features + 1)
    return sp.csr_array(rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True)))


def uniform_rows(n_rows: int, *, n_features: int, density: float) -> sp.csr_array:
    """Draw sparse rows with nonzero entries at random positions and values uniform on [0, 1]."""
    rng = np.random.default_rng(SEED)
    return sp.csr_array(sp.random_array((n_rows, n_features), density=density, format="csr", rng=rng))


def text_rows(n_rows: int, *, n_features: int = 20_000) -> sp.csr_array:
    """Generate short texts as rows of TF-IDF weights, scaled to norm 1.

    A text has 9 words on average and one of 400 topics. Half of the words come from the 60 words of this topic, the
    other half from the whole vocabulary. The topics of texts, the words of a topic and the words of the vocabulary are
    Zipf-distributed.
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
TOPICAL = Input(name="topical", n_rows=200_000, n_features=2_000, clip_norm=20.0, make=topical_rows)
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
    """Return the inputs on which ingest, kernels and releases are measured: A9A_LIKE, SYN, and MNIST if fetched."""
    fetched = (DATA / "mnist" / "train-images-idx3-ubyte").is_file()
    return (*GENERATED, MNIST) if fetched else GENERATED
