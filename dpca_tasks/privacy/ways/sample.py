"""The way out for directions drawn by their score."""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.noise.bingham import STEPS_PER_UNIT, DirectionMechanism
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.queries.base import RowSum


def sample(gate: Gate, rows: Rows, score: RowSum, mechanism: DirectionMechanism) -> NDArray[np.float64]:
    """Return directions V drawn by their score ``tr(V^T S V)``, on a public grid."""
    request = gate.admit(score, mechanism, _numbers)

    def compute() -> NDArray[np.int64]:
        matrix = request.query.matrix(rows.sum(request.query, stay=gate.steps_left > 1))
        return request.distribution.draw(gate.key(request, "noise"), matrix, scale=request.numbers[0])

    return np.asarray(gate.load_or_compute(request, compute) / STEPS_PER_UNIT)


def _numbers(score: RowSum, mechanism: DirectionMechanism) -> tuple[float, ...]:
    scale = math.nextafter(mechanism.noise_multiplier * score.sensitivity(mechanism.norm), math.inf)
    return (scale, *mechanism.numbers)
