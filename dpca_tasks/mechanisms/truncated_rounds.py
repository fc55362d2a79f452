"""The rounds of DPS-PCA: released products of row-sparse directions, truncated and averaged at their tail.

Everything here is post-processing of released matrices. Ties go to the smaller index, and a matrix of deficient rank is
completed from public numbers, so the result never depends on a library's choice.

>>> basis = truncated(np.array([[0.0, 1.0], [0.6, 0.0], [0.0, 0.0], [0.8, 0.0]]), rows_kept=2)
>>> np.abs(basis).round(3).tolist()
[[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.mechanisms.noisy_products import Iterate, leading_of_projectors, start_directions
from dpca_tasks.threads import one_thread

COMPLETION_SEED = 20180411  # columns that are missing are public; no guarantee depends on them
_RANK = 1e-12  # what is this short, relative to the longest, is no direction


def truncated(matrix: NDArray[np.float64], *, rows_kept: int) -> NDArray[np.float64]:
    """Keep the rows of largest norm, ties by index, and return orthonormal columns that span what is left."""
    rows = _longest_rows(matrix, rows_kept)
    basis = np.zeros_like(matrix)
    basis[rows] = completed(matrix[rows])
    return basis


def completed(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orthonormal factor of a thin QR with positive diagonal; missing directions are public random ones."""
    q, r = _thin_qr(matrix)
    lengths = np.abs(np.diag(r))
    if lengths.min() > _RANK * lengths.max():
        return q * np.where(np.diag(r) < 0, -1.0, 1.0)
    with one_thread():
        left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(values > _RANK * values[0]))
    public = np.random.default_rng(COMPLETION_SEED).standard_normal(matrix.shape)
    return _thin_qr(np.hstack([left[:, :rank], public[:, rank:]]))[0]


def truncated_step(
    moment: NDArray[np.float64], directions: NDArray[np.float64], *, rows_kept: int
) -> NDArray[np.float64]:
    """Multiply row-sparse directions by a symmetric matrix, orthonormalise, and truncate: one step of the iteration."""
    rows = np.flatnonzero(directions.any(axis=1))
    with one_thread():
        product = moment[rows].T @ directions[rows]
    return truncated(completed(product), rows_kept=rows_kept)


def _longest_rows(matrix: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    norms = np.einsum("ij,ij->i", matrix, matrix)
    return np.sort(np.argsort(-norms, kind="stable")[:count])


def _thin_qr(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with one_thread():
        q, r = np.linalg.qr(matrix)
    return q, r


def iterate_truncated(
    answer: Callable[[NDArray[np.float64]], Iterate],
    *,
    n_features: int,
    n_components: int,
    iterations: int,
    burn_in: int,
    rows_kept: int,
) -> NDArray[np.float64]:
    """Iterate from a public start, and return the components as signed rows.

    Parameters
    ----------
    answer : callable
        Releases the product of a round's directions, and returns it with the directions of the answered query.
    n_features, n_components, iterations : int
    burn_in : int
        The products that do not enter the average; the last always does.
    rows_kept : int
        The features that may have a part in directions, and in the components.
    """
    directions, iterates = start_directions(n_features, n_components), []
    for _ in range(iterations):
        iterates.append(answer(directions))
        directions = truncated(completed(iterates[-1].product), rows_kept=rows_kept)
    tail = iterates[min(burn_in, iterations - 1) :]
    average = leading_of_projectors([completed(one.product) for one in tail], n_components)
    return ordered(truncated(average, rows_kept=rows_kept), tail)


def ordered(basis: NDArray[np.float64], iterates: Sequence[Iterate]) -> NDArray[np.float64]:
    """Rotate a basis to the eigenvectors of the released products in it, in descending order; return signed rows."""
    small = np.zeros((basis.shape[1], basis.shape[1]))
    for one in iterates:
        small += basis.T @ one.product @ (one.directions.T @ basis)
    _, rotation = leading_eigenpairs((small + small.T) / 2, basis.shape[1])
    return signed(rotation @ basis.T)


def check_rounds(*, n_components: int, rows_kept: int, iterations: int, burn_in: int, message_clip: float) -> None:
    """Refuse impossible settings of the rounds.

    Raises
    ------
    InvalidInput
        With the setting.
    """
    if iterations < 1 or burn_in < 0:
        raise InvalidInput(
            f"iterations={iterations} must be at least 1, burn_in={burn_in} at least 0; 8 and 3 are usual."
        )
    if rows_kept < n_components:
        raise InvalidInput(
            f"rows_kept={rows_kept} must be at least n_components={n_components}: fewer rows cannot hold that many "
            "directions; keep more rows, or ask for fewer components."
        )
    if not 0 < message_clip <= 1:
        raise InvalidInput(f"message_clip={message_clip!r} must be above 0 and at most 1 (no clipping); 0.25 is usual.")
