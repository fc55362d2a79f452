"""Sparse rows like TF-IDF text, 72,309 by 20,958: too wide to form a matrix, and what the advisor says of them.

Words have the frequencies of Zipf's law, each text has words of its own topic besides; weights fall with frequency and
rows have norm 1. The released operator is made with noise from a seed, tile by tile, as often as it is applied.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import eigsh

from dpca_tasks.advisor import BARELY, advise
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from flows.reproductions.checks import Check, at_least, at_most

type Matrix = NDArray[np.float64]

ROWS, FEATURES = 72_309, 20_958
COMPONENTS, DELTA, EPSILON, DECLARED = 10, 1e-6, 0.1, 40

_WORDS, _TOPICS, _OF_TOPIC = 50, 40, 0.2
_SEED, _TILE, _PASSES, _WIDTH = 5, 2_048, 12, 18
_FOUND = 3.0


def check_wide_text() -> Iterator[Check]:
    """Check that noise is announced where there is nothing else, and that the epsilon named finds something."""
    rows = text_rows(np.random.default_rng(_SEED))
    values = eigsh(rows.T @ rows, k=DECLARED, return_eigenvectors=False, tol=1e-3)[::-1]
    random = COMPONENTS / FEATURES * ROWS / float(values[:COMPONENTS].sum())
    problem = Problem(
        n_features=FEATURES,
        clip_norm=1.0,
        records_at_most=ROWS,
        spectrum=",".join(f"{value / ROWS:.3g}" for value in values),
    )
    ranked = advise(problem, PrivacyTarget(epsilon=EPSILON, delta=DELTA), n_components=COMPONENTS)
    name = f"text {ROWS:,} x {FEATURES:,} epsilon={EPSILON:g}"
    yield at_least(
        f"{name}: mechanisms of which noise is expected, part",
        1.0,
        got=float(np.mean([a.expects_noise for a in ranked])),
    )
    (gauss,) = (each for each in ranked if each.plan.mechanism == "analyze_gauss")
    std, needed = gauss.plan.moment_std, gauss.epsilon_needed()
    assert std is not None
    assert needed is not None
    yield at_most(f"{name}: captured beyond random", BARELY, got=_captured(rows, values, std) - random)
    (enough,) = advise(
        problem, PrivacyTarget(epsilon=needed, delta=DELTA), n_components=COMPONENTS, only=["analyze_gauss"]
    )
    std, low = enough.plan.moment_std, enough.expected.captured[0]
    assert std is not None
    found = _captured(rows, values, std)
    name = f"text {ROWS:,} x {FEATURES:,} epsilon={needed:.2f}, the one that is named"
    yield at_least(f"{name}: captured over random", _FOUND, got=found / random)
    yield at_least(f"{name}: captured", low - 0.1, got=found)
    yield at_most(f"{name}: captured", low + 0.1, got=found)


def text_rows(rng: np.random.Generator, *, n_rows: int = ROWS, n_features: int = FEATURES) -> sparse.csr_array:
    """Return rows of norm 1, about 50 entries each."""
    frequency = 1.0 / np.arange(1.0, n_features + 1.0)
    frequency /= frequency.sum()
    topics = rng.integers(n_features, size=(_TOPICS, 60))
    own = rng.random((n_rows, _WORDS)) < _OF_TOPIC
    popular = np.minimum(rng.zipf(1.6, size=n_rows) - 1, _TOPICS - 1)  # of topics, the first is the commonest
    words = np.where(
        own,
        topics[popular[:, None], rng.integers(topics.shape[1], size=own.shape)],
        rng.choice(n_features, p=frequency, size=own.shape),
    )
    weight = -np.log(np.minimum(_WORDS * frequency, 0.5))  # words that most texts have weigh little
    first = np.repeat(np.arange(n_rows), _WORDS)
    counts = sparse.coo_array((weight[words].ravel(), (first, words.ravel())), shape=(n_rows, n_features)).tocsr()
    norms = np.sqrt(counts.multiply(counts).sum(axis=1))
    return sparse.csr_array(sparse.diags_array(1.0 / norms) @ counts)


def _captured(rows: sparse.csr_array, values: Matrix, std: float) -> float:
    """Return what the leading directions of the noisy operator capture, over the most that as many can."""
    rng = np.random.default_rng(_SEED)
    block = np.linalg.qr(rng.standard_normal((rows.shape[1], _WIDTH)))[0]
    krylov: list[Matrix] = []
    images: list[Matrix] = []
    for _ in range(_PASSES):
        image = rows.T @ (rows @ block) + std * _noise_times(block)
        krylov.append(block)
        images.append(image)
        known = np.hstack(krylov)
        rest = image - known @ (known.T @ image)
        block = np.linalg.qr(rest - known @ (known.T @ rest))[0]
    basis = np.hstack(krylov)
    small = basis.T @ np.hstack(images)
    leading = basis @ np.linalg.eigh((small + small.T) / 2.0)[1][:, -COMPONENTS:]
    return float(np.square(rows @ leading).sum()) / float(values[:COMPONENTS].sum())


def _noise_times(block: Matrix) -> Matrix:
    """Multiply isometric noise of std 1 off the diagonal, made again from its seed, with columns."""
    order, narrow = len(block), block.astype(np.float32)
    product = np.zeros(block.shape)
    for first in range(0, order, _TILE):
        rows = slice(first, min(first + _TILE, order))
        for second in range(first, order, _TILE):
            columns = slice(second, min(second + _TILE, order))
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            tile = np.random.default_rng((_SEED, first, second)).standard_normal(shape, dtype=np.float32)
            if first == second:
                tile = (tile + tile.T) / np.float32(math.sqrt(2.0))
                product[rows] += tile @ narrow[rows]
            else:
                product[rows] += tile @ narrow[columns]
                product[columns] += tile.T @ narrow[rows]
    return product
