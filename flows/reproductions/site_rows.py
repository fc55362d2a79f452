"""Rows that sites hold: the model of the CAPE paper and MNIST, all of norm 1, cut into sites of given sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.layouts import Layout
from dpca_tasks.records.sources import ArrayBlocks
from flows.reproductions.second_moments import MNIST

type Matrix = NDArray[np.float64]

TEST_IMAGES = "mnist/t10k-images-idx3-ubyte"
"""Images that play the part of public knowledge: around their mean, the others are centred."""

_SEED, _HEADER, _PIXELS = 20180412, 16, 784


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Gaussian rows of diagonal covariance: k variances evenly from 10 to 1, the others uniform on [0, 0.5]."""

    n_features: int = 200
    n_components: int = 50

    @property
    def variances(self) -> Matrix:
        """The variance of each feature, the same for all draws."""
        rest = np.random.default_rng(_SEED).uniform(0.0, 0.5, self.n_features - self.n_components)
        return np.concatenate([np.linspace(10.0, 1.0, self.n_components), rest])

    def draw(self, n_records: int, *, seed: int) -> Matrix:
        """Return rows, scaled to norm 1."""
        rng = np.random.default_rng([_SEED, seed])
        return unit_rows(rng.standard_normal((n_records, self.n_features)) * np.sqrt(self.variances))


class Sites:
    """Rows of norm 1 cut into sites, each with its packed second moment.

    Parameters
    ----------
    rows : float64 array of shape (n_records, n_features)
    sizes : sequence of int
        The records of each site, in order; further rows are left out.
    """

    def __init__(self, rows: Matrix, sizes: Sequence[int]) -> None:
        ends = np.cumsum(sizes)
        parts = [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        self.sizes, self.n_features = tuple(sizes), rows.shape[1]
        self.sources = [ArrayBlocks(part) for part in parts]
        self.all_rows = ArrayBlocks(rows[: ends[-1]])
        triangle = np.triu_indices(self.n_features)
        self.sums = np.stack([(part.T @ part)[triangle] for part in parts])

    @property
    def layout(self) -> Layout:
        """The packing of the sums."""
        return Layout(kind="symmetric", order=self.n_features)


def equal_sites(rows: Matrix, *, sites: int, records: int) -> Sites:
    """Cut rows into sites of as many records each."""
    return Sites(rows, [records] * sites)


def unit_rows(rows: Matrix) -> Matrix:
    """Return rows scaled to norm 1, each by itself; empty ones stay empty."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def centred_mnist(data: Path, *, n_rows: int) -> Matrix:
    """Return training images of MNIST around the mean of the test images, not scaled to norm 1."""
    return _images(data / MNIST)[:n_rows] - _images(data / TEST_IMAGES).mean(axis=0)


def _images(path: Path) -> Matrix:
    return np.frombuffer(path.read_bytes(), np.uint8, offset=_HEADER).reshape(-1, _PIXELS) / 255.0
