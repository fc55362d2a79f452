"""The density of noised directions, given a dataset's eigenpairs, for an attacker who knows both neighbours.

The best fitting rotation replaces the random one, which loses nothing where the noise is small.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.privacy.eigensolver import Eigenpairs, Eigensolver
from dpca_tasks.privacy.noised_directions import PerturbationMechanism, ProposedGap, SmoothNoise


def log_density(
    mechanism: PerturbationMechanism, solver: Eigensolver, pairs: Eigenpairs, answer: NDArray[np.float64]
) -> float:
    """Return the log density of an answer, up to a constant, for rows with the given eigenpairs."""
    if isinstance(mechanism, ProposedGap):
        bound, noised = float(answer[0]), answer[1:]
        likely = -abs(bound - (pairs.gap - mechanism.margin(solver))) / mechanism.gap_scale(solver)
        if bound <= mechanism.threshold(solver):
            return likely
        return likely + _noise_density("gaussian", _residual(noised, pairs), mechanism.noise_std(bound, solver))
    assert isinstance(mechanism, SmoothNoise), "all mechanisms"
    return _noise_density(mechanism.shape, _residual(answer, pairs), mechanism.scale(solver, pairs))


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
