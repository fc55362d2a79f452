"""The classification protocol of a comparison of subspaces: a linear SVM on projected records, in paired splits.

*Written out.* A split permutes the records. The first half is reserved for the subspace. Of the other half, 10 % of its
rows train the classifier and the rest test it. Projections are standardised by mean and std of the training rows. The
classifier is scikit-learn's ``LinearSVC`` at its default C = 1, which no arm tunes; several classes are one against the
rest. What an arm loses is the accuracy with the half's own best k directions less the arm's, in points, on the same
split: splits are paired, and the standard error is over splits, of the mean of an arm's draws in each.

The paper repeats 10 times over 10 arrangements, takes 10 % of the whole data set for training, and does not say how its
classifier was tuned, how scores were scaled, or which labels MNIST had. So absolute accuracies are not compared.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

from dpca_tasks.metrics import captured_beyond_first, captured_variance, squared_distance
from dpca_tasks.threads import one_thread
from flows.reproductions.labelled_rows import LabelledRows

type Matrix = NDArray[np.float64]

TRAINED = 0.1
"""The share of the other half that trains."""
FORMED = 5_000
"""Features up to which the second moment is formed to find the best directions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """One arrangement of the records: the reserved half, and the projected classification of the other."""

    reserved: sparse.csr_array
    train: sparse.csr_array
    test: sparse.csr_array
    train_labels: Matrix
    test_labels: Matrix

    @classmethod
    def of(cls, data: LabelledRows, *, seed: Sequence[int]) -> Self:
        """Arrange the records by a seed."""
        order = np.random.default_rng(seed).permutation(data.n_records)
        half = data.n_records // 2
        trained = half + max(2, round(TRAINED * (data.n_records - half)))
        train, test = order[half:trained], order[trained:]
        return cls(
            reserved=data.rows[order[:half]],
            train=data.rows[train],
            test=data.rows[test],
            train_labels=data.labels[train],
            test_labels=data.labels[test],
        )

    def accuracy(self, components: Matrix) -> float:
        """Return the accuracy in percent of a linear SVM on the projections."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.svm import LinearSVC

        train, test = self.train @ components.T, self.test @ components.T
        mean, std = train.mean(axis=0), train.std(axis=0)
        std[std == 0.0] = 1.0
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = LinearSVC(dual=False).fit((train - mean) / std, self.train_labels)
        return 100.0 * float(found.score((test - mean) / std, self.test_labels))

    def majority(self) -> float:
        """Return the accuracy in percent of the most frequent label of the training rows."""
        labels, counts = np.unique(self.train_labels, return_counts=True)
        return 100.0 * float(np.mean(self.test_labels == labels[np.argmax(counts)]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """The best directions of rows, without noise, and what any other directions are worth beside them."""

    rows: sparse.csr_array
    best: Matrix
    values: Matrix
    order: int

    @classmethod
    def of(cls, rows: sparse.csr_array, *, n_components: int) -> Self:
        """Decompose the second moment of rows, formed where it is not too large."""
        d = int(rows.shape[1])
        with one_thread():
            if d <= FORMED:
                dense = rows.toarray() if rows.nnz > 0.05 * rows.shape[0] * d else rows
                moment = dense.T @ dense
                values, vectors = np.linalg.eigh(moment.toarray() if sparse.issparse(moment) else moment)
                best, values = vectors[:, ::-1][:, :n_components].T, values[::-1][:n_components]
            else:
                _, singular, right = sparse.linalg.svds(rows, k=n_components, rng=np.random.default_rng(0))
                best, values = right[::-1], singular[::-1] ** 2
        return cls(rows=rows, best=np.ascontiguousarray(best), values=values, order=d)

    def measured(self, components: Matrix) -> dict[str, float]:
        """Measure a subspace against the best.

        Returns
        -------
        dict
            ``distance``: the squared distance of the subspaces. ``captured``: the captured variance. ``beyond``: that
            beyond the first direction. See `dpca_tasks.metrics`.
        """
        rows = sparse.linalg.aslinearoperator(self.rows)
        moment, values = rows.T @ rows, self.values
        return {
            "distance": squared_distance(components, self.best),
            "captured": captured_variance(moment, components, values=values),
            "beyond": captured_beyond_first(moment, components, first=self.best[0], values=values),
        }


def random_subspace(n_features: int, n_components: int, *, seed: Sequence[int]) -> Matrix:
    """Return a uniformly random subspace as orthonormal rows."""
    with one_thread():
        columns = np.linalg.qr(np.random.default_rng(seed).standard_normal((n_features, n_components)))[0]
    return np.ascontiguousarray(columns.T)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean over splits and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def less_lost(less: Sequence[float], more: Sequence[float]) -> float:
    """Return the p-value of a paired one-sided t-test that the first arm loses less than the second."""
    found: Any = stats.ttest_rel(less, more, alternative="less")
    return float(found.pvalue)
