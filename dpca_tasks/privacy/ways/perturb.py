"""The way out for leading directions plus noise."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.noised_directions import PerturbationMechanism
from dpca_tasks.privacy.rows import Rows


def perturb(gate: Gate, rows: Rows, solver: Eigensolver, mechanism: PerturbationMechanism) -> NDArray[np.float64]:
    """Return the noised directions. The eigenpairs, and a scale that depends on their gap, stay inside."""
    request = gate.admit(solver, mechanism, lambda _, drawn: drawn.numbers)

    def compute() -> NDArray[np.float64]:
        pairs = rows.solve(request.query, gate.key(request, "start"))
        return request.distribution.draw(gate.key(request, "noise"), request.query, pairs)

    return gate.load_or_compute(request, compute)
