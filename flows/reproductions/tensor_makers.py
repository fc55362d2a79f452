"""Models of topics and of mixtures as the paper of capeAGN draws them, and rows of records of them.

Components are the first K columns of a random orthogonal D x D matrix; of topics with negative entries cut to 0 and
columns that sum to 1. Weights are proportional to K even steps from 1 to 10 K. Every draw is of other components.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.results import ComponentModel

type Matrix = NDArray[np.float64]
type Records = NDArray[np.int16] | NDArray[np.float64]
"""Documents as their words, one a column, or points."""

WORDS = 3
VARIANCE = 0.05

_SEED = 20180412


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A model and its size.

    Parameters
    ----------
    model : {"topics", "mixture"}
    n_features, n_components : int
        D and K.
    """

    model: ComponentModel
    n_features: int
    n_components: int

    @property
    def name(self) -> str:
        """The model and its size in words."""
        return f"{self.model} D={self.n_features} K={self.n_components}"

    @property
    def weights(self) -> Matrix:
        """The share of records of each component, the same for all draws."""
        steps = np.linspace(1.0, 10.0 * self.n_components, self.n_components)
        return np.asarray(steps / steps.sum())

    def components(self, *, draw: int) -> Matrix:
        """Return the components of a draw as rows."""
        return self._components(np.random.default_rng([_SEED, self.n_features, draw]))

    def random_components(self, *, draw: int) -> Matrix:
        """Return components that have nothing to do with those of the draw: the baseline of knowing no record."""
        return self._components(np.random.default_rng([_SEED, self.n_features, draw, 1]))

    def records(self, n_records: int, *, draw: int) -> Records:
        """Return the first records of a draw; a shorter draw is a part of a longer one."""
        components = self.components(draw=draw)
        rng = np.random.default_rng([_SEED, self.n_features, draw, 2])
        pieces: list[Any] = []
        for first in range(0, n_records, _PIECE):
            of = rng.choice(self.n_components, size=_PIECE, p=self.weights)
            piece = (
                self._documents(components, of, rng) if self.model == "topics" else self._points(components, of, rng)
            )
            pieces.append(piece[: n_records - first])
        together: Records = np.concatenate(pieces)
        return together

    def _components(self, rng: np.random.Generator) -> Matrix:
        square, upper = np.linalg.qr(rng.standard_normal((self.n_features, self.n_features)))
        rows = (square * np.sign(np.diag(upper)))[:, : self.n_components].T
        if self.model == "mixture":
            return np.ascontiguousarray(rows)
        rows = np.maximum(rows, 0.0)
        return np.asarray(rows / rows.sum(axis=1, keepdims=True))

    def _documents(self, components: Matrix, of: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int16]:
        """Return the words of documents of given topics."""
        words = np.empty((of.size, WORDS), np.int16)
        for topic, component in enumerate(components):
            mine = np.flatnonzero(of == topic)
            words[mine] = rng.choice(self.n_features, size=(mine.size, WORDS), p=component)
        return words

    def _points(self, components: Matrix, of: NDArray[np.int64], rng: np.random.Generator) -> Matrix:
        noise = rng.standard_normal((of.size, self.n_features))
        return np.asarray(components[of] + np.sqrt(VARIANCE) * noise)


_PIECE = 50_000
