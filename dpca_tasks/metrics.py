"""Quality metrics of subspaces, components, predicted ratings and rankings.

All functions are pure functions of arrays. If an argument is private rows, or was computed from them without noise, the
result is private too.

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
    """Return the variance in a subspace, ``tr(V S V^T)``.

    Parameters
    ----------
    second_moment : array or linear operator of shape (d, d)
        S, the second moment of rows or of centred rows.
    components : array of shape (k, d)
        V, orthonormal rows.
    """
    return float(np.einsum("ij,ji->", components, second_moment @ components.T))


def captured_variance(second_moment: Any, components: Matrix, *, values: Matrix | None = None) -> float:
    """Return the variance in a subspace divided by the largest variance of any subspace of the same dimension.

    Parameters
    ----------
    second_moment, components
        As for `held_variance`.
    values : array, optional
        The k or more largest eigenvalues of the second moment in descending order, if they are known.

    Returns
    -------
    float
        1 for the best k directions; NaN where the best k directions have no variance.
    """
    most = float((_descending(second_moment) if values is None else values)[: len(components)].sum())
    return held_variance(second_moment, components) / most if most > 0.0 else math.nan


def captured_beyond_first(second_moment: Any, components: Matrix, *, first: Matrix, values: Matrix) -> float:
    """Return the captured variance after the best direction is removed.

    The components and the second moment are projected onto the complement of the best direction. The result is the
    variance of the best ``k - 1`` directions of the projected components over the largest that ``k - 1`` directions can
    capture there. One strong direction, such as a mean that was not subtracted, thus does not hide the others.

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
        NaN for one component, and where the remaining directions have no variance.
    """
    count = len(components)
    most = float(values[1:count].sum())
    if not most > 0.0:
        return math.nan
    off = components - np.outer(components @ first, first)
    rest = _descending(off @ (second_moment @ off.T))
    return float(rest[: count - 1].sum()) / most


def reconstruction_error(second_moment: Any, components: Matrix, *, total: float) -> float:
    """Return the sum of squared distances of rows to their projections onto a subspace, ``tr S - tr(V S V^T)``.

    Parameters
    ----------
    second_moment, components
        As for `held_variance`.
    total : float
        ``tr S``.
    """
    return max(total - held_variance(second_moment, components), 0.0)


def principal_angles(components: Matrix, others: Matrix) -> Matrix:
    """Return the principal angles in radians, ascending, between the row spans of two matrices of full row rank."""
    return np.asarray(subspace_angles(components.T, others.T)[::-1], dtype=np.float64)


def squared_distance(components: Matrix, others: Matrix) -> float:
    """Return the sum of squared sines of the angles of two orthonormal bases, ``k - ||V W^T||_F^2``."""
    return max(0.0, len(components) - float(np.sum((components @ others.T) ** 2)))


def subspace_distance(components: Matrix, others: Matrix) -> float:
    """Return the root of `squared_distance`, at most ``sqrt(k)``; projectors differ by ``sqrt(2)`` times as much."""
    return math.sqrt(squared_distance(components, others))


def matched_errors(components: Matrix, truth: Matrix) -> Matrix:
    """Return the distance of each true component from its match in the matching of least total distance.

    Parameters
    ----------
    components : array of shape (found, d)
        Any number of components, in any order; each is matched at most once.
    truth : array of shape (k, d)

    Returns
    -------
    float64 array of shape (k,)
        Distances, in the order of the true components. If fewer components were found than exist, zero vectors replace
        the missing ones. A component without a match thus has its own norm as its error.
    """
    return _matched(components, truth)[0]


def matched_weights(components: Matrix, weights: Matrix, truth: Matrix) -> Matrix:
    """Return the weight of the component that `matched_errors` matches with each true component, or 0 without one."""
    return np.append(weights, np.zeros(len(truth)))[_matched(components, truth)[1]]


def nearest_error(components: Matrix, truth: Matrix) -> float:
    """Return the mean distance of the found components from the nearest true one, or NaN without components.

    This is the error published for tensor decomposition. It counts copies of one component as good as all components,
    and it ignores components that the noise hides.
    """
    if not len(components):
        return math.nan
    return float(np.linalg.norm(components[:, None] - truth[None], axis=2).min(axis=1).mean())


def _matched(components: Matrix, truth: Matrix) -> tuple[Matrix, NDArray[np.int64]]:
    """Return the distance of each true component from its match, and the index of that match, zeros included."""
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
    """Return the items with the highest scores of each user, best first, ties in order of item number.

    Parameters
    ----------
    scores : array of shape (n_users, n_items)
    count : int
        The number of items to recommend.
    seen : csr_array of shape (n_users, n_items), optional
        Items to leave out: every stored entry, explicit zeros too.

    Returns
    -------
    int64 array of shape (n_users, count)
        Item numbers, and -1 where a user has no item left.

    Raises
    ------
    InvalidInput
        When a score is NaN, or ``count`` is below 1.
    """
    table = np.array(scores, dtype=np.float64, ndmin=2)
    if count < 1:
        raise InvalidInput(f"count={count} must be at least 1; rank one item or more.")
    if np.isnan(table).any():
        raise InvalidInput("scores hold NaN, which has no rank; predict a number for every item.")
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
    """Return Recall@k of each user.

    Parameters
    ----------
    ranked : array of shape (n_users, k)
        From `ranked_items`.
    held : csr_array of shape (n_users, n_items)
        Held-out items: every stored entry, explicit zeros too, each once.

    Returns
    -------
    float64 array of shape (n_users,)
        ``hits / min(k, held-out items)``, from 0 to 1; NaN for a user without held-out items.

    References
    ----------
    Liang, Krishnan, Hoffman and Jebara (2018), Variational autoencoders for collaborative filtering, for both metrics.
    """
    held_out = np.diff(held.indptr)
    return _over(_hits(ranked, held).sum(axis=1), np.minimum(held_out, ranked.shape[1]))


def ndcg_of(ranked: NDArray[np.int64], held: sparse.csr_array) -> Matrix:
    """Return NDCG@k of each user, with gain 1 for a held-out item and discount ``1 / log2(1 + place)``.

    Parameters and result are as for `recall_of`. The ideal list has all held-out items first.
    """
    count = ranked.shape[1]
    discounts = 1.0 / np.log2(np.arange(2, count + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])[np.minimum(np.diff(held.indptr), count)]
    return np.minimum(_over(_hits(ranked, held) @ discounts, ideal), 1.0)


def _hits(ranked: NDArray[np.int64], held: sparse.csr_array) -> Matrix:
    """Return 1 where a recommended item is held out."""
    users = zip(held.indptr, held.indptr[1:], strict=False)
    rows = [np.isin(items, held.indices[start:stop]) for items, (start, stop) in zip(ranked, users, strict=True)]
    return np.array(rows, dtype=np.float64).reshape(ranked.shape)


def _over(found: Matrix, most: NDArray[Any]) -> Matrix:
    return np.asarray(np.divide(found, most, out=np.full(len(found), math.nan), where=most > 0))


def _descending(matrix: Any) -> Matrix:
    return np.asarray(np.linalg.eigvalsh(matrix)[::-1])
