"""Quality metrics of subspaces, components, predicted ratings and rankings.

All functions are pure functions of arrays. If an argument contains private rows, or was computed from private rows
without noise, the result is private too.

>>> import numpy as np
>>> moment = np.diag([6.0, 3.0, 1.0])
>>> held_variance(moment, np.eye(3)[1:2]), captured_variance(moment, np.eye(3)[1:2])
(3.0, 0.5)
>>> ranked_items(np.array([[0.1, 0.9, 0.5]]), count=2).tolist()
[[1, 2]]
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import subspace_angles

from dpca_tasks.errors import InvalidInput

type Matrix = NDArray[np.float64]


def held_variance(second_moment: Any, components: Matrix) -> float:
    """Return the variance of the data along the directions of a subspace, ``tr(V S V^T)``.

    Parameters
    ----------
    second_moment : array or linear operator of shape (d, d)
        S, the second moment of rows or of centred rows.
    components : array of shape (k, d)
        V, orthonormal rows.
    """
    return float(np.einsum("ij,ji->", components, second_moment @ components.T))


def captured_variance(second_moment: Any, components: Matrix, *, values: Matrix | None = None) -> float:
    """Return the variance in a subspace, divided by the largest variance in any subspace of the same dimension.

    Parameters
    ----------
    second_moment, components
        As for `held_variance`.
    values : array, optional
        The k or more largest eigenvalues of the second moment in descending order, if they are known.

    Returns
    -------
    float
        1 if the components span the leading k eigenvectors; NaN if even the leading k eigenvectors have no variance.
    """
    most = float((_descending(second_moment) if values is None else values)[: len(components)].sum())
    return held_variance(second_moment, components) / most if most > 0.0 else math.nan


def captured_beyond_first(second_moment: Any, components: Matrix, *, first: Matrix, values: Matrix) -> float:
    """Return the captured variance after the leading eigenvector of the second moment is projected out.

    The components and the second moment are projected onto the orthogonal complement of the leading eigenvector. The
    result is the variance in the best ``k - 1`` directions within the projected components, divided by the largest
    variance in any ``k - 1`` directions of the complement. So one strong direction, such as a mean that was not
    subtracted, does not hide the quality of the others.

    Parameters
    ----------
    second_moment, components
        As for `held_variance`.
    first : array of shape (d,)
        The leading eigenvector of the second moment.
    values : array
        The k or more largest eigenvalues of the second moment in descending order.

    Returns
    -------
    float
        NaN for a single component, and if the complement has no variance.
    """
    count = len(components)
    most = float(values[1:count].sum())
    if not most > 0.0:
        return math.nan
    off = components - np.outer(components @ first, first)
    rest = _descending(off @ (second_moment @ off.T))
    return float(rest[: count - 1].sum()) / most


def reconstruction_error(second_moment: Any, components: Matrix, *, total: float) -> float:
    """Return the sum of squared distances between rows and their projections onto a subspace, ``tr S - tr(V S V^T)``.

    Parameters
    ----------
    second_moment, components
        As for `held_variance`.
    total : float
        The trace of the second moment, ``tr S``.
    """
    return max(total - held_variance(second_moment, components), 0.0)


def principal_angles(components: Matrix, others: Matrix) -> Matrix:
    """Return the principal angles in radians, ascending, between the row spans of two matrices of full row rank."""
    return np.asarray(subspace_angles(components.T, others.T)[::-1], dtype=np.float64)


def squared_distance(components: Matrix, others: Matrix) -> float:
    """Return the sum of squared sines of the principal angles between two subspaces, ``k - ||V W^T||_F^2``.

    V (``components``) and W (``others``) have orthonormal rows, of which V has k.
    """
    return max(0.0, len(components) - float(np.sum((components @ others.T) ** 2)))


def subspace_distance(components: Matrix, others: Matrix) -> float:
    """Return the distance of two k-dimensional subspaces: the square root of `squared_distance`, at most ``sqrt(k)``.

    The Frobenius norm of the difference of the two projectors is ``sqrt(2)`` times this distance.
    """
    return math.sqrt(squared_distance(components, others))


def matched_errors(components: Matrix, truth: Matrix) -> Matrix:
    """Return each true component's distance to the found component assigned to it, for the best one-to-one assignment.

    The best assignment is the one with the least sum of distances.

    Parameters
    ----------
    components : array of shape (found, d)
        Any number of components, in any order; each is matched at most once.
    truth : array of shape (k, d)

    Returns
    -------
    float64 array of shape (k,)
        Distances, in the order of the true components. If there are fewer found than true components, zero vectors fill
        up the found ones. So the error of an unassigned true component is its norm.
    """
    return _matched(components, truth)[0]


def matched_weights(components: Matrix, weights: Matrix, truth: Matrix) -> Matrix:
    """Return, for each true component, the weight of the found component that `matched_errors` assigns to it, or 0."""
    return np.append(weights, np.zeros(len(truth)))[_matched(components, truth)[1]]


def nearest_error(components: Matrix, truth: Matrix) -> float:
    """Return the mean, over found components, of the distance to the nearest true component; NaN if none was found.

    Papers on tensor decomposition publish this error. It does not penalize true components that were not found: several
    copies of one true component count as if all had been found.
    """
    if not len(components):
        return math.nan
    return float(np.linalg.norm(components[:, None] - truth[None], axis=2).min(axis=1).mean())


def _matched(components: Matrix, truth: Matrix) -> tuple[Matrix, NDArray[np.int64]]:
    """Return the distances and indices of the found components, zero-padded, that are assigned to true components."""
    zeros = np.zeros((max(len(truth) - len(components), 0), truth.shape[1]))
    distances = np.linalg.norm(truth[:, None] - np.concatenate([components, zeros])[None], axis=2)
    from scipy.optimize import linear_sum_assignment  # slow to import

    rows, columns = linear_sum_assignment(distances)
    return distances[rows, columns], columns


def rmse(predicted: ArrayLike, actual: ArrayLike) -> float:
    """Return the root mean squared error of predictions, or NaN without predictions."""
    errors = np.asarray(predicted, dtype=np.float64) - np.asarray(actual, dtype=np.float64)
    return math.sqrt(float(np.mean(errors**2))) if errors.size else math.nan


def ranked_items(scores: ArrayLike, *, count: int, seen: sparse.csr_array | None = None) -> NDArray[np.int64]:
    """Return the items with the highest scores for each user, best first; equal scores are in order of item number.

    Parameters
    ----------
    scores : array of shape (n_users, n_items)
    count : int
        The number of items to recommend.
    seen : csr_array of shape (n_users, n_items), optional
        Items to exclude from the ranking: every stored entry of a user's row, including explicit zeros.

    Returns
    -------
    int64 array of shape (n_users, count)
        Item numbers, padded with -1 where fewer than ``count`` items are left for a user.

    Raises
    ------
    InvalidInput
        When a score is NaN, or ``count`` is below 1.
    """
    table = np.array(scores, dtype=np.float64, ndmin=2)
    if count < 1:
        raise InvalidInput(f"count={count} must be at least 1; rank one item or more.")
    if np.isnan(table).any():
        raise InvalidInput("scores contain NaN, which cannot be ranked; predict a number for every item.")
    found = np.full((len(table), count), -1, dtype=np.int64)
    for user, row in enumerate(table):
        allowed = np.ones(row.size, dtype=bool)
        if seen is not None:
            allowed[seen.indices[seen.indptr[user] : seen.indptr[user + 1]]] = False
        items = np.flatnonzero(allowed)
        if items.size > count:
            items = items[row[items] >= np.partition(row[items], items.size - count)[items.size - count]]
        best = items[np.argsort(-row[items], kind="stable")][:count]
        found[user, : best.size] = best
    return found


def recall_of(ranked: NDArray[np.int64], held: sparse.csr_array) -> Matrix:
    """Return Recall@k of each user's recommended items against that user's held-out items.

    Parameters
    ----------
    ranked : array of shape (n_users, k)
        The recommended items, as returned by `ranked_items`.
    held : csr_array of shape (n_users, n_items)
        The held-out items: every stored entry of a user's row, including explicit zeros, without duplicates.

    Returns
    -------
    float64 array of shape (n_users,)
        Recommended items that are held out, divided by ``min(k, number of held-out items)``. The value is from 0 to 1,
        or NaN for a user without held-out items.

    References
    ----------
    Liang, Krishnan, Hoffman and Jebara (2018), Variational autoencoders for collaborative filtering.
    """
    held_out = np.diff(held.indptr)
    return _over(_hits(ranked, held).sum(axis=1), np.minimum(held_out, ranked.shape[1]))


def ndcg_of(ranked: NDArray[np.int64], held: sparse.csr_array) -> Matrix:
    """Return NDCG@k of each user, with gain 1 for a held-out item and discount ``1 / log2(1 + rank)``, ranks from 1.

    Parameters and result are as for `recall_of`. The ideal ranking lists all held-out items first. The metric is
    defined by Liang, Krishnan, Hoffman and Jebara (2018).
    """
    count = ranked.shape[1]
    discounts = 1.0 / np.log2(np.arange(2, count + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])[np.minimum(np.diff(held.indptr), count)]
    return np.minimum(_over(_hits(ranked, held) @ discounts, ideal), 1.0)


def _hits(ranked: NDArray[np.int64], held: sparse.csr_array) -> Matrix:
    """Return an array of the shape of ``ranked``: 1 if a recommended item is a held-out item of the user, else 0."""
    users = zip(held.indptr, held.indptr[1:], strict=False)
    rows = [np.isin(items, held.indices[start:stop]) for items, (start, stop) in zip(ranked, users, strict=True)]
    return np.array(rows, dtype=np.float64).reshape(ranked.shape)


def _over(found: Matrix, most: NDArray[Any]) -> Matrix:
    return np.asarray(np.divide(found, most, out=np.full(len(found), math.nan), where=most > 0))


def _descending(matrix: Any) -> Matrix:
    return np.asarray(np.linalg.eigvalsh(matrix)[::-1])
