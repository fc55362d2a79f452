"""How likely noised directions are on a dataset: what an attacker knows who has both neighbours and an answer.

The random rotation is taken as the one that fits best, which loses nothing where the noise is small.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.privacy.noised_directions import PerturbationMechanism, ProposedGap, SmoothNoise


def log_density(
    law: PerturbationMechanism, solver: Eigensolver, pairs: Eigenpairs, answer: NDArray[np.float64]
) -> float:
    """Return the logarithm of the density of an answer, up to a constant, where the rows have given eigenpairs."""
    if isinstance(law, ProposedGap):
        bound, noised = float(answer[0]), answer[1:]
        likely = -abs(bound - (pairs.gap - law.margin(solver))) / law.gap_scale(solver)
        if bound <= law.threshold(solver):
            return likely
        return likely + _noise_density("gaussian", _residual(noised, pairs), law.noise_std(bound, solver))
    assert isinstance(law, SmoothNoise), "all laws"
    return _noise_density(law.shape, _residual(answer, pairs), law.scale(solver, pairs))


def _residual(noised: NDArray[np.float64], pairs: Eigenpairs) -> NDArray[np.float64]:
    matrix = noised.reshape(pairs.directions.shape)
    left, _, right = np.linalg.svd(pairs.directions.T @ matrix)
    return matrix - pairs.directions @ (left @ right)


def _noise_density(shape: str, residual: NDArray[np.float64], scale: float) -> float:
    size, squares = residual.size, np.square(residual / scale)
    match shape:
        case "gaussian":
            density = -float(squares.sum()) / 2.0
        case "spherical_t":
            density = -size * math.log1p(float(squares.sum()) / size)
        case _:
            density = -float(np.log1p(squares).sum())
    return density - size * math.log(scale)
