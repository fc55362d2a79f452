"""The rounds of DPS-PCA, whoever answers them: released products of row-sparse directions, averaged at their tail."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.mechanisms.parts.noisy_products import Iterate, leading_of_projectors, start_directions
from dpca_tasks.mechanisms.parts.row_truncation import completed, truncated


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
