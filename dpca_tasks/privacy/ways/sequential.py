"""The way out for a run of sampled steps, of which only the states at the snapshots leave."""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.noise.distributions import Gaussian
from dpca_tasks.privacy.gate import Gate
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.sampled_loop import run_passes
from dpca_tasks.privacy.units import scale_in_steps
from dpca_tasks.queries.sampled_passes import SampledPasses


def sequential(gate: Gate, rows: Rows, passes: SampledPasses, distribution: Gaussian) -> NDArray[np.float64]:
    """Return the states of a run, which are stored as one answer to all of its steps."""
    request = gate.admit(passes, distribution, scale_in_steps, steps=passes.steps)

    def compute() -> NDArray[np.float64]:
        return run_passes(rows.source, request.query, request.distribution, gate.secrets(request))

    return gate.load_or_compute(request, compute)
